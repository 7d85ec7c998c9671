"""The network's check: what keeps a machine from S3 or a package index, and who gets in."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.aws.access import Access
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConfigError
from trainer.launch.network_reach import (
    check_cluster_group,
    check_group,
    check_way_out,
    has_s3,
    network,
    table_of,
)

MAIN = {"RouteTableId": "rtb-main", "Associations": [{"Main": True}], "Routes": []}
OWN = {
    "RouteTableId": "rtb-own",
    "Associations": [{"Main": False, "SubnetId": "subnet-a"}],
    "Routes": [
        {"DestinationCidrBlock": "10.0.0.0/16", "GatewayId": "local", "State": "active"},
        {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-1", "State": "active"},
    ],
}
HTTPS = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
SSH = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "203.0.113.7/32"}]}


def group(**changed: Any) -> dict[str, Any]:
    return {"GroupId": "sg-1", "IpPermissions": [], "IpPermissionsEgress": [HTTPS], **changed}


def test_a_subnet_without_its_own_table_has_the_main_one() -> None:
    assert table_of("subnet-a", [MAIN, OWN]) is OWN
    assert table_of("subnet-b", [OWN, MAIN]) is MAIN


def test_a_way_out_is_a_default_route_that_leads_somewhere() -> None:
    assert check_way_out("subnet-a", OWN) == "nat-1"
    with pytest.raises(ConfigError, match="the subnet subnet-a has no route to 0.0.0.0/0"):
        check_way_out("subnet-a", MAIN)
    gone = {
        **OWN,
        "Routes": [{"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-1", "State": "blackhole"}],
    }
    with pytest.raises(ConfigError, match="has a route whose target is gone"):
        check_way_out("subnet-a", gone)


def test_s3_is_reached_by_a_gateway_or_an_interface() -> None:
    gateway = {
        "ServiceName": "com.amazonaws.us-east-1.s3",
        "VpcEndpointType": "Gateway",
        "RouteTableIds": ["rtb-main"],
    }
    assert has_s3(MAIN, [gateway]) and not has_s3(OWN, [gateway])
    assert has_s3(OWN, [{"ServiceName": "com.amazonaws.us-east-1.s3", "VpcEndpointType": "Interface"}])
    assert not has_s3(MAIN, [{**gateway, "ServiceName": "com.amazonaws.us-east-1.ssm"}])


def test_the_group_lets_https_out_and_in_only_the_stacks_rules() -> None:
    check_group(group(), attach="off")
    check_group(
        group(IpPermissionsEgress=[{"IpProtocol": "-1", "IpRanges": HTTPS["IpRanges"]}]), attach="off"
    )
    check_group(group(IpPermissions=[SSH]), attach="ssh")
    with pytest.raises(ConfigError, match="sg-1 blocks outbound HTTPS"):
        check_group(group(IpPermissionsEgress=[]), attach="off")
    with pytest.raises(ConfigError, match=r"sg-1 allows inbound traffic \(one of its rules opens port 22"):
        check_group(group(IpPermissions=[SSH]), attach="ssm")


def test_a_stacks_network_is_well_until_somebody_changes_it(stack: tuple[Access, StackOutputs]) -> None:
    access, outputs = stack
    ec2 = access.client("ec2")
    assert network(access, outputs) == ""
    subnet = sorted(outputs.subnets.values())[0]
    (described,) = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"]
    rules = [{"Name": "association.subnet-id", "Values": [subnet]}]
    table = ec2.describe_route_tables(Filters=rules)["RouteTables"][0]["RouteTableId"]
    gateway = {"RouteTableId": table, "DestinationCidrBlock": "0.0.0.0/0"}
    ec2.delete_route(**gateway)
    with pytest.raises(ConfigError, match="has no route to 0.0.0.0/0"):
        network(access, outputs)
    nat = ec2.create_nat_gateway(SubnetId=subnet, ConnectivityType="private")["NatGateway"]["NatGatewayId"]
    ec2.create_route(**gateway, NatGatewayId=nat)
    (s3,) = ec2.describe_vpc_endpoints()["VpcEndpoints"]
    ec2.delete_vpc_endpoints(VpcEndpointIds=[s3["VpcEndpointId"]])
    note = network(access, outputs)
    assert f"{subnet} reaches S3 through {nat}, $0.045 a GB: add a gateway endpoint" in note
    ec2.modify_vpc_attribute(VpcId=described["VpcId"], EnableDnsSupport={"Value": False})
    with pytest.raises(ConfigError, match="resolves no names.*--enable-dns-support"):
        network(access, outputs)


def test_a_group_of_several_machines_is_its_own_members_alone() -> None:
    among = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-1"}]}
    whole = group(IpPermissions=[among], IpPermissionsEgress=[among])
    check_cluster_group(whole)
    with pytest.raises(ConfigError, match="sg-1 admits others than its own machines"):
        check_cluster_group({**whole, "IpPermissions": [among, SSH]})
    with pytest.raises(ConfigError, match="sg-1 lets out to others than its own machines"):
        check_cluster_group({**whole, "IpPermissionsEgress": []})
    stranger = {**among, "UserIdGroupPairs": [{"GroupId": "sg-1"}, {"GroupId": "sg-2"}]}
    with pytest.raises(ConfigError, match="sg-1 admits others"):
        check_cluster_group({**whole, "IpPermissions": [stranger]})
