"""Launches: CreateFleet and RunInstances from a template and a request, checked as AWS checks them.

moto creates the machines. Every field is passed explicitly, because moto drops most fields of a template.
`world` has their states. The caller holds the account's lock.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Container
from typing import Any

from trainer.rehearsal.account import REGION, EmbeddedAccount
from trainer.rehearsal.catalogue import image_parameters, is_offered, types
from trainer.rehearsal.wire import get_model
from trainer.rehearsal.world import AwsError, Instance, Pool

# Members of an override about the fleet, not about an instance.
_FLEET_ONLY = ("Priority", "WeightedCapacity", "MaxPrice", "AvailabilityZone")


def launch_fleet(cloud: EmbeddedAccount, params: dict[str, Any]) -> dict[str, Any]:
    """Answer CreateFleet: launch from the first pool with capacity, with the errors of the pools
    before it. No pool here has room for a part of what is asked for, unless a test says so.
    """
    capacity = params["TargetCapacitySpecification"]
    market = capacity.get("DefaultTargetCapacityType", "on-demand")
    missing = int(capacity["TotalTargetCapacity"])
    _check_least(params, market, missing)
    fleet_id = f"fleet-{uuid.uuid4()}"
    launched: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    for specification, override in _candidates(params):
        pool = {"LaunchTemplateSpecification": specification, "Overrides": override}
        pool_entry = {"LaunchTemplateAndOverrides": pool, "Lifecycle": market}
        try:
            own = own_request(override, spot=market == "spot")
            tags = [one for one in params.get("TagSpecifications", []) if one["ResourceType"] != "fleet"]
            request = merged_request(template_data(cloud, specification), own, tags)
            instances = launch(cloud, request, cloud.room(missing), fleet_id=fleet_id)
        except AwsError as error:
            errors.append({**pool_entry, "ErrorCode": error.code, "ErrorMessage": error.message})
            continue
        kind = {"InstanceType": instances[0].description["InstanceType"]}
        launched.append({**pool_entry, **kind, "InstanceIds": [one.id for one in instances]})
        if len(instances) < missing:
            what = "We currently do not have sufficient capacity in the zone you requested."
            full = {"ErrorCode": "InsufficientInstanceCapacity", "ErrorMessage": what}
            errors.append({**pool_entry, **full})
        break
    own_tags = [one["Tags"] for one in params.get("TagSpecifications", []) if one["ResourceType"] == "fleet"]
    if own_tags and launched:
        cloud.moto("ec2", "CreateTags", {"Resources": [fleet_id], "Tags": own_tags[0]})
    return {"FleetId": fleet_id, "Errors": errors, "Instances": launched}


def _check_least(params: dict[str, Any], market: str, total: int) -> None:
    """Refuse a least capacity as AWS does: above the target, or of several types and zones (EC2 API,
    OnDemandOptionsRequest and SpotOptionsRequest, looked up 2026-11-27).
    """
    options = params.get("SpotOptions" if market == "spot" else "OnDemandOptions", {})
    least = options.get("MinTargetCapacity")
    single = options.get("SingleInstanceType") or options.get("SingleAvailabilityZone")
    if least is not None and (int(least) > total or not single):
        what = "MinTargetCapacity is at most TotalTargetCapacity, of a single type or zone."
        raise AwsError("InvalidParameterCombination", what)


def _candidates(params: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """List (template, override) in the order to try them: by priority if given, else in their order."""
    pairs = [
        (config["LaunchTemplateSpecification"], override)
        for config in params["LaunchTemplateConfigs"]
        for override in config.get("Overrides") or [{}]
    ]
    return sorted(pairs, key=lambda pair: float(pair[1].get("Priority", float("inf"))))


def own_request(override: dict[str, Any], *, spot: bool) -> dict[str, Any]:
    """Return the parameters of RunInstances that a fleet's override stands for."""
    own = {name: value for name, value in override.items() if name not in _FLEET_ONLY}
    if spot:
        own["InstanceMarketOptions"] = {"MarketType": "spot"}
    if override.get("AvailabilityZone"):
        own["Placement"] = {"AvailabilityZone": override["AvailabilityZone"]}
    return own


