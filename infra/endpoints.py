"""Interface endpoints: services of AWS reached by an address inside the VPC instead of over the internet. Off
by default.

S3 needs none: the VPC's gateway endpoint is free. Each of these bills every hour in each of its zones.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

ZONES = 2  # of an endpoint: one may fail; instances in the others reach it across zones


@dataclass(frozen=True, kw_only=True)
class InterfaceEndpointsArgs:
    prefix: str
    region: str
    services: tuple[str, ...]
    vpc_id: pulumi.Input[str]
    subnet_ids: dict[str, pulumi.Output[str]]  # by availability zone
    instances_group_id: pulumi.Input[str]
    tags: dict[str, str]


class InterfaceEndpoints(pulumi.ComponentResource):
    """Interface endpoints that the stack's instances reach, and nobody else."""

    def __init__(
        self, name: str, args: InterfaceEndpointsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("mayfly:endpoints:InterfaceEndpoints", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        group = aws.ec2.SecurityGroup(
            name,
            name=f"{args.prefix}-endpoints",
            description="Interface endpoints: HTTPS from the stack's instances.",
            vpc_id=args.vpc_id,
            ingress=[
                aws.ec2.SecurityGroupIngressArgs(
                    description="training instances",
                    protocol="tcp",
                    from_port=443,
                    to_port=443,
                    security_groups=[args.instances_group_id],
                )
            ],
            egress=[],
            tags={**args.tags, "Name": f"{args.prefix}-endpoints"},
            opts=child,
        )
        zones = sorted(args.subnet_ids)[:ZONES]
        for service in args.services:
            aws.ec2.VpcEndpoint(
                service,
                vpc_id=args.vpc_id,
                service_name=f"com.amazonaws.{args.region}.{service}",
                vpc_endpoint_type="Interface",
                private_dns_enabled=True,  # under the names that boto3 uses
                subnet_ids=[args.subnet_ids[zone] for zone in zones],
                security_group_ids=[group.id],
                tags={**args.tags, "Name": f"{args.prefix}-{service}"},
                opts=child,
            )
        self.register_outputs({})
