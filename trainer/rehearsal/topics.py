"""Rules of SNS: a published message reaches the functions that subscribe to its topic.

moto keeps topics and subscriptions. An e-mail subscription is never confirmed here, so it gets nothing; nor
do queues. Filters and message structures are refused.
"""

from __future__ import annotations

import json
import logging
import uuid
from typing import Any

from trainer.rehearsal import lambdas
from trainer.rehearsal.account import EmbeddedAccount, Rules
from trainer.rehearsal.wire import Call
from trainer.rehearsal.world import AwsError
from trainer.runs.record import iso

log = logging.getLogger(__name__)
SERVICE = "sns.amazonaws.com"
PENDING = "PendingConfirmation"
MOST_BYTES = 256 * 1024  # https://docs.aws.amazon.com/sns/latest/api/API_Publish.html (looked up 2026-11-22)


def list_subscriptions(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """List a topic's subscriptions; the ARN of one that is not confirmed is `PendingConfirmation`."""
    return {"Subscriptions": subscriptions(cloud, call.params["TopicArn"])}


def publish(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Publish a message to a topic."""
    params = call.params
    if (
        "TopicArn" not in params
        or params.get("MessageStructure")
        or len(params["Message"].encode()) > MOST_BYTES
    ):
        raise AwsError(
            "InvalidParameter", f"The embedded AWS publishes plain messages of {MOST_BYTES} bytes to topics."
        )
    cloud.moto("sns", "GetTopicAttributes", {"TopicArn": params["TopicArn"]})
    subject = params.get("Subject", "")
    return {"MessageId": deliver(cloud, params["TopicArn"], subject=subject, message=params["Message"])}


def deliver(cloud: EmbeddedAccount, topic_arn: str, *, subject: str, message: str) -> str:
    """Deliver a message to a topic's subscribers and return its id. A subscriber that can't be reached misses
    it.
    """
    notification = {
        "Type": "Notification",
        "MessageId": str(uuid.uuid4()),
        "TopicArn": topic_arn,
        "Subject": subject or None,
        "Message": message,
        "Timestamp": iso(cloud.clock.now().replace(microsecond=0)),
    }
    for subscription in subscriptions(cloud, topic_arn):
        try:
            if subscription["Protocol"] == "lambda":
                _call(cloud, subscription, notification)
            elif subscription["SubscriptionArn"] != PENDING:
                cloud.notify(subscription, notification)
        except AwsError as error:  # as on AWS: a metric counts it, NumberOfNotificationsFailed
            log.warning("a message of %s is lost: %s", topic_arn, error)
    return str(notification["MessageId"])


def _call(cloud: EmbeddedAccount, subscription: dict[str, Any], notification: dict[str, Any]) -> None:
    name = lambdas.function_name(subscription["Endpoint"])
    cloud.check_caller(name, SERVICE, notification["TopicArn"])
    record = {
        "EventSource": "aws:sns",
        "EventVersion": "1.0",
        "EventSubscriptionArn": subscription["SubscriptionArn"],
        "Sns": notification,
    }
    lambdas.invoke_event(cloud, name, json.dumps({"Records": [record]}).encode())


def subscriptions(cloud: EmbeddedAccount, topic_arn: str) -> list[dict[str, Any]]:
    """Return a topic's subscriptions."""
    kept = cloud.moto("sns", "ListSubscriptionsByTopic", {"TopicArn": topic_arn})["Subscriptions"]
    return [one | ({"SubscriptionArn": PENDING} if one["Protocol"] == "email" else {}) for one in kept]


RULES: Rules = {
    ("sns", "ListSubscriptionsByTopic"): list_subscriptions,
    ("sns", "Publish"): publish,
}
