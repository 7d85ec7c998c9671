"""Subnets of an existing VPC: looked up, checked, and refused with one error that names setting, value and
remedy.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pulumi
import pytest

from infra.subnets import ExistingSubnet, ExistingVpc, by_zone, check_vpc
from tests.infra.program import EXISTING_SUBNETS, EXISTING_VPC, VPC_ATTRIBUTES, VPC_OF, run_program
from trainer.aws.stack_outputs import StackOutputs

SUBNET = ExistingSubnet(id="subnet-0a", zone="eu-west-1a", route_out="nat-0a", gives_addresses=False)
VPC = ExistingVpc(
    id="vpc-0e", resolves_names=True, has_hostnames=True, name_servers=(), subnets={SUBNET.zone: SUBNET}
)
GOOD: dict[str, Any] = {"zones": ["eu-west-1a", "eu-west-1b"], "builds": True, "mounts": True}


def with_subnet(**changed: Any) -> ExistingVpc:
    return replace(VPC, subnets={"z": replace(SUBNET, **changed)})


def test_a_vpc_with_a_way_out_is_taken() -> None:
    check_vpc(VPC, **GOOD)
    check_vpc(with_subnet(route_out="igw-0a", gives_addresses=True), **GOOD)


@pytest.mark.parametrize(
    ("vpc", "error"),
    [
        (replace(VPC, resolves_names=False), "DNS resolution of vpc-0e is off.*Turn on enableDnsSupport"),
        (replace(VPC, has_hostnames=False), "DNS hostnames of vpc-0e are off.*enableDnsHostnames there, or"),
        (with_subnet(zone="eu-lon-1a"), "subnet-0a is in eu-lon-1a, which is not an availability zone"),
        (with_subnet(route_out=""), "subnet-0a has no route to 0.0.0.0/0"),
        (with_subnet(route_out="igw-0a"), "image builds in subnet-0a would have no public address"),
    ],
)
def test_an_unfit_vpc_is_refused_with_the_reason(vpc: ExistingVpc, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        check_vpc(vpc, **GOOD)


def test_without_a_cache_a_vpc_needs_no_hostnames() -> None:
    check_vpc(replace(VPC, has_hostnames=False), **{**GOOD, "mounts": False})


def test_a_cache_that_no_node_would_find_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"subnets": json.dumps(list(EXISTING_SUBNETS)), "storage": "efs-cache"}
    run_program(config)
    monkeypatch.setitem(VPC_ATTRIBUTES, "enableDnsHostnames", False)
    with pytest.raises(pulumi.RunError, match="'subnets': the DNS hostnames of vpc-0e are off"):
        run_program(config)
    run_program({**config, "storage": "s3"})


@pytest.mark.parametrize(
    ("servers", "refused"),
    [
        (["AmazonProvidedDNS"], False),
        (["10.20.0.2"], False),  # Amazon's, by the address that it has in each VPC
        (["10.1.1.1", "169.254.169.253"], False),
        (["10.1.1.1", "10.1.1.2"], True),
    ],
)
def test_name_servers_behind_the_security_group_are_refused(
    servers: list[str], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.infra.program.NAME_SERVERS", servers)
    config = {"subnets": json.dumps(list(EXISTING_SUBNETS))}
    if not refused:
        run_program(config)
        return
    error = r"machines in vpc-0e ask 10.1.1.1, 10.1.1.2 for names, .* DHCP option set with AmazonProvidedDNS"
    with pytest.raises(pulumi.RunError, match=error):
        run_program(config)


def test_two_subnets_in_a_zone_leave_it_open_which_one() -> None:
    with pytest.raises(ValueError, match="subnet-0a and subnet-0c are both in eu-west-1a; name one per zone"):
        by_zone([SUBNET, replace(SUBNET, id="subnet-0c")])


def test_only_internet_gateways_need_public_addresses() -> None:
    assert with_subnet(route_out="igw-0a").public
    assert not VPC.public


def test_missing_subnets_are_named() -> None:
    error = "'subnets': this account and region have no subnet-0f.*`pulumi config set`"
    with pytest.raises(pulumi.RunError, match=error):
        run_program({"subnets": '["subnet-0a", "subnet-0f"]'})


def test_subnets_of_two_vpcs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VPC_OF, "subnet-0b", "vpc-0f")
    with pytest.raises(pulumi.RunError, match="'subnets': they are in vpc-0e, vpc-0f; name those of one VPC"):
        run_program({"subnets": json.dumps(list(EXISTING_SUBNETS))})


def test_an_existing_vpc_gets_a_security_group_and_nothing_else() -> None:
    program = run_program({"subnets": json.dumps(list(EXISTING_SUBNETS))})
    made = [one.typ for one in program.resources if one.typ.startswith("aws:ec2/")]
    network = [kind for kind in made if "launchTemplate" not in kind]
    assert network == ["aws:ec2/securityGroup:SecurityGroup"]
    assert program.inputs(network[0])["vpcId"] == EXISTING_VPC
    outputs = StackOutputs.from_json(program.inputs("aws:ssm/parameter:Parameter")["insecureValue"])
    assert outputs.subnets == {zone: subnet for subnet, zone in EXISTING_SUBNETS.items()}
    assert outputs.public_address is False
    for template in program.all("aws:ec2/launchTemplate:LaunchTemplate"):
        assert template["networkInterfaces"][0]["associatePublicIpAddress"] == "false"
    policy = program.inputs("aws:iam/policy:Policy", "launcher")["policy"]
    assert all(f":subnet/{subnet}" in policy for subnet in EXISTING_SUBNETS) and ":subnet/*" not in policy
