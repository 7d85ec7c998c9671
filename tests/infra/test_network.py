"""The network, as the program registers it."""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING

import pulumi
import pytest

from infra.network import subnet_range
from tests.infra.program import run_program

if TYPE_CHECKING:
    from tests.infra.program import Recorded


@pytest.fixture(scope="module")
def cluster() -> Recorded:
    """The program of a stack whose runs may have several machines."""
    return run_program({"cluster": "true"})


def test_security_group_lets_nothing_in_and_only_https_out(program: Recorded) -> None:
    group = program.inputs("aws:ec2/securityGroup:SecurityGroup")
    assert group["ingress"] == []
    (egress,) = group["egress"]
    assert (egress["protocol"], egress["fromPort"], egress["toPort"]) == ("tcp", 443, 443)


def test_no_rule_is_added_to_the_group_from_elsewhere(program: Recorded) -> None:
    types = [resource.typ for resource in program.resources if "ecurityGroup" in resource.typ]
    assert len(types) == 1


def test_machines_reach_one_another_by_the_setting_alone(cluster: Recorded) -> None:
    groups = {one["name"]: one for one in cluster.all("aws:ec2/securityGroup:SecurityGroup")}
    assert groups.keys() == {
        f"mayfly-dev-{name}" for name in ("instances", "cluster-pieces", "cluster-model")
    }
    assert groups["mayfly-dev-instances"]["ingress"] == []
    among = {"protocol": "-1", "fromPort": 0, "toPort": 0, "self": True}
    for name in ("pieces", "model"):
        group = groups[f"mayfly-dev-cluster-{name}"]
        assert group["ingress"] == group["egress"] == [among]


def test_templates_of_several_machines_differ_by_their_group(cluster: Recorded) -> None:
    templates = {one["name"]: one for one in cluster.all("aws:ec2/launchTemplate:LaunchTemplate")}
    line = cluster.outputs["image_line"]
    training = templates.pop(f"mayfly-dev-{line}")
    for name in ("pieces", "model"):
        own = templates.pop(f"mayfly-dev-cluster-{name}-{line}")
        (interface,), (usual,) = own.pop("networkInterfaces"), training["networkInterfaces"]
        assert interface == usual | {"securityGroups": ["instances-id", f"cluster-{name}-id"]}
        same = training.keys() - {"name", "description", "networkInterfaces"}
        assert {key: own[key] for key in same} == {key: training[key] for key in same}
    assert len(templates) == 2  # of prepare and score runs


def test_placement_groups_are_allowed_by_the_setting_alone(program: Recorded, cluster: Recorded) -> None:
    def allowed(stack: Recorded) -> list[str]:
        policy = stack.inputs("aws:iam/policy:Policy", "launcher")
        actions = [one["Action"] for one in json.loads(policy["policy"])["Statement"]]
        return [str(action) for action in actions if "PlacementGroup" in str(action)]

    assert allowed(program) == [] and len(allowed(cluster)) == 1
    groups = cluster.outputs["cluster_groups"]
    assert groups == {"pieces": "cluster-pieces-id", "model": "cluster-model-id"}
    assert program.outputs["cluster_groups"] == program.outputs["cluster_templates"] == {}


def test_each_zone_has_a_subnet_of_its_own(program: Recorded) -> None:
    subnets = program.all("aws:ec2/subnet:Subnet")
    assert [subnet["availabilityZone"] for subnet in subnets] == ["eu-west-1a", "eu-west-1b", "eu-west-1c"]
    ranges = [ipaddress.IPv4Network(subnet["cidrBlock"]) for subnet in subnets]
    assert not any(one.overlaps(other) for one in ranges for other in ranges if one is not other)
    assert all(one.subnet_of(ipaddress.IPv4Network("10.86.0.0/16")) for one in ranges)
    assert len(program.all("aws:ec2/routeTableAssociation:RouteTableAssociation")) == 3


def test_a_zones_range_follows_from_its_letter() -> None:
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


def test_tokens_of_nodes_are_there_by_the_setting_alone(program: Recorded, cluster: Recorded) -> None:
    def about_tokens(recorded: Recorded) -> list[str]:
        policies = [*recorded.all("aws:iam/rolePolicy:RolePolicy"), *recorded.all("aws:iam/policy:Policy")]
        named = {one.get("name", ""): one["policy"] for one in policies}
        rules = recorded.inputs("aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration")["rules"]
        held = [name for name, text in named.items() if "tokens/" in text]
        return sorted([*held, *(rule["id"] for rule in rules if rule["filter"]["prefix"] == "tokens/")])

    assert about_tokens(program) == []
    launcher = "mayfly-dev-eu-west-1-launcher"
    assert about_tokens(cluster) == sorted(["control", "instance", launcher, "script", "tokens"])
