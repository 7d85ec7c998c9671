"""The roles: for training instances, scripts with secrets, prepare runs, the sweeper, schedules. policies.py
has their permissions.

Control's role names what it may launch from, so it is made with its function, after the templates
(control.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra import policies
from trainer.aws.stack_outputs import script_secrets_path, secrets_path


@dataclass(frozen=True, kw_only=True)
class ServiceRoleArgs:
    role_name: str
    description: str
    trust: policies.Document
    policy: policies.Document | pulumi.Output[str]  # as an Output: its text
    tags: dict[str, str]


class ServiceRole(pulumi.ComponentResource):
    """A role that one AWS service takes on, with one inline policy, so that both are created and deleted
    together.
    """

    role_name: pulumi.Output[str]
    unique_id: pulumi.Output[str]
    arn: pulumi.Output[str]

    def __init__(self, name: str, args: ServiceRoleArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:identity:ServiceRole", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        role = aws.iam.Role(
            name,
            name=args.role_name,
            description=args.description,
            assume_role_policy=json.dumps(args.trust),
            tags=args.tags,
            opts=child,
        )
        text = json.dumps(args.policy) if isinstance(args.policy, dict) else args.policy
        policy = aws.iam.RolePolicy(name, name=name, role=role.name, policy=text, opts=child)
        # Through the policy, so that whoever uses the role waits until it may do its work.
        self.role_name = policy.role
        self.unique_id = role.unique_id
        self.arn = pulumi.Output.all(role.arn, policy.id).apply(lambda ready: str(ready[0]))
        self.register_outputs({"role_name": self.role_name, "unique_id": self.unique_id, "arn": self.arn})


def _role_of_machines(
    name: str, args: ServiceRoleArgs, opts: pulumi.ResourceOptions
) -> tuple[ServiceRole, aws.iam.InstanceProfile]:
    """Return a role and the instance profile by which machines take it on."""
    role = ServiceRole(name, args, opts=opts)
    return role, aws.iam.InstanceProfile(
        name, name=args.role_name, role=role.role_name, tags=args.tags, opts=opts
    )


@dataclass(frozen=True, kw_only=True)
class IdentityArgs:
    account: str
    region: str
    project: str
    stack: str
    bucket: str
    sweeper_name: str
    sweeper_log_group: str
    control_name: str
    dead_letters: str
    schedule_group: str
    retrain_group: (
        str  # "" without retrains: whoever may make a group that the role trusts has the role act for them
    )
    tags: dict[str, str]
    training_also: tuple[policies.Document, ...] = ()  # further statements of the training instances' role

    # Names carry the region, since IAM is global and a stack is not.
    @property
    def instance_role(self) -> str:
        """Return the instance role's name, which is its profile's too."""
        return f"{self._prefix}-instance"

    @property
    def prepare_role(self) -> str:
        """Return the name of the role of prepare runs' instances, which is its profile's too."""
        return f"{self._prefix}-prepare"

    @property
    def script_role(self) -> str:
        """Return the name of the role of instances whose script gets secrets, which is its profile's too."""
        return f"{self._prefix}-script"

    @property
    def sweeper_role(self) -> str:
        """Return the sweeper's role's name."""
        return f"{self._prefix}-sweeper"

    @property
    def control_role(self) -> str:
        """Return the control function's role's name."""
        return f"{self._prefix}-control"

    @property
    def notifier_role(self) -> str:
        """Return the notifier's role's name."""
        return f"{self._prefix}-notifier"

    @property
    def replication_role(self) -> str:
        """Return the name of the role by which S3 fills a replica."""
        return f"{self._prefix}-replication"

    @property
    def scheduler_role(self) -> str:
        """Return the schedules' role's name."""
        return f"{self._prefix}-scheduler"

    @property
    def _prefix(self) -> str:
        return f"{self.project}-{self.stack}-{self.region}"


class Identity(pulumi.ComponentResource):
    """The roles of the stack that need no other resource of it."""

    instance: ServiceRole
    instance_profile: aws.iam.InstanceProfile
    prepare: ServiceRole
    prepare_profile: aws.iam.InstanceProfile
    script: ServiceRole
    script_profile: aws.iam.InstanceProfile
    sweeper: ServiceRole
    scheduler: ServiceRole

    def __init__(self, name: str, args: IdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:identity:Identity", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)

        self.instance, self.instance_profile = _role_of_machines(
            "instance",
            ServiceRoleArgs(
                role_name=args.instance_role,
                description="Training instances: read inputs, add results.",
                trust=policies.trust("ec2.amazonaws.com"),
                policy=policies.instance(bucket=args.bucket, also=args.training_also),
                tags=args.tags,
            ),
            opts=child,
        )
        self.prepare, self.prepare_profile = _role_of_machines(
            "prepare",
            ServiceRoleArgs(
                role_name=args.prepare_role,
                description="Prepare runs: read data sets and secrets, add files.",
                trust=policies.trust("ec2.amazonaws.com"),
                policy=policies.prepare(
                    account=args.account,
                    region=args.region,
                    bucket=args.bucket,
                    secrets=secrets_path(args.project, args.stack),
                ),
                tags=args.tags,
            ),
            opts=child,
        )
        self.script, self.script_profile = _role_of_machines(
            "script",
            ServiceRoleArgs(
                role_name=args.script_role,
                description="Scripts with secrets: read their data and secrets, add results.",
                trust=policies.trust("ec2.amazonaws.com"),
                policy=policies.script(
                    account=args.account,
                    region=args.region,
                    bucket=args.bucket,
                    secrets=script_secrets_path(args.project, args.stack),
                ),
                tags=args.tags,
            ),
            opts=child,
        )
        self.sweeper = ServiceRole(
            "sweeper",
            ServiceRoleArgs(
                role_name=args.sweeper_role,
                description="The sweeper: see instances, end those of this stack.",
                trust=policies.trust("lambda.amazonaws.com"),
                policy=policies.sweeper(
                    account=args.account,
                    region=args.region,
                    project=args.project,
                    stack=args.stack,
                    bucket=args.bucket,
                    schedule_group=args.schedule_group,
                    log_group=args.sweeper_log_group,
                    dead_letters=args.dead_letters,
                ),
                tags=args.tags,
            ),
            opts=child,
        )
        self.scheduler = ServiceRole(
            "scheduler",
            ServiceRoleArgs(
                role_name=args.scheduler_role,
                description="Schedules: call the two functions, end instances of this stack.",
                trust=policies.trust_scheduler(
                    account=args.account,
                    region=args.region,
                    schedule_groups=tuple(filter(None, (args.schedule_group, args.retrain_group))),
                ),
                policy=policies.scheduler(
                    account=args.account,
                    region=args.region,
                    project=args.project,
                    stack=args.stack,
                    functions=(args.sweeper_name, args.control_name),
                    dead_letters=args.dead_letters,
                ),
                tags=args.tags,
            ),
            opts=child,
        )
        self.register_outputs({})
