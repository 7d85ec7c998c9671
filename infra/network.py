"""The network that instances live in: a VPC of its own or an existing one, S3 by a gateway, no inbound rule.

Public subnets and no NAT: an instance needs S3, EC2's own services and package indexes for minutes, and a NAT
gateway bills every hour. What keeps the instance closed is the security group, which admits nothing and is
the stack's own in either VPC.
"""

from __future__ import annotations

import ipaddress
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.attach import ssh_ingress
from infra.stack import Component, Stack
from infra.subnets import DEFAULT_ROUTE, ExistingVpc
from trainer.aws.stack_outputs import ONE_MODEL, PIECES

NFS_PORT = 2049
# Security groups of runs of several machines: a model's ranks have no password, and share with no other work.
CLUSTER_GROUPS = {PIECES: "that share models, agents or values", ONE_MODEL: "that train one model together"}
SUBNETS_PER_VPC = 16  # the VPC's range is cut in sixteenths, one a zone


class Network(Component):
    """A VPC, its own or an existing one, with its subnets by zone and the one security group of instances."""

    vpc_id: pulumi.Output[str]
    subnet_ids: dict[str, pulumi.Output[str]]  # by availability zone
    public_address: bool  # of an instance: the way out of a subnet that routes to an internet gateway
    security_group_id: pulumi.Output[str]
    file_system_group_id: pulumi.Output[str] | None  # of its mount targets
    cluster_group_ids: dict[str, pulumi.Output[str]]  # by what machines of one run share; {}: runs have one

    def __init__(
        self,
        name: str,
        stack: Stack,
        opts: pulumi.ResourceOptions,
        *,
        existing: ExistingVpc | None,  # None: a VPC of its own
        cidr: str,  # of a VPC of its own
        ssh_from: str,  # the one address that may connect; "": nobody
        file_system: bool,  # whether instances mount one
        cluster: bool,  # whether a run may have several machines
        public_addresses: bool,  # to whatever lands in a subnet: image builds can't ask for one
    ) -> None:
        super().__init__(name, stack, opts)
        self.public_address = existing is None or existing.public
        if existing is None:
            self._make_vpc(stack, cidr, public_addresses=public_addresses)
        else:
            self.vpc_id = pulumi.Output.from_input(existing.id)
            self.subnet_ids = {
                zone: pulumi.Output.from_input(one.id) for zone, one in existing.subnets.items()
            }
        files = self._file_system_group(stack) if file_system else None
        # Amazon's DNS and NTP and instance metadata pass no security group, so HTTPS is all that is needed.
        group = aws.ec2.SecurityGroup(
            "instances",
            name=f"{stack.prefix}-instances",
            description="Training instances: nothing in, HTTPS out.",
            vpc_id=self.vpc_id,
            ingress=ssh_ingress(ssh_from),
            egress=[https_out("S3, EC2 and package indexes"), *([nfs_out(files)] if files else [])],
            tags={"Name": f"{stack.prefix}-instances"},
            opts=self.child,
        )
        if files:  # a rule of its own, since the two groups name each other
            aws.vpc.SecurityGroupIngressRule(
                "file-system-from-instances",
                security_group_id=files.id,
                referenced_security_group_id=group.id,
                description="Training instances",
                ip_protocol="tcp",
                from_port=NFS_PORT,
                to_port=NFS_PORT,
                opts=self.child,
            )
        self.security_group_id = group.id
        self.file_system_group_id = files.id if files else None
        self.cluster_group_ids = {
            name: self._cluster_group(stack, name, words)
            for name, words in (CLUSTER_GROUPS.items() if cluster else ())
        }
        self.register_outputs({"subnet_ids": self.subnet_ids, "security_group_id": self.security_group_id})

    def _cluster_group(self, stack: Stack, name: str, words: str) -> pulumi.Output[str]:
        """Return a group whose members reach one another on every port; its machines have the first group,
        too. Between two runs only the machines' own firewalls stand, so no third group of machines joins it.
        """
        among: dict[str, Any] = {"protocol": "-1", "from_port": 0, "to_port": 0, "self": True}
        group = aws.ec2.SecurityGroup(
            f"cluster-{name}",
            name=f"{stack.prefix}-cluster-{name}",
            description=f"Machines of a run {words}: each reaches the others.",
            vpc_id=self.vpc_id,
            ingress=[aws.ec2.SecurityGroupIngressArgs(**among)],
            egress=[aws.ec2.SecurityGroupEgressArgs(**among)],
            tags={"Name": f"{stack.prefix}-cluster-{name}"},
            opts=self.child,
        )
        return group.id

    def _file_system_group(self, stack: Stack) -> aws.ec2.SecurityGroup:
        return aws.ec2.SecurityGroup(
            "file-system",
            name=f"{stack.prefix}-file-system",
            description="Mount targets of the cache: NFS in from instances, nothing out.",
            vpc_id=self.vpc_id,
            egress=[],
            tags={"Name": f"{stack.prefix}-file-system"},
            opts=self.child,
        )

    def _make_vpc(self, stack: Stack, cidr: str, *, public_addresses: bool) -> None:
        vpc = aws.ec2.Vpc(
            "vpc",
            cidr_block=cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags={"Name": stack.prefix},
            opts=self.child,
        )
        gateway = aws.ec2.InternetGateway(
            "internet", vpc_id=vpc.id, tags={"Name": stack.prefix}, opts=self.child
        )
        routes = aws.ec2.RouteTable(
            "public",
            vpc_id=vpc.id,
            routes=[{"cidr_block": DEFAULT_ROUTE, "gateway_id": gateway.id}],
            tags={"Name": f"{stack.prefix}-public"},
            opts=self.child,
        )
        # Free, and it keeps candles and models off the internet. Its default policy stays: the images' own
        # package and agent buckets are S3 too, and policies.py limits what this account's roles may touch.
        aws.ec2.VpcEndpoint(
            "s3",
            vpc_id=vpc.id,
            service_name=f"com.amazonaws.{stack.region}.s3",
            vpc_endpoint_type="Gateway",
            route_table_ids=[routes.id],
            tags={"Name": f"{stack.prefix}-s3"},
            opts=self.child,
        )
        self.vpc_id, self.subnet_ids = vpc.id, {}
        for zone in stack.zones:
            subnet = aws.ec2.Subnet(
                f"public-{zone}",
                vpc_id=vpc.id,
                cidr_block=subnet_range(cidr, zone),
                availability_zone=zone,
                # The launch template asks for the public address: nothing else that lands here needs one.
                map_public_ip_on_launch=public_addresses,
                tags={"Name": f"{stack.prefix}-{zone}"},
                opts=self.child,
            )
            aws.ec2.RouteTableAssociation(
                f"public-{zone}", subnet_id=subnet.id, route_table_id=routes.id, opts=self.child
            )
            self.subnet_ids[zone] = subnet.id


