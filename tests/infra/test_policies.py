"""Who may do what, as documents."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fnmatch import fnmatchcase  # its `*` crosses slashes, as IAM's does
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from infra import policies
from tests.iam import condition_keys, kind_of, listed
from tests.infra.program import STACK
from trainer.runs.keys import OWN_PREFIXES, NodeKeys

if TYPE_CHECKING:
    from tests.infra.program import Recorded

OWN_TAGS = {"StringEquals": {"aws:ResourceTag/project": "mayfly", "aws:ResourceTag/stack": "dev"}}
BUCKET = "arn:aws:s3:::mayfly-dev-123456789012-eu-west-1"
INSTANCE = policies.instance(STACK)
SWEEPER = policies.sweeper(STACK)
SCHEDULER = policies.scheduler(STACK)
NOTIFIER = policies.notifier(STACK)
PREPARE = policies.prepare(STACK)
SCRIPT = policies.script(STACK)
ROLES = {
    "instance": INSTANCE,
    "prepare": PREPARE,
    "script": SCRIPT,
    "sweeper": SWEEPER,
    "scheduler": SCHEDULER,
    "notifier": NOTIFIER,
}
MOST_INLINE_CHARACTERS, MOST_MANAGED_CHARACTERS = (
    10_240,
    6_144,
)  # IAM's quotas, white space apart (looked up 2026-11-22)


def statements(document: policies.Document) -> dict[str, dict[str, Any]]:
    return {statement["Sid"]: statement for statement in document["Statement"]}


def actions(statement: dict[str, Any]) -> list[str]:
    action = statement["Action"]
    return [action] if isinstance(action, str) else list(action)


def allowed(document: policies.Document) -> set[str]:
    return {action for statement in document["Statement"] for action in actions(statement)}


@pytest.mark.parametrize("role", ROLES)
def test_no_role_is_allowed_a_wildcard_action(role: str) -> None:
    for statement in ROLES[role]["Statement"]:
        assert statement["Effect"] == "Allow"
        assert not any("*" in action for action in actions(statement))
        assert "NotAction" not in statement and "NotResource" not in statement


@pytest.mark.parametrize("role", ROLES)
def test_only_actions_without_a_resource_are_allowed_on_everything(role: str) -> None:
    for name, statement in statements(ROLES[role]).items():
        if statement["Resource"] == "*":
            assert name.endswith("HasNoResource")
            lookups = (["ec2:DescribeInstances"], ["scheduler:ListSchedules"], ["cloudwatch:PutMetricData"])
            assert actions(statement) in lookups


OWN = [
    BUCKET + "/live/${aws:userid}/*",
    BUCKET + "/attempts/${aws:userid}/*",
    BUCKET + "/models/experiments/${aws:userid}/*",
]


def may_write(key: str, userid: str) -> bool:
    """Decide as IAM does: the variable is put in as text, and a * crosses slashes."""
    patterns = [pattern.replace("${aws:userid}", userid) for pattern in policies.INSTANCE_WRITES]
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def test_an_instance_writes_its_own_keys_and_none_of_another_instances() -> None:
    own, other = (
        NodeKeys(role_id="AROA1", instance_id=name, run_id="r", attempt=1) for name in ("i-1", "i-2")
    )
    for keys, allowed_to in ((own, True), (other, False)):
        written = (
            keys.lease,
            keys.progress,
            keys.result,
            f"{keys.log}000001.log",
            f"{keys.models}lstm_A_1m.safetensors",
        )
        assert {may_write(key, "AROA1:i-1") for key in written} == {allowed_to}
    for prefix in OWN_PREFIXES:
        assert may_write(f"{prefix}AROA1:i-1/x", "AROA1:i-1")
        assert not may_write(
            f"{prefix}AROA1:i-2/AROA1:i-1/x", "AROA1:i-1"
        )  # its id further down is not its own prefix
        assert not may_write(f"{prefix}AROA1:i-12/x", "AROA1:i-1")


def test_instance_reads_inputs_and_adds_results_and_nothing_else() -> None:
    assert {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "ReadInputs",
                "Effect": "Allow",
                "Action": "s3:GetObjectVersion",
                "Resource": f"{BUCKET}/raw/*",
            },
            {
                "Sid": "ReadRun",
                "Effect": "Allow",
                "Action": "s3:GetObject",
                "Resource": [f"{BUCKET}/code/*", f"{BUCKET}/runs/*", OWN[-1]],
            },
            {"Sid": "AddResults", "Effect": "Allow", "Action": "s3:PutObject", "Resource": OWN},
        ],
    } == INSTANCE


def test_instance_can_neither_delete_nor_touch_ec2_nor_pass_a_role() -> None:
    assert not [action for action in allowed(INSTANCE) if "Delete" in action or not action.startswith("s3:")]


def test_a_script_with_secrets_reads_those_and_its_own_run_and_neither_candles_nor_another_runs_record() -> (
    None
):
    own = statements(SCRIPT)
    assert own["ReadSecrets"] == {
        "Sid": "ReadSecrets",
        "Effect": "Allow",
        "Action": "ssm:GetParameter",
        "Resource": "arn:aws:ssm:eu-west-1:123456789012:parameter/mayfly/mayfly/dev/script-secrets/*",
    }
    assert not fnmatchcase("/mayfly/mayfly/dev/script-secrets/X", "/mayfly/mayfly/dev/secrets/*"), (
        "nor does a refresh script"
    )
    read = [*listed(own["ReadData"]["Resource"]), *listed(own["ReadOwnRun"]["Resource"])]

    def may_read(key: str) -> bool:
        return any(fnmatchcase(f"{BUCKET}/{key}", pattern) for pattern in read)

    assert [may_read(key) for key in ("raw/.files/0a", "code/x.whl", "runs/r/manifest.json")] == [True] * 3
    assert not [
        key
        for key in (
            "raw/main/BTC.csv",
            "runs/r/run.json",
            "runs/r/receipt.json",
            "models/production/m",
            "live/x",
            "retrains/r",
        )
        if may_read(key)
    ]
    assert own["AddResults"]["Resource"] == OWN and own["AddResults"]["Action"] == "s3:PutObject"
    assert len(own) == 4 and allowed(SCRIPT) == {
        "s3:GetObjectVersion",
        "s3:GetObject",
        "s3:PutObject",
        "ssm:GetParameter",
    }


@pytest.mark.parametrize(
    "key",
    [
        "runs/r/run.json",
        "runs/r/attempts/1/stop.json",
        "runs/r/receipt.json",
        "models/production/m.safetensors",
        "code/x.whl",
        "raw/x",
    ],
)
def test_instance_can_not_write_what_decides_anything(key: str) -> None:
    assert not any(fnmatchcase(key, pattern) for pattern in policies.INSTANCE_WRITES)


def test_sweeper_ends_only_instances_of_its_own_stack() -> None:
    statement = statements(SWEEPER)["EndOwnInstances"]
    assert statement["Resource"] == "arn:aws:ec2:eu-west-1:123456789012:instance/*"
    assert statement["Condition"] == OWN_TAGS


def test_sweeper_can_create_nothing() -> None:
    assert allowed(SWEEPER) == {
        "ec2:DescribeInstances",
        "ec2:TerminateInstances",
        "s3:GetObject",
        "s3:ListBucket",
        "scheduler:ListSchedules",
        "scheduler:DeleteSchedule",
        "logs:CreateLogStream",
        "logs:PutLogEvents",
        "cloudwatch:PutMetricData",
        "sqs:SendMessage",
    }


def test_sweeper_counts_in_the_stacks_own_namespace() -> None:
    condition = statements(SWEEPER)["CountOwnWorkHasNoResource"]["Condition"]
    assert condition == {"StringEquals": {"cloudwatch:namespace": "Mayfly/mayfly/dev"}}


def test_notifier_reads_the_webhooks_address_and_nothing_else() -> None:
    assert allowed(NOTIFIER) == {
        "ssm:GetParameter",
        "sqs:SendMessage",
        "logs:CreateLogStream",
        "logs:PutLogEvents",
    }
    parameter = "arn:aws:ssm:eu-west-1:123456789012:parameter/mayfly/mayfly/dev/webhook"
    assert statements(NOTIFIER)["ReadWebhook"]["Resource"] == parameter


def test_only_this_accounts_alarms_and_a_budget_publish_to_the_topic() -> None:
    topic = "arn:aws:sns:eu-west-1:123456789012:mayfly-dev-messages"
    (alarms,) = policies.topic(STACK, budgets=False)["Statement"]
    assert alarms["Principal"] == {"Service": "cloudwatch.amazonaws.com"}
    assert (alarms["Action"], alarms["Resource"]) == ("sns:Publish", topic)
    assert alarms["Condition"]["StringEquals"] == {"aws:SourceAccount": "123456789012"}
    _, budgets = policies.topic(STACK, budgets=True)["Statement"]
    assert budgets["Principal"] == {"Service": "budgets.amazonaws.com"}
    source = {"aws:SourceArn": "arn:aws:budgets::123456789012:*"}
    assert budgets["Condition"] == {"StringEquals": {"aws:SourceAccount": "123456789012"}, "ArnLike": source}


def test_sweeper_reads_heartbeats_and_no_other_object() -> None:
    assert statements(SWEEPER)["ReadHeartbeats"]["Resource"] == f"{BUCKET}/live/*"
    assert (
        "Condition" not in statements(SWEEPER)["MissHeartbeats"]
    )  # or a 403 stands where a 404 says that a node is silent


def test_sweeper_clears_runs_schedules_and_not_the_standing_one() -> None:
    pattern = statements(SWEEPER)["ClearOwnSchedules"]["Resource"]
    group = "arn:aws:scheduler:eu-west-1:123456789012:schedule/mayfly-dev"
    assert fnmatchcase(f"{group}/mayfly-20261120-235912-lstm-k3v9-sweep", pattern)
    assert not fnmatchcase(f"{group}/standing-sweep", pattern)
    assert not fnmatchcase(f"{group.replace('dev', 'prod')}/mayfly-x-sweep", pattern)


def test_sweeper_writes_its_own_log() -> None:
    assert statements(SWEEPER)["WriteOwnLog"]["Resource"] == (
        "arn:aws:logs:eu-west-1:123456789012:log-group:/aws/lambda/mayfly-dev-sweeper:log-stream:*"
    )


def test_schedules_call_the_functions_and_end_instances_of_the_stack() -> None:
    assert allowed(SCHEDULER) == {"lambda:InvokeFunction", "ec2:TerminateInstances", "sqs:SendMessage"}
    functions = [
        f"arn:aws:lambda:eu-west-1:123456789012:function:mayfly-dev-{name}" for name in ("sweeper", "control")
    ]
    assert statements(SCHEDULER)["CallFunctions"]["Resource"] == functions
    assert statements(SCHEDULER)["EndOwnInstances"]["Condition"] == OWN_TAGS


def test_only_this_stacks_groups_of_schedules_can_take_the_role_on() -> None:
    (statement,) = policies.trust_scheduler(STACK, "mayfly-dev", "mayfly-dev-retrains")["Statement"]
    assert statement["Principal"] == {"Service": "scheduler.amazonaws.com"}
    assert statement["Condition"] == {
        "StringEquals": {
            "aws:SourceAccount": "123456789012",
            "aws:SourceArn": [
                f"arn:aws:scheduler:eu-west-1:123456789012:schedule-group/{name}"
                for name in ("mayfly-dev", "mayfly-dev-retrains")
            ],
        }
    }


def test_the_program_gives_each_role_its_own_document(program: Recorded) -> None:
    for role in ROLES:
        document = json.loads(program.inputs("aws:iam/rolePolicy:RolePolicy", role)["policy"])
        assert statements(document).keys() == statements(ROLES[role]).keys()


def test_policies_fit_in_what_iam_keeps(program: Recorded) -> None:
    for inline in program.all("aws:iam/rolePolicy:RolePolicy"):
        assert len("".join(inline["policy"].split())) <= MOST_INLINE_CHARACTERS
    for managed in program.all("aws:iam/policy:Policy"):
        assert len("".join(managed["policy"].split())) <= MOST_MANAGED_CHARACTERS


def test_each_statement_names_resources_and_conditions_that_its_actions_have(program: Recorded) -> None:
    """By AWS's own list: a condition on a key that an action lacks never holds, nor does a resource of
    another type.
    """
    written = [*program.all("aws:iam/rolePolicy:RolePolicy"), *program.all("aws:iam/policy:Policy")]
    assert len(written) == 8
    for policy in (json.loads(one["policy"]) for one in written):
        for statement in policy["Statement"]:
            keys = {key for named in statement.get("Condition", {}).values() for key in named}
            for action in actions(statement):
                for resource in listed(statement["Resource"]):
                    known = condition_keys(action, kind_of(action, resource))
                    assert {re.sub(r"/.*", "/", key.lower()) for key in keys} <= known, (
                        statement["Sid"],
                        action,
                        resource,
                    )


@pytest.mark.parametrize(
    ("role", "service"),
    [("instance", "ec2"), ("sweeper", "lambda"), ("scheduler", "scheduler"), ("notifier", "lambda")],
)
def test_each_role_is_for_one_service(program: Recorded, role: str, service: str) -> None:
    (statement,) = json.loads(program.inputs("aws:iam/role:Role", role)["assumeRolePolicy"])["Statement"]
    assert statement["Principal"] == {"Service": f"{service}.amazonaws.com"}


def test_roles_use_a_key_through_s3_alone() -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:key/1234abcd"
    with_key = replace(STACK, kms_key=key)
    for role in (policies.instance, policies.prepare, policies.script, policies.sweeper):
        *others, use = role(with_key)["Statement"]
        assert others == role(STACK)["Statement"]  # none of it without a key
        assert use == {
            "Sid": "UseKey",
            "Effect": "Allow",
            "Action": "kms:Decrypt" if role is policies.sweeper else ["kms:Decrypt", "kms:GenerateDataKey"],
            "Resource": key,
            "Condition": {"StringEquals": {"kms:ViaService": "s3.eu-west-1.amazonaws.com"}},
        }


def test_no_managed_policy_widens_a_role(program: Recorded) -> None:
    assert not program.all("aws:iam/rolePolicyAttachment:RolePolicyAttachment")
    assert not any(role.get("managedPolicyArns") for role in program.all("aws:iam/role:Role"))


def test_security_page_names_what_an_instance_may_write_and_files_that_exist() -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "security.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"it may write only (.*?), and overwritten", page)
    assert tuple(re.findall(r"`([^`]+)`", written)) == policies.INSTANCE_WRITES
    assert all((root / path).is_file() for path in re.findall(r"`((?:infra|trainer)/[\w/]+\.py)`", page))


def test_what_an_instance_tuned_is_written_to_the_memory_by_somebody_else() -> None:
    resources = [
        resource for statement in INSTANCE["Statement"] for resource in listed(statement["Resource"])
    ]
    assert not any(fnmatchcase(f"{BUCKET}/memory/measurements.json", resource) for resource in resources)
