"""Create the resource types of infra/network.py on the embedded AWS: VPC, routes, subnets, security
groups.
"""

from __future__ import annotations

from typing import Any

from trainer.rehearsal.pulumi_resources import (
    Made,
    Properties,
    Resources,
    by_one_call,
    makes,
    physical_name,
    tag_specifications,
)

_ANYWHERE = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]


@makes("aws:ec2/vpc:Vpc")
def _vpc(cloud: Resources, name: str, properties: Properties) -> Made:
    tags = tag_specifications("vpc", properties)
    switches = properties.take("enableDnsSupport", "enableDnsHostnames")
    vpc = cloud.send("ec2", "CreateVpc", properties.rest(), **tags)["Vpc"]["VpcId"]
    for switch, value in switches.items():  # EC2 takes one a call
        cloud.send("ec2", "ModifyVpcAttribute", {"vpcId": vpc, switch: {"value": value}})
    return vpc, {}


@makes("aws:ec2/internetGateway:InternetGateway")
def _internet_gateway(cloud: Resources, name: str, properties: Properties) -> Made:
    ec2, tags = cloud.client("ec2"), tag_specifications("internet-gateway", properties)
    gateway = ec2.create_internet_gateway(**tags)["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=properties.pop("vpcId"))
    return gateway, {}


@makes("aws:ec2/routeTable:RouteTable")
def _route_table(cloud: Resources, name: str, properties: Properties) -> Made:
    routes, tags = properties.pop("routes", []), tag_specifications("route-table", properties)
    made = cloud.send("ec2", "CreateRouteTable", properties.rest(), **tags)
    table = made["RouteTable"]["RouteTableId"]
    for route in routes:
        cloud.send("ec2", "CreateRoute", route, RouteTableId=table)
    return table, {}


by_one_call(
    "aws:ec2/routeTableAssociation:RouteTableAssociation", "ec2", "AssociateRouteTable", id="AssociationId"
)
by_one_call(
    "aws:ec2/vpcEndpoint:VpcEndpoint",
    *("ec2", "CreateVpcEndpoint"),
    tags="vpc-endpoint",
    id="VpcEndpoint.VpcEndpointId",
)


@makes("aws:ec2/subnet:Subnet")
def _subnet(cloud: Resources, name: str, properties: Properties) -> Made:
    public, tags = properties.pop("mapPublicIpOnLaunch", None), tag_specifications("subnet", properties)
    subnet = cloud.send("ec2", "CreateSubnet", properties.rest(), **tags)["Subnet"]["SubnetId"]
    if public is not None:
        cloud.client("ec2").modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": public})
    return subnet, {}


@makes("aws:ec2/securityGroup:SecurityGroup")
def _security_group(cloud: Resources, name: str, properties: Properties) -> Made:
    ec2, tags = cloud.client("ec2"), tag_specifications("security-group", properties)
    ingress, egress = properties.pop("ingress", []), properties.pop("egress", [])
    named = {"groupName": physical_name(properties, name)}
    group = cloud.send("ec2", "CreateSecurityGroup", properties.rest() | named, **tags)["GroupId"]
    # EC2 adds this rule, and Pulumi's provider removes it.
    ec2.revoke_security_group_egress(GroupId=group, IpPermissions=_ANYWHERE)
    for rules, authorize in (
        (ingress, ec2.authorize_security_group_ingress),
        (egress, ec2.authorize_security_group_egress),
    ):
        if rules:
            authorize(GroupId=group, IpPermissions=[_permission(cloud, dict(rule), group) for rule in rules])
    return group, {}


@makes("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule")
def _security_group_ingress_rule(cloud: Resources, name: str, properties: Properties) -> Made:
    group, tags = properties.pop("securityGroupId"), tag_specifications("security-group-rule", properties)
    source, protocol = properties.pop("referencedSecurityGroupId"), properties.pop("ipProtocol")
    rule = {**properties.rest(), "protocol": protocol, "securityGroups": [source]}
    made = cloud.client("ec2").authorize_security_group_ingress(
        GroupId=group, IpPermissions=[_permission(cloud, rule)], **tags
    )
    return made["SecurityGroupRules"][0]["SecurityGroupRuleId"], {}


def _permission(cloud: Resources, rule: dict[str, Any], own: str = "") -> Any:
    """Return a rule as EC2 takes it; `own`: the group that a rule names by `self`."""
    sources = [*rule.pop("securityGroups", []), *([own] if rule.pop("self", False) else [])]
    described = {"description": rule.pop("description")} if "description" in rule else {}
    ranges = [{"cidrIp": cidr, **described} for cidr in rule.pop("cidrBlocks", [])]
    groups = [{"groupId": group, **described} for group in sources]
    given = {**rule, "ipRanges": ranges, "userIdGroupPairs": groups}
    return cloud.shaped("ec2", "IpPermission", given, "SecurityGroup rule")
