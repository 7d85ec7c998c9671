"""Look up and check the subnets of an existing VPC: the setting `subnets`.

That VPC is not changed. Instances need a subnet in each zone that they may start in, and a route out.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

DEFAULT_ROUTE = "0.0.0.0/0"
AMAZONS_NAME_SERVERS = ("AmazonProvidedDNS", "169.254.169.253")
_INTERNET_GATEWAY = "igw-"


@dataclass(frozen=True, kw_only=True)
class ExistingSubnet:
    """A subnet, with the target of its default route: '' if it has none."""

    id: str
    zone: str
    route_out: str
    gives_addresses: bool  # a public one to whatever lands there


@dataclass(frozen=True, kw_only=True)
class ExistingVpc:
    """An existing VPC, with the subnets that instances may start in, by zone."""

    id: str
    resolves_names: bool
    has_hostnames: bool  # for its machines, and so for the file systems in it
    name_servers: tuple[str, ...]  # that its machines ask, if none of them is Amazon's
    subnets: dict[str, ExistingSubnet]

    @property
    def public(self) -> bool:
        """Return whether an instance needs a public address to get out: if a subnet routes to an internet
        gateway.
        """
        return any(one.route_out.startswith(_INTERNET_GATEWAY) for one in self.subnets.values())

    @property
    def subnet_ids(self) -> tuple[str, ...]:
        """Return the subnets' ids, for policies: other subnets of the VPC are not for launches."""
        return tuple(one.id for one in self.subnets.values())


def look_up_vpc(subnets: Sequence[str], *, zones: Sequence[str], builds: bool, mounts: bool) -> ExistingVpc:
    """Look up the VPC of subnets. `zones`: the region's own, no Local Zones; `builds`: images are built
    there; `mounts`: nodes mount a cache.

    Raises pulumi.RunError for an unfit one.
    """
    try:
        vpc = _look_up(subnets)
        check_vpc(vpc, zones=zones, builds=builds, mounts=mounts)
    except ValueError as error:
        raise pulumi.RunError(f"Setting 'subnets': {error} Change it with `pulumi config set`.") from error
    return vpc


def _look_up(wanted: Sequence[str]) -> ExistingVpc:
    by_id = aws.ec2.GetSubnetsFilterArgs(name="subnet-id", values=list(wanted))
    known = sorted(aws.ec2.get_subnets(filters=[by_id]).ids)
    if missing := sorted(set(wanted) - set(known)):
        raise ValueError(f"this account and region have no {', '.join(missing)}.")
    found = [aws.ec2.get_subnet(id=one) for one in known]
    vpc_id, *others = sorted({one.vpc_id for one in found})
    if others:
        raise ValueError(f"they are in {', '.join((vpc_id, *others))}; name those of one VPC.")
    subnets = [
        ExistingSubnet(
            id=one.id,
            zone=one.availability_zone,
            route_out=_route_out(vpc_id, one.id),
            gives_addresses=one.map_public_ip_on_launch,
        )
        for one in found
    ]
    vpc = aws.ec2.get_vpc(id=vpc_id)
    return ExistingVpc(
        id=vpc_id,
        resolves_names=vpc.enable_dns_support,
        has_hostnames=vpc.enable_dns_hostnames,
        name_servers=_foreign_name_servers(vpc),
        subnets=by_zone(subnets),
    )


def _foreign_name_servers(vpc: aws.ec2.AwaitableGetVpcResult) -> tuple[str, ...]:
    """Return the name servers that a VPC's machines ask; () if Amazon's is among them, which no security
    group keeps from them (VPC user guide, "Internetwork traffic privacy", looked up 2026-11-28).
    """
    if not vpc.dhcp_options_id.startswith("dopt-"):  # it has no option set of its own
        return ()
    servers = aws.ec2.get_vpc_dhcp_options(dhcp_options_id=vpc.dhcp_options_id).domain_name_servers
    in_vpc = str(ipaddress.IPv4Network(vpc.cidr_block).network_address + 2)
    return () if {*AMAZONS_NAME_SERVERS, in_vpc} & set(servers) else tuple(servers)


def _route_out(vpc_id: str, subnet_id: str) -> str:
    """Return the target of a subnet's default route, in its own table, else in the VPC's main one: a gateway
    of any kind, an appliance's interface, another network.
    """
    for name, value in (("association.subnet-id", subnet_id), ("association.main", "true")):
        rule = aws.ec2.GetRouteTablesFilterArgs(name=name, values=[value])
        if tables := aws.ec2.get_route_tables(vpc_id=vpc_id, filters=[rule]).ids:
            routes = aws.ec2.get_route_table(route_table_id=tables[0]).routes
            return next((_target(one) for one in routes if one.cidr_block == DEFAULT_ROUTE), "")
    return ""


def _target(route: aws.ec2.outputs.GetRouteTableRouteResult) -> str:
    targets = (
        route.gateway_id,
        route.nat_gateway_id,
        route.transit_gateway_id,
        route.network_interface_id,
        route.vpc_endpoint_id,
        route.vpc_peering_connection_id,
        route.core_network_arn,
    )
    return next((target for target in targets if target), "")


def by_zone(subnets: Sequence[ExistingSubnet]) -> dict[str, ExistingSubnet]:
    """Return subnets by zone. Raises ValueError for two in one zone."""
    zones: dict[str, ExistingSubnet] = {}
    for one in subnets:
        if one.zone in zones:
            raise ValueError(f"{zones[one.zone].id} and {one.id} are both in {one.zone}; name one per zone.")
        zones[one.zone] = one
    return dict(sorted(zones.items()))


def check_vpc(vpc: ExistingVpc, *, zones: Sequence[str], builds: bool, mounts: bool) -> None:
    """Raise ValueError for the first reason why instances in the VPC could not work; `builds`: those of
    images, too; `mounts`: or could not mount the cache.
    """
    if not vpc.resolves_names:
        raise ValueError(
            f"the DNS resolution of {vpc.id} is off, so no instance would reach S3. Turn on enableDnsSupport"
            " there."
        )
    if vpc.name_servers:
        raise ValueError(
            f"machines in {vpc.id} ask {', '.join(vpc.name_servers)} for names, and the stack's security"
            " group lets out HTTPS alone. Give the VPC a DHCP option set with AmazonProvidedDNS."
        )
    # Else a file system's name has no address (github.com/aws/efs-utils, issue 21, looked up 2026-11-28).
    if mounts and not vpc.has_hostnames:
        raise ValueError(
            f"the DNS hostnames of {vpc.id} are off, so no node would find the cache. Turn on"
            " enableDnsHostnames there, or set 'storage' to s3."
        )
    for subnet in vpc.subnets.values():
        if subnet.zone not in zones:
            raise ValueError(
                f"{subnet.id} is in {subnet.zone}, which is not an availability zone of the region."
            )
        if not subnet.route_out:
            raise ValueError(
                f"{subnet.id} has no route to {DEFAULT_ROUTE}, without which an instance installs nothing."
            )
        if builds and subnet.route_out.startswith(_INTERNET_GATEWAY) and not subnet.gives_addresses:
            raise ValueError(
                f"image builds in {subnet.id} would have no public address, and so no way out. Turn on its"
                " auto-assigned addresses, or set 'image_pipeline' to nothing."
            )
