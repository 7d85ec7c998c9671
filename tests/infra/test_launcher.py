"""The launcher policy as a document. That it is enough and no more is shown by
tests/trainer/cli/test_launcher_policy.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulumi
import pytest

from infra.control import WRITES as CONTROL_WRITES
from infra.control import control_limits
from infra.launch_templates import ImageLine
from infra.launcher import (
    MOST_CHARACTERS,
    WRITES,
    LaunchedFrom,
    LauncherPolicy,
    check_length,
    compact,
    launcher,
    managed_text,
)
from infra.stack import Stack
from tests.aws.iam_policies import Authorization, decide, read_policy
from tests.iam import assert_known_to_aws, listed

if TYPE_CHECKING:
    from tests.infra.program import Recorded

NAME = "p" * 16
LINE = ImageLine(
    name="base-oss-nvidia-driver-gpu-amazon-linux-2023",
    parameter="/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-amazon-linux-2023/latest/ami-id",
    root_device="/dev/xvda",
)
WIDEST = Stack(
    account="123456789012",
    region="ap-southeast-2",
    project=NAME,
    name=NAME,
    owner="me",
    log_days=30,
    kms_key="arn:aws:kms:ap-southeast-2:123456789012:key/mrk-1234abcd12ab34cd56ef1234567890ab",
)
MADE_FROM = LaunchedFrom(
    line=LINE,
    baked=True,
    launch_templates=("lt-0123456789abcdef0",),
    vpc="vpc-0123456789abcdef0",
    subnets=("subnet-0123456789abcdef0",) * 6,
    security_group="sg-0123456789abcdef0",
)
BOTH_TEMPLATES = replace(MADE_FROM, launch_templates=MADE_FROM.launch_templates * 2)


LONGEST_LINE = ImageLine(
    name="l" * 100,
    parameter=f"/aws/service/deeplearning/ami/x86_64/{'l' * 100}/latest/ami-id",
    root_device="/dev/xvda",
)


@pytest.mark.parametrize(("session", "assumed"), [("ana", True), ("ben", False), ("Ana", False), ("", False)])
def test_the_trust_policy_of_the_page_pins_the_sessions_name(session: str, assumed: bool) -> None:
    """Else two people of one role write each other's keys: the id in them ends with the session's name."""
    page = (Path(__file__).resolve().parents[2] / "docs/security.md").read_text()
    trust = json.loads(page.partition("```json\n")[2].partition("```")[0])
    (statement,) = trust["Statement"]
    assert statement.pop("Principal") == {"AWS": "arn:aws:iam::123456789012:root"}
    policy = read_policy("trust", json.dumps({**trust, "Statement": [{**statement, "Resource": "*"}]}))
    context = {"sts:rolesessionname": session} if session else {}
    asked = Authorization(action="sts:AssumeRole", resource="*", context=context)
    assert decide([policy], asked, {"aws:username": "ana"}).allowed is assumed


@pytest.mark.parametrize(("name", "written"), [("ana", True), ("ben", False)])
def test_who_shares_role_and_session_name_shares_keys(name: str, written: bool) -> None:
    policy = read_policy("launcher", json.dumps(launcher(WIDEST, MADE_FROM)))
    key = f"arn:aws:s3:::{WIDEST.bucket}/attempts/AROA1:ana/run/1/0/result.json"
    asked = Authorization(action="s3:PutObject", resource=key, context={})
    assert decide([policy], asked, {"aws:userid": f"AROA1:{name}"}).allowed is written


def test_the_widest_policy_fits_a_managed_policy() -> None:
    """Baked images, a key, the longest names, and an existing VPC's subnets in sixteen zones."""
    many = ("subnet-0123456789abcdef0",) * 16
    widest = replace(MADE_FROM, line=LONGEST_LINE, subnets=many)
    check_length(WIDEST, widest)
    policy = launcher(WIDEST, widest)
    assert len(compact(policy)) > MOST_CHARACTERS >= len(managed_text(policy))
    written = json.loads(managed_text(policy))["Statement"]
    for one in policy["Statement"]:
        del one["Sid"]
    assert written == policy["Statement"]  # the statements' names alone are gone


def test_statements_keep_their_names_where_they_fit(program: Recorded) -> None:
    policy = program.inputs("aws:iam/policy:Policy", "launcher")
    assert all(one["Sid"] for one in json.loads(policy["policy"])["Statement"])


