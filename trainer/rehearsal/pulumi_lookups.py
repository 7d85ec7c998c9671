"""Look-ups of the Pulumi program, answered by the embedded AWS: account, zones, images.

A rehearsal has no network of yours, so that of the setting `subnets` is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainer.base.errors import ConfigError
from trainer.rehearsal.pulumi_resources import Resources

Given = Mapping[str, Any]
LookUp = Callable[[Resources, Given], dict[str, Any]]


def look_up(cloud: Resources, token: str, given: Given) -> dict[str, Any]:
    """Answer one look-up. Raises ConfigError for an unknown one."""
    if token not in LOOK_UPS:
        do = "Add it to trainer/rehearsal/pulumi_lookups.py."
        raise ConfigError(f"the embedded AWS does not know the look-up {token}", do=do)
    return LOOK_UPS[token](cloud, given)


def _identity(cloud: Resources, given: Given) -> dict[str, Any]:
    identity = cloud.client("sts").get_caller_identity()
    account = identity["Account"]
    return {"accountId": account, "arn": identity["Arn"], "userId": identity["UserId"], "id": account}


def _region(cloud: Resources, given: Given) -> dict[str, Any]:
    return {"region": cloud.region, "name": cloud.region, "id": cloud.region}


def _zones(cloud: Resources, given: Given) -> dict[str, Any]:
    zones = cloud.client("ec2").describe_availability_zones(Filters=filters(given))["AvailabilityZones"]
    return {
        "names": [zone["ZoneName"] for zone in zones],
        "zoneIds": [zone["ZoneId"] for zone in zones],
        "id": cloud.region,
    }


def _parameter(cloud: Resources, given: Given) -> dict[str, Any]:
    parameter = cloud.client("ssm").get_parameter(Name=given["name"])["Parameter"]
    return {"insecureValue": parameter["Value"], "type": parameter["Type"], "id": given["name"]}


def _image(cloud: Resources, given: Given) -> dict[str, Any]:
    (image,) = cloud.client("ec2").describe_images(Filters=filters(given))["Images"]
    return {
        "rootDeviceName": image["RootDeviceName"],
        "imageId": image["ImageId"],
        "id": image["ImageId"],
    }


def filters(given: Given) -> list[dict[str, Any]]:
    """Return a look-up's filters as EC2 takes them."""
    return [{"Name": one["name"], "Values": list(one["values"])} for one in given.get("filters") or []]


LOOK_UPS: dict[str, LookUp] = {
    "aws:index/getCallerIdentity:getCallerIdentity": _identity,
    "aws:index/getRegion:getRegion": _region,
    "aws:index/getAvailabilityZones:getAvailabilityZones": _zones,
    "aws:ssm/getParameter:getParameter": _parameter,
    "aws:ec2/getAmi:getAmi": _image,
}
