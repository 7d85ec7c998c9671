"""A Lambda function with its log, as shared by all of the stack's functions."""

from __future__ import annotations

from dataclasses import dataclass, field

import pulumi
import pulumi_aws as aws

RUNTIME = "python3.13"


@dataclass(frozen=True, kw_only=True)
class LoggedFunctionArgs:
    function_name: str
    description: str
    handler: str
    code: pulumi.AssetArchive
    role_arn: pulumi.Input[str]
    log_group: str
    log_days: int
    timeout_seconds: int
    memory_mib: int
    dead_letters_arn: pulumi.Input[str]
    tags: dict[str, str]
    variables: dict[str, pulumi.Input[str]] = field(default_factory=dict)


class LoggedFunction(pulumi.ComponentResource):
    """A function, its log, and how an asynchronous call of it is tried again.

    It has no reserved concurrency: a new account has ten executions in all.
    """

    arn: pulumi.Output[str]
    name: pulumi.Output[str]

    def __init__(
        self, name: str, args: LoggedFunctionArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("mayfly:functions:LoggedFunction", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        # Made here, since a log group that Lambda makes by itself never expires its lines.
        log = aws.cloudwatch.LogGroup(
            name, name=args.log_group, retention_in_days=args.log_days, tags=args.tags, opts=child
        )
        function = aws.lambda_.Function(
            name,
            name=args.function_name,
            description=args.description,
            runtime=RUNTIME,
            handler=args.handler,
            role=args.role_arn,
            code=args.code,
            timeout=args.timeout_seconds,
            memory_size=args.memory_mib,
            environment=aws.lambda_.FunctionEnvironmentArgs(variables=args.variables),
            logging_config=aws.lambda_.FunctionLoggingConfigArgs(log_format="Text", log_group=log.name),
            tags=args.tags,
            opts=child,
        )
        # Each function of the stack may safely run twice; an old call is dropped, since a newer one has
        # replaced it.
        aws.lambda_.FunctionEventInvokeConfig(
            name,
            function_name=function.name,
            maximum_retry_attempts=2,
            maximum_event_age_in_seconds=600,
            destination_config=aws.lambda_.FunctionEventInvokeConfigDestinationConfigArgs(
                on_failure=aws.lambda_.FunctionEventInvokeConfigDestinationConfigOnFailureArgs(
                    destination=args.dead_letters_arn
                )
            ),
            opts=child,
        )
        self.arn = function.arn
        self.name = function.name
        self.register_outputs({"arn": self.arn, "name": self.name})
