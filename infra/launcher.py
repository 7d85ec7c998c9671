"""The launcher policy: what people who are not administrators need to launch, watch, stop and fetch, and no more.

A managed policy of the account, to be attached to a user, group, role or permission set: docs/security.md says how. That each
action of each statement is used by some verb is shown by tests/trainer/cli/test_launcher_policy.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.policies import Document, document, end_own_instances

WRITES = ("raw/*", "raw-index/*", "code/*", "runs/*", "memory/*")
SPOT_ROLE, _SPOT_PATH = "AWSServiceRoleForEC2Spot", "aws-service-role/spot.amazonaws.com/"
_IN_TAGS = ("instance", "volume", "network-interface")  # what a launch makes and tags, besides the fleet


@dataclass(frozen=True, kw_only=True)
class LauncherPolicyArgs:
    account: str
    region: str
    project: str
    stack: str
    bucket: str
    schedule_group: str
    sweeper_name: str
    instance_role: str
    scheduler_role: str
    image_parameters: tuple[str, ...]
    launch_templates: list[pulumi.Input[str]]  # ids, like the next two
    subnets: list[pulumi.Input[str]]
    security_group: pulumi.Input[str]
    tags: dict[str, str]


class LauncherPolicy(pulumi.ComponentResource):
    """The launcher policy as a managed policy, attached to nobody."""

    arn: pulumi.Output[str]

    def __init__(self, name: str, args: LauncherPolicyArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:launcher:LauncherPolicy", name, None, opts)
        used = pulumi.Output.all(
            launch_templates=args.launch_templates, subnets=args.subnets, security_group=args.security_group
        )
        policy = aws.iam.Policy(
            name,
            name=f"{args.project}-{args.stack}-{args.region}-launcher",
            description="Launch, watch, stop and fetch runs of this stack.",
            policy=used.apply(lambda ids: json.dumps(launcher(args, **ids), separators=(",", ":"))),
            tags=args.tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.arn = policy.arn
        self.register_outputs({"arn": self.arn})


def launcher(args: LauncherPolicyArgs, *, launch_templates: list[str], subnets: list[str], security_group: str) -> Document:
    """Return the launcher policy for the stack's resources."""
    where = f"{args.region}:{args.account}"
    return document(
        *_looks(args, where),
        *_objects(args.bucket),
        *_launches(
            args,
            [
                *(f"arn:aws:ec2:{where}:launch-template/{one}" for one in launch_templates),
                *(f"arn:aws:ec2:{where}:subnet/{one}" for one in subnets),
                f"arn:aws:ec2:{where}:security-group/{security_group}",
            ],
        ),
        end_own_instances(
            account=args.account,
            region=args.region,
            project=args.project,
            stack=args.stack,
            also=("ec2:GetConsoleOutput",),  # where a boot left no log
        ),
        {
            "Sid": "ArmSchedules",
            "Effect": "Allow",
            "Action": [f"scheduler:{verb}Schedule" for verb in ("Create", "Get", "Update", "Delete")],
            "Resource": f"arn:aws:scheduler:{where}:schedule/{args.schedule_group}/{args.project}-*",
        },
    )


def _looks(args: LauncherPolicyArgs, where: str) -> list[Document]:
    """Return what preflight asks of the account, and the sweep for which it asks the sweeper."""
    return [
        {
            "Sid": "LookUpHasNoResource",
            "Effect": "Allow",
            "Action": [
                "ec2:DescribeImages",
                "ec2:DescribeInstances",
                "ec2:DescribeInstanceTypeOfferings",
                "ec2:DescribeLaunchTemplateVersions",
                "ec2:DescribeSpotPriceHistory",
                "pricing:GetProducts",
            ],
            "Resource": "*",
        },
        {
            "Sid": "ReadQuotas",
            "Effect": "Allow",
            "Action": "servicequotas:GetServiceQuota",
            "Resource": f"arn:aws:servicequotas:{where}:ec2/*",
        },
        {
            "Sid": "SeeSpotRole",
            "Effect": "Allow",
            "Action": "iam:GetRole",
            # IAM knows the path of a role that exists; one that doesn't is asked for without.
            "Resource": [f"arn:aws:iam::{args.account}:role/{path}{SPOT_ROLE}" for path in (_SPOT_PATH, "")],
        },
        {
            "Sid": "AskSweeper",
            "Effect": "Allow",
            "Action": "lambda:InvokeFunction",
            "Resource": f"arn:aws:lambda:{where}:function:{args.sweeper_name}",
        },
        {
            "Sid": "ReadStackAndImages",
            "Effect": "Allow",
            "Action": "ssm:GetParameter",
            "Resource": [
                f"arn:aws:ssm:{where}:parameter/mayfly/{args.project}/{args.stack}",
                # AWS's own parameters belong to no account.
                *(f"arn:aws:ssm:{args.region}::parameter{name}" for name in args.image_parameters),
            ],
        },
    ]


