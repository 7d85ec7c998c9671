"""The stack's own KMS key, if the setting `kms_key` is `create`, and the permissions of roles on the bucket's
key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pulumi
import pulumi_aws as aws

from infra import policies


@dataclass(frozen=True, kw_only=True)
class StackKeyArgs:
    account: str
    alias: str  # such as mayfly-dev
    tags: dict[str, str]
    elsewhere: Mapping[str, Any] = field(default_factory=dict)  # its region, where that is not the stack's


class StackKey(pulumi.ComponentResource):
    """A key that KMS rotates every year. It stays when the stack goes: without it nothing in the bucket can
    be read again.
    """

    arn: pulumi.Output[str]

    def __init__(self, name: str, args: StackKeyArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:encryption:StackKey", name, None, opts)
        kept = pulumi.ResourceOptions(
            parent=self, retain_on_delete=True
        )  # not protected: the setting may name another key
        key = aws.kms.Key(
            name,
            description=f"Objects of {args.alias}",
            enable_key_rotation=True,
            deletion_window_in_days=30,
            policy=json.dumps(policies.key(account=args.account)),
            tags=args.tags,
            **args.elsewhere,
            opts=kept,
        )
        aws.kms.Alias(name, name=f"alias/{args.alias}", target_key_id=key.id, **args.elsewhere, opts=kept)
        self.arn = key.arn
        self.register_outputs({"arn": self.arn})


def own_key(arn: str, region: str) -> str | None:
    """Return the ARN of a key, None for none. Raises pulumi.RunError for a key of another region, which S3
    would refuse.
    """
    if arn and arn.split(":")[3] != region:
        raise pulumi.RunError(
            f"Setting 'kms_key' is {arn!r}, a key of another region; it must be one of {region}."
        )
    return arn or None


@dataclass(frozen=True, kw_only=True)
class KeyUseArgs:
    region: str
    key: pulumi.Input[str]  # its ARN
    writers: Mapping[str, pulumi.Input[str]]  # logical name -> role that reads and writes objects
    readers: Mapping[str, pulumi.Input[str]]  # role that reads them alone


class KeyUse(pulumi.ComponentResource):
    """The right of roles to have S3 use the key for them, beside their own policies."""

    def __init__(self, name: str, args: KeyUseArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:encryption:KeyUse", name, None, opts)
        for roles, writes in ((args.writers, True), (args.readers, False)):
            text = pulumi.Output.from_input(args.key).apply(
                partial(_policy_text, region=args.region, writes=writes)
            )
            for role, role_name in roles.items():
                aws.iam.RolePolicy(
                    f"{name}-{role}",
                    name="key",
                    role=role_name,
                    policy=text,
                    opts=pulumi.ResourceOptions(parent=self),
                )
        self.register_outputs({})


def _policy_text(key: str, *, region: str, writes: bool) -> str:
    return json.dumps(policies.document(policies.use_key(region=region, key=key, writes=writes)))
