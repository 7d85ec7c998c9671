"""Lambda's asynchronous invocation: retry times of a failed one, and the record of one that is given up.
Pure.

https://docs.aws.amazon.com/lambda/latest/dg/invocation-async-error-handling.html (looked up 2026-11-22): two
more tries unless the function's settings allow fewer, after one minute and after two; given up once the event
exceeds their maximum age.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from trainer.runs.record import iso

WAITS = (timedelta(minutes=1), timedelta(minutes=2))
MOST_AGE_SECONDS = 6 * 3600  # of an event, unless the function's settings are lower


@dataclass(frozen=True, kw_only=True)
class AsyncInvocation:
    """An event that a function accepted, and how often it was tried."""

    function_name: str
    payload: bytes
    request_id: str
    accepted_at: datetime
    due_at: datetime
    tries: int = 0


@dataclass(frozen=True, kw_only=True)
class AsyncSettings:
    """A function's settings for events: PutFunctionEventInvokeConfig, with Lambda's defaults."""

    retries: int = len(WAITS)
    most_age: timedelta = timedelta(seconds=MOST_AGE_SECONDS)
    on_failure_arn: str = ""

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any]) -> AsyncSettings:
        """Read Lambda's answer about a function."""
        return cls(
            retries=int(answer.get("MaximumRetryAttempts", len(WAITS))),
            most_age=timedelta(seconds=int(answer.get("MaximumEventAgeInSeconds", MOST_AGE_SECONDS))),
            on_failure_arn=answer.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination", ""),
        )


def next_try(invocation: AsyncInvocation, settings: AsyncSettings, now: datetime) -> datetime | str:
    """Return the retry time of an invocation that just failed, or the condition under which it is
    given up.
    """
    if invocation.tries > settings.retries:
        return "RetriesExhausted"
    at = now + WAITS[min(invocation.tries, len(WAITS)) - 1]
    return at if at - invocation.accepted_at <= settings.most_age else "EventAgeExceeded"


def failure_record(
    invocation: AsyncInvocation, *, function_arn: str, condition: str, error: Mapping[str, Any], now: datetime
) -> str:
    """Return Lambda's message to the on-failure destination, as JSON."""
    record = {
        "version": "1.0",
        "timestamp": iso(now.replace(microsecond=0)),
        "requestContext": {
            "requestId": invocation.request_id,
            "functionArn": f"{function_arn}:$LATEST",
            "condition": condition,
            "approximateInvokeCount": invocation.tries,
        },
        "requestPayload": json.loads(invocation.payload),
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
        "responsePayload": error,
    }
    return json.dumps(record)
