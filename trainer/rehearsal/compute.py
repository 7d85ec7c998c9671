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


def describe_types(cloud: EmbeddedAccount, call: Call) -> Answer:
    """Describe instance types, or where they are offered, with the retired ones."""
    types()
    return collect(call.environ, call.account)


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
    ("ec2", "DescribeInstanceTypes"): describe_types,
    ("ec2", "DescribeInstanceTypeOfferings"): describe_types,
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
