"""The launcher policy: permissions to launch, watch and stop runs and to fetch results without being an
administrator.

A managed policy of the account, to be attached to a user, group, role or permission set: docs/security.md
says how. tests/trainer/cli/test_launcher_policy.py checks that some verb uses each action of each statement.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.policies import OWN, Document, allow, document, end_own_instances, use_key

BACKUPS = ("backup/*",)  # where the stack's storage is at the desk
# `r*` is raw/, raw-index/, retrains/ and runs/, in the 6,144 characters that a managed policy has. The last
# two are what an agent on their own machine writes (`mayfly agent`), under their own id and nobody else's.
WRITES = ("r*", "code/*", "memory/*", f"attempts/{OWN}", f"models/experiments/{OWN}")
SPOT_ROLE = "AWSServiceRoleForEC2Spot"
_IN_TAGS = ("instance", "volume", "network-interface")  # what a launch makes and tags, besides the fleet


@dataclass(frozen=True, kw_only=True)
class LaunchLimits:
    """Limits of a launcher: keys to write, instance types, and tags besides the stack's own."""

    writes: tuple[str, ...]
    creates: tuple[str, ...] = ()  # keys to write if there is none yet
    instance_types: tuple[str, ...] = ()  # patterns; (): all
    tags: tuple[str, ...] = ()  # that a launch must give, whatever their value
    calls: tuple[str, ...] = ()  # functions besides the sweeper


PEOPLE = LaunchLimits(writes=WRITES)


def people(args: LauncherPolicyArgs) -> LaunchLimits:
    """Return the limits of people who launch from a stack."""
    return replace(PEOPLE, writes=(*WRITES, *(BACKUPS if args.backups else ())), calls=(args.control_name,))


@dataclass(frozen=True, kw_only=True)
class LauncherPolicyArgs:
    account: str
    region: str
    project: str
    stack: str
    bucket: str
    schedule_group: str
    sweeper_name: str
    control_name: str
    instance_roles: tuple[str, ...]
    scheduler_role: str
    image_parameters: tuple[str, ...]  # AWS's
    launch_templates: list[pulumi.Input[str]]  # ids, like the next two
    vpc: pulumi.Input[str]
    subnets: tuple[str, ...]  # of a VPC that is not the stack's own; (): all of the VPC's
    security_group: pulumi.Input[str]
    tags: dict[str, str]
    baked_parameters: tuple[str, ...] = ()  # the account's own, with the ids of baked images
    backups: bool = False  # whether people back their folders up
    key: pulumi.Input[str] = ""  # ARN of the bucket's KMS key; "": S3's own


