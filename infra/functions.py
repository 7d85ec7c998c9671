"""A Lambda function with its log, as shared by all of the stack's functions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pulumi
import pulumi_aws as aws

from infra.packing import archive
from infra.stack import Component, Stack

RUNTIME = "python3.13"


class LoggedFunction(Component):
    """A function, its log, and how an asynchronous call of it is tried again.

    It has no reserved concurrency: a new account has ten executions in all.
    """

    arn: pulumi.Output[str]
    name: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        stack: Stack,
        opts: pulumi.ResourceOptions,
        *,
        description: str,
        handler: str,
        files: dict[str, Path],
        role_arn: pulumi.Input[str],
        dead_letters_arn: pulumi.Input[str],
        timeout_seconds: int,
        memory_mib: int,
        variables: Mapping[str, pulumi.Input[str]] | None = None,  # besides project and stack
    ) -> None:
        super().__init__(name, stack, opts)
        # Made here, since a log group that Lambda makes by itself never expires its lines.
        log = aws.cloudwatch.LogGroup(
            name, name=stack.log_group(name), retention_in_days=stack.log_days, opts=self.child
        )
        function = aws.lambda_.Function(
            name,
            name=stack.function(name),
            description=description,
            runtime=RUNTIME,
            handler=handler,
            role=role_arn,
            code=archive(files),
            timeout=timeout_seconds,
            memory_size=memory_mib,
            environment={"variables": {"PROJECT": stack.project, "STACK": stack.name, **(variables or {})}},
            logging_config={"log_format": "Text", "log_group": log.name},
            opts=self.child,
        )
        # Each function of the stack may safely run twice; an old call is dropped, since a newer one has
        # replaced it.
        aws.lambda_.FunctionEventInvokeConfig(
            name,
            function_name=function.name,
            maximum_retry_attempts=2,
            maximum_event_age_in_seconds=600,
            destination_config={"on_failure": {"destination": dead_letters_arn}},
            opts=self.child,
        )
        self.arn = function.arn
        self.name = function.name
        self.register_outputs({"arn": self.arn, "name": self.name})
