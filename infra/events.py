"""EC2's events about instances, sent to control: the end of an instance, and the notice of a spot
interruption.

The default bus brings events of every instance in the account; control drops those of others after one look.
"""

from __future__ import annotations

import json

import pulumi
import pulumi_aws as aws

from infra.component import Component
from infra.functions import LoggedFunction
from infra.stack import Stack

ENDING = {
    "source": ["aws.ec2"],
    "detail-type": ["EC2 Instance State-change Notification"],
    "detail": {"state": ["terminated"]},  # a run closes on this proof
}
TAKEN_BACK = {"source": ["aws.ec2"], "detail-type": ["EC2 Spot Instance Interruption Warning"]}


class InstanceEvents(Component):
    """Two rules of the default bus, each with the function as its target, which lets them call it."""

    def __init__(
        self, name: str, stack: Stack, opts: pulumi.ResourceOptions, *, function: LoggedFunction
    ) -> None:
        super().__init__(name, stack, opts)
        for kind, pattern in (("ending", ENDING), ("taken-back", TAKEN_BACK)):
            rule = aws.cloudwatch.EventRule(
                f"{name}-{kind}",
                name=f"{stack.function(name)}-{kind}",
                description="Tells control of an instance; it drops those that are not of its stack.",
                event_pattern=json.dumps(pattern),
                opts=self.child,
            )
            aws.cloudwatch.EventTarget(f"{name}-{kind}", rule=rule.name, arn=function.arn, opts=self.child)
            aws.lambda_.Permission(
                f"{name}-{kind}",
                action="lambda:InvokeFunction",
                function=function.name,
                principal="events.amazonaws.com",
                source_arn=rule.arn,
                opts=self.child,
            )
        self.register_outputs({})
