"""The roles: for training instances, scripts with secrets, prepare and score runs, the sweeper, schedules.
policies.py has their permissions.

Control's role names what it may launch from, so it is made with its function, after the templates
(control.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pulumi
import pulumi_aws as aws

from infra import policies
from infra.attach import agent_messages
from infra.stack import Component, Stack


class ServiceRole(Component):
    """A role that one AWS service takes on, with one inline policy, so that both are created and deleted
    together, and with policies of AWS's own.
    """

    role_name: pulumi.Output[str]
    unique_id: pulumi.Output[str]
    arn: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        stack: Stack,
        opts: pulumi.ResourceOptions,
        *,
        description: str,
        trust: policies.Document,
        policy: policies.Document | pulumi.Output[str],  # as an Output: its text
        managed: Sequence[str] = (),  # names of AWS's policies
    ) -> None:
        super().__init__(name, stack, opts)
        role = aws.iam.Role(
            name,
            name=stack.role(name),
            description=description,
            assume_role_policy=json.dumps(trust),
            opts=self.child,
        )
        text = json.dumps(policy) if isinstance(policy, dict) else policy
        allowed = aws.iam.RolePolicy(name, name=name, role=role.name, policy=text, opts=self.child)
        attached = [
            aws.iam.RolePolicyAttachment(
                f"{name}-{one}",
                role=allowed.role,
                policy_arn=f"arn:aws:iam::aws:policy/{one}",
                opts=self.child,
            ).id
            for one in managed
        ]
        # Through the policies, so that whoever uses the role waits until it may do its work.
        self.role_name = pulumi.Output.all(allowed.role, *attached).apply(lambda ready: str(ready[0]))
        self.unique_id = role.unique_id
        self.arn = pulumi.Output.all(role.arn, allowed.id, *attached).apply(lambda ready: str(ready[0]))
        self.register_outputs({"role_name": self.role_name, "unique_id": self.unique_id, "arn": self.arn})


class Identity(Component):
    """The roles of the stack that need no other resource of it, and the profiles by which instances take them
    on.
    """

    def __init__(self, name: str, stack: Stack, *, sessions: bool, retrains: bool, nodes: bool) -> None:
        super().__init__(name, stack)
        ec2, messages = policies.trust("ec2.amazonaws.com"), [agent_messages()] if sessions else []
        # Whoever may make a group that the role trusts has the role act for them: none that is not there.
        groups = (stack.schedule_group, *([stack.retrain_group] if retrains else []))

        def role(
            name: str, description: str, trust: policies.Document, policy: policies.Document
        ) -> ServiceRole:
            return ServiceRole(name, stack, self.child, description=description, trust=trust, policy=policy)

        what = "Training instances: read inputs, add results."
        self.instance = role("instance", what, ec2, policies.instance(stack, *messages, nodes=nodes))
        what = "Prepare runs: read data sets and secrets, add files."
        self.prepare = role("prepare", what, ec2, policies.prepare(stack))
        what = "Score runs: read data sets and models, add scores."
        self.score = role("score", what, ec2, policies.score(stack))
        what = "Scripts with secrets: read their data and secrets, add results."
        self.script = role("script", what, ec2, policies.script(stack, nodes=nodes))
        what = "The sweeper: see instances, end those of this stack."
        self.sweeper = role("sweeper", what, policies.trust("lambda.amazonaws.com"), policies.sweeper(stack))
        what = "Schedules: call the two functions, end instances of this stack."
        trusted = policies.trust_scheduler(stack, *groups)
        self.scheduler = role("scheduler", what, trusted, policies.scheduler(stack))
        self.instance_profile = self._profile("instance", stack, self.instance)
        self.prepare_profile = self._profile("prepare", stack, self.prepare)
        self.score_profile = self._profile("score", stack, self.score)
        self.script_profile = self._profile("script", stack, self.script)
        self.register_outputs({})

    def _profile(self, name: str, stack: Stack, role: ServiceRole) -> aws.iam.InstanceProfile:
        return aws.iam.InstanceProfile(name, name=stack.role(name), role=role.role_name, opts=self.child)