def template_data(cloud: EmbeddedAccount, specification: dict[str, Any] | None) -> dict[str, Any]:
    """Return a launch template's data, with the tags that AWS adds to its instances."""
    if not specification:
        return {}
    asked = {name: value for name, value in specification.items() if name != "Version"}
    asked["Versions"] = [specification.get("Version", "$Default")]
    versions = cloud.moto("ec2", "DescribeLaunchTemplateVersions", asked)["LaunchTemplateVersions"]
    if not versions:
        what = f"Could not find launch template version {asked['Versions'][0]}"
        raise AwsError("InvalidLaunchTemplateId.VersionNotFound", what)
    (version,) = versions
    marks = [
        {"Key": "aws:ec2launchtemplate:id", "Value": version["LaunchTemplateId"]},
        {"Key": "aws:ec2launchtemplate:version", "Value": str(version["VersionNumber"])},
    ]
    return {**version["LaunchTemplateData"], "_marks": marks}


def merged_request(
    template: dict[str, Any], own: dict[str, Any], tags: list[dict[str, Any]]
) -> dict[str, Any]:
    """Merge a template and a request into the parameters of RunInstances; the request overrides."""
    request = {**template, **own}
    by_type: dict[str, dict[str, str]] = {}
    for specification in [*template.get("TagSpecifications", []), *tags]:
        kept = by_type.setdefault(specification["ResourceType"], {})
        kept.update({tag["Key"]: tag.get("Value", "") for tag in specification.get("Tags", [])})
    request["TagSpecifications"] = [
        {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in kept.items()]}
        for kind, kept in by_type.items()
        if kept
    ]
    interfaces = request.get("NetworkInterfaces", [])
    if interfaces and "SubnetId" in request:  # AWS lets it stand beside a template's interface
        first = {**interfaces[0], "SubnetId": request.pop("SubnetId")}
        request["NetworkInterfaces"] = [first, *interfaces[1:]]
    members = get_model("ec2").operation_model("RunInstances").input_shape.members
    return {name: value for name, value in request.items() if name in members or name == "_marks"}


def launch(
    cloud: EmbeddedAccount, request: dict[str, Any], count: int, *, fleet_id: str = ""
) -> list[Instance]:
    """Check a request as AWS does, let moto create the machines, and start them in `world`."""
    marks = request.pop("_marks", [])
    if fleet_id:
        marks = [*marks, {"Key": "aws:ec2:fleet-id", "Value": fleet_id}]
    for name in ("ClientToken", "LaunchTemplate", "DryRun"):
        request.pop(name, None)
    image = find_image(cloud, request)
    request["ImageId"] = image["ImageId"]
    market = request.get("InstanceMarketOptions", {}).get("MarketType", "on-demand")
    kind, zone = request.get("InstanceType", "m1.small"), _zone(cloud, request)
    pool = Pool(instance_type=kind, availability_zone=zone, market=market)
    _check_offered(pool)
    _check_reservation(request, pool)
    group = request.get("Placement", {}).get("GroupName", "")
    cloud.world.check_group(group)
    if group and not _can_be_grouped(kind):
        what = f"The instance type '{kind}' can't be launched in a cluster placement group."
        raise AwsError("InvalidParameterCombination", what)
    cloud.check_launch(request, image, pool, count)
    now = cloud.clock.now()
    answer = cloud.moto("ec2", "RunInstances", {**request, "MinCount": count, "MaxCount": count})
    ids = [one["InstanceId"] for one in answer["Instances"]]
    shown = cloud.moto("ec2", "DescribeInstances", {"InstanceIds": ids})["Reservations"]
    descriptions = [one for reservation in shown for one in reservation["Instances"]]
    _tag_parts(cloud, request, descriptions)
    profile = next((one["IamInstanceProfile"] for one in descriptions if "IamInstanceProfile" in one), None)
    addresses = {str(one.description.get("PrivateIpAddress")) for one in cloud.world.alive(now)}
    for one in descriptions:
        if group:
            one["Placement"] = {**one["Placement"], "GroupName": group}
        one["PrivateIpAddress"] = loopback_address(one["InstanceId"], addresses)
        addresses.add(one["PrivateIpAddress"])
        if profile:  # moto gives it to the first alone
            one["IamInstanceProfile"] = profile
        one["Tags"] = [*(tag for tag in one.get("Tags", []) if not tag["Key"].startswith("aws:")), *marks]
        one.pop("StateReason", None)
        interfaces = one.get("NetworkInterfaces") or [{}]
        one["SecurityGroups"] = one.get("SecurityGroups") or interfaces[0].get("Groups", [])
        if market == "spot":
            one["InstanceLifecycle"] = "spot"
    own = {
        "reservation_id": answer["ReservationId"],
        "user_data": base64.b64decode(request.get("UserData", "")),
        "shutdown_behavior": request.get("InstanceInitiatedShutdownBehavior", "stop"),
    }
    return [cloud.world.add(one, now=now, **own) for one in descriptions]


