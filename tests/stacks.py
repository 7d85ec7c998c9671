"""Outputs of a stack by hand, for tests without one."""

from __future__ import annotations

from typing import Any

from trainer.aws.stack_outputs import FORMAT, StackOutputs


def outputs_of(**changed: Any) -> StackOutputs:
    """Return the outputs of stack dev of project mayfly."""
    values: dict[str, Any] = {
        "format": FORMAT,
        "project": "mayfly",
        "stack": "dev",
        "owner": "me",
        "region": "us-east-1",
        "bucket": "mayfly-dev",
        "launch_template": "lt-1",
        "image_line": "line",
        "image_parameter": "/aws/service/ami-id",
        "subnets": {"us-east-1a": "subnet-a"},
        "security_group": "sg-1",
        "schedule_group": "mayfly-runs",
        "instance_role_id": "AROA1",
        "prepare_template": "lt-2",
        "prepare_role_id": "AROA2",
        "prepare_type": "t3.large",
        "scheduler_role_arn": "arn:aws:iam::1:role/s",
        "sweeper_arn": "arn:aws:lambda:us-east-1:1:function:s",
        "control_arn": "arn:aws:lambda:us-east-1:1:function:c",
        "control_types": ["g6.*"],
        "retrains": [],
        "retrain_format": 1,
        "max_lifetime_minutes": 720,
    }
    return StackOutputs(**(values | changed))