def test_a_policy_that_is_too_long_is_refused_with_its_causes() -> None:
    many = ("subnet-0123456789abcdef0",) * 30
    with pytest.raises(pulumi.RunError) as refused:
        check_length(WIDEST, replace(MADE_FROM, subnets=many))
    length = len(managed_text(launcher(WIDEST, replace(MADE_FROM, subnets=many))))
    (line,) = str(refused.value).splitlines()
    assert f"has {length:,} characters, and IAM's managed policies hold 6,144" in line
    with pytest.raises(pulumi.RunError, match=f"has {length:,} characters"):
        LauncherPolicy("launcher", WIDEST, launched_from=replace(MADE_FROM, subnets=many))
    assert "long: 'subnets' with 30 subnets (1,450), the names of project and stack (" in line


def test_what_begins_with_r_in_the_bucket_is_what_people_write() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/architecture.md").read_text()
    keys = page.partition("s3://<bucket>/\n")[2].partition("```")[0]
    written = {"raw", "raw-index", "resumed", "retrains", "runs"}
    assert set(re.findall(r"^ +(r[a-z-]*)/", keys, re.MULTILINE)) == written


def test_own_images_are_launched_only_where_the_stack_bakes_some() -> None:
    def owners(*, baked: bool) -> Any:
        policy = launcher(WIDEST, replace(MADE_FROM, baked=baked))
        (images,) = [one for one in policy["Statement"] if "::image/" in str(one["Resource"])]
        return images["Condition"]["StringEquals"]["ec2:Owner"]

    assert (owners(baked=False), owners(baked=True)) == ("amazon", ["amazon", "123456789012"])


@pytest.mark.parametrize(
    ("reservation", "arn"),
    [
        ("cr-0123456789abcdef0", "arn:aws:ec2:*:*:capacity-reservation/cr-0123456789abcdef0"),
        ("arn:aws:resource-groups:us-east-1:1:group/gpus", "arn:aws:resource-groups:us-east-1:1:group/gpus"),
    ],
)
def test_a_named_reservation_may_be_used_and_no_other(reservation: str, arn: str) -> None:
    def resources(made_from: LaunchedFrom) -> set[str]:
        statements = {one["Sid"]: one for one in launcher(WIDEST, made_from)["Statement"]}
        return set(statements["LaunchFromTheStack"]["Resource"])

    assert resources(replace(MADE_FROM, reservation=reservation)) - resources(MADE_FROM) == {arn}


MOST_INLINE_CHARACTERS = 10_240  # of a role's inline policies together


def test_controls_policy_fits_a_role_and_is_narrower() -> None:
    policy = launcher(WIDEST, BOTH_TEMPLATES, control_limits(("g5.*", "g6.*"), own_templates=True))
    length = len(json.dumps(policy, separators=(",", ":")))
    assert length < MOST_INLINE_CHARACTERS - 500  # its log comes on top
    statements = {one["Sid"]: one for one in policy["Statement"]}
    allowed = {one["Sid"]: one for one in launcher(WIDEST, MADE_FROM)["Statement"]}
    assert statements.keys() - allowed.keys() == {"LaunchAsFleet", "LaunchAllowedTypes", "AddInputs"}
    written = [one.partition("/")[2] for one in statements["WriteRuns"]["Resource"]]
    assert written == list(CONTROL_WRITES) and not {"code/*", "raw/*", "retrains/*"} & set(written)
    new_alone = {"Null": {"s3:if-none-match": "false"}}
    assert statements["AddInputs"]["Condition"] == new_alone
    on_instances = [one for one in policy["Statement"] if ":instance/*" in str(one["Resource"])]
    launching = [one for one in on_instances if "ec2:RunInstances" in one["Action"]]
    assert [one["Condition"]["StringLike"] for one in launching] == [{"ec2:InstanceType": ["g5.*", "g6.*"]}]
    templates = [one for one in statements["LaunchFromTheStack"]["Resource"] if ":launch-template/" in one]
    assert statements["LaunchAllowedTypes"]["Condition"]["ArnEquals"] == {"ec2:LaunchTemplate": templates}
    needed = {"aws:RequestTag/run_id": "false", "aws:RequestTag/deadline": "false"}
    for sid in ("LaunchWithOwnTags", "LaunchAsFleet", "LaunchFleets"):
        assert statements[sid]["Condition"]["Null"] == needed


