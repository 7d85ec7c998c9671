"""The stack that every resource belongs to: account, region, names, tags. Each component takes it first.

Names are fixed here, before anything exists, so that each policy can name exactly what it allows. Tags don't
come from the provider's `default_tags`: a provider of our own would read none of the stack's `aws:` settings,
and neither mocks nor rehearsals have one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi

from trainer.aws.stack_outputs import dead_letters_queue, messages_topic


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One stack in one region of one account."""

    account: str
    region: str
    zones: tuple[str, ...] = ()
    project: str
    name: str
    owner: str
    log_days: int  # that logs are kept
    kms_key: str = ""  # ARN of the key of bucket and cache; "": AWS's own keys

    @property
    def prefix(self) -> str:
        """Return the prefix of physical names, such as `mayfly-dev`."""
        return f"{self.project}-{self.name}"

    @property
    def tags(self) -> dict[str, str]:
        """Return the tags of every resource. The sweeper and its permissions use the first two."""
        return {"project": self.project, "stack": self.name, "owner": self.owner}

    @property
    def bucket(self) -> str:
        """Return the bucket's name."""
        return f"{self.prefix}-{self.account}-{self.region}"

    @property
    def schedule_group(self) -> str:
        """Return the name of the group of the schedules of runs, and of the standing ones."""
        return self.prefix

    @property
    def retrain_group(self) -> str:
        """Return the name of the group of the schedules of retrains."""
        return f"{self.prefix}-retrains"

    @property
    def dead_letters(self) -> str:
        """Return the name of the queue of dead letters."""
        return dead_letters_queue(self.project, self.name)

    @property
    def topic(self) -> str:
        """Return the name of the topic of messages to people."""
        return messages_topic(self.project, self.name)

    def function(self, kind: str) -> str:
        """Return the name of a function."""
        return f"{self.prefix}-{kind}"

    def log_group(self, kind: str) -> str:
        """Return the name of a function's log."""
        return f"/aws/lambda/{self.function(kind)}"

    def role(self, kind: str) -> str:
        """Return the name of a role or a policy: with the region, since IAM is global and a stack is not."""
        return f"{self.prefix}-{self.region}-{kind}"

    def arn(self, service: str, resource: str) -> str:
        """Return the ARN of a resource of this account and region."""
        return f"arn:aws:{service}:{self.region}:{self.account}:{resource}"

    def role_arn(self, kind: str) -> str:
        """Return the ARN of a role."""
        return f"arn:aws:iam::{self.account}:role/{self.role(kind)}"

    def objects(self, pattern: str) -> str:
        """Return the ARN of the bucket's objects whose keys match a pattern."""
        return f"arn:aws:s3:::{self.bucket}/{pattern}"


class Component(pulumi.ComponentResource):
    """A component whose resources, at any depth, have the stack's tags."""

    child: pulumi.ResourceOptions  # of its resources

    def __init__(self, name: str, stack: Stack, opts: pulumi.ResourceOptions | None = None) -> None:
        def tagged(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
            if "tags" not in args.props:  # AWS can't tag its type
                return None
            own: Any = args.props["tags"] or {}
            return pulumi.ResourceTransformationResult({**args.props, "tags": stack.tags | own}, args.opts)

        kind = type(self)
        super().__init__(
            f"mayfly:{kind.__module__.rpartition('.')[2]}:{kind.__name__}",
            name,
            None,
            pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(transformations=[tagged])),
        )
        # Resources don't inherit what their component depends on.
        self.child = pulumi.ResourceOptions(parent=self, depends_on=opts.depends_on if opts else None)

    @property
    def importable(self) -> pulumi.ResourceOptions:
        """Return the options of a resource that may be there before the stack: `pulumi import` brings it in
        without a parent.
        """
        imported = pulumi.ResourceOptions(aliases=[pulumi.Alias(parent=pulumi.ROOT_STACK_RESOURCE)])
        return pulumi.ResourceOptions.merge(self.child, imported)
