"""What the stack's roles and the launcher policy may do, and what not, asked of AWS's own simulation. The
embedded AWS of the tests answers the same questions by its evaluator, so that `make test` holds them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.live.context import Live, require
from trainer.aws.stack_outputs import StackOutputs, script_secrets_path, secrets_path, webhook_parameter

LAUNCHER = "launcher"  # a policy that no role of the stack has


@dataclass(frozen=True)
class Expectation:
    """One question to IAM, and its answer."""

    role: str
    action: str
    resource: str
    allowed: bool
    context: Mapping[str, str] = field(default_factory=dict)


def expectations(outputs: StackOutputs, account: str) -> list[Expectation]:
    """Return what has to hold in a stack. AWS's simulation knows no context but what it is given."""
    objects, ec2 = f"arn:aws:s3:::{outputs.bucket}", f"arn:aws:ec2:{outputs.region}:{account}"
    parameter = f"arn:aws:ssm:{outputs.region}:{account}:parameter"
    named = (outputs.project, outputs.stack)
    machine, role = f"{ec2}:instance/i-0123456789abcdef0", f"arn:aws:iam::{account}:role/{outputs.project}"
    role += f"-{outputs.stack}-{outputs.region}"
    own = {"aws:ResourceTag/project": outputs.project, "aws:ResourceTag/stack": outputs.stack}
    others = own | {"aws:ResourceTag/project": "somebody-elses"}
    protect, unprotect = ({"ec2:Attribute/DisableApiTermination": value} for value in ("true", "false"))
    me, other = "AROA0:i-0123456789abcdef0", "AROA0:i-0fedcba9876543210"
    as_me = {"aws:userid": me}
    tags = {"aws:RequestTag/project": outputs.project, "aws:RequestTag/stack": outputs.stack}
    tags |= {"aws:RequestTag/run_id": "a-run", "aws:RequestTag/deadline": "2026-11-20T12:00:00Z"}
    template = {"ec2:LaunchTemplate": f"{ec2}:launch-template/{outputs.launch_template}"}
    start, allowed_type, other_type = (
        tags | template,
        {"ec2:InstanceType": "g6.xlarge"},
        {"ec2:InstanceType": "p5.48xlarge"},
    )
    several = bool(outputs.cluster_groups)  # whether runs may have several machines, which share a token
    to_ec2 = {"iam:PassedToService": "ec2.amazonaws.com"}
    rows: list[tuple[Any, ...]] = [
        ("instance", "s3:GetObjectVersion", f"{objects}/raw/x", True, as_me),
        ("instance", "s3:GetObject", f"{objects}/raw/x", False, as_me),  # inputs are read by version alone
        ("instance", "s3:GetObject", f"{objects}/code/x.whl", True, as_me),
        ("instance", "s3:GetObject", f"{objects}/runs/x/manifest.json", True, as_me),
        ("instance", "s3:PutObject", f"{objects}/live/{me}/x/1/0.json", True, as_me),
        ("instance", "s3:PutObject", f"{objects}/live/{other}/x/1/0.json", False, as_me),
        ("instance", "s3:PutObject", f"{objects}/models/experiments/{me}/x", True, as_me),
        ("instance", "s3:PutObject", f"{objects}/models/experiments/{other}/x", False, as_me),
        ("instance", "s3:PutObject", f"{objects}/runs/x/run.json", False, as_me),
        ("instance", "s3:GetObject", f"{objects}/runs/index.json", False, as_me),
        ("instance", "s3:PutObject", f"{objects}/models/production/x", False, as_me),
        ("instance", "s3:PutObject", f"{objects}/checkpoints/{me}/x", True, as_me),
        ("instance", "s3:PutObject", f"{objects}/checkpoints/{other}/x", False, as_me),
        ("instance", "s3:GetObject", f"{objects}/checkpoints/{other}/x", False, as_me),
        ("instance", "s3:PutObject", f"{objects}/resumed/x", False, as_me),
        ("instance", "s3:DeleteObject", f"{objects}/models/experiments/{me}/x", False, as_me),
        ("instance", "s3:GetObject", f"{objects}/tokens/{me}/x/1", several, as_me),
        ("instance", "s3:GetObject", f"{objects}/tokens/{other}/x/1", False, as_me),
        ("instance", "s3:PutObject", f"{objects}/tokens/{me}/x/1", False, as_me),
        ("instance", "ssm:GetParameter", f"{parameter}{script_secrets_path(*named)}X", False),
        ("instance", "ec2:TerminateInstances", machine, False, own),
        ("prepare", "s3:GetObjectVersion", f"{objects}/raw/x", True, as_me),
        ("prepare", "s3:PutObject", f"{objects}/attempts/{me}/x", True, as_me),
        ("prepare", "s3:PutObject", f"{objects}/raw/x", False, as_me),
        ("prepare", "ssm:GetParameter", f"{parameter}{secrets_path(*named)}X", True),
        ("prepare", "ssm:GetParameter", f"{parameter}{script_secrets_path(*named)}X", False),
        ("script", "s3:GetObjectVersion", f"{objects}/raw/.files/x", True, as_me),
        ("script", "s3:GetObjectVersion", f"{objects}/raw/main/x", False, as_me),
        ("script", "ssm:GetParameter", f"{parameter}{script_secrets_path(*named)}X", True),
        ("script", "s3:GetObject", f"{objects}/tokens/{me}/x/1", several, as_me),
        ("script", "s3:GetObject", f"{objects}/tokens/{other}/x/1", False, as_me),
        ("script", "ssm:GetParameter", f"{parameter}{secrets_path(*named)}X", False),
        ("sweeper", "ec2:TerminateInstances", machine, True, own),
        ("sweeper", "ec2:TerminateInstances", machine, False, others),
        ("sweeper", "ec2:ModifyInstanceAttribute", machine, True, own | unprotect),
        ("sweeper", "ec2:ModifyInstanceAttribute", machine, False, others | unprotect),
        ("sweeper", "ec2:ModifyInstanceAttribute", machine, False, own | protect),
        ("sweeper", "ec2:ModifyInstanceAttribute", machine, False, own),  # another attribute
        ("sweeper", "s3:GetObject", f"{objects}/live/x", True),
        ("sweeper", "s3:GetObject", f"{objects}/models/x", False),
        ("scheduler", "lambda:InvokeFunction", outputs.sweeper_arn, True),
        ("scheduler", "ec2:TerminateInstances", machine, True, own),
        ("scheduler", "ec2:TerminateInstances", machine, False, others),
        ("scheduler", "iam:PassRole", outputs.scheduler_role_arn, False),
        ("notifier", "ssm:GetParameter", f"{parameter}{webhook_parameter(*named)}", True),
        ("notifier", "ssm:GetParameter", f"{parameter}{secrets_path(*named)}X", False),
        ("control", "ec2:CreateFleet", f"{ec2}:fleet/fleet-1", True, tags),
        ("control", "ec2:CreateFleet", f"{ec2}:fleet/fleet-1", False),
        ("control", "ec2:RunInstances", machine, True, start | allowed_type),
        ("control", "ec2:RunInstances", machine, False, start | other_type),
        ("control", "s3:PutObject", f"{objects}/models/production/x", True),
        ("control", "s3:PutObject", f"{objects}/code/x.whl", False),
        ("control", "s3:DeleteObject", f"{objects}/models/production/x", False),
        ("control", "s3:DeleteObjectVersion", f"{objects}/tokens/{me}/x/1", several),
        ("control", "s3:DeleteObjectVersion", f"{objects}/models/production/x", False),
        ("control", "iam:PassRole", f"{role}-prepare", True, to_ec2),
        ("control", "iam:PassRole", f"{role}-control", False, to_ec2),
        (LAUNCHER, "ec2:CreateFleet", f"{ec2}:fleet/fleet-1", True, tags),
        (LAUNCHER, "ec2:CreateFleet", f"{ec2}:fleet/fleet-1", False),
        (LAUNCHER, "ec2:RunInstances", machine, True, start | allowed_type),
        (LAUNCHER, "ec2:TerminateInstances", machine, False, others),
        (LAUNCHER, "s3:PutObject", f"{objects}/runs/x/run.json", True),
        (LAUNCHER, "s3:PutObject", f"{objects}/models/production/x", False),
        (LAUNCHER, "s3:DeleteObject", f"{objects}/runs/x/run.json", False),
        (LAUNCHER, "s3:DeleteObjectVersion", f"{objects}/tokens/{me}/x/1", several),
        (LAUNCHER, "s3:DeleteObjectVersion", f"{objects}/runs/x/run.json", False),
        (LAUNCHER, "iam:PassRole", f"{role}-instance", True, to_ec2),
        (LAUNCHER, "iam:PassRole", f"{role}-prepare", False, to_ec2),
    ]
    return [Expectation(*row) for row in rows]


