"""Check the network that machines launch in: a way out of each subnet, DNS, S3 by a gateway, no inbound
traffic. Reads only.

A launch can't notice these faults: its machine would start, reach nothing and end when its boot time is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.aws.access import Access
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConfigError

NAT_USD_PER_GB = 0.045  # aws.amazon.com/vpc/pricing, us-east-1 (2026-11-20)
_ANYWHERE = "0.0.0.0/0"
_REMEDY = "Restore it, or run pulumi up --refresh if the stack made it."


def network(access: Access, outputs: StackOutputs) -> str:
    """Check subnets, routes, DNS and security group. Raises ConfigError if a machine can't reach
    S3 or PyPI.

    The note names a full subnet, and S3 by a NAT gateway.
    """
    ec2 = access.client("ec2")
    wanted = sorted(outputs.subnets.values())
    subnets = ec2.describe_subnets(Filters=[{"Name": "subnet-id", "Values": wanted}])["Subnets"]
    if missing := sorted(set(wanted) - {one["SubnetId"] for one in subnets}):
        raise ConfigError(
            f"the subnet {', '.join(missing)} is gone",
            why="the stack launches there",
            do="Run pulumi up --refresh.",
        )
    (vpc_id,) = {one["VpcId"] for one in subnets}
    in_vpc = [{"Name": "vpc-id", "Values": [vpc_id]}]
    if not ec2.describe_vpc_attribute(VpcId=vpc_id, Attribute="enableDnsSupport")["EnableDnsSupport"][
        "Value"
    ]:
        do = f"aws ec2 modify-vpc-attribute --vpc-id {vpc_id} --enable-dns-support"
        raise ConfigError(
            f"the VPC {vpc_id} resolves no names",
            why="its DNS support is off, so that nothing reaches S3",
            do=do,
        )
    asked = [outputs.security_group, *outputs.cluster_groups.values()]
    groups = {one["GroupId"]: one for one in ec2.describe_security_groups(GroupIds=asked)["SecurityGroups"]}
    check_group(groups[outputs.security_group], attach=outputs.attach)
    for name in outputs.cluster_groups.values():
        check_cluster_group(groups[name])
    tables = ec2.describe_route_tables(Filters=in_vpc)["RouteTables"]
    every = ec2.describe_vpc_endpoints(Filters=in_vpc)["VpcEndpoints"]
    endpoints = [one for one in every if one["State"].lower() in ("available", "pending")]
    notes = []
    for subnet in subnets:
        table = table_of(subnet["SubnetId"], tables)
        way_out = check_way_out(subnet["SubnetId"], table)
        if way_out.startswith("nat-") and not has_s3(table, endpoints):
            notes.append(
                f"{subnet['SubnetId']} reaches S3 through {way_out}, ${NAT_USD_PER_GB} a GB: add a gateway"
                " endpoint"
            )
        if not subnet["AvailableIpAddressCount"]:
            notes.append(
                f"{subnet['SubnetId']} has no free address: nothing starts in {subnet['AvailabilityZone']}"
            )
    return "; ".join(notes)


def table_of(subnet_id: str, tables: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the route table of a subnet: its own, else the VPC's main one."""
    for table in tables:
        if any(one.get("SubnetId") == subnet_id for one in table["Associations"]):
            return table
    return next((table for table in tables if any(one.get("Main") for one in table["Associations"])), {})


def check_way_out(subnet_id: str, table: Mapping[str, Any]) -> str:
    """Return the target of a subnet's default route. Raises ConfigError if it has none, or one without a
    target.
    """
    route = next(
        (one for one in table.get("Routes", []) if one.get("DestinationCidrBlock") == _ANYWHERE), None
    )
    if route is None or route.get("State") == "blackhole":
        lacks = "has no route" if route is None else "has a route whose target is gone"
        why = "a machine would reach no package index, and end when its boot time is over"
        raise ConfigError(f"the subnet {subnet_id} {lacks} to {_ANYWHERE}", why=why, do=_REMEDY)
    targets = (str(value) for name, value in sorted(route.items()) if name.endswith(("Id", "Arn")) and value)
    return next(targets, "")


def has_s3(table: Mapping[str, Any], endpoints: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a route table has the gateway endpoint of S3, or its VPC an interface one."""
    s3 = [one for one in endpoints if one["ServiceName"].endswith(".s3")]
    table_id = table.get("RouteTableId")
    return any(
        one["VpcEndpointType"] == "Interface" or table_id in one.get("RouteTableIds", []) for one in s3
    )


def check_group(group: Mapping[str, Any], *, attach: str) -> None:
    """Raise ConfigError if the security group blocks outbound HTTPS, or allows inbound traffic beyond the
    stack's rules.
    """
    name = group["GroupId"]
    rules = [one for one in group["IpPermissionsEgress"] if _covers_https(one)]
    if not any(one.get("CidrIp") == _ANYWHERE for rule in rules for one in rule.get("IpRanges", [])):
        raise ConfigError(
            f"the security group {name} blocks outbound HTTPS", why="machines reach nothing", do=_REMEDY
        )
    if group["IpPermissions"] and attach != "ssh":
        ports = ", ".join(str(one.get("FromPort", "all")) for one in group["IpPermissions"])
        why = f"one of its rules opens port {ports}, and the stack has no such rule"
        raise ConfigError(
            f"the security group {name} allows inbound traffic",
            why=why,
            do="Run pulumi up --refresh, which removes it.",
        )


def check_cluster_group(group: Mapping[str, Any]) -> None:
    """Raise ConfigError if a group of runs of several machines admits, or lets out to, anything but its own
    members, or not them.
    """
    name = group["GroupId"]
    for way in ("IpPermissions", "IpPermissionsEgress"):
        others = ("IpRanges", "Ipv6Ranges", "PrefixListIds")
        pairs = [one["GroupId"] for rule in group[way] for one in rule.get("UserIdGroupPairs", [])]
        if pairs != [name] or any(rule.get(key) for rule in group[way] for key in others):
            inwards = "admits" if way == "IpPermissions" else "lets out to"
            raise ConfigError(
                f"the security group {name} {inwards} others than its own machines",
                why="runs of several machines rely on it",
                do="Run pulumi up --refresh, which restores its rules.",
            )


def _covers_https(rule: Mapping[str, Any]) -> bool:
    return rule["IpProtocol"] == "-1" or bool(
        rule["IpProtocol"] == "tcp" and rule["FromPort"] <= 443 <= rule["ToPort"]
    )
