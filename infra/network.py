"""The network that instances live in: a VPC of its own or an existing one, S3 by a gateway, no inbound rule.

Public subnets and no NAT: an instance needs S3, EC2's own services and package indexes for minutes, and a NAT
gateway bills every hour. What keeps the instance closed is the security group, which admits nothing and is
the stack's own in either VPC.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.attach import ssh_ingress
from infra.efs import admit_to_file_system, file_system_group, out_to_file_system
from infra.endpoints import InterfaceEndpoints, InterfaceEndpointsArgs
from infra.settings import SUBNETS_PER_VPC
from infra.subnets import DEFAULT_IPV6_ROUTE, DEFAULT_ROUTE, ExistingVpc


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    prefix: str
    region: str
    vpc_cidr: str
    availability_zones: tuple[str, ...]
    existing: ExistingVpc | None  # None: a VPC of its own
    ipv6: bool
    endpoints: tuple[str, ...]  # services
    ssh_from: str = ""  # the one address that may connect; "": nobody
    tags: dict[str, str]
    public_addresses: bool = (
        False  # to whatever lands in a subnet: Image Builder's instances can't ask for one
    )
    file_system: bool = False  # whether instances mount one


class Network(pulumi.ComponentResource):
    """A VPC, its own or an existing one, with its subnets by zone and the one security group of instances."""

    vpc_id: pulumi.Output[str]
    subnet_ids: dict[str, pulumi.Output[str]]  # by availability zone
    security_group_id: pulumi.Output[str]
    file_system_group_id: pulumi.Output[str] | None  # of its mount targets

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:network:Network", name, None, opts)
        # Children don't inherit what their component depends on.
        child = pulumi.ResourceOptions(parent=self, depends_on=opts.depends_on if opts else None)
        if args.existing is None:
            self.vpc_id, self.subnet_ids = _own_vpc(args, child)
        else:
            self.vpc_id = pulumi.Output.from_input(args.existing.id)
            self.subnet_ids = {
                zone: pulumi.Output.from_input(one.id) for zone, one in args.existing.subnets.items()
            }
        files = file_system_group(args.prefix, self.vpc_id, args.tags, child) if args.file_system else None
        # DNS, NTP and instance metadata inside a VPC pass no security group, so HTTPS is all that is needed.
        group = aws.ec2.SecurityGroup(
            "instances",
            name=f"{args.prefix}-instances",
            description="Training instances: nothing in, HTTPS out.",
            vpc_id=self.vpc_id,
            ingress=ssh_ingress(args.ssh_from),
            egress=[
                aws.ec2.SecurityGroupEgressArgs(
                    description="S3, EC2 and package indexes",
                    protocol="tcp",
                    from_port=443,
                    to_port=443,
                    cidr_blocks=[DEFAULT_ROUTE],
                    ipv6_cidr_blocks=[DEFAULT_IPV6_ROUTE] if args.ipv6 else None,
                ),
                *([out_to_file_system(files)] if files else []),
            ],
            tags={**args.tags, "Name": f"{args.prefix}-instances"},
            opts=child,
        )
        if files:
            admit_to_file_system(files, group, args.tags, child)
        self.security_group_id = group.id
        self.file_system_group_id = files.id if files else None
        if args.endpoints:
            InterfaceEndpoints(
                "endpoints",
                InterfaceEndpointsArgs(
                    prefix=args.prefix,
                    region=args.region,
                    services=args.endpoints,
                    vpc_id=self.vpc_id,
                    subnet_ids=self.subnet_ids,
                    instances_group_id=group.id,
                    tags=args.tags,
                ),
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({"subnet_ids": self.subnet_ids, "security_group_id": self.security_group_id})


def _own_vpc(
    args: NetworkArgs, child: pulumi.ResourceOptions
) -> tuple[pulumi.Output[str], dict[str, pulumi.Output[str]]]:
    """Make a VPC; return its id and its subnets by zone. With IPv6, its gateway lets connections begin inside
    alone.
    """
    vpc = aws.ec2.Vpc(
        "vpc",
        cidr_block=args.vpc_cidr,
        assign_generated_ipv6_cidr_block=True if args.ipv6 else None,
        enable_dns_support=True,
        enable_dns_hostnames=True,
        tags={**args.tags, "Name": args.prefix},
        opts=child,
    )
    gateway = aws.ec2.InternetGateway(
        "internet", vpc_id=vpc.id, tags={**args.tags, "Name": args.prefix}, opts=child
    )
    out = [aws.ec2.RouteTableRouteArgs(cidr_block=DEFAULT_ROUTE, gateway_id=gateway.id)]
    if args.ipv6:
        egress_only = aws.ec2.EgressOnlyInternetGateway(
            "ipv6", vpc_id=vpc.id, tags={**args.tags, "Name": args.prefix}, opts=child
        )
        out.append(
            aws.ec2.RouteTableRouteArgs(
                ipv6_cidr_block=DEFAULT_IPV6_ROUTE, egress_only_gateway_id=egress_only.id
            )
        )
    routes = aws.ec2.RouteTable(
        "public", vpc_id=vpc.id, routes=out, tags={**args.tags, "Name": f"{args.prefix}-public"}, opts=child
    )
    # Free, and it keeps candles and models off the internet. Its default policy stays: the images' own
    # package and agent buckets are S3 too, and policies.py limits what this account's roles may touch.
    aws.ec2.VpcEndpoint(
        "s3",
        vpc_id=vpc.id,
        service_name=f"com.amazonaws.{args.region}.s3",
        vpc_endpoint_type="Gateway",
        route_table_ids=[routes.id],
        tags={**args.tags, "Name": f"{args.prefix}-s3"},
        opts=child,
    )
    subnet_ids = {}
    for zone in args.availability_zones:
        subnet = aws.ec2.Subnet(
            f"public-{zone}",
            vpc_id=vpc.id,
            cidr_block=subnet_range(args.vpc_cidr, zone),
            ipv6_cidr_block=_ipv6_range_of(vpc, zone) if args.ipv6 else None,
            availability_zone=zone,
            # The launch template asks for the public address, so nothing else that lands here needs one.
            map_public_ip_on_launch=args.public_addresses,
            tags={**args.tags, "Name": f"{args.prefix}-{zone}"},
            opts=child,
        )
        aws.ec2.RouteTableAssociation(
            f"public-{zone}", subnet_id=subnet.id, route_table_id=routes.id, opts=child
        )
        subnet_ids[zone] = subnet.id
    return vpc.id, subnet_ids


def _ipv6_range_of(vpc: aws.ec2.Vpc, zone: str) -> pulumi.Output[str]:
    return vpc.ipv6_cidr_block.apply(lambda vpc_range: subnet_ipv6_range(vpc_range, zone))


def subnet_range(vpc_cidr: str, zone: str) -> str:
    """Return a zone's sixteenth of a VPC's range, by the zone's letter, so that it doesn't depend on the
    other zones.

    Raises pulumi.RunError for a zone whose letter is beyond p.
    """
    bits = (SUBNETS_PER_VPC - 1).bit_length()
    return str(list(ipaddress.IPv4Network(vpc_cidr).subnets(prefixlen_diff=bits))[_number(zone)])


def subnet_ipv6_range(vpc_range: str, zone: str) -> str:
    """Return a zone's /64 of a VPC's IPv6 range, by the zone's letter. Raises pulumi.RunError for one beyond
    p.
    """
    first = ipaddress.IPv6Network(vpc_range)
    return str(ipaddress.IPv6Network((int(first.network_address) + (_number(zone) << 64), 64)))


def _number(zone: str) -> int:
    index = ord(zone[-1]) - ord("a")
    if not 0 <= index < SUBNETS_PER_VPC:
        raise pulumi.RunError(
            f"Zone {zone} has no subnet: a VPC is cut in {SUBNETS_PER_VPC}, for the zones a to p."
        )
    return index