def https_out(description: str) -> aws.ec2.SecurityGroupEgressArgs:
    """Return the egress rule for HTTPS."""
    return aws.ec2.SecurityGroupEgressArgs(
        description=description, protocol="tcp", from_port=443, to_port=443, cidr_blocks=[DEFAULT_ROUTE]
    )


def nfs_out(files: aws.ec2.SecurityGroup) -> aws.ec2.SecurityGroupEgressArgs:
    """Return the egress rule to a file system's mount targets."""
    return aws.ec2.SecurityGroupEgressArgs(
        description="The cache",
        protocol="tcp",
        from_port=NFS_PORT,
        to_port=NFS_PORT,
        security_groups=[files.id],
    )


def subnet_range(vpc_cidr: str, zone: str) -> str:
    """Return a zone's sixteenth of a VPC's range, by the zone's letter, so that it doesn't depend on the
    other zones.

    Raises pulumi.RunError for a zone whose letter is beyond p.
    """
    index = ord(zone[-1]) - ord("a")
    if not 0 <= index < SUBNETS_PER_VPC:
        raise pulumi.RunError(
            f"Zone {zone} has no subnet: a VPC is cut in {SUBNETS_PER_VPC}, for the zones a to p."
        )
    bits = (SUBNETS_PER_VPC - 1).bit_length()
    return str(list(ipaddress.IPv4Network(vpc_cidr).subnets(prefixlen_diff=bits))[index])
