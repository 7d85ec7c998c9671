"""The default event bus: EC2's events about instances, matched against its rules and delivered to functions.

moto keeps rules and targets. A target is one of our functions. Patterns may match fields by values only.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from typing import Any

from trainer.rehearsal import lambdas
from trainer.rehearsal.account import REGION, EmbeddedAccount
from trainer.rehearsal.world import AwsError
from trainer.runs.record import iso

log = logging.getLogger(__name__)
SERVICE = "events.amazonaws.com"
STATE_CHANGE = "EC2 Instance State-change Notification"
SPOT_WARNING = "EC2 Spot Instance Interruption Warning"


def tell_states(cloud: EmbeddedAccount) -> None:
    """Send an event for every instance whose state changed since its last event."""
    with cloud.lock:
        now = cloud.clock.now()
        states = {one.id: one.state(now) for one in cloud.world.instances.values()}
        changed = {key: state for key, state in states.items() if cloud.instance_states.get(key) != state}
        cloud.instance_states = states
    for instance_id, state in changed.items():
        tell(cloud, STATE_CHANGE, instance_id, {"state": state})


def tell(cloud: EmbeddedAccount, kind: str, instance_id: str, detail: Mapping[str, Any]) -> None:
    """Deliver one event about an instance to the targets of the matching rules."""
    event = {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": kind,
        "source": "aws.ec2",
        "account": cloud.account,
        "time": iso(cloud.clock.now().replace(microsecond=0)),
        "region": REGION,
        "resources": [f"arn:aws:ec2:{REGION}:{cloud.account}:instance/{instance_id}"],
        "detail": {"instance-id": instance_id, **detail},
    }
    for rule in cloud.moto("events", "ListRules", {})["Rules"]:
        if rule.get("State") != "ENABLED" or not matches(json.loads(rule.get("EventPattern") or "{}"), event):
            continue
        for target in cloud.moto("events", "ListTargetsByRule", {"Rule": rule["Name"]})["Targets"]:
            _bring(cloud, rule["Arn"], target["Arn"], event)


def matches(pattern: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    """Return whether each field of a pattern lists the event's value. Raises ValueError for an operator."""
    for name, wanted in pattern.items():
        value = event.get(name)
        if isinstance(wanted, Mapping):
            if not isinstance(value, Mapping) or not matches(wanted, value):
                return False
        elif any(not isinstance(one, str) for one in wanted):
            raise ValueError(f"the embedded AWS matches events only by values, not by {wanted}")
        elif value not in wanted:
            return False
    return True


def _bring(cloud: EmbeddedAccount, rule_arn: str, target_arn: str, event: Mapping[str, Any]) -> None:
    name = lambdas.function_name(target_arn)
    try:
        cloud.check_caller(name, SERVICE, rule_arn)
        lambdas.invoke_event(cloud, name, json.dumps(event).encode())
    except AwsError as error:  # as on AWS: the event is lost, and a metric counts it
        log.warning("the event bus could not call %s: %s", name, error)
