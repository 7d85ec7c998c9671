"""Rules of EC2: launches that are idempotent, honour the whole template and can find no capacity; states that
take time.

moto keeps the network, volumes and templates; `world` has the states of instances, `launches` creates them.
"""

from __future__ import annotations

import base64
from typing import Any

from trainer.rehearsal.account import EmbeddedAccount, Rules, refuse
from trainer.rehearsal.catalogue import types
from trainer.rehearsal.launches import launch_fleet
from trainer.rehearsal.wire import Answer, Call, collect
from trainer.rehearsal.world import STATE_CODES, AwsError

CONSOLE_BYTES = 64 * 1024  # EC2's limit
QUOTA_VCPUS = 768.0


def create_fleet(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Launch from the first pool that has capacity; the errors of earlier pools are in Errors, with
    HTTP 200.
    """
    params = call.params
    refuse_dry_run(params)
    if params.get("Type") != "instant":
        raise AwsError("UnsupportedOperation", "The embedded AWS creates fleets of type instant only.")
    with cloud.lock:
        return cloud.world.once("CreateFleet", params, lambda: launch_fleet(cloud, params))


def run_instances(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Answer a dry run; launches are fleets."""
    refuse_dry_run(call.params)
    raise AwsError("UnsupportedOperation", "The embedded AWS launches instances by CreateFleet only.")


def describe_instances(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Describe the matching instances with their current states, one reservation per launch."""
    with cloud.lock:
        now, asked = cloud.clock.now(), call.params
        reservations: dict[str, dict[str, Any]] = {}
        ids, filters = asked.get("InstanceIds", []), asked.get("Filters", [])
        for one in cloud.world.find(instance_ids=ids, filters=filters, now=now):
            known = {"ReservationId": one.reservation_id, "OwnerId": cloud.account, "Instances": []}
            reservation = reservations.setdefault(one.reservation_id, known)
            reservation["Instances"].append(cloud.world.describe(one, now))
        return {"Reservations": list(reservations.values())}


def terminate_instances(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Start terminating instances; terminating one again changes nothing."""
    refuse_dry_run(call.params)
    with cloud.lock:
        changes = []
        for one, before in cloud.world.terminate(call.params["InstanceIds"], cloud.clock.now()):
            # AWS answers "terminated" only of what was: only DescribeInstances shows that one has ended
            current = _state("terminated" if before == "terminated" else "shutting-down")
            change = {"InstanceId": one.id, "PreviousState": _state(before), "CurrentState": current}
            changes.append(change)
        return {"TerminatingInstances": changes}


def get_console_output(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Return the last 64 KB of user data's output, as on a system whose cloud-init writes to the console."""
    with cloud.lock:
        (instance,) = cloud.world.find(instance_ids=[call.params["InstanceId"]], now=cloud.clock.now())
    log = cloud.root / "sandbox" / instance.id / "var/log/cloud-init-output.log"
    output = log.read_bytes()[-CONSOLE_BYTES:] if log.is_file() else b""
    return {
        "InstanceId": instance.id,
        "Timestamp": cloud.clock.now(),
        "Output": base64.b64encode(output).decode(),
    }


def create_placement_group(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Make a placement group, which places nothing here. moto knows none."""
    refuse_dry_run(call.params)
    with cloud.lock:
        cloud.world.make_group(call.params["GroupName"])
        return {"PlacementGroup": {"GroupName": call.params["GroupName"], "State": "available"}}


def delete_placement_group(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Delete a placement group without instances."""
    refuse_dry_run(call.params)
    with cloud.lock:
        cloud.world.delete_group(call.params["GroupName"], cloud.clock.now())
        return {}


def describe_types(cloud: EmbeddedAccount, call: Call) -> Answer:
    """Describe instance types, or where they are offered, with the retired ones."""
    types()
    return collect(call.environ, call.account)


def _state(name: str) -> dict[str, Any]:
    return {"Code": STATE_CODES[name], "Name": name}


def refuse_dry_run(params: dict[str, Any]) -> None:
    """Raise the AwsError by which AWS answers a dry run that would succeed."""
    if params.get("DryRun"):
        raise AwsError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)


def get_service_quota(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Describe a quota of EC2, as in an account that has requested more; a rehearsal enforces none."""
    code = call.params["QuotaCode"]
    known = {"ServiceCode": call.params["ServiceCode"], "QuotaCode": code, "QuotaName": code}
    return {"Quota": {**known, "Value": QUOTA_VCPUS}}


_REFUSED = (
    *("CreateTags", "DeleteTags", "StopInstances", "StartInstances", "RebootInstances"),
    *("RequestSpotInstances", "DeleteFleets", "DescribeFleets"),
)
RULES: Rules = {
    **{("ec2", operation): refuse for operation in _REFUSED},
    ("pricing", "GetProducts"): refuse,
    ("savingsplans", "DescribeSavingsPlansOfferingRates"): refuse,
    ("service-quotas", "GetServiceQuota"): get_service_quota,
    ("ec2", "CreateFleet"): create_fleet,
    ("ec2", "RunInstances"): run_instances,
    ("ec2", "CreatePlacementGroup"): create_placement_group,
    ("ec2", "DeletePlacementGroup"): delete_placement_group,
    ("ec2", "DescribeInstances"): describe_instances,
    ("ec2", "TerminateInstances"): terminate_instances,
    ("ec2", "GetConsoleOutput"): get_console_output,
    ("ec2", "DescribeInstanceTypes"): describe_types,
    ("ec2", "DescribeInstanceTypeOfferings"): describe_types,
}
