"""Look-ups of the Pulumi program, answered by the embedded AWS: account, zones, images, existing networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainer.base.errors import ConfigError
from trainer.rehearsal.pulumi_resources import Resources

# A route's members by Pulumi's names for its targets.
_TARGETS = {
    "cidrBlock": "DestinationCidrBlock",
    "gatewayId": "GatewayId",
    "natGatewayId": "NatGatewayId",
    "transitGatewayId": "TransitGatewayId",
    "networkInterfaceId": "NetworkInterfaceId",
    "vpcPeeringConnectionId": "VpcPeeringConnectionId",
}
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
    zones = cloud.client("ec2").describe_availability_zones(Filters=_filters(given))["AvailabilityZones"]
    return {
        "names": [zone["ZoneName"] for zone in zones],
        "zoneIds": [zone["ZoneId"] for zone in zones],
        "id": cloud.region,
    }


def _vpc(cloud: Resources, given: Given) -> dict[str, Any]:
    asked = {"VpcId": given["id"], "Attribute": "enableDnsSupport"}
    support = cloud.client("ec2").describe_vpc_attribute(**asked)["EnableDnsSupport"]["Value"]
    return {"id": given["id"], "enableDnsSupport": support}


def _subnets(cloud: Resources, given: Given) -> dict[str, Any]:
    subnets = cloud.client("ec2").describe_subnets(Filters=_filters(given))["Subnets"]
    return {"ids": [one["SubnetId"] for one in subnets], "id": cloud.region}


def _subnet(cloud: Resources, given: Given) -> dict[str, Any]:
    (subnet,) = cloud.client("ec2").describe_subnets(SubnetIds=[given["id"]])["Subnets"]
    return {
        "id": subnet["SubnetId"],
        "vpcId": subnet["VpcId"],
        "availabilityZone": subnet["AvailabilityZone"],
        "mapPublicIpOnLaunch": subnet["MapPublicIpOnLaunch"],
    }


def _route_tables(cloud: Resources, given: Given) -> dict[str, Any]:
    rules = [*_filters(given), {"Name": "vpc-id", "Values": [given["vpcId"]]}]
    tables = cloud.client("ec2").describe_route_tables(Filters=rules)["RouteTables"]
    return {"ids": [one["RouteTableId"] for one in tables], "id": cloud.region}


def _route_table(cloud: Resources, given: Given) -> dict[str, Any]:
    (table,) = cloud.client("ec2").describe_route_tables(RouteTableIds=[given["routeTableId"]])["RouteTables"]
    routes = [{name: route.get(member, "") for name, member in _TARGETS.items()} for route in table["Routes"]]
    return {"id": table["RouteTableId"], "routes": routes}


def _parameter(cloud: Resources, given: Given) -> dict[str, Any]:
    parameter = cloud.client("ssm").get_parameter(Name=given["name"])["Parameter"]
    return {"insecureValue": parameter["Value"], "type": parameter["Type"], "id": given["name"]}


def _image(cloud: Resources, given: Given) -> dict[str, Any]:
    (image,) = cloud.client("ec2").describe_images(Filters=_filters(given))["Images"]
    return {
        "rootDeviceName": image["RootDeviceName"],
        "imageId": image["ImageId"],
        "id": image["ImageId"],
    }


def _filters(given: Given) -> list[dict[str, Any]]:
    return [{"Name": one["name"], "Values": list(one["values"])} for one in given.get("filters") or []]


LOOK_UPS: dict[str, LookUp] = {
    "aws:index/getCallerIdentity:getCallerIdentity": _identity,
    "aws:index/getRegion:getRegion": _region,
    "aws:index/getAvailabilityZones:getAvailabilityZones": _zones,
    "aws:ssm/getParameter:getParameter": _parameter,
    "aws:ec2/getAmi:getAmi": _image,
    "aws:ec2/getVpc:getVpc": _vpc,
    "aws:ec2/getSubnets:getSubnets": _subnets,
    "aws:ec2/getSubnet:getSubnet": _subnet,
    "aws:ec2/getRouteTables:getRouteTables": _route_tables,
    "aws:ec2/getRouteTable:getRouteTable": _route_table,
}
