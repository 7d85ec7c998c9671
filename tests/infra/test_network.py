"""The network, as the program registers it."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import pulumi
import pytest

from infra.network import subnet_range

if TYPE_CHECKING:
    from tests.infra.program import Recorded


def test_security_group_lets_nothing_in_and_only_https_out(program: Recorded) -> None:
    group = program.inputs("aws:ec2/securityGroup:SecurityGroup")
    assert group["ingress"] == []
    (egress,) = group["egress"]
    assert (egress["protocol"], egress["fromPort"], egress["toPort"]) == ("tcp", 443, 443)


def test_no_rule_is_added_to_the_group_from_elsewhere(program: Recorded) -> None:
    types = [resource.typ for resource in program.resources if "ecurityGroup" in resource.typ]
    assert len(types) == 1


def test_each_zone_has_a_subnet_of_its_own(program: Recorded) -> None:
    subnets = program.all("aws:ec2/subnet:Subnet")
    assert [subnet["availabilityZone"] for subnet in subnets] == ["eu-west-1a", "eu-west-1b", "eu-west-1c"]
    ranges = [ipaddress.IPv4Network(subnet["cidrBlock"]) for subnet in subnets]
    assert not any(one.overlaps(other) for one in ranges for other in ranges if one is not other)
    assert all(one.subnet_of(ipaddress.IPv4Network("10.86.0.0/16")) for one in ranges)
    assert len(program.all("aws:ec2/routeTableAssociation:RouteTableAssociation")) == 3


def test_a_zones_range_is_its_letters_whichever_other_zones_there_are() -> None:
    for zone in ("us-west-1c", "eu-west-1c"):
        assert subnet_range("10.86.0.0/16", zone) == "10.86.32.0/20"
    ranges = {subnet_range("10.86.0.0/16", f"us-east-1{letter}") for letter in "abcdefghijklmnop"}
    assert len(ranges) == 16
    with pytest.raises(pulumi.RunError, match="us-east-1q"):
        subnet_range("10.86.0.0/16", "us-east-1q")


def test_a_zone_keeps_its_subnet_while_it_is_impaired(program: Recorded) -> None:
    (asked,) = program.zones_asked
    assert "state" not in asked
    assert asked["filters"] == [{"name": "zone-type", "values": ["availability-zone"]}]


def test_only_instances_that_ask_get_a_public_address(program: Recorded) -> None:
    assert all(subnet["mapPublicIpOnLaunch"] is False for subnet in program.all("aws:ec2/subnet:Subnet"))


def test_s3_is_reached_by_a_gateway_on_the_subnets_route_table(program: Recorded) -> None:
    endpoint = program.inputs("aws:ec2/vpcEndpoint:VpcEndpoint")
    assert endpoint["serviceName"] == "com.amazonaws.eu-west-1.s3"
    assert endpoint["vpcEndpointType"] == "Gateway"
    assert endpoint["routeTableIds"] == ["public-id"]


def test_a_vpc_is_cut_in_sixteenths() -> None:
    assert subnet_range("10.86.0.0/16", "us-east-1b") == "10.86.16.0/20"
    assert subnet_range("192.168.0.0/24", "us-east-1p") == "192.168.0.240/28"
