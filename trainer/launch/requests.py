"""The CreateFleet request, as a pure function: record, rung and intent in, keyword arguments out. It calls nothing.

Everything that safety depends on travels in this one call: token, tags, deadline. What cannot (user data, profile, shutdown
behaviour, disks) stands in the launch template.
"""

from __future__ import annotations

from typing import Any

from trainer.runs.record import Launch, Rung, RunRecord, iso

# CreateFleet of type instant tags all of these in the call itself (EC2 API, looked up 2026-11-20).
TAGGED = ("instance", "volume", "network-interface", "fleet")


def create_fleet_request(record: RunRecord, rung: Rung, launch: Launch) -> dict[str, Any]:
    """Return the keyword arguments of `ec2.create_fleet` for a stored intent: one instance, one pool, one token.

    The same arguments give the same request, so a replay is the same call. Raises ValueError where the record lacks the intent.
    """
    spot = rung.market == "spot"
    request: dict[str, Any] = {
        "Type": "instant",
        "ClientToken": launch.token,
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": 1,
            "DefaultTargetCapacityType": "spot" if spot else "on-demand",
        },
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateId": rung.launch_template_id, "Version": "$Default"},
                "Overrides": [{"InstanceType": rung.instance_type, "SubnetId": rung.subnet_id, "ImageId": rung.image_id}],
            }
        ],
        "TagSpecifications": [
            {
                "ResourceType": kind,
                "Tags": [{"Key": key, "Value": value} for key, value in instance_tags(record, launch).items()],
            }
            for kind in TAGGED
        ],
    }
    if spot:  # no maximum price: AWS advises against one, and the deadline is made from the on-demand price anyway
        request["SpotOptions"] = {"AllocationStrategy": "price-capacity-optimized", "InstanceInterruptionBehavior": "terminate"}
    return request


def instance_tags(record: RunRecord, launch: Launch) -> dict[str, str]:
    """Return the tags of an instance: how cleanup finds it, and all that its static bootstrap learns about this run."""
    return {
        "Name": record.run_id,
        "project": record.project,
        "stack": record.stack,
        "owner": record.owner,
        "run_id": record.run_id,
        "attempt": str(_attempt_of(record, launch)),
        "node": "0",
        "deadline": iso(launch.deadline.replace(microsecond=0)),
        "bundle_key": record.bundle_key,
        "bundle_sha256": record.bundle_sha256,
    }


def _attempt_of(record: RunRecord, launch: Launch) -> int:
    for attempt in record.attempts:
        if any(known.token == launch.token for known in attempt.launches):
            return attempt.number
    raise ValueError(f"the record of {record.run_id} does not hold the intent {launch.token}: store it before the call")