def loopback_address(instance_id: str, taken: Container[str] = ()) -> str:
    """Return an address of this machine alone for an instance, whose processes run here: one in 127/8 that
    follows from its id, never in 127.0.0/24, and none that is taken.
    """
    for number in range(1 << 16):
        digest = hashlib.sha256(f"{instance_id}/{number}".encode()).digest()
        address = f"127.{1 + digest[0] % 254}.{digest[1]}.{1 + digest[2] % 254}"
        if address not in taken:
            return address
    raise AwsError("InsufficientFreeAddressesInSubnet", "This machine has no loopback address left.")


def find_image(cloud: EmbeddedAccount, request: dict[str, Any]) -> dict[str, Any]:
    """Return the image of a request, given by id or by its parameter."""
    image_id = str(request.get("ImageId", ""))
    if image_id.startswith("resolve:ssm:"):
        name = image_id.removeprefix("resolve:ssm:")
        if name not in image_parameters():
            raise AwsError("InvalidParameterValue", f"The SSM parameter {name} does not exist")
        image_id = image_parameters()[name]
    if not image_id:
        raise AwsError("MissingParameter", "The request must contain the parameter ImageId")
    images = cloud.moto("ec2", "DescribeImages", {"ImageIds": [image_id]})["Images"]
    image: dict[str, Any] = images[0]
    return image


def _zone(cloud: EmbeddedAccount, request: dict[str, Any]) -> str:
    """Return the zone of a request: its subnet's, else the one it names."""
    interfaces = request.get("NetworkInterfaces") or [{}]
    subnet_id = request.get("SubnetId") or interfaces[0].get("SubnetId")
    if subnet_id:
        subnets = cloud.moto("ec2", "DescribeSubnets", {"SubnetIds": [subnet_id]})["Subnets"]
        return str(subnets[0]["AvailabilityZone"])
    return str(request.get("Placement", {}).get("AvailabilityZone") or f"{REGION}a")


def _check_offered(pool: Pool) -> None:
    """Refuse an unknown type, and one that is not offered in the zone."""
    if pool.instance_type not in types():
        raise AwsError("InvalidParameterValue", f"Invalid value '{pool.instance_type}' for InstanceType.")
    if not is_offered(pool.instance_type, pool.availability_zone):
        raise AwsError(
            "Unsupported",
            f"Your requested instance type ({pool.instance_type}) is not supported in your requested"
            f" Availability Zone ({pool.availability_zone}).",
        )


def _can_be_grouped(instance_type: str) -> bool:
    """Return whether moto's table has a type's cluster strategy; a retired type is not in it."""
    return "cluster" in types().get(instance_type, {}).get("PlacementGroupInfo", {}).get(
        "SupportedStrategies", ["cluster"]
    )


def _check_reservation(request: dict[str, Any], pool: Pool) -> None:
    """Refuse spot in a capacity reservation, which holds on-demand capacity (EC2 user guide, "Capacity
    Reservation restrictions"). A named one is taken to have room: nobody can make one here.
    """
    target = request.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget")
    if target and pool.market == "spot":
        raise AwsError(
            "InvalidParameterCombination", "Capacity Reservations cannot be used with Spot Instances."
        )


def _tag_parts(cloud: EmbeddedAccount, request: dict[str, Any], descriptions: list[dict[str, Any]]) -> None:
    """Tag the volumes and interfaces of the instances, which moto leaves untagged or half tagged."""
    tags = {one["ResourceType"]: one["Tags"] for one in request.get("TagSpecifications", [])}
    disks = [disk for one in descriptions for disk in one.get("BlockDeviceMappings", [])]
    interfaces = [part for one in descriptions for part in one.get("NetworkInterfaces", [])]
    for kind, ids in (
        ("volume", [disk["Ebs"]["VolumeId"] for disk in disks]),
        ("network-interface", [part["NetworkInterfaceId"] for part in interfaces]),
    ):
        if ids and tags.get(kind):
            cloud.moto("ec2", "CreateTags", {"Resources": ids, "Tags": tags[kind]})
