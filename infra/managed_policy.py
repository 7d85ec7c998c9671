"""A managed policy of the stack that is attached to nobody: an administrator gives it to people."""

from __future__ import annotations

import json

import pulumi
import pulumi_aws as aws

from infra.policies import Document
from infra.stack import Component, Stack


class ManagedPolicy(Component):
    """A policy called `<project>-<stack>-<region>-<name>`."""

    arn: pulumi.Output[str]

    def __init__(self, name: str, stack: Stack, *, description: str, policy: Document) -> None:
        super().__init__(name, stack)
        made = aws.iam.Policy(
            name,
            name=stack.role(name),
            description=description,
            policy=json.dumps(policy),
            opts=self.child,
        )
        self.arn = made.arn
        self.register_outputs({"arn": self.arn})
