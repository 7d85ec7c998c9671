"""Look up and check the subnets of an existing VPC, by the settings `vpc_id` and `subnet_ids` or
`subnet_tags`.

That VPC is not changed. Instances need a subnet in each zone that they may start in, and a route out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.settings import Settings

DEFAULT_ROUTE, DEFAULT_IPV6_ROUTE = "0.0.0.0/0", "::/0"
_INTERNET_GATEWAY = "igw-"


@dataclass(frozen=True, kw_only=True)
class ExistingSubnet:
    """A subnet, with the targets of its default routes: '' if it has none."""

    id: str
    zone: str
    ipv6_range: str
    route_out: str
    ipv6_route_out: str
    gives_addresses: bool  # a public one to whatever lands there


@dataclass(frozen=True, kw_only=True)
class ExistingVpc:
    """An existing VPC, with the subnets that instances may start in, by zone."""

    id: str
    resolves_names: bool
    names_hosts: bool
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


def look_up_vpc(settings: Settings, *, zones: Sequence[str]) -> ExistingVpc:
    """Look up the VPC of the settings. `zones`: the region's own, no Local Zones. Raises pulumi.RunError for
    an unfit one.
    """
    try:
        return _look_up(settings, zones)
    except ValueError as error:
        raise pulumi.RunError(f"{error} Change it with `pulumi config set`.") from error


def _look_up(settings: Settings, zones: Sequence[str]) -> ExistingVpc:
    vpc_id = settings.vpc_id
    in_vpc = aws.ec2.GetSubnetsFilterArgs(name="vpc-id", values=[vpc_id])
    if not aws.ec2.get_vpcs(filters=[aws.ec2.GetVpcsFilterArgs(name="vpc-id", values=[vpc_id])]).ids:
        raise ValueError(f"Setting 'vpc_id' is {vpc_id!r}; this account and region have no such VPC.")
    if settings.subnet_ids:
        wanted = [aws.ec2.GetSubnetsFilterArgs(name="subnet-id", values=list(settings.subnet_ids))]
    else:
        pairs = [tag.partition("=") for tag in settings.subnet_tags]
        wanted = [aws.ec2.GetSubnetsFilterArgs(name=f"tag:{key}", values=[value]) for key, _, value in pairs]
    known = sorted(aws.ec2.get_subnets(filters=[in_vpc, *wanted]).ids)
    if missing := sorted(set(settings.subnet_ids) - set(known)):
        raise ValueError(f"Setting 'subnet_ids' names {', '.join(missing)}; {vpc_id} has no such subnet.")
    if not known:
        raise ValueError(
            f"Setting 'subnet_tags' is {','.join(settings.subnet_tags)!r}; no subnet of {vpc_id} has these"
            " tags."
        )
    vpc = aws.ec2.get_vpc(id=vpc_id)
    found = ExistingVpc(
        id=vpc_id,
        resolves_names=vpc.enable_dns_support,
        names_hosts=vpc.enable_dns_hostnames,
        subnets=by_zone(
            [_subnet(vpc_id, one) for one in known],
            key="subnet_ids" if settings.subnet_ids else "subnet_tags",
        ),
    )
    check_vpc(
        found,
        zones=zones,
        ipv6=settings.ipv6,
        endpoints=bool(settings.endpoints),
        builds=settings.image_pipeline,
    )
    return found


def _subnet(vpc_id: str, subnet_id: str) -> ExistingSubnet:
    subnet = aws.ec2.get_subnet(id=subnet_id)
    routes = _routes(vpc_id, subnet_id)
    return ExistingSubnet(
        id=subnet_id,
        zone=subnet.availability_zone,
        ipv6_range=subnet.ipv6_cidr_block or "",
        route_out=next((_target(one) for one in routes if one.cidr_block == DEFAULT_ROUTE), ""),
        ipv6_route_out=next(
            (_target(one) for one in routes if one.ipv6_cidr_block == DEFAULT_IPV6_ROUTE), ""
        ),
        gives_addresses=subnet.map_public_ip_on_launch,
    )


def _routes(vpc_id: str, subnet_id: str) -> Sequence[aws.ec2.outputs.GetRouteTableRouteResult]:
    """Return the routes of a subnet: those of its own table, else of the VPC's main one."""
    for name, value in (("association.subnet-id", subnet_id), ("association.main", "true")):
        rule = aws.ec2.GetRouteTablesFilterArgs(name=name, values=[value])
        if tables := aws.ec2.get_route_tables(vpc_id=vpc_id, filters=[rule]).ids:
            return aws.ec2.get_route_table(route_table_id=tables[0]).routes
    return []


def _target(route: aws.ec2.outputs.GetRouteTableRouteResult) -> str:
    """Return the target of a route: a gateway of any kind, an appliance's interface, another network."""
    targets = (
        route.gateway_id,
        route.nat_gateway_id,
        route.egress_only_gateway_id,
        route.transit_gateway_id,
        route.network_interface_id,
        route.vpc_endpoint_id,
        route.vpc_peering_connection_id,
        route.core_network_arn,
    )
    return next((target for target in targets if target), "")


def by_zone(subnets: Sequence[ExistingSubnet], *, key: str) -> dict[str, ExistingSubnet]:
    """Return subnets by zone. Raises ValueError, which names the setting `key`, for two in one zone."""
    zones: dict[str, ExistingSubnet] = {}
    for one in subnets:
        if one.zone in zones:
            raise ValueError(
                f"Setting '{key}' names {zones[one.zone].id} and {one.id}, both in {one.zone}; name one per"
                " zone."
            )
        zones[one.zone] = one
    return dict(sorted(zones.items()))


def check_vpc(vpc: ExistingVpc, *, zones: Sequence[str], ipv6: bool, endpoints: bool, builds: bool) -> None:
    """Raise ValueError for the first reason why instances in the VPC could not work; `builds`: those of
    images, too.
    """
    where = f"Setting 'vpc_id' is {vpc.id!r};"
    if not vpc.resolves_names:
        raise ValueError(
            f"{where} its DNS resolution is off, so no instance would reach S3. Turn on enableDnsSupport"
            " there."
        )
    if endpoints and not vpc.names_hosts:
        raise ValueError(f"{where} 'endpoints' need its DNS hostnames. Turn on enableDnsHostnames there.")
    for subnet in vpc.subnets.values():
        if subnet.zone not in zones:
            raise ValueError(
                f"{where} {subnet.id} is in {subnet.zone}, which is not an availability zone of the region."
            )
        if not subnet.route_out:
            raise ValueError(
                f"{where} {subnet.id} has no route to {DEFAULT_ROUTE}, without which an instance installs"
                " nothing."
            )
        if builds and subnet.route_out.startswith(_INTERNET_GATEWAY) and not subnet.gives_addresses:
            why = f"image builds in {subnet.id} would have no public address, and so no way out"
            raise ValueError(
                f"Setting 'image_pipeline' is true; {why}. Turn on its auto-assigned addresses, or set it to"
                " false."
            )
        if ipv6 and not (subnet.ipv6_range and subnet.ipv6_route_out):
            lacks = f"route to {DEFAULT_IPV6_ROUTE}" if subnet.ipv6_range else "IPv6 range"
            raise ValueError(f"Setting 'ipv6' is true; {subnet.id} has no {lacks}.")
