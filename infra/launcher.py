"""The launcher policy: permissions to launch, watch and stop runs and to fetch results without being an
administrator.

A managed policy of the account, to be attached to a user, group, role or permission set: docs/security.md
says how. tests/trainer/cli/test_launcher_policy.py checks that some verb uses each action of each statement.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.launch_templates import OPEN, ImageLine
from infra.policies import OWN, Document, allow, document, end_own_instances, use_key
from infra.stack import Component, Stack
from trainer.aws.stack_outputs import baked_parameter

# `r*` is raw/, raw-index/, retrains/ and runs/, in the 6,144 characters that a managed policy has. The last
# two are what an agent on their own machine writes (`mayfly agent`), under their own id and nobody else's.
WRITES = ("r*", "code/*", "memory/*", "backup/*", f"attempts/{OWN}", f"models/experiments/{OWN}")
# IAM and STS quotas: characters of a managed policy, white space not counted (looked up 2026-11-22).
MOST_CHARACTERS = 6144
SPOT_ROLE = "AWSServiceRoleForEC2Spot"
PLACES = ["ec2:CreatePlacementGroup", "ec2:DeletePlacementGroup"]
TOKEN_ACTIONS = ["s3:PutObject", "s3:DeleteObjectVersion"]
_IN_TAGS = ("instance", "volume", "network-interface")  # what a launch makes and tags, besides the fleet


@dataclass(frozen=True, kw_only=True)
class LaunchLimits:
    """Limits of a launcher: roles of its instances, functions to call, keys to write, instance types, and
    tags besides the stack's own.
    """

    roles: tuple[str, ...]
    functions: tuple[str, ...]
    writes: tuple[str, ...]
    creates: tuple[str, ...] = ()  # keys to write if there is none yet
    instance_types: tuple[str, ...] = ()  # patterns; (): all
    own_templates: bool = False  # whether an instance must come from a template of the stack
    tags: tuple[str, ...] = ()  # that a launch must give, whatever their value
    look_ups: tuple[str, ...] = ()  # more that is only read, and has no resource
    looks_at_bucket: tuple[str, ...] = ()  # more to ask of the bucket itself


PEOPLE = LaunchLimits(
    roles=("instance", "script"),
    functions=("sweeper", "control"),
    writes=WRITES,
    look_ups=("savingsplans:DescribeSavingsPlansOfferingRates",),  # of `mayfly plan --stack`
    looks_at_bucket=("s3:ListBucketVersions",),  # of `mayfly data`
)


@dataclass(frozen=True, kw_only=True)
class LaunchedFrom:
    """Resources that a launch makes instances from."""

    line: ImageLine
    baked: bool  # whether it has images of the account's own
    launch_templates: tuple[pulumi.Input[str], ...]  # ids, like the next three
    security_group: pulumi.Input[str]
    vpc: pulumi.Input[str]
    subnets: tuple[str, ...]  # of a VPC that is not the stack's own; (): all of the VPC's
    reservation: str = OPEN  # the setting capacity_reservation
    cluster_groups: tuple[pulumi.Input[str], ...] = ()  # ids, of runs of several machines; (): there are none

    @property
    def nodes(self) -> bool:
        """Return whether runs may have several, which share a token."""
        return bool(self.cluster_groups)


class LauncherPolicy(Component):
    """The launcher policy as a managed policy, attached to nobody. Raises pulumi.RunError for one that is too
    long, before AWS does.
    """

    arn: pulumi.Output[str]

    def __init__(self, name: str, stack: Stack, *, launched_from: LaunchedFrom) -> None:
        check_length(stack, launched_from)
        super().__init__(name, stack)
        policy = aws.iam.Policy(
            name,
            name=stack.role(name),
            description="Launch, watch, stop and fetch runs of this stack.",
            policy=launch_policy_text(stack, launched_from, PEOPLE, as_text=managed_text),
            opts=self.child,
        )
        self.arn = policy.arn
        self.register_outputs({"arn": self.arn})


def check_length(stack: Stack, launched_from: LaunchedFrom) -> None:
    """Raise pulumi.RunError if the policy of people exceeds a managed policy; names what makes it long."""
    ids: dict[str, Any] = {"security_group": f"sg-{'0' * 17}", "vpc": f"vpc-{'0' * 17}"}
    # Not known yet, but for their length.
    groups = tuple(f"sg-{'0' * 17}" for _ in launched_from.cluster_groups)
    templates = (f"lt-{'0' * 17}",) * len(launched_from.launch_templates)
    known = replace(launched_from, launch_templates=templates, cluster_groups=groups, **ids)
    length = _length(stack, known)
    if length <= MOST_CHARACTERS:
        return
    less: dict[str, tuple[Stack, LaunchedFrom]] = {
        f"'subnets' with {len(known.subnets)} subnets": (stack, replace(known, subnets=known.subnets[:1])),
        "'image_line'": (stack, replace(known, line=replace(known.line, name="", parameter=""))),
        "the names of project and stack": (replace(stack, project="", name=""), known),
        "'kms_key'": (replace(stack, kms_key=""), known),
        "'capacity_reservation'": (stack, replace(known, reservation=OPEN)),
        "'cluster'": (stack, replace(known, launch_templates=templates[:1], cluster_groups=())),
    }
    parts = sorted(((length - _length(*one), name) for name, one in less.items()), reverse=True)
    takes = ", ".join(f"{name} ({characters:,})" for characters, name in parts if characters > 0)
    raise pulumi.RunError(
        f"The launcher policy has {length:,} characters, and IAM's managed policies hold {MOST_CHARACTERS:,}."
        f" What makes it long: {takes}. Name fewer subnets, or shorter names."
    )


def _length(stack: Stack, launched_from: LaunchedFrom) -> int:
    """Return the characters of people's policy at its shortest."""
    return len(compact(_unnamed(launcher(stack, launched_from))))


