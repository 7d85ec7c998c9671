from __future__ import annotations

from dataclasses import replace

import botocore.session
import pytest
from botocore.validate import ParamValidator

from trainer.launch.requests import create_fleet_request

TAGS = [
    {"Key": "Name", "Value": "20261120-120000-crypto-lstm-k3v9"},
    {"Key": "project", "Value": "mayfly"},
    {"Key": "stack", "Value": "dev"},
    {"Key": "owner", "Value": "ada"},
    {"Key": "run_id", "Value": "20261120-120000-crypto-lstm-k3v9"},
    {"Key": "attempt", "Value": "2"},
    {"Key": "node", "Value": "0"},
    {"Key": "deadline", "Value": "2026-11-20T13:00:00Z"},
    {"Key": "bundle_key", "Value": "code/abc.whl"},
    {"Key": "bundle_sha256", "Value": "abc"},
]


def test_an_on_demand_request_names_one_pool_its_token_and_all_its_tags(record, rung, launch):
    assert create_fleet_request(record, rung, launch) == {
        "Type": "instant",
        "ClientToken": "token-1",
        "TargetCapacitySpecification": {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"},
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateId": "lt-1", "Version": "$Default"},
                "Overrides": [{"InstanceType": "g6.12xlarge", "SubnetId": "subnet-b", "ImageId": "ami-1"}],
            }
        ],
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": TAGS} for kind in ("instance", "volume", "network-interface", "fleet")
        ],
    }


def test_a_spot_request_is_one_time_and_names_no_price(record, rung, launch):
    request = create_fleet_request(record, replace(rung, market="spot"), launch)
    assert request["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "spot"
    assert request["SpotOptions"] == {
        "AllocationStrategy": "price-capacity-optimized",
        "InstanceInterruptionBehavior": "terminate",
    }
    assert "MaxPrice" not in str(request)


def test_aws_knows_every_name_in_the_request(record, rung, launch):
    operation = botocore.session.get_session().get_service_model("ec2").operation_model("CreateFleet")
    for market in ("spot", "on_demand"):
        request = create_fleet_request(record, replace(rung, market=market), launch)
        assert not ParamValidator().validate(request, operation.input_shape).has_errors()


def test_an_intent_that_is_not_stored_makes_no_request(record, rung, launch):
    with pytest.raises(ValueError, match="store it before the call"):
        create_fleet_request(record, rung, replace(launch, token="another"))
