"""The policies of each role, as documents."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fnmatch import fnmatchcase  # its `*` crosses slashes, as IAM's does
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from infra import policies
from tests.iam import assert_known_to_aws, listed
from tests.infra.program import STACK
from trainer.runs.keys import OWN_PREFIXES, NodeKeys

if TYPE_CHECKING:
    from tests.infra.program import Recorded

OWN_TAGS = {"StringEquals": {"aws:ResourceTag/project": "mayfly", "aws:ResourceTag/stack": "dev"}}
BUCKET = "arn:aws:s3:::mayfly-dev-123456789012-eu-west-1"
NAMES = ("instance", "prepare", "score", "script", "sweeper", "scheduler", "notifier")
ROLES: dict[str, policies.Document] = {name: getattr(policies, name)(STACK) for name in NAMES}
INSTANCE, SWEEPER, SCHEDULER = ROLES["instance"], ROLES["sweeper"], ROLES["scheduler"]
# IAM's quotas, white space apart (looked up 2026-11-22).
MOST_INLINE_CHARACTERS, MOST_MANAGED_CHARACTERS = 10_240, 6_144
LOG = {"logs:CreateLogStream", "logs:PutLogEvents"}


def statements(document: policies.Document) -> dict[str, dict[str, Any]]:
    return {statement["Sid"]: statement for statement in document["Statement"]}


def allowed(document: policies.Document) -> set[str]:
    return {action for statement in document["Statement"] for action in listed(statement["Action"])}


@pytest.mark.parametrize("role", ROLES)
def test_no_role_is_allowed_a_wildcard_action(role: str) -> None:
    for statement in ROLES[role]["Statement"]:
        assert statement["Effect"] == "Allow"
        assert not any("*" in action for action in listed(statement["Action"]))
        assert "NotAction" not in statement and "NotResource" not in statement


@pytest.mark.parametrize("role", ROLES)
def test_only_actions_without_resources_are_allowed_on_all(role: str) -> None:
    for name, statement in statements(ROLES[role]).items():
        if statement["Resource"] == "*":
            assert name.endswith("HasNoResource")
            lookups = ("ec2:DescribeInstances", "scheduler:ListSchedules", "cloudwatch:PutMetricData")
            assert statement["Action"] in lookups


PREFIXES = ("live", "attempts", "models/experiments", "checkpoints")
OWN = [f"{BUCKET}/{prefix}/${{aws:userid}}/*" for prefix in PREFIXES]


def may_write(key: str, userid: str) -> bool:
    """Decide as IAM does: the variable is put in as text, and a * crosses slashes."""
    patterns = [pattern.replace("${aws:userid}", userid) for pattern in policies.INSTANCE_WRITES]
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def test_an_instance_writes_keys_under_its_own_id_alone() -> None:
    for instance_id, may in (("i-1", True), ("i-2", False)):
        keys = NodeKeys(role_id="AROA1", instance_id=instance_id, run_id="r", attempt=1)
        parts = (f"{keys.log}000001.log", f"{keys.models}lstm_A_1m.safetensors")
        parts += (keys.snapshot(1), keys.snapshot_data(1))
        written = (keys.lease, keys.progress, keys.result, *parts)
        assert {may_write(key, "AROA1:i-1") for key in written} == {may}
    for prefix in OWN_PREFIXES:
        assert may_write(f"{prefix}AROA1:i-1/x", "AROA1:i-1")
        # Its id further down is not its own prefix.
        for key in (f"{prefix}AROA1:i-2/AROA1:i-1/x", f"{prefix}AROA1:i-12/x"):
            assert not may_write(key, "AROA1:i-1")


OWN_RUN = (
    *("code/*.whl", "runs/*/manifest.json", "runs/*/attempts/*/start.json", "runs/*/attempts/*/stop.json"),
    "runs/*/plan.json",
)


def test_instance_reads_inputs_and_adds_results_and_nothing_else() -> None:
    assert [(one["Sid"], one["Action"], one["Resource"]) for one in INSTANCE["Statement"]] == [
        ("ReadInputs", "s3:GetObjectVersion", [f"{BUCKET}/raw/*", f"{BUCKET}/resumed/*"]),
        ("ReadRun", "s3:GetObject", [f"{BUCKET}/{key}" for key in OWN_RUN] + [OWN[2]]),
        ("AddResults", "s3:PutObject", OWN),
    ]


READ = (
    *("raw/.files/0a", "code/x.whl", "resumed/r/2/0a"),
    *("runs/r/manifest.json", "runs/r/attempts/1/start.json", "runs/r/attempts/1/stop.json"),
)


def test_a_script_reads_its_secrets_its_data_and_its_own_run() -> None:
    own = statements(ROLES["script"])
    secrets = "arn:aws:ssm:eu-west-1:123456789012:parameter/mayfly/mayfly/dev/script-secrets/*"
    assert (own["ReadSecrets"]["Action"], own["ReadSecrets"]["Resource"]) == ("ssm:GetParameter", secrets)
    theirs = "/mayfly/mayfly/dev/secrets/*"  # those of a refresh script
    assert not fnmatchcase("/mayfly/mayfly/dev/script-secrets/X", theirs)
    read = [*listed(own["ReadData"]["Resource"]), *listed(own["ReadOwnRun"]["Resource"])]

    def may_read(key: str) -> bool:
        return any(fnmatchcase(f"{BUCKET}/{key}", pattern) for pattern in read)

    assert [may_read(key) for key in READ] == [True] * len(READ)
    others = ("raw/main/BTC.csv", "runs/r/run.json", "runs/r/receipt.json", "models/production/m", "live/x")
    others += ("checkpoints/AROA1:i-2/r/1/0/000001.json",)
    assert not [key for key in (*others, "retrains/r") if may_read(key)]
    assert own["AddResults"]["Resource"] == OWN and own["AddResults"]["Action"] == "s3:PutObject"
    objects = {"s3:GetObjectVersion", "s3:GetObject", "s3:PutObject"}
    assert len(own) == 4 and allowed(ROLES["script"]) == objects | {"ssm:GetParameter"}


def test_a_prepare_run_reads_sets_and_secrets_and_adds_files() -> None:
    own = statements(ROLES["prepare"])
    secrets = "arn:aws:ssm:eu-west-1:123456789012:parameter/mayfly/mayfly/dev/secrets/*"
    assert {name: (one["Action"], listed(one["Resource"])) for name, one in own.items()} == {
        "ReadCandles": ("s3:GetObjectVersion", [f"{BUCKET}/raw/*", f"{BUCKET}/resumed/*"]),
        "ReadOwnRun": ("s3:GetObject", [f"{BUCKET}/{key}" for key in OWN_RUN[:-1]]),
        # No model: control takes over its files alone.
        "AddFiles": ("s3:PutObject", [key for key in OWN if "/models/" not in key]),
        "ReadSecrets": ("ssm:GetParameter", [secrets]),
    }
    theirs = "/mayfly/mayfly/dev/script-secrets/X"
    assert not fnmatchcase(f"arn:aws:ssm:eu-west-1:123456789012:parameter{theirs}", secrets)


def test_the_cache_is_closed_to_all_but_tls_and_its_access_point() -> None:
    files, point = "arn:aws:elasticfilesystem:fs", "arn:aws:elasticfilesystem:ap"
    arns = {"file_system": files, "access_point": point}
    (use,) = policies.use_cache(**arns)["Statement"]
    uses = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"]
    assert (use["Effect"], use["Action"], use["Resource"]) == ("Allow", uses, files)  # and no RootAccess
    assert use["Condition"] == {"StringEquals": {"elasticfilesystem:AccessPointArn": point}}
    refused = policies.file_system(**arns)["Statement"]
    for one in refused:
        assert (one["Effect"], one["Principal"], one["Resource"]) == ("Deny", {"AWS": "*"}, files)
        assert one["Action"] == [*uses, "elasticfilesystem:ClientRootAccess"]
    assert [one["Condition"] for one in refused] == [
        {"Bool": {"aws:SecureTransport": "false"}},
        {"StringNotEquals": {"elasticfilesystem:AccessPointArn": point}},
    ]


def test_a_scorer_reads_both_models_and_writes_its_scores() -> None:
    own = statements(ROLES["score"])
    by_version, plain = (listed(own[name]["Resource"]) for name in ("ReadModelsAndCandles", "ReadOwnRun"))

    def may(patterns: list[str], key: str) -> bool:
        keys = [pattern.replace("${aws:userid}", "AROA1:i-1") for pattern in patterns]
        return any(fnmatchcase(f"{BUCKET}/{key}", pattern) for pattern in keys)

    models = ("models/retrains/weekly/r/m.safetensors", "models/production/weekly/m.safetensors")
    assert all(may(by_version, key) for key in (*models, "raw/main/BTC.csv", "raw/.files/0a"))
    assert all(may(plain, key) for key in READ if key.startswith(("code", "runs")))
    # Nothing that a training node writes, or wrote: no model of an experiment, no result, no checkpoint.
    others = ("models/experiments/AROA1:i-2/r/1/m.safetensors", "attempts/AROA1:i-2/r/1/0/result.json")
    others += (
        "resumed/r/2/0a",
        "checkpoints/AROA1:i-2/r/1/0/000001.json",
        "runs/r/run.json",
        "runs/index.json",
    )
    assert not [key for key in others if may([*by_version, *plain], key)]
    written = listed(own["AddScores"]["Resource"])
    assert may(written, "attempts/AROA1:i-1/r/1/0/scores.json") and may(written, "live/AROA1:i-1/r/1/0.json")
    refused = (*models, "attempts/AROA1:i-2/r/1/0/scores.json", "raw/main/BTC.csv", "scheduled/weekly/x.json")
    assert not [key for key in (*refused, *others, "memory/boots.json") if may(written, key)]
    assert len(own) == 3 and allowed(ROLES["score"]) == {
        "s3:GetObjectVersion",
        "s3:GetObject",
        "s3:PutObject",
    }


@pytest.mark.parametrize(
    "key",
    [
        *("runs/r/run.json", "runs/r/attempts/1/stop.json", "runs/r/receipt.json"),
        *("runs/r/attempts/1/start.json", "resumed/r/2/0a"),
        *("models/production/m.safetensors", "code/x.whl", "raw/x"),
    ],
)
def test_instance_can_not_write_what_decides_anything(key: str) -> None:
    assert not any(fnmatchcase(key, pattern) for pattern in policies.INSTANCE_WRITES)


def test_sweeper_ends_only_instances_of_its_own_stack() -> None:
    statement = statements(SWEEPER)["EndOwnInstances"]
    assert statement["Resource"] == "arn:aws:ec2:eu-west-1:123456789012:instance/*"
    assert statement["Condition"] == OWN_TAGS


def test_sweeper_lifts_protection_and_sets_nothing_else() -> None:
    statement = statements(SWEEPER)["LiftOwnProtection"]
    assert statement["Resource"] == "arn:aws:ec2:eu-west-1:123456789012:instance/*"
    off = {"ec2:Attribute/DisableApiTermination": ["false", "False"]}
    assert statement["Condition"] == {"StringEquals": OWN_TAGS["StringEquals"] | off}


def test_sweeper_can_create_nothing() -> None:
    machines = {"ec2:DescribeInstances", "ec2:TerminateInstances", "ec2:ModifyInstanceAttribute"}
    schedules = {"scheduler:ListSchedules", "scheduler:DeleteSchedule"}
    told = {"cloudwatch:PutMetricData", "sqs:SendMessage"}
    assert allowed(SWEEPER) == machines | schedules | told | LOG | {"s3:GetObject", "s3:ListBucket"}


def test_sweeper_counts_in_the_stacks_own_namespace() -> None:
    condition = statements(SWEEPER)["CountOwnWorkHasNoResource"]["Condition"]
    assert condition == {"StringEquals": {"cloudwatch:namespace": "Mayfly/mayfly/dev"}}


def test_notifier_reads_the_webhooks_address_and_nothing_else() -> None:
    assert allowed(ROLES["notifier"]) == {"ssm:GetParameter", "sqs:SendMessage"} | LOG
    parameter = "arn:aws:ssm:eu-west-1:123456789012:parameter/mayfly/mayfly/dev/webhook"
    assert statements(ROLES["notifier"])["ReadWebhook"]["Resource"] == parameter


def test_only_own_alarms_and_a_budget_publish_to_the_topic() -> None:
    topic = "arn:aws:sns:eu-west-1:123456789012:mayfly-dev-messages"
    (alarms,) = policies.topic(STACK, budgets=False)["Statement"]
    assert alarms["Principal"] == {"Service": "cloudwatch.amazonaws.com"}
    assert (alarms["Action"], alarms["Resource"]) == ("sns:Publish", topic)
    own = {"StringEquals": {"aws:SourceAccount": "123456789012"}}
    any_alarm = {"aws:SourceArn": "arn:aws:cloudwatch:eu-west-1:123456789012:alarm:*"}
    assert alarms["Condition"] == {**own, "ArnLike": any_alarm}
    _, budgets = policies.topic(STACK, budgets=True)["Statement"]
    assert budgets["Principal"] == {"Service": "budgets.amazonaws.com"}
    source = {"aws:SourceArn": "arn:aws:budgets::123456789012:*"}
    assert budgets["Condition"] == {**own, "ArnLike": source}


def test_sweeper_reads_heartbeats_and_no_other_object() -> None:
    assert statements(SWEEPER)["ReadHeartbeats"]["Resource"] == f"{BUCKET}/live/*"
    # Or a 403 stands where a 404 says that a node is silent.
    assert "Condition" not in statements(SWEEPER)["MissHeartbeats"]


def test_sweeper_clears_runs_schedules_and_not_the_standing_one() -> None:
    pattern = statements(SWEEPER)["ClearOwnSchedules"]["Resource"]
    group = "arn:aws:scheduler:eu-west-1:123456789012:schedule/mayfly-dev"
    assert fnmatchcase(f"{group}/mayfly-20261120-235912-lstm-k3v9-sweep", pattern)
    assert not fnmatchcase(f"{group}/standing-sweep", pattern)
    assert not fnmatchcase(f"{group.replace('dev', 'prod')}/mayfly-x-sweep", pattern)


def test_sweeper_writes_its_own_log() -> None:
    group = "arn:aws:logs:eu-west-1:123456789012:log-group:/aws/lambda/mayfly-dev-sweeper"
    assert statements(SWEEPER)["WriteOwnLog"]["Resource"] == f"{group}:log-stream:*"


def test_schedules_call_functions_and_end_own_instances() -> None:
    assert allowed(SCHEDULER) == {"lambda:InvokeFunction", "ec2:TerminateInstances", "sqs:SendMessage"}
    where = "arn:aws:lambda:eu-west-1:123456789012:function:mayfly-dev"
    called = statements(SCHEDULER)["CallFunctions"]["Resource"]
    assert called == [f"{where}-sweeper", f"{where}-control"]
    assert statements(SCHEDULER)["EndOwnInstances"]["Condition"] == OWN_TAGS


def test_only_the_stacks_schedule_groups_assume_the_role() -> None:
    (statement,) = policies.trust_scheduler(STACK, "mayfly-dev", "mayfly-dev-retrains")["Statement"]
    assert statement["Principal"] == {"Service": "scheduler.amazonaws.com"}
    group = "arn:aws:scheduler:eu-west-1:123456789012:schedule-group/mayfly-dev"
    source = {"aws:SourceAccount": "123456789012", "aws:SourceArn": [group, f"{group}-retrains"]}
    assert statement["Condition"] == {"StringEquals": source}


def test_the_program_gives_each_role_its_own_document(program: Recorded) -> None:
    for role in ROLES:
        document = json.loads(program.inputs("aws:iam/rolePolicy:RolePolicy", role)["policy"])
        assert statements(document).keys() == statements(ROLES[role]).keys()


def test_policies_fit_in_what_iam_keeps(program: Recorded) -> None:
    for inline in program.all("aws:iam/rolePolicy:RolePolicy"):
        assert len("".join(inline["policy"].split())) <= MOST_INLINE_CHARACTERS
    for managed in program.all("aws:iam/policy:Policy"):
        assert len("".join(managed["policy"].split())) <= MOST_MANAGED_CHARACTERS


def test_each_statement_names_what_its_actions_have(program: Recorded) -> None:
    written = [*program.all("aws:iam/rolePolicy:RolePolicy"), *program.all("aws:iam/policy:Policy")]
    assert len(written) == 10
    for one in written:
        assert_known_to_aws(json.loads(one["policy"]))


@pytest.mark.parametrize(
    ("role", "service"),
    [
        *((role, "ec2") for role in ("instance", "prepare", "score", "script")),
        *((role, "lambda") for role in ("sweeper", "control", "notifier")),
        ("scheduler", "scheduler"),
    ],
)
def test_each_role_is_for_one_service(program: Recorded, role: str, service: str) -> None:
    (statement,) = json.loads(program.inputs("aws:iam/role:Role", role)["assumeRolePolicy"])["Statement"]
    assert (statement["Effect"], statement["Action"]) == ("Allow", "sts:AssumeRole")
    assert statement["Principal"] == {"Service": f"{service}.amazonaws.com"}


def test_roles_use_a_key_through_s3_alone() -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:key/1234abcd"
    with_key = replace(STACK, kms_key=key)
    for role in (policies.instance, policies.prepare, policies.score, policies.script, policies.sweeper):
        *others, use = role(with_key)["Statement"]
        assert others == role(STACK)["Statement"]  # none of it without a key
        writes = [] if role is policies.sweeper else ["kms:GenerateDataKey"]
        assert (listed(use["Action"]), use["Resource"]) == (["kms:Decrypt", *writes], key)
        assert use["Condition"] == {"StringEquals": {"kms:ViaService": "s3.eu-west-1.amazonaws.com"}}


def test_no_managed_policy_widens_a_role(program: Recorded) -> None:
    assert not program.all("aws:iam/rolePolicyAttachment:RolePolicyAttachment")
    assert not any(role.get("managedPolicyArns") for role in program.all("aws:iam/role:Role"))


def test_security_page_names_an_instances_writes_and_real_files() -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "security.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"it may write only (.*?), and overwritten", page)
    assert tuple(re.findall(r"`([^`]+)`", written)) == policies.INSTANCE_WRITES
    assert all((root / path).is_file() for path in re.findall(r"`((?:infra|trainer)/[\w/]+\.py)`", page))


def test_an_instance_can_not_write_the_memory() -> None:
    resources = [pattern for one in INSTANCE["Statement"] for pattern in listed(one["Resource"])]
    assert not any(fnmatchcase(f"{BUCKET}/memory/measurements.json", resource) for resource in resources)


@pytest.mark.parametrize("role", [policies.instance, policies.script])
def test_a_node_reads_its_own_copy_of_a_token_alone(role: Any) -> None:
    before, with_nodes = role(STACK)["Statement"], role(STACK, nodes=True)["Statement"]
    (added,) = [one for one in with_nodes if one["Sid"] == "ReadOwnToken"]
    assert [one for one in with_nodes if one["Sid"] in ("ReadOwnToken", "FindLeft", "ReadLeft")] == [
        one for one in with_nodes if one not in before
    ]
    assert added["Action"] == "s3:GetObject" and added["Resource"] == f"{BUCKET}/tokens/${{aws:userid}}/*"
    keys = NodeKeys(role_id="AROA1", instance_id="i-1", run_id="r", attempt=1)
    mine = added["Resource"].replace("${aws:userid}", "AROA1:i-1")
    assert fnmatchcase(f"{BUCKET}/{keys.token}", mine)
    assert not fnmatchcase(f"{BUCKET}/{replace(keys, instance_id='i-12').token}", mine)
    assert not may_write(keys.token, "AROA1:i-1")
    assert_known_to_aws(policies.document(*with_nodes))


def test_a_node_reads_what_another_left_where_there_are_several() -> None:
    statements = {one["Sid"]: one for one in policies.instance(STACK, nodes=True)["Statement"]}
    keys = NodeKeys(role_id="AROA1", instance_id="i-2", run_id="r", attempt=1)

    def reads(sid: str, key: str) -> bool:
        resources = statements[sid]["Resource"]
        patterns = [resources] if isinstance(resources, str) else resources
        return any(fnmatchcase(f"{BUCKET}/{key}", pattern) for pattern in patterns)

    found = (keys.snapshot(3), f"{keys.models}m.json", keys.output_index)
    assert all(reads("FindLeft", key) for key in found) and reads("ReadLeft", keys.snapshot_data(7))
    hidden = (keys.progress, keys.result, f"{keys.log}000001.log", f"{keys.models}m.safetensors", keys.token)
    assert not any(reads(sid, key) for sid in ("FindLeft", "ReadLeft") for key in hidden)
    assert statements["ReadLeft"]["Action"] == "s3:GetObjectVersion"
    assert not {"FindLeft", "ReadLeft"} & {one["Sid"] for one in policies.instance(STACK)["Statement"]}