def managed_text(policy: Document) -> str:
    """Return a managed policy's text, without its statements' names where only so it fits."""
    text = compact(policy)
    return text if len(text) <= MOST_CHARACTERS else compact(_unnamed(policy))


def _unnamed(policy: Document) -> Document:
    return document(
        *({key: part for key, part in one.items() if key != "Sid"} for one in policy["Statement"])
    )


def compact(policy: Document) -> str:
    """Return a policy's text without white space."""
    return json.dumps(policy, separators=(",", ":"))


def launch_policy_text(
    stack: Stack,
    launched_from: LaunchedFrom,
    limits: LaunchLimits,
    *also: Document,
    as_text: Callable[[Document], str],
) -> pulumi.Output[str]:
    """Return the policy as text, once the ids that it names are known; `also` are further statements."""

    def text(ids: dict[str, Any]) -> str:
        policy = launcher(stack, replace(launched_from, **ids), limits)
        return as_text(document(*policy["Statement"], *also))

    names = ("launch_templates", "security_group", "cluster_groups", "vpc")
    ids = {name: getattr(launched_from, name) for name in names}
    return pulumi.Output.all(**ids).apply(text)


def launcher(stack: Stack, launched_from: LaunchedFrom, limits: LaunchLimits = PEOPLE) -> Document:
    """Return the policy of a caller who launches from the stack's resources, whose ids are known."""
    return document(
        *_looks(stack, launched_from, limits),
        *_objects(stack, limits, nodes=launched_from.nodes),
        *use_key(stack),
        *_launches(stack, launched_from, limits),
        end_own_instances(stack, "ec2:GetConsoleOutput"),  # where a boot left no log
        allow(
            "ArmSchedules",
            [f"scheduler:{verb}Schedule" for verb in ("Create", "Get", "Update", "Delete")],
            stack.arn("scheduler", f"schedule/{stack.schedule_group}/{stack.project}-*"),
        ),
    )


