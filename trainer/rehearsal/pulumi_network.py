"""Create the resource types of infra/network.py on the embedded AWS: VPC, routes, subnets, security
groups.
"""

from __future__ import annotations

from typing import Any

from trainer.rehearsal.pulumi_resources import (
    Made,
    Properties,
    Resources,
    makes,
    physical_name,
    tag_specifications,
)

_ANYWHERE = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]


@makes("aws:ec2/vpc:Vpc")
def _vpc(cloud: Resources, name: str, properties: Properties) -> Made:
    ec2, switches = cloud.client("ec2"), properties.take("enableDnsSupport", "enableDnsHostnames")
    tags = tag_specifications("vpc", properties)
    vpc = cloud.send("ec2", "CreateVpc", properties.rest(), TagSpecifications=tags)["Vpc"]["VpcId"]
    for switch, value in switches.items():  # EC2 takes one a call
        ec2.modify_vpc_attribute(VpcId=vpc, **{switch[0].upper() + switch[1:]: {"Value": value}})
    return vpc, {"arn": cloud.arn("ec2", f"vpc/{vpc}")}


@makes("aws:ec2/internetGateway:InternetGateway")
def _internet_gateway(cloud: Resources, name: str, properties: Properties) -> Made:
    ec2, tags = cloud.client("ec2"), tag_specifications("internet-gateway", properties)
    gateway = ec2.create_internet_gateway(TagSpecifications=tags)["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=properties.pop("vpcId"))
    return gateway, {"arn": cloud.arn("ec2", f"internet-gateway/{gateway}")}


@makes("aws:ec2/routeTable:RouteTable")
def _route_table(cloud: Resources, name: str, properties: Properties) -> Made:
    routes, tags = properties.pop("routes", []), tag_specifications("route-table", properties)
    table = cloud.send("ec2", "CreateRouteTable", properties.rest(), TagSpecifications=tags)["RouteTable"][
        "RouteTableId"
    ]
    for route in routes:
        renamed = {"destinationCidrBlock" if key == "cidrBlock" else key: route[key] for key in route}
        cloud.send("ec2", "CreateRoute", renamed, RouteTableId=table)
    return table, {"arn": cloud.arn("ec2", f"route-table/{table}")}


@makes("aws:ec2/routeTableAssociation:RouteTableAssociation")
def _route_table_association(cloud: Resources, name: str, properties: Properties) -> Made:
    return cloud.send("ec2", "AssociateRouteTable", properties.rest())["AssociationId"], {}


@makes("aws:ec2/vpcEndpoint:VpcEndpoint")
def _vpc_endpoint(cloud: Resources, name: str, properties: Properties) -> Made:
    tags = tag_specifications("vpc-endpoint", properties)
    made = cloud.send("ec2", "CreateVpcEndpoint", properties.rest(), TagSpecifications=tags)
    endpoint = made["VpcEndpoint"]["VpcEndpointId"]
    return endpoint, {"arn": cloud.arn("ec2", f"vpc-endpoint/{endpoint}")}


@makes("aws:ec2/subnet:Subnet")
def _subnet(cloud: Resources, name: str, properties: Properties) -> Made:
    public, tags = properties.pop("mapPublicIpOnLaunch", None), tag_specifications("subnet", properties)
    subnet = cloud.send("ec2", "CreateSubnet", properties.rest(), TagSpecifications=tags)["Subnet"][
        "SubnetId"
    ]
    if public is not None:
        cloud.client("ec2").modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": public})
    return subnet, {"arn": cloud.arn("ec2", f"subnet/{subnet}")}


@makes("aws:ec2/securityGroup:SecurityGroup")
def _security_group(cloud: Resources, name: str, properties: Properties) -> Made:
    ec2, tags = cloud.client("ec2"), tag_specifications("security-group", properties)
    rules = properties.take("ingress", "egress")
    group_name = physical_name(properties, name)
    group = cloud.send(
        "ec2", "CreateSecurityGroup", {**properties.rest(), "groupName": group_name}, TagSpecifications=tags
    )["GroupId"]
    ec2.revoke_security_group_egress(
        GroupId=group, IpPermissions=_ANYWHERE
    )  # EC2 adds it, the provider removes it
    for direction, authorize in (
        ("ingress", ec2.authorize_security_group_ingress),
        ("egress", ec2.authorize_security_group_egress),
    ):
        if permissions := [_permission(cloud, rule) for rule in rules.get(direction, [])]:
            authorize(GroupId=group, IpPermissions=permissions)
    return group, {"arn": cloud.arn("ec2", f"security-group/{group}"), "name": group_name}


def _permission(cloud: Resources, rule: dict[str, Any]) -> Any:
    rule = dict(rule)
    described = {"description": rule.pop("description")} if "description" in rule else {}
    peers = {
        "ipRanges": [{"cidrIp": cidr, **described} for cidr in rule.pop("cidrBlocks", [])],
        "userIdGroupPairs": [{"groupId": group, **described} for group in rule.pop("securityGroups", [])],
    }
    protocol = rule.pop("protocol")
    given = {name: value for name, value in peers.items() if value}
    return cloud.shaped(
        "ec2", "IpPermission", {**rule, "ipProtocol": protocol, **given}, "SecurityGroup rule"
    )
