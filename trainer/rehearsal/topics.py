"""Rules of SNS: a published message reaches the topic's subscribers: functions and queues whose own policy
allows the topic.

moto keeps topics and subscriptions. An e-mail subscription is never confirmed here, so it gets
nothing. Other protocols, filters and message structures are refused.
"""

from __future__ import annotations

import json
import logging
import uuid
from typing import Any

from trainer.rehearsal import lambdas
from trainer.rehearsal.account import EmbeddedAccount, Rules
from trainer.rehearsal.iam_policies import Authorization, lets_service
from trainer.rehearsal.queues import send_as_service
from trainer.rehearsal.wire import Answer, Call, collect
from trainer.rehearsal.world import AwsError
from trainer.runs.record import iso

log = logging.getLogger(__name__)
SERVICE = "sns.amazonaws.com"
PROTOCOLS = ("lambda", "sqs", "email")
PENDING = "PendingConfirmation"
MOST_BYTES = 256 * 1024  # https://docs.aws.amazon.com/sns/latest/api/API_Publish.html (looked up 2026-11-22)
_SERVICES_KEY = "alias/aws/sns"


def subscribe(cloud: EmbeddedAccount, call: Call) -> dict[str, Any] | Answer:
    """Subscribe to a topic."""
    if call.params["Protocol"] not in PROTOCOLS:
        what = f"The embedded AWS subscribes {', '.join(PROTOCOLS)}, and not {call.params['Protocol']}."
        raise AwsError("UnsupportedOperation", what)
    if unknown := sorted(call.params.get("Attributes", {})):
        raise AwsError("UnsupportedOperation", f"The embedded AWS subscribes without {', '.join(unknown)}.")
    if call.params["Protocol"] != "email":
        return collect(call.environ, call.account)
    cloud.moto("sns", "Subscribe", call.params)
    return {"SubscriptionArn": "pending confirmation"}


def list_subscriptions(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """List a topic's subscriptions; the ARN of one that is not confirmed is `PendingConfirmation`."""
    return {"Subscriptions": _subscriptions(cloud, call.params["TopicArn"])}


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
    return {
        "MessageId": deliver(
            cloud, params["TopicArn"], subject=params.get("Subject", ""), message=params["Message"]
        )
    }


def publish_as_service(
    cloud: EmbeddedAccount, service: str, source_arn: str, topic_arn: str, *, subject: str, message: str
) -> None:
    """Publish as an AWS service. Raises AwsError if the topic's policy refuses, and for a topic with SNS's
    default key.
    """
    attributes = cloud.moto("sns", "GetTopicAttributes", {"TopicArn": topic_arn})["Attributes"]
    if attributes.get("KmsMasterKeyId", "").endswith(
        _SERVICES_KEY
    ):  # its fixed policy lets no other service use it
        raise AwsError("KMSAccessDenied", f"{service} can't use the key {_SERVICES_KEY} of {topic_arn}.", 403)
    context = {
        "aws:sourcearn": source_arn,
        "aws:sourceaccount": cloud.account,
        "aws:sourceowner": cloud.account,
    }
    if not lets_service(
        attributes["Policy"],
        service,
        Authorization(action="sns:Publish", resource=topic_arn, context=context),
    ):
        raise AwsError(
            "AuthorizationError", f"The policy of {topic_arn} does not let {service} publish.", 403
        )
    deliver(cloud, topic_arn, subject=subject, message=message)


def deliver(cloud: EmbeddedAccount, topic_arn: str, *, subject: str, message: str) -> str:
    """Deliver a message to a topic's subscribers and return its id. A subscriber that can't be reached misses
    it.
    """
    message_id = str(uuid.uuid4())
    notification = {
        "Type": "Notification",
        "MessageId": message_id,
        "TopicArn": topic_arn,
        "Subject": subject or None,
        "Message": message,
        "Timestamp": iso(cloud.clock.now().replace(microsecond=0)),
    }
    for subscription in _subscriptions(cloud, topic_arn):
        if subscription["SubscriptionArn"] == PENDING:
            continue
        try:
            if subscription["Protocol"] == "sqs":
                send_as_service(cloud, SERVICE, topic_arn, subscription["Endpoint"], json.dumps(notification))
            else:
                _call(cloud, subscription, notification)
        except AwsError as error:  # as on AWS: a metric counts it, NumberOfNotificationsFailed
            log.warning("a message of %s is lost: %s", topic_arn, error)
    return message_id


def _call(cloud: EmbeddedAccount, subscription: dict[str, Any], notification: dict[str, Any]) -> None:
    name = lambdas.function_name(subscription["Endpoint"])
    lambdas.require_permission(cloud, name, SERVICE, notification["TopicArn"])
    record = {
        "EventSource": "aws:sns",
        "EventVersion": "1.0",
        "EventSubscriptionArn": subscription["SubscriptionArn"],
        "Sns": notification,
    }
    lambdas.invoke_event(cloud, name, json.dumps({"Records": [record]}).encode())


def _subscriptions(cloud: EmbeddedAccount, topic_arn: str) -> list[dict[str, Any]]:
    kept = cloud.moto("sns", "ListSubscriptionsByTopic", {"TopicArn": topic_arn})["Subscriptions"]
    return [one | ({"SubscriptionArn": PENDING} if one["Protocol"] == "email" else {}) for one in kept]


RULES: Rules = {
    ("sns", "Subscribe"): subscribe,
    ("sns", "ListSubscriptionsByTopic"): list_subscriptions,
    ("sns", "Publish"): publish,
}