def _looks(stack: Stack, launched_from: LaunchedFrom, limits: LaunchLimits) -> list[Document]:
    """Return the statements of preflight's look-ups, and of its call of the sweeper."""
    described = ["Images", "Instances", "InstanceTypeOfferings", "LaunchTemplateVersions", "SpotPriceHistory"]
    described += ["Volumes", "NetworkInterfaces", "SpotInstanceRequests"]  # that a run may leave
    baked = baked_parameter(stack.project, stack.name, launched_from.line.name)
    return [
        allow(
            "LookUpHasNoResource",
            [*(f"ec2:Describe{kind}" for kind in described), "pricing:GetProducts", *limits.look_ups],
            "*",
        ),
        allow("ReadQuotas", "servicequotas:GetServiceQuota", stack.arn("servicequotas", "ec2/*")),
        # IAM knows the path of an existing role (aws-service-role/...); for a missing one the request has
        # none.
        allow("SeeSpotRole", "iam:GetRole", f"arn:aws:iam::{stack.account}:role/*{SPOT_ROLE}"),
        allow(
            "CallFunctions",
            "lambda:InvokeFunction",
            [stack.arn("lambda", f"function:{stack.function(kind)}") for kind in limits.functions],
        ),
        allow(
            "ReadStackAndImages",
            "ssm:GetParameter",
            [
                stack.arn("ssm", f"parameter/mayfly/{stack.project}/{stack.name}"),
                # AWS's own parameters belong to no account.
                f"arn:aws:ssm:{stack.region}::parameter{launched_from.line.parameter}",
                *([stack.arn("ssm", f"parameter{baked}")] if launched_from.baked else []),
            ],
        ),
    ]


def _objects(stack: Stack, limits: LaunchLimits, *, nodes: bool) -> list[Document]:
    """Return a launcher's statements on the bucket: read all of it, write what a desk writes, delete nothing
    but the tokens of nodes.

    Listing is allowed without a prefix: otherwise S3 answers 403 instead of 404 for a missing key.
    """
    bucket, new = f"arn:aws:s3:::{stack.bucket}", [stack.objects(pattern) for pattern in limits.creates]
    # The condition applies to copies, too (AWS, "conditional write functionality to copy operations", 2025).
    absent = {"Null": {"s3:if-none-match": "false"}}
    return [
        allow("LookAtBucket", ["s3:ListBucket", *limits.looks_at_bucket, "s3:GetBucketVersioning"], bucket),
        allow("ReadObjects", ["s3:GetObject", "s3:GetObjectVersion"], stack.objects("*")),
        allow("WriteRuns", "s3:PutObject", [stack.objects(pattern) for pattern in limits.writes]),
        *([allow("AddInputs", "s3:PutObject", new, absent)] if new else []),
        *([allow("KeepTokens", TOKEN_ACTIONS, stack.objects("tokens/*"))] if nodes else []),
    ]


