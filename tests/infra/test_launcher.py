"""The launcher policy as a document. That it is enough and no more is shown by
tests/trainer/cli/test_launcher_policy.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.control import CREATES
from infra.control import WRITES as CONTROL_WRITES
from infra.launcher import BACKUPS, PEOPLE, WRITES, LauncherPolicyArgs, LaunchLimits, launcher, people
from trainer.aws.stack_outputs import baked_parameter

if TYPE_CHECKING:
    from tests.infra.program import Recorded

# IAM and STS quotas: characters of a managed policy, white space not counted (looked up 2026-11-22).
MOST_CHARACTERS = 6144

DESKS = replace(PEOPLE, writes=(*WRITES, *BACKUPS), calls=(f"{'p' * 16}-{'s' * 16}-control",))
KEY = "arn:aws:kms:ap-southeast-2:123456789012:key/mrk-1234abcd12ab34cd56ef1234567890ab"


def widest(
    *, lines: int, limits: LaunchLimits = DESKS, roles: tuple[str, ...] = ("instance", "script")
) -> dict[str, Any]:
    """Return the policy of a stack with the longest names, a key and backups."""
    return launcher(
        arguments(lines=lines, roles=roles),
        limits,
        launch_templates=["lt-0123456789abcdef0"] * lines,
        vpc="vpc-0123456789abcdef0",
        security_group="sg-0123456789abcdef0",
        key=KEY,
    )


def arguments(*, lines: int, roles: tuple[str, ...]) -> LauncherPolicyArgs:
    """Return what the policy of a stack with the longest names is made from."""
    line = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-amazon-linux-2023/latest/ami-id"
    prefix = f"{'p' * 16}-{'s' * 16}"
    return LauncherPolicyArgs(
        account="123456789012",
        region="ap-southeast-2",
        project="p" * 16,
        stack="s" * 16,
        bucket=f"{prefix}-123456789012-ap-southeast-2",
        schedule_group=prefix,
        sweeper_name=f"{prefix}-sweeper",
        control_name=f"{prefix}-control",
        instance_roles=tuple(f"{prefix}-ap-southeast-2-{kind}" for kind in roles),
        scheduler_role=f"{prefix}-ap-southeast-2-scheduler",
        image_parameters=(line,) * lines,
        baked_parameters=(
            baked_parameter("p" * 16, "s" * 16, "base-oss-nvidia-driver-gpu-amazon-linux-2023-arm64"),
        )
        * lines,
        launch_templates=["lt-0123456789abcdef0"] * lines,
        vpc="vpc-0123456789abcdef0",
        subnets=("subnet-0123456789abcdef0",) * 6,
        security_group="sg-0123456789abcdef0",
        tags={},
    )


def test_people_back_their_folders_up_only_where_the_stacks_storage_is_at_the_desk() -> None:
    written = {
        backups: people(replace(arguments(lines=1, roles=("instance",)), backups=backups)).writes
        for backups in (False, True)
    }
    assert written == {False: WRITES, True: (*WRITES, "backup/*")}


def test_it_fits_a_managed_policy_with_the_longest_names_and_every_setting_that_widens_it() -> None:
    """Two image lines with baked images, a key, and an existing VPC's subnets in six zones, which no region
    has more of.
    """
    assert len(json.dumps(widest(lines=2), separators=(",", ":"))) < MOST_CHARACTERS


def test_what_begins_with_r_in_the_bucket_is_what_people_write() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/architecture.md").read_text()
    keys = page.partition("s3://<bucket>/\n")[2].partition("```")[0]
    assert set(re.findall(r"^ +(r[a-z-]*)/", keys, re.MULTILINE)) == {"raw", "raw-index", "runs", "retrains"}


def test_images_of_the_account_may_be_launched_only_where_the_stack_bakes_some() -> None:
    def owners(baked: tuple[str, ...]) -> Any:
        args = replace(arguments(lines=1, roles=("instance",)), baked_parameters=baked)
        policy = launcher(args, launch_templates=["lt-1"], vpc="vpc-1", security_group="sg-1")
        (images,) = [one for one in policy["Statement"] if "::image/" in str(one["Resource"])]
        return images["Condition"]["StringEquals"]["ec2:Owner"]

    assert (owners(()), owners(("/imagebuilder/p/s/line",))) == ("amazon", ["amazon", "123456789012"])


CONTROL = LaunchLimits(
    writes=CONTROL_WRITES, creates=CREATES, instance_types=("g5.*", "g6.*"), tags=("run_id", "deadline")
)
MOST_INLINE_CHARACTERS = 10_240  # of a role's inline policies together


def test_controls_policy_fits_a_role_and_narrows_what_people_may_do() -> None:
    policy = widest(lines=2, limits=CONTROL, roles=("instance", "prepare"))
    assert (
        len(json.dumps(policy, separators=(",", ":"))) < MOST_INLINE_CHARACTERS - 500
    )  # its log comes on top
    statements = {one["Sid"]: one for one in policy["Statement"]}
    allowed = {one["Sid"]: one for one in widest(lines=1)["Statement"]}
    assert statements.keys() - allowed.keys() == {"LaunchAsFleet", "LaunchAllowedTypes", "AddInputs"}
    written = [one.partition("/")[2] for one in statements["WriteRuns"]["Resource"]]
    assert written == list(CONTROL_WRITES) and not {"code/*", "raw/*", "retrains/*"} & set(written)
    assert statements["AddInputs"]["Condition"] == {
        "Null": {"s3:if-none-match": "false"}
    }  # adds inputs, replaces none
    on_instances = [one for one in policy["Statement"] if ":instance/*" in str(one["Resource"])]
    launching = [one for one in on_instances if "ec2:RunInstances" in one["Action"]]
    assert [one["Condition"]["StringLike"] for one in launching] == [{"ec2:InstanceType": ["g5.*", "g6.*"]}]
    templates = [one for one in statements["LaunchFromTheStack"]["Resource"] if ":launch-template/" in one]
    assert statements["LaunchAllowedTypes"]["Condition"]["ArnEquals"] == {"ec2:LaunchTemplate": templates}
    needed = {"aws:RequestTag/run_id": "false", "aws:RequestTag/deadline": "false"}
    assert all(
        statements[sid]["Condition"]["Null"] == needed
        for sid in ("LaunchWithOwnTags", "LaunchAsFleet", "LaunchFleets")
    )


def test_no_statement_allows_a_wildcard_action_and_only_looks_are_allowed_on_everything() -> None:
    for statement in widest(lines=1)["Statement"]:
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        assert statement["Effect"] == "Allow" and not any("*" in action for action in actions)
        if statement["Resource"] == "*":
            assert statement["Sid"].endswith("HasNoResource")
            assert all(action.split(":")[1].startswith(("Describe", "Get")) for action in actions)


def test_it_writes_no_model_and_nothing_of_a_nodes_but_under_its_users_own_id() -> None:
    nodes = [
        prefix for prefix in WRITES if prefix.startswith(("models/", "live/", "attempts/", "checkpoints/"))
    ]
    assert nodes == [f"{prefix}${{aws:userid}}/*" for prefix in ("attempts/", "models/experiments/")]


def test_it_names_the_stacks_own_resources_and_is_attached_to_nobody(program: Recorded) -> None:
    (policy,) = program.all("aws:iam/policy:Policy")
    assert policy["name"] == "mayfly-dev-eu-west-1-launcher"
    assert not [one.typ for one in program.resources if "ttachment" in one.typ]
    statements = {one["Sid"]: one for one in json.loads(policy["policy"])["Statement"]}
    where = "arn:aws:ec2:eu-west-1:123456789012"
    resources = set(statements["LaunchFromTheStack"]["Resource"])
    assert {one.rpartition(":")[2].partition("/")[0] for one in resources} == {
        "launch-template",
        "security-group",
        "spot-instances-request",
    }
    wildcards = [one for one in resources if one.endswith("*")]
    in_vpc = statements["LaunchInSubnets"]
    assert (in_vpc["Resource"], in_vpc["Condition"]) == (
        f"{where}:subnet/*",
        {"ArnEquals": {"ec2:Vpc": f"{where}:vpc/vpc-id"}},
    )
    assert all(one.startswith(where) for one in resources) and wildcards == [
        f"{where}:spot-instances-request/*"
    ]
    passed = [one.rpartition("-")[2] for one in statements["PassInstanceRole"]["Resource"]]
    assert passed == ["instance", "script"]
    assert statements["PassSchedulerRole"]["Resource"].endswith(":role/mayfly-dev-eu-west-1-scheduler")
