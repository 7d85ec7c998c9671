"""Rules of EC2 beyond a rehearsal's: instances without a fleet, termination protection, tags that change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.rehearsal import compute
from trainer.rehearsal.account import Rules
from trainer.rehearsal.compute import refuse_dry_run
from trainer.rehearsal.launches import launch, merged_request, template_data
from trainer.rehearsal.wire import Call
from trainer.rehearsal.world import AwsError

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount


def run_instances(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Launch instances from one pool, or fail with InsufficientInstanceCapacity."""
    params = call.params
    refuse_dry_run(params)

    def create() -> dict[str, Any]:
        asked = {name: value for name, value in params.items() if name != "LaunchTemplate"}
        request = merged_request(
            template_data(cloud, params.get("LaunchTemplate")),
            asked,
            asked.get("TagSpecifications", []),
        )
        count = int(params["MaxCount"])
        instances = launch(cloud, request, count)
        if request.get("DisableApiTermination"):
            cloud.protected |= {one.id for one in instances}
        now = cloud.clock.now()
        return {
            "ReservationId": instances[0].reservation_id,
            "OwnerId": cloud.account,
            "Instances": [cloud.world.describe(one, now) for one in instances],
        }

    with cloud.lock:
        return cloud.world.once("RunInstances", params, create)


def terminate_instances(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Terminate instances, unless one of them has termination protection."""
    with cloud.lock:
        for one in call.params["InstanceIds"]:
            if one in cloud.protected:
                what = (
                    f"The instance '{one}' may not be terminated. Modify its 'disableApiTermination' instance"
                )
                raise AwsError("OperationNotPermitted", f"{what} attribute and try again.")
        return compute.terminate_instances(cloud, call)


def modify_instance_attribute(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Switch termination protection on or off."""
    with cloud.lock:
        instance_id, protected = call.params["InstanceId"], call.params["DisableApiTermination"]["Value"]
        (cloud.protected.add if protected else cloud.protected.discard)(instance_id)
        return {}


def create_tags(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Set tags, on instances too."""
    with cloud.lock:
        resources = _known_to_moto(cloud, call.params["Resources"])
        if resources:
            cloud.moto("ec2", "CreateTags", {**call.params, "Resources": resources})
        cloud.world.tag(call.params["Resources"], call.params["Tags"])
        return {}


def delete_tags(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Remove tags, from instances too."""
    with cloud.lock:
        resources = _known_to_moto(cloud, call.params["Resources"])
        if resources:
            cloud.moto("ec2", "DeleteTags", {**call.params, "Resources": resources})
        cloud.world.untag(call.params["Resources"], call.params.get("Tags", []))
        return {}


def _known_to_moto(cloud: CheckedAccount, resources: list[str]) -> list[str]:
    """Leave out the instances that only the world remembers, from before a restart."""
    held = cloud.moto("ec2", "DescribeInstances", {})["Reservations"]
    known = {one["InstanceId"] for reservation in held for one in reservation["Instances"]}
    return [
        one
        for one in resources
        if not one.startswith("i-") or one in known or one not in cloud.world.instances
    ]


RULES: Rules = {
    ("ec2", "RunInstances"): run_instances,
    ("ec2", "TerminateInstances"): terminate_instances,
    ("ec2", "ModifyInstanceAttribute"): modify_instance_attribute,
    ("ec2", "CreateTags"): create_tags,
    ("ec2", "DeleteTags"): delete_tags,
}
