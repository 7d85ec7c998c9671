"""Checks of single t3.large machines without a run: how the product starts one, and each way in which one ends
without its own work.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tests.live.context import CODE_KEY, Live, Machine, require
from trainer.control.fleet import TAGGED, instance_tags
from trainer.control.observe import boot_log
from trainer.launch.network_reach import check_group
from trainer.runs.actions import kill_schedule, sweep_schedule
from trainer.runs.keys import NodeKeys

HALF_HOUR = timedelta(minutes=30)
POWERED_OFF = "Client.InstanceInitiatedShutdown"


def fleet(live: Live) -> None:
    """Start a machine by the product's own CreateFleet request, look at everything that EC2 made of it, and
    see it refuse code with another hash and power itself off.
    """
    live.cloud.objects.put(key=CODE_KEY, body=b"other code than the tag says")
    with live.machine("fleet", lives=HALF_HOUR) as machine:
        _look(live, machine)
        reason = live.wait_for_end(machine, "its own power-off")
        require(reason == POWERED_OFF, f"EC2's reason is {reason}: the power-off did not end it")
        role_id = live.outputs.instance_role_id
        keys = NodeKeys(role_id=role_id, instance_id=machine.instance_id, run_id=machine.run_id, attempt=1)
        said = boot_log(live.cloud, keys)
        live.say(said.strip().splitlines()[-1] if said else "no log")
        # The tag reached the machine through its metadata, and its log the bucket under its role.
        require("the tag says 0000" in said, "the log of the machine that refused does not say why")


def _look(live: Live, machine: Machine) -> None:
    """Require address, group, metadata options, disks and tags of a machine that just started."""
    ec2, outputs = live.client("ec2"), live.outputs
    (group,) = ec2.describe_instances(InstanceIds=[machine.instance_id])["Reservations"]
    (seen,) = group["Instances"]
    address = seen.get("PublicIpAddress", "")
    require(bool(address) == outputs.public_address, f"its public address is {address or 'missing'}")
    groups = [one["GroupId"] for one in seen["SecurityGroups"]]
    require(groups == [outputs.security_group], f"its security groups are {groups}")
    described = ec2.describe_security_groups(GroupIds=groups)["SecurityGroups"][0]
    check_group(described, attach=outputs.attach)
    metadata = seen["MetadataOptions"]
    wanted = {"HttpTokens": "required", "InstanceMetadataTags": "enabled", "HttpPutResponseHopLimit": 1}
    require(wanted.items() <= metadata.items(), f"its metadata options are {metadata}")
    disks = [one["Ebs"]["VolumeId"] for one in seen["BlockDeviceMappings"]]
    volumes = ec2.describe_volumes(VolumeIds=disks)["Volumes"]
    require(volumes and all(one["Encrypted"] for one in volumes), f"not every disk of {disks} is encrypted")
    live.say(f"{address or 'no public address'}, {groups[0]}, {len(volumes)} encrypted disk, metadata tags")
    _look_at_tags(live, instance_tags(machine.record.with_new_launch(machine.launch), machine.launch))


def _look_at_tags(live: Live, wanted: Mapping[str, str]) -> None:
    """Require every tag of the request on all four resources that it makes."""
    ec2 = live.client("ec2")
    own = [{"Name": "key", "Values": ["run_id"]}, {"Name": "value", "Values": [wanted["run_id"]]}]

    def tagged() -> dict[str, dict[str, Any]]:
        ids = {one["ResourceId"] for one in ec2.describe_tags(Filters=own)["Tags"]}
        found: dict[str, dict[str, Any]] = {}
        for one in ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": list(ids)}])["Tags"]:
            found.setdefault(one["ResourceType"], {})[one["Key"]] = one["Value"]
        return found if found.keys() >= set(TAGGED) else {}

    what = f"tags of {wanted['run_id']} on {', '.join(TAGGED)}"
    found = live.until(tagged, what, within=timedelta(minutes=1), every=5)  # EC2 lags by seconds
    for kind, tags in found.items():
        lacking = {name: value for name, value in wanted.items() if tags.get(name) != value}
        require(not lacking, f"the {kind} lacks {lacking}")
    live.say(f"{len(wanted)} tags on {', '.join(sorted(found))}")


def layers(live: Live) -> None:
    """End two machines that never speak, one after the other: by the kill schedule, by the sweep schedule."""
    cloud = live.cloud
    with live.machine("kill", lives=HALF_HOUR, hung=True) as machine:
        at, name = live.now() + timedelta(minutes=2), kill_schedule(machine.run_id, 1)
        cloud.arm_kill(name=name, instance_ids=(machine.instance_id,), at=at)
        live.wait_for_end(machine, "the kill schedule")
    with live.machine("sweep", lives=timedelta(minutes=2), hung=True) as machine:
        name, at = sweep_schedule(machine.run_id), machine.launch.deadline
        cloud.arm_sweep(name=name, run_id=machine.run_id, at=at)
        live.wait_for_end(machine, "the sweep schedule")


def hung_boot(live: Live) -> None:
    """Leave a machine that never speaks to the standing sweep, with a boot allowance of its own."""
    with live.machine("hung", lives=timedelta(hours=1), hung=True, boot_seconds=60) as machine:
        live.wait_for_end(machine, "the standing sweep")
