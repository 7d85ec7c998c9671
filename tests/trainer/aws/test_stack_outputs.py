"""The SSM parameter between Pulumi and the launcher."""

import json

import pytest

from trainer.aws.stack_outputs import StackOutputs, parameter_name

OUTPUTS = StackOutputs(
    format=3,
    project="mayfly",
    stack="dev",
    owner="me",
    region="us-east-1",
    bucket="mayfly-dev",
    launch_template="lt-1",
    image_line="line",
    image_parameter="/aws/service/ami-id",
    subnets={"us-east-1a": "subnet-1"},
    security_group="sg-1",
    schedule_group="mayfly-dev",
    instance_role_id="AROA1",
    prepare_template="lt-2",
    prepare_role_id="AROA2",
    prepare_type="t3.large",
    scheduler_role_arn="arn:aws:iam::1:role/s",
    sweeper_arn="arn:aws:lambda:us-east-1:1:function:s",
    control_arn="arn:aws:lambda:us-east-1:1:function:c",
    control_types=["g6.*"],
    retrains=[],
    retrain_format=1,
    max_lifetime_minutes=720,
)


def test_outputs_survive_the_parameter():
    assert StackOutputs.from_json(OUTPUTS.to_json()) == OUTPUTS
    assert parameter_name("mayfly", "dev") == "/mayfly/mayfly/dev"


def test_a_missing_field_another_format_and_a_long_value_are_named():
    values = json.loads(OUTPUTS.to_json())
    with pytest.raises(ValueError, match="lack bucket"):
        StackOutputs.from_json(json.dumps({key: value for key, value in values.items() if key != "bucket"}))
    with pytest.raises(ValueError, match="format 2"):
        StackOutputs.from_json(json.dumps({**values, "format": 2}))
    with pytest.raises(ValueError, match="4096"):
        StackOutputs(**{**values, "owner": "x" * 5000}).to_json()
