"""Events and messages that reach functions: EC2's events on the default bus, and rules of SNS.

moto keeps rules, targets, topics and subscriptions, and matches patterns. An e-mail subscription is never
confirmed here, so it gets nothing; nor do queues. Filters and message structures are refused.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from trainer.base.instants import iso
from trainer.rehearsal import lambdas
from trainer.rehearsal.account import REGION, EmbeddedAccount, Rules
from trainer.rehearsal.wire import Call, state_of
from trainer.rehearsal.world import AwsError, Instance

log = logging.getLogger(__name__)
EVENTS, TOPICS = "events.amazonaws.com", "sns.amazonaws.com"
# EC2's events about an instance: EC2 user guide, "Monitor ... with EventBridge", and on spot "Spot Instance
# interruption notices" and "EC2 instance rebalance recommendations" (looked up 2026-11-24)
STATE_CHANGE = "EC2 Instance State-change Notification"
WARNING = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
PENDING = "PendingConfirmation"
MOST_BYTES = 256 * 1024  # https://docs.aws.amazon.com/sns/latest/api/API_Publish.html (looked up 2026-11-22)


def tell_changes(cloud: EmbeddedAccount) -> None:
    """Send an event for every notice that an instance was given, and for its state where it changed, since
    the last call.
    """
    with cloud.lock:
        now = cloud.clock.now()
        current = {
            (one.id, kind): detail
            for one in cloud.world.instances.values()
            for kind, detail in events_of(one, now).items()
        }
        changed = {key: detail for key, detail in current.items() if cloud.told.get(key) != detail}
        cloud.told = current
    for (instance_id, kind), detail in changed.items():
        tell(cloud, kind, instance_id, detail)


def events_of(instance: Instance, now: datetime) -> dict[str, dict[str, str]]:
    """Return the last event of each kind about an instance, with its own part of the detail."""
    state, events = instance.state(now), dict[str, dict[str, str]]()
    if instance.is_recommended(now) and state != "terminated":
        events[REBALANCE] = {}
    if instance.is_noticed(now) and state != "terminated":
        events[WARNING] = {"instance-action": "terminate"}
    return {**events, STATE_CHANGE: {"state": state}}


def tell(cloud: EmbeddedAccount, kind: str, instance_id: str, detail: Mapping[str, Any]) -> None:
    """Deliver one event about an instance to the targets of the matching rules."""
    event = event_about(cloud, kind, instance_id, detail)
    for rule in state_of(cloud.account, "events").event_buses["default"].rules.values():
        if rule.state == "ENABLED" and rule.event_pattern.matches_event(event):
            for target in rule.targets:
                _bring(cloud, rule.arn, target["Arn"], event)


def event_about(
    cloud: EmbeddedAccount, kind: str, instance_id: str, detail: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an event about an instance as EC2 sends it; the ARN in a warning has the zone and no account."""
    arn = f"arn:aws:ec2:{REGION}:{cloud.account}:instance/{instance_id}"
    if kind == WARNING:
        with cloud.lock:
            zone = cloud.world.instances[instance_id].pool.availability_zone
        arn = f"arn:aws:ec2:{zone}:instance/{instance_id}"
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": kind,
        "source": "aws.ec2",
        "account": cloud.account,
        "time": iso(cloud.clock.now().replace(microsecond=0)),
        "region": REGION,
        "resources": [arn],
        "detail": {"instance-id": instance_id, **detail},
    }


def _bring(cloud: EmbeddedAccount, rule_arn: str, target_arn: str, event: Mapping[str, Any]) -> None:
    name = lambdas.function_name(target_arn)
    try:
        cloud.check_caller(name, EVENTS, rule_arn)
        lambdas.invoke_event(cloud, name, json.dumps(event).encode())
    except AwsError as error:  # as on AWS: the event is lost, and a metric counts it
        log.warning("the event bus could not call %s: %s", name, error)


def list_subscriptions(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """List a topic's subscriptions; the ARN of one that is not confirmed is `PendingConfirmation`."""
    return {"Subscriptions": subscriptions(cloud, call.params["TopicArn"])}


def publish(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Publish a message to a topic."""
    topic, message = call.params.get("TopicArn"), call.params["Message"]
    if not topic or call.params.get("MessageStructure") or len(message.encode()) > MOST_BYTES:
        what = f"The embedded AWS publishes plain messages of {MOST_BYTES} bytes to topics."
        raise AwsError("InvalidParameter", what)
    cloud.moto("sns", "GetTopicAttributes", {"TopicArn": topic})
    return {"MessageId": deliver(cloud, topic, subject=call.params.get("Subject", ""), message=message)}


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
                _call_subscriber(cloud, subscription, notification)
            elif subscription["SubscriptionArn"] != PENDING:
                cloud.notify(subscription, notification)
        except AwsError as error:  # as on AWS: a metric counts it, NumberOfNotificationsFailed
            log.warning("a message of %s is lost: %s", topic_arn, error)
    return str(notification["MessageId"])


def _call_subscriber(
    cloud: EmbeddedAccount, subscription: dict[str, Any], notification: dict[str, Any]
) -> None:
    name = lambdas.function_name(subscription["Endpoint"])
    cloud.check_caller(name, TOPICS, notification["TopicArn"])
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
