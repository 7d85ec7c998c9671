"""The SSM parameter between Pulumi and the launcher."""

import json

import pytest

from trainer.aws.stack_outputs import StackOutputs, parameter_name

OUTPUTS = StackOutputs(project="mayfly", stack="dev", bucket="mayfly-dev", subnets={"us-east-1a": "subnet-1"})


def test_outputs_survive_the_parameter():
    assert StackOutputs.from_json(OUTPUTS.to_json()) == OUTPUTS
    assert parameter_name("mayfly", "dev") == "/mayfly/mayfly/dev"


def test_malformed_stack_outputs_are_named():
    values = json.loads(OUTPUTS.to_json())
    with pytest.raises(ValueError, match="lack bucket"):
        StackOutputs.from_json(json.dumps({key: value for key, value in values.items() if key != "bucket"}))
    with pytest.raises(ValueError, match="lack attach, storage"):
        StackOutputs.from_json(
            json.dumps({key: values[key] for key in values.keys() - {"attach", "storage"}})
        )
    with pytest.raises(ValueError, match="format 2"):
        StackOutputs.from_json(json.dumps({**values, "format": 2}))
    with pytest.raises(ValueError, match="4096"):
        StackOutputs(**{**values, "owner": "x" * 5000}).to_json()
