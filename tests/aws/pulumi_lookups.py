"""Look-ups of an existing network, which only an account of the tests has."""

from __future__ import annotations

from typing import Any

from trainer.rehearsal.pulumi_mocks import LOOK_UPS, Given, filters
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


def _vpc(cloud: Resources, given: Given) -> dict[str, Any]:
    vpc, ec2 = {"VpcId": given["id"]}, cloud.client("ec2")
    support = ec2.describe_vpc_attribute(**vpc, Attribute="enableDnsSupport")["EnableDnsSupport"]
    hostnames = ec2.describe_vpc_attribute(**vpc, Attribute="enableDnsHostnames")["EnableDnsHostnames"]
    values = {"enableDnsSupport": support["Value"], "enableDnsHostnames": hostnames["Value"]}
    return {"id": given["id"], "dhcpOptionsId": "default", **values}


def _subnets(cloud: Resources, given: Given) -> dict[str, Any]:
    subnets = cloud.client("ec2").describe_subnets(Filters=filters(given))["Subnets"]
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
    rules = [*filters(given), {"Name": "vpc-id", "Values": [given["vpcId"]]}]
    tables = cloud.client("ec2").describe_route_tables(Filters=rules)["RouteTables"]
    return {"ids": [one["RouteTableId"] for one in tables], "id": cloud.region}


def _route_table(cloud: Resources, given: Given) -> dict[str, Any]:
    (table,) = cloud.client("ec2").describe_route_tables(RouteTableIds=[given["routeTableId"]])["RouteTables"]
    routes = [{name: route.get(member, "") for name, member in _TARGETS.items()} for route in table["Routes"]]
    return {"id": table["RouteTableId"], "routes": routes}


LOOK_UPS |= {
    "aws:ec2/getVpc:getVpc": _vpc,
    "aws:ec2/getSubnets:getSubnets": _subnets,
    "aws:ec2/getSubnet:getSubnet": _subnet,
    "aws:ec2/getRouteTables:getRouteTables": _route_tables,
    "aws:ec2/getRouteTable:getRouteTable": _route_table,
}