def test_one_setting_drops_controls_condition_on_templates() -> None:
    def conditions(*, own_templates: bool) -> Any:
        limits = control_limits(("g5.*",), own_templates=own_templates)
        policy = launcher(WIDEST, BOTH_TEMPLATES, limits)
        statements = {one["Sid"]: one for one in policy["Statement"]}
        return statements.pop("LaunchAllowedTypes")["Condition"], statements

    held, others = conditions(own_templates=True)
    assert held.pop("ArnEquals").keys() == {"ec2:LaunchTemplate"}
    assert conditions(own_templates=False) == (held, others)  # and nothing else


@pytest.mark.parametrize("own_templates", [True, False])
def test_a_fleets_launch_without_its_template_passes_only_so(own_templates: bool) -> None:
    """If AWS does not give the RunInstances of a fleet this key, control starts nothing until it is off."""
    limits = control_limits(("g5.*",), own_templates=own_templates)
    policy = read_policy("control", json.dumps(launcher(WIDEST, BOTH_TEMPLATES, limits)))
    given = {"project": NAME, "stack": NAME, "run_id": "r", "deadline": "d"}
    tags: dict[str, Any] = {f"aws:requesttag/{key}": value for key, value in given.items()}
    asked = Authorization(
        action="ec2:RunInstances",
        resource="arn:aws:ec2:ap-southeast-2:123456789012:instance/*",
        context={**tags, "ec2:instancetype": "g5.xlarge"},
    )
    assert decide([policy], asked, {}).allowed is not own_templates
    template = "arn:aws:ec2:ap-southeast-2:123456789012:launch-template/lt-0123456789abcdef0"
    known = replace(asked, context={**asked.context, "ec2:launchtemplate": template})
    assert decide([policy], known, {}).allowed


def test_no_wildcard_action_and_only_looks_on_all_resources() -> None:
    for statement in launcher(WIDEST, MADE_FROM)["Statement"]:
        actions = listed(statement["Action"])
        assert statement["Effect"] == "Allow" and not any("*" in action for action in actions)
        if statement["Resource"] == "*":
            assert statement["Sid"].endswith("HasNoResource")
            assert all(action.split(":")[1].startswith(("Describe", "Get")) for action in actions)


def test_people_write_a_nodes_keys_under_their_own_id_alone() -> None:
    of_nodes = ("models/", "live/", "attempts/", "checkpoints/")
    nodes = [prefix for prefix in WRITES if prefix.startswith(of_nodes)]
    assert nodes == [f"{prefix}${{aws:userid}}/*" for prefix in ("attempts/", "models/experiments/")]


def test_it_names_own_resources_and_is_attached_to_nobody(program: Recorded) -> None:
    policy = program.inputs("aws:iam/policy:Policy", "launcher")
    assert policy["name"] == "mayfly-dev-eu-west-1-launcher"
    assert not [one.typ for one in program.resources if "ttachment" in one.typ]
    statements = {one["Sid"]: one for one in json.loads(policy["policy"])["Statement"]}
    where = "arn:aws:ec2:eu-west-1:123456789012"
    resources = set(statements["LaunchFromTheStack"]["Resource"])
    kinds = {one.removeprefix(f"{where}:").partition("/")[0] for one in resources}
    assert kinds == {"launch-template", "security-group", "spot-instances-request"}
    assert [one for one in resources if one.endswith("*")] == [f"{where}:spot-instances-request/*"]
    in_vpc = statements["LaunchInSubnets"]
    assert in_vpc["Resource"] == f"{where}:subnet/*"
    assert in_vpc["Condition"] == {"ArnEquals": {"ec2:Vpc": f"{where}:vpc/vpc-id"}}
    passed = [one.rpartition("-")[2] for one in statements["PassInstanceRole"]["Resource"]]
    assert passed == ["instance", "script"]
    assert statements["PassSchedulerRole"]["Resource"].endswith(":role/mayfly-dev-eu-west-1-scheduler")


def test_tokens_are_kept_where_runs_may_have_several_nodes() -> None:
    before = launcher(WIDEST, MADE_FROM)
    with_nodes = launcher(WIDEST, replace(MADE_FROM, cluster_groups=("sg-1", "sg-2")))
    (added,) = [one for one in with_nodes["Statement"] if one["Sid"] == "KeepTokens"]
    assert added["Action"] == ["s3:PutObject", "s3:DeleteObjectVersion"]
    assert added["Resource"] == f"arn:aws:s3:::{WIDEST.bucket}/tokens/*"
    assert "s3:Delete" not in json.dumps(before)
    assert_known_to_aws(with_nodes)