class LauncherPolicy(pulumi.ComponentResource):
    """The launcher policy as a managed policy, attached to nobody."""

    arn: pulumi.Output[str]

    def __init__(
        self, name: str, args: LauncherPolicyArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("mayfly:launcher:LauncherPolicy", name, None, opts)
        policy = aws.iam.Policy(
            name,
            name=f"{args.project}-{args.stack}-{args.region}-launcher",
            description="Launch, watch, stop and fetch runs of this stack.",
            policy=launch_policy_text(args, people(args)),
            tags=args.tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.arn = policy.arn
        self.register_outputs({"arn": self.arn})


def launch_policy_text(args: LauncherPolicyArgs, limits: LaunchLimits, *also: Document) -> pulumi.Output[str]:
    """Return the policy as text, once the ids that it names are known; `also` are further statements."""
    used = pulumi.Output.all(
        launch_templates=args.launch_templates, vpc=args.vpc, security_group=args.security_group, key=args.key
    )

    def text(ids: dict[str, Any]) -> str:
        policy = launcher(args, limits, **ids)
        return json.dumps(document(*policy["Statement"], *also), separators=(",", ":"))

    return used.apply(text)


def launcher(
    args: LauncherPolicyArgs,
    limits: LaunchLimits = PEOPLE,
    *,
    launch_templates: list[str],
    vpc: str,
    security_group: str,
    key: str = "",
) -> Document:
    """Return the policy of a caller who launches from the stack's resources."""
    where = f"{args.region}:{args.account}"
    return document(
        *_looks(args, limits, where),
        *_objects(args.bucket, limits),
        *([use_key(region=args.region, key=key, writes=True)] if key else ()),
        *_launches(
            args,
            limits,
            [
                *(f"arn:aws:ec2:{where}:launch-template/{one}" for one in launch_templates),
                f"arn:aws:ec2:{where}:security-group/{security_group}",
            ],
            vpc=f"arn:aws:ec2:{where}:vpc/{vpc}",
        ),
        end_own_instances(
            account=args.account,
            region=args.region,
            project=args.project,
            stack=args.stack,
            also=("ec2:GetConsoleOutput",),  # where a boot left no log
        ),
        allow(
            "ArmSchedules",
            [f"scheduler:{verb}Schedule" for verb in ("Create", "Get", "Update", "Delete")],
            f"arn:aws:scheduler:{where}:schedule/{args.schedule_group}/{args.project}-*",
        ),
    )


def _looks(args: LauncherPolicyArgs, limits: LaunchLimits, where: str) -> list[Document]:
    """Return the statements of preflight's look-ups, and of its call of the sweeper."""
    return [
        allow(
            "LookUpHasNoResource",
            [
                "ec2:DescribeImages",
                "ec2:DescribeInstances",
                "ec2:DescribeInstanceTypeOfferings",
                "ec2:DescribeLaunchTemplateVersions",
                "ec2:DescribeSpotPriceHistory",
                "pricing:GetProducts",
            ],
            "*",
        ),
        allow("ReadQuotas", "servicequotas:GetServiceQuota", f"arn:aws:servicequotas:{where}:ec2/*"),
        # IAM knows the path of an existing role (aws-service-role/...); for a missing one the request has
        # none.
        allow("SeeSpotRole", "iam:GetRole", f"arn:aws:iam::{args.account}:role/*{SPOT_ROLE}"),
        allow(
            "CallFunctions",
            "lambda:InvokeFunction",
            [f"arn:aws:lambda:{where}:function:{name}" for name in (args.sweeper_name, *limits.calls)],
        ),
        allow(
            "ReadStackAndImages",
            "ssm:GetParameter",
            [
                f"arn:aws:ssm:{where}:parameter/mayfly/{args.project}/{args.stack}",
                # AWS's own parameters belong to no account.
                *(f"arn:aws:ssm:{args.region}::parameter{name}" for name in args.image_parameters),
                *(f"arn:aws:ssm:{where}:parameter{name}" for name in args.baked_parameters),
            ],
        ),
    ]


def _objects(bucket: str, limits: LaunchLimits) -> list[Document]:
    """Return a launcher's statements on the bucket: read all of it, write what a desk writes, delete nothing.

    Listing is allowed without a prefix: otherwise S3 answers 403 instead of 404 for a missing key.
    """
    return [
        allow("LookAtBucket", ["s3:ListBucket", "s3:GetBucketVersioning"], f"arn:aws:s3:::{bucket}"),
        allow("ReadObjects", ["s3:GetObject", "s3:GetObjectVersion"], f"arn:aws:s3:::{bucket}/*"),
        allow("WriteRuns", "s3:PutObject", [f"arn:aws:s3:::{bucket}/{prefix}" for prefix in limits.writes]),
        *(
            # The condition applies to copies, too (AWS, "conditional write functionality to copy operations",
            # 2025).
            allow(
                "AddInputs",
                "s3:PutObject",
                [f"arn:aws:s3:::{bucket}/{prefix}" for prefix in limits.creates],
                {"Null": {"s3:if-none-match": "false"}},
            )
            for _ in limits.creates[:1]
        ),
    ]


def _launches(
    args: LauncherPolicyArgs, limits: LaunchLimits, made_from: list[str], *, vpc: str
) -> list[Document]:
    """Return the statements for CreateFleet, and for RunInstances: an instant fleet launches under its
    caller's rights.
    """
    where = f"{args.region}:{args.account}"
    launch = ["ec2:CreateFleet", "ec2:RunInstances"]
    own: dict[str, Any] = {"aws:RequestTag/project": args.project, "aws:RequestTag/stack": args.stack}
    tagged: dict[str, Any] = {"StringEquals": own}
    if limits.tags:
        tagged["Null"] = {f"aws:RequestTag/{name}": "false" for name in limits.tags}
    made = [f"arn:aws:ec2:{where}:{kind}/*" for kind in _IN_TAGS]
    fleet = f"arn:aws:ec2:{where}:fleet/*"
    return [
        allow(
            "LaunchFromTheStack",
            launch,
            [
                *made_from,
                f"arn:aws:ec2:{where}:spot-instances-request/*",  # on spot, whose request is not tagged
                # An existing VPC's subnets by id, which is unique; a shared VPC's belong to another account.
                *(f"arn:aws:ec2:*:*:subnet/{subnet}" for subnet in args.subnets),
            ],
        ),
        *_launch_in_own_vpc(args, vpc),
        allow(
            "LaunchImages",
            launch,
            f"arn:aws:ec2:{args.region}::image/*",
            {"StringEquals": {"ec2:Owner": ["amazon", args.account] if args.baked_parameters else "amazon"}},
        ),
        *_launch_tagged(limits, made, tagged, [one for one in made_from if ":launch-template/" in one]),
        allow("LaunchFleets", "ec2:CreateFleet", fleet, tagged),
        allow(
            "TagLaunches",
            "ec2:CreateTags",
            [*made, fleet],
            {"StringEquals": {"ec2:CreateAction": ["CreateFleet", "RunInstances"], **own}},
        ),
        _pass_roles("PassInstanceRole", args.account, args.instance_roles, "ec2.amazonaws.com"),
        _pass_roles("PassSchedulerRole", args.account, (args.scheduler_role,), "scheduler.amazonaws.com"),
    ]


def _launch_in_own_vpc(args: LauncherPolicyArgs, vpc: str) -> list[Document]:
    """Allow all subnets of the stack's own VPC, in a fifth of the characters that their names would take."""
    if args.subnets:
        return []
    statement = {
        "Sid": "LaunchInSubnets",
        "Effect": "Allow",
        "Action": ["ec2:CreateFleet", "ec2:RunInstances"],
    }
    own = {"ArnEquals": {"ec2:Vpc": vpc}}
    return [{**statement, "Resource": f"arn:aws:ec2:{args.region}:{args.account}:subnet/*", "Condition": own}]


def _launch_tagged(
    limits: LaunchLimits, made: list[str], tagged: dict[str, Any], templates: list[str]
) -> list[Document]:
    """Allow the creation of resources that carry the stack's tags, by which the sweeper finds them.

    RunInstances knows an instance's type and template. A caller limited to types is also limited to the
    stack's templates, which say how a machine ends. People are not: a managed policy holds 6,144 characters,
    and theirs has no room for it.
    """
    sid, launch = "LaunchWithOwnTags", ["ec2:CreateFleet", "ec2:RunInstances"]
    if not limits.instance_types:
        return [allow(sid, launch, made, tagged)]
    instance, *beside = made
    types: dict[str, Any] = {"StringLike": {"ec2:InstanceType": list(limits.instance_types)}}
    types["ArnEquals"] = {"ec2:LaunchTemplate": templates}
    return [
        allow(sid, launch, beside, tagged),
        allow("LaunchAsFleet", launch[0], instance, tagged),
        allow("LaunchAllowedTypes", launch[1], instance, tagged | types),
    ]


def _pass_roles(sid: str, account: str, roles: tuple[str, ...], service: str) -> Document:
    resources = [f"arn:aws:iam::{account}:role/{role}" for role in roles]
    return allow(
        sid,
        "iam:PassRole",
        resources if len(resources) > 1 else resources[0],
        {"StringEquals": {"iam:PassedToService": service}},
    )