def policies(live: Live) -> None:
    """Ask IAM every question, and require every answer; the first ten differences are named together."""
    asked, wrong = expectations(live.outputs, live.account), []
    for one in asked:
        decided = _simulated(live, one)
        if (decided == "allowed") != one.allowed:
            wanted = "allowed" if one.allowed else "refused"
            wrong.append(
                f"{one.role}: {one.action} on {one.resource} {dict(one.context)} is {decided}, not {wanted}"
            )
    live.say(f"{len(asked) - len(wrong)} of {len(asked)} answers are as they have to be")
    require(not wrong, "; ".join(wrong[:10]))


def _simulated(live: Live, one: Expectation) -> str:
    iam = live.client("iam")
    entries = [
        {"ContextKeyName": name, "ContextKeyValues": [value], "ContextKeyType": "string"}
        for name, value in one.context.items()
    ]
    asked = {"ActionNames": [one.action], "ResourceArns": [one.resource], "ContextEntries": entries}
    if one.role != LAUNCHER:
        arn = iam.get_role(RoleName=live.role(one.role))["Role"]["Arn"]
        answer = iam.simulate_principal_policy(PolicySourceArn=arn, **asked)
    else:
        arn = f"arn:aws:iam::{live.account}:policy/{live.role(LAUNCHER)}"
        version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
        text = iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
        answer = iam.simulate_custom_policy(PolicyInputList=[json.dumps(text)], **asked)
    return str(answer["EvaluationResults"][0]["EvalDecision"])
