"""The notifier Lambda: posts the messages of the stack's topic to a webhook, in Slack's format: {"text":
...}.

The webhook's URL is a secret: an SSM SecureString that a person puts under the stack's path
(docs/runs.md). It is read at each call and is neither in the function's settings nor in its log.
Without it, nothing is posted. This module imports almost nothing, so that messages arrive even if control and
sweeper are broken. Deployed as `trainer.control.functions.notify.handler`.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import boto3
from botocore.exceptions import ClientError

from trainer.aws.stack_outputs import webhook_parameter
from trainer.base.environment import function_environment

TIMEOUT_SECONDS = 10.0
MOST_CHARACTERS = 3_000  # Slack cuts longer texts off
ALLOWED = ("https://", "http://127.0.0.1:")  # the second: a rehearsal's


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: the message goes to the given URL only."""

    def redirect_request(self, *_: Any) -> None:
        return None


def handler(event: Mapping[str, Any], context: object) -> dict[str, int]:
    """Post each message of an event. Raises RuntimeError if the webhook fails: Lambda tries again, then keeps
    the event.
    """
    own = function_environment()
    try:
        answer = boto3.client("ssm").get_parameter(
            Name=webhook_parameter(own.project, own.stack), WithDecryption=True
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ParameterNotFound":
            raise
        print("no webhook is set")
        return {"posted": 0}
    for record in event["Records"]:
        post(answer["Parameter"]["Value"].strip(), text_of(record["Sns"]))
    return {"posted": len(event["Records"])}


def text_of(notification: Mapping[str, Any]) -> str:
    """Return the text of a message: an alarm's name, description and reason; else subject and text as
    sent.
    """
    message = str(notification["Message"])
    try:
        alarm = json.loads(message)
        lines = [
            f"{alarm['NewStateValue']}: {alarm['AlarmName']}",
            alarm["AlarmDescription"] or "",
            alarm["NewStateReason"],
        ]
    except (ValueError, KeyError, TypeError):  # not an alarm
        lines = [str(notification.get("Subject") or ""), message]
    return "\n".join(filter(None, lines))[:MOST_CHARACTERS]


def post(url: str, text: str) -> None:
    """Post a text. Raises RuntimeError, whose message never quotes the URL.

    Slack's three control characters are escaped (https://api.slack.com/docs/message-formatting, looked up
    2026-11-28): a message quotes nodes, which must notify nobody (`<!channel>`) and disguise no link.
    """
    if not url.startswith(ALLOWED):
        raise RuntimeError("the webhook's URL does not begin with https://")
    for letter, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(letter, written)
    body = json.dumps({"text": text}).encode()
    try:
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_SECONDS):
            return
    except urllib.error.HTTPError as error:
        failure = f"the webhook answered {error.code}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        failure = f"the webhook can't be reached ({type(error).__name__})"
    raise RuntimeError(failure)