def _launches(stack: Stack, launched_from: LaunchedFrom, limits: LaunchLimits) -> list[Document]:
    """Return the statements for CreateFleet, and for RunInstances: an instant fleet launches under its
    caller's rights.
    """
    launch = ["ec2:CreateFleet", "ec2:RunInstances"]
    own: dict[str, Any] = {"aws:RequestTag/project": stack.project, "aws:RequestTag/stack": stack.name}
    tagged: dict[str, Any] = {"StringEquals": own}
    if limits.tags:
        tagged["Null"] = {f"aws:RequestTag/{name}": "false" for name in limits.tags}
    made, fleet = [stack.arn("ec2", f"{kind}/*") for kind in _IN_TAGS], stack.arn("ec2", "fleet/*")
    templates = [stack.arn("ec2", f"launch-template/{one}") for one in launched_from.launch_templates]
    groups = (launched_from.security_group, *launched_from.cluster_groups)
    # Of runs that train one model: each has a group with the run's id in its name (runs.record), which begins
    # with date and time. So stack `dev` does not reach the groups of stack `dev-2`.
    group = stack.arn("ec2", f"placement-group/{stack.prefix}-????????-??????-*")
    placement = [group] if launched_from.cluster_groups else []
    return [
        allow(
            "LaunchFromTheStack",
            launch,
            [
                *templates,
                *(stack.arn("ec2", f"security-group/{one}") for one in groups),
                *placement,
                stack.arn("ec2", "spot-instances-request/*"),  # on spot, whose request is not tagged
                # An existing VPC's subnets by id, which is unique; a shared VPC's belong to another account.
                *(f"arn:aws:ec2:*:*:subnet/{subnet}" for subnet in launched_from.subnets),
                *_reserved(launched_from.reservation),
            ],
        ),
        *_launch_in_own_vpc(stack, launched_from),
        allow(
            "LaunchImages",
            launch,
            f"arn:aws:ec2:{stack.region}::image/*",
            {"StringEquals": {"ec2:Owner": ["amazon", stack.account] if launched_from.baked else "amazon"}},
        ),
        *_launch_tagged(limits, made, tagged, templates),
        *([allow("PlaceTogether", PLACES, placement)] if placement else []),
        allow("LaunchFleets", "ec2:CreateFleet", fleet, tagged),
        allow(
            "TagLaunches",
            "ec2:CreateTags",
            [*made, fleet],
            {"StringEquals": {"ec2:CreateAction": ["CreateFleet", "RunInstances"], **own}},
        ),
        _pass("PassInstanceRole", [stack.role_arn(kind) for kind in limits.roles], "ec2"),
        _pass("PassSchedulerRole", stack.role_arn("scheduler"), "scheduler"),
    ]


def _reserved(reservation: str) -> list[str]:
    """Return the ARN of a named capacity reservation, which another account may share, or of a group."""
    if reservation == OPEN:
        return []
    is_group = reservation.startswith("arn:")
    return [reservation] if is_group else [f"arn:aws:ec2:*:*:capacity-reservation/{reservation}"]


def _launch_in_own_vpc(stack: Stack, launched_from: LaunchedFrom) -> list[Document]:
    """Allow all subnets of the stack's own VPC, in a fifth of the characters that their names would take."""
    if launched_from.subnets:
        return []
    own = {"ArnEquals": {"ec2:Vpc": stack.arn("ec2", f"vpc/{launched_from.vpc}")}}
    launch = ["ec2:CreateFleet", "ec2:RunInstances"]
    return [allow("LaunchInSubnets", launch, stack.arn("ec2", "subnet/*"), own)]


def _launch_tagged(
    limits: LaunchLimits, made: list[str], tagged: dict[str, Any], templates: list[str]
) -> list[Document]:
    """Allow the creation of resources that carry the stack's tags, by which the sweeper finds them.

    RunInstances knows an instance's type and template. Control is held to the stack's templates, which say
    how a machine ends, unless the setting `template_condition` is off: no account has shown yet that the
    RunInstances of a fleet meets this condition. People are not: a managed policy holds 6,144 characters, and
    theirs has no room for it.
    """
    sid, launch = "LaunchWithOwnTags", ["ec2:CreateFleet", "ec2:RunInstances"]
    if not limits.instance_types:
        return [allow(sid, launch, made, tagged)]
    instance, *beside = made
    types: dict[str, Any] = {"StringLike": {"ec2:InstanceType": list(limits.instance_types)}}
    if limits.own_templates:
        types["ArnEquals"] = {"ec2:LaunchTemplate": templates}
    return [
        allow(sid, launch, beside, tagged),
        allow("LaunchAsFleet", launch[0], instance, tagged),
        allow("LaunchAllowedTypes", launch[1], instance, tagged | types),
    ]


def _pass(sid: str, roles: list[str] | str, service: str) -> Document:
    to_service = {"StringEquals": {"iam:PassedToService": f"{service}.amazonaws.com"}}
    return allow(sid, "iam:PassRole", roles, to_service)
