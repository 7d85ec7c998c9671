"""EC2's events about instances, sent to control: the end of an instance, and the notice of a spot
interruption.

The default bus brings events of every instance in the account; control drops those of others after one look.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.functions import LoggedFunction

ENDING = {
    "source": ["aws.ec2"],
    "detail-type": ["EC2 Instance State-change Notification"],
    "detail": {"state": ["terminated"]},  # a run closes on this proof
}
TAKEN_BACK = {"source": ["aws.ec2"], "detail-type": ["EC2 Spot Instance Interruption Warning"]}


@dataclass(frozen=True, kw_only=True)
class InstanceEventsArgs:
    prefix: str
    function: LoggedFunction
    tags: dict[str, str]


class InstanceEvents(pulumi.ComponentResource):
    """Two rules of the default bus, each with the function as its target, which lets them call it."""

    def __init__(
        self, name: str, args: InstanceEventsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("mayfly:events:InstanceEvents", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        for kind, pattern in (("ending", ENDING), ("taken-back", TAKEN_BACK)):
            rule = aws.cloudwatch.EventRule(
                f"{name}-{kind}",
                name=f"{args.prefix}-{kind}",
                description="Tells control of an instance; it drops those that are not of its stack.",
                event_pattern=json.dumps(pattern),
                tags=args.tags,
                opts=child,
            )
            aws.cloudwatch.EventTarget(f"{name}-{kind}", rule=rule.name, arn=args.function.arn, opts=child)
            aws.lambda_.Permission(
                f"{name}-{kind}",
                action="lambda:InvokeFunction",
                function=args.function.name,
                principal="events.amazonaws.com",
                source_arn=rule.arn,
                opts=child,
            )
        self.register_outputs({})
