"""CreateFleet as pure functions: build the request of a stored intent, and interpret the answer.

The one call carries everything that safety depends on: token, tags, deadline. User data, profile, shutdown
behaviour and disks are in the launch template; a run whose script gets secrets has its own profile. An
instant fleet without capacity is an HTTP 200 with `Errors`, and a lost answer may hide a machine: an answer
is created, refused or unclear. `runs.launching` takes another token only after "refused", or after it has
looked for an instance in vain.

Several nodes are one fleet: of one type in one zone, all or none. An answer with fewer is a refusal that
names what was made, and `runs.reconcile` ends that before anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainer.aws.access import error_code, error_message, meaning_of
from trainer.aws.error_codes import EMPTY_FLEET, PARTIAL_FLEET, NextStep, meaning
from trainer.base.instants import iso
from trainer.runs.attempts import Launch, Rung
from trainer.runs.record import RunRecord

# CreateFleet of type instant tags all of these in the call itself (EC2 API, looked up 2026-11-20).
TAGGED = ("instance", "volume", "network-interface", "fleet")
# Of several errors in one answer the most permanent counts: a missing permission must never read as "no
# capacity".
_FINALITY: tuple[NextStep, ...] = ("stop", "other_quota", "new_token", "next_rung", "replay")


@dataclass(frozen=True, kw_only=True)
class FleetAnswer:
    """One answer of CreateFleet. `code` and `message` are AWS's own, empty for `created`. A refusal names the
    instances of a fleet that is not whole.
    """

    kind: Literal["created", "refused", "unclear"]
    of_the_call: bool = False  # an exception: it tells nothing about an earlier call with the same token
    instance_ids: tuple[str, ...] = ()
    code: str = ""
    message: str = ""


def create_fleet_request(record: RunRecord, rung: Rung, launch: Launch) -> dict[str, Any]:
    """Return the keyword arguments of `ec2.create_fleet` for a stored intent: one pool, one token, and one
    instance or all that the run has.

    The same arguments give the same request, so a replay is the same call. Raises ValueError if the record
    lacks the intent.
    """
    spot = rung.market == "spot"
    request: dict[str, Any] = {
        "Type": "instant",
        "ClientToken": launch.token,
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": record.num_nodes,
            "DefaultTargetCapacityType": "spot" if spot else "on-demand",
        },
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {
                    "LaunchTemplateId": rung.launch_template_id,
                    "Version": "$Default",
                },
                "Overrides": [
                    {
                        "InstanceType": rung.instance_type,
                        "SubnetId": rung.subnet_id,
                        "ImageId": rung.image_id,
                        **own_profile(record),
                        **_placement(record),
                    }
                ],
            }
        ],
        "TagSpecifications": [
            {
                "ResourceType": kind,
                "Tags": [
                    {"Key": key, "Value": value} for key, value in instance_tags(record, launch).items()
                ],
            }
            for kind in TAGGED
        ],
    }
    # no maximum price: AWS advises against one, and deadlines are computed from the on-demand price anyway
    if spot:
        request["SpotOptions"] = {
            "AllocationStrategy": "price-capacity-optimized",
            "InstanceInterruptionBehavior": "terminate",
        }
    if record.num_nodes > 1:
        options = "SpotOptions" if spot else "OnDemandOptions"
        request[options] = {**request.get(options, {}), **_all_or_none(record.num_nodes)}
    return request


def _all_or_none(num_nodes: int) -> dict[str, Any]:
    """Return the options of an instant fleet that launches nothing where it can't launch all of them, of one
    type in one zone (EC2 API, OnDemandOptionsRequest and SpotOptionsRequest, looked up 2026-11-27).
    """
    return {"SingleInstanceType": True, "SingleAvailabilityZone": True, "MinTargetCapacity": num_nodes}


def own_profile(record: RunRecord) -> dict[str, Any]:
    """Return the parameter that replaces the template's instance profile; {} if the run has no profile."""
    return {"IamInstanceProfile": {"Arn": record.instance_profile}} if record.instance_profile else {}


def _placement(record: RunRecord) -> dict[str, Any]:
    """Return the parameter that places nodes of one model close together; {} for other runs."""
    return {"Placement": {"GroupName": record.placement_group}} if record.placement_group else {}


def instance_tags(record: RunRecord, launch: Launch) -> dict[str, str]:
    """Return the tags of an instance. Cleanup finds it by them; its static bootstrap reads its run
    from them.
    """
    return {
        "Name": record.run_id,
        "project": record.project,
        "stack": record.stack,
        "owner": record.owner,
        "run_id": record.run_id,
        "attempt": str(_attempt_of(record, launch)),
        "node": "0",
        "deadline": iso(launch.deadline.replace(microsecond=0)),
        "role_id": record.instance_role_id,
        "bundle_key": record.bundle_key,
        "bundle_sha256": record.bundle_sha256,
        "boot_seconds": str(record.ladder[launch.rung].boot_seconds),
    }


def read_answer(response: Mapping[str, Any], num_nodes: int = 1) -> FleetAnswer:
    """Interpret an HTTP 200 of CreateFleet. Without all instances that were asked for it is a refusal, which
    has consumed the token. Of more than those the first ones count, and the others are ended like any that no
    launch names.
    """
    ids = tuple(
        instance_id for entry in response.get("Instances", ()) for instance_id in entry.get("InstanceIds", ())
    )
    if len(ids) >= num_nodes:
        return FleetAnswer(kind="created", instance_ids=ids[:num_nodes])
    errors = [
        (str(error.get("ErrorCode", "")), str(error.get("ErrorMessage", "")))
        for error in response.get("Errors", ())
    ]
    nothing = (EMPTY_FLEET, "CreateFleet returned neither an instance nor an error")
    some = (PARTIAL_FLEET, "CreateFleet returned no error")
    code, message = min(errors, key=_finality) if errors else some if ids else nothing
    if ids:
        message = f"{len(ids)} of {num_nodes} instances; {message}"
    return FleetAnswer(kind="refused", code=code, message=message, instance_ids=ids)


def read_failure(error: Exception) -> FleetAnswer:
    """Interpret an exception of CreateFleet: unclear if the call may have taken effect."""
    unclear = meaning_of(error).step(exception=True) == "replay"
    kind: Literal["unclear", "refused"] = "unclear" if unclear else "refused"
    return FleetAnswer(kind=kind, of_the_call=True, code=error_code(error), message=error_message(error))


def _finality(error: tuple[str, str]) -> int:
    return _FINALITY.index(meaning(*error).step(exception=False))


def _attempt_of(record: RunRecord, launch: Launch) -> int:
    for attempt in record.attempts:
        if any(known.token == launch.token for known in attempt.launches):
            return attempt.number
    raise ValueError(
        f"the record of {record.run_id} does not hold the intent {launch.token}: store it before the call"
    )
