"""Rules of EC2: launches that are idempotent, honour the whole template and can find no capacity; states that
take time.

moto keeps the network, volumes and templates; `world` has the states of instances, `launches` creates them.
"""

from __future__ import annotations

import base64
from typing import Any

from trainer.rehearsal.account import EmbeddedAccount, Rules, refuse
from trainer.rehearsal.catalogue import retired_offerings, retired_types
from trainer.rehearsal.launches import launch_fleet
from trainer.rehearsal.wire import Call
from trainer.rehearsal.world import STATE_CODES, AwsError, Instance

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
        return cloud.world.once("CreateFleet", params, lambda: launch_fleet(cloud, call.region, params))


def run_instances(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Answer a dry run; launches are fleets."""
    refuse_dry_run(call.params)
    raise AwsError("UnsupportedOperation", "The embedded AWS launches instances by CreateFleet only.")


def describe_instances(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Describe the matching instances with their current states, one reservation per launch."""
    with cloud.lock:
        now = cloud.clock.now()
        instances = _find(cloud, call)
        reservations: dict[str, dict[str, Any]] = {}
        for one in instances:
            reservation = reservations.setdefault(
                one.reservation_id,
                {
                    "ReservationId": one.reservation_id,
                    "OwnerId": cloud.account,
                    "Groups": [],
                    "Instances": [],
                },
            )
            reservation["Instances"].append(cloud.world.describe(one, now))
        return {"Reservations": list(reservations.values())}


def terminate_instances(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Start terminating instances; terminating one again changes nothing."""
    refuse_dry_run(call.params)
    with cloud.lock:
        now = cloud.clock.now()
        changes = cloud.world.terminate(call.params["InstanceIds"], now)
        return {
            "TerminatingInstances": [
                {
                    "InstanceId": one.id,
                    "PreviousState": _state(before),
                    # AWS never answers "terminated" here: only DescribeInstances shows it
                    "CurrentState": _state("terminated" if before == "terminated" else "shutting-down"),
                }
                for one, before in changes
            ]
        }


def get_console_output(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Return the last 64 KB of user data's output, as on a system whose cloud-init writes to the console."""
    with cloud.lock:
        instance = cloud.world.find(
            instance_ids=[call.params["InstanceId"]], filters=[], now=cloud.clock.now()
        )[0]
    log = cloud.root / "sandbox" / instance.id / "var/log/cloud-init-output.log"
    output = log.read_bytes()[-CONSOLE_BYTES:] if log.is_file() else b""
    return {
        "InstanceId": instance.id,
        "Timestamp": cloud.clock.now(),
        "Output": base64.b64encode(output).decode(),
    }


def describe_instance_types(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Describe instance types, with the retired ones."""
    asked = list(call.params.get("InstanceTypes", []))
    retired = retired_types(asked)
    names = {one["InstanceType"] for one in retired}
    rest = [name for name in asked if name not in names]
    types: list[dict[str, Any]] = []
    if rest or not asked:
        params = {**call.params, **({"InstanceTypes": rest} if asked else {})}
        types = cloud.moto("ec2", "DescribeInstanceTypes", params, region=call.region)["InstanceTypes"]
    # Retired types are filtered by name alone: no caller asks for them by another property.
    wanted = [one["Values"] for one in call.params.get("Filters", []) if one["Name"] == "instance-type"]
    if call.params.get("Filters") and not wanted:
        retired = []
    return {
        "InstanceTypes": (
            types + [one for one in retired if all(one["InstanceType"] in values for values in wanted)]
        )
    }


def describe_instance_type_offerings(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Describe where instance types are offered, with the retired ones."""
    params = call.params
    offerings = cloud.moto("ec2", "DescribeInstanceTypeOfferings", params, region=call.region)[
        "InstanceTypeOfferings"
    ]
    fields = {"instance-type": "InstanceType", "location": "Location"}
    retired = [
        one
        for one in retired_offerings(params.get("LocationType", "region"), call.region)
        if all(
            one.get(fields.get(rule["Name"], ""), "") in rule["Values"] for rule in params.get("Filters", [])
        )
    ]
    return {"InstanceTypeOfferings": offerings + retired}


def _find(cloud: EmbeddedAccount, call: Call) -> list[Instance]:
    return cloud.world.find(
        instance_ids=call.params.get("InstanceIds", []),
        filters=call.params.get("Filters", []),
        now=cloud.clock.now(),
    )


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


RULES: Rules = {
    ("service-quotas", "GetServiceQuota"): get_service_quota,
    ("ec2", "CreateFleet"): create_fleet,
    ("ec2", "RunInstances"): run_instances,
    ("ec2", "DescribeInstances"): describe_instances,
    ("ec2", "TerminateInstances"): terminate_instances,
    ("ec2", "GetConsoleOutput"): get_console_output,
    ("ec2", "DescribeInstanceTypes"): describe_instance_types,
    ("ec2", "DescribeInstanceTypeOfferings"): describe_instance_type_offerings,
    ("ec2", "CreateTags"): refuse("change tags"),
    ("ec2", "DeleteTags"): refuse("change tags"),
    ("ec2", "StopInstances"): refuse("stop instances"),
    ("ec2", "StartInstances"): refuse("start stopped instances"),
    ("ec2", "RebootInstances"): refuse("reboot instances"),
    ("ec2", "RequestSpotInstances"): refuse("know spot requests apart from fleets"),
    ("ec2", "DeleteFleets"): refuse("keep fleets after their launch"),
    ("ec2", "DescribeFleets"): refuse("keep fleets after their launch"),
    ("pricing", "GetProducts"): refuse("have a price list"),
}