def _objects(bucket: str) -> list[Document]:
    """Return what a launcher may do in the bucket: read all of it, write what a desk writes, delete nothing.

    Listing is allowed outright: who may list by prefix only gets a 403 in place of a 404.
    """
    return [
        {
            "Sid": "LookAtBucket",
            "Effect": "Allow",
            "Action": ["s3:ListBucket", "s3:GetBucketVersioning"],
            "Resource": f"arn:aws:s3:::{bucket}",
        },
        {
            "Sid": "ReadObjects",
            "Effect": "Allow",
            "Action": ["s3:GetObject", "s3:GetObjectVersion"],
            "Resource": f"arn:aws:s3:::{bucket}/*",
        },
        {
            "Sid": "WriteRuns",
            "Effect": "Allow",
            "Action": "s3:PutObject",
            "Resource": [f"arn:aws:s3:::{bucket}/{prefix}" for prefix in WRITES],
        },
    ]


def _launches(args: LauncherPolicyArgs, made_from: list[str]) -> list[Document]:
    """Return what CreateFleet asks for. An instant fleet launches under its caller's rights: RunInstances is asked, too."""
    where = f"{args.region}:{args.account}"
    launch = ["ec2:CreateFleet", "ec2:RunInstances"]
    own: dict[str, Any] = {"aws:RequestTag/project": args.project, "aws:RequestTag/stack": args.stack}
    made = [f"arn:aws:ec2:{where}:{kind}/*" for kind in _IN_TAGS]
    fleet = f"arn:aws:ec2:{where}:fleet/*"
    return [
        {"Sid": "LaunchFromTheStack", "Effect": "Allow", "Action": launch, "Resource": made_from},
        {
            "Sid": "LaunchImagesOfAmazon",
            "Effect": "Allow",
            "Action": launch,
            "Resource": f"arn:aws:ec2:{args.region}::image/*",
            "Condition": {"StringEquals": {"ec2:Owner": "amazon"}},
        },
        {
            "Sid": "LaunchWithOwnTags",  # by which the sweeper finds what was launched
            "Effect": "Allow",
            "Action": launch,
            "Resource": made,
            "Condition": {"StringEquals": own},
        },
        {
            "Sid": "LaunchFleets",
            "Effect": "Allow",
            "Action": "ec2:CreateFleet",
            "Resource": fleet,
            "Condition": {"StringEquals": own},
        },
        {
            "Sid": "LaunchOnSpot",  # a spot request is not tagged
            "Effect": "Allow",
            "Action": launch,
            "Resource": f"arn:aws:ec2:{where}:spot-instances-request/*",
        },
        {
            "Sid": "TagLaunches",
            "Effect": "Allow",
            "Action": "ec2:CreateTags",
            "Resource": [*made, fleet],
            "Condition": {"StringEquals": {"ec2:CreateAction": ["CreateFleet", "RunInstances"], **own}},
        },
        _pass_role("PassInstanceRole", args.account, args.instance_role, "ec2.amazonaws.com"),
        _pass_role("PassSchedulerRole", args.account, args.scheduler_role, "scheduler.amazonaws.com"),
    ]


def _pass_role(sid: str, account: str, role: str, service: str) -> Document:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": "iam:PassRole",
        "Resource": f"arn:aws:iam::{account}:role/{role}",
        "Condition": {"StringEquals": {"iam:PassedToService": service}},
    }
