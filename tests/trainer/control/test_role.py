"""Control under its role on the embedded AWS, from a scheduled time to its end: its policy allows what it
calls, and no more.

One account goes through what control may come across; only the machines are played by hand
(tests/finished.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.aws import alarms, retries
from tests.aws.iam_policies import Authorization, Decision
from tests.aws.metrics import MetricId
from tests.aws.queues import queued, subscribe_queue
from tests.aws.topics import publish_as_service
from tests.finished import finish, finish_prepare, finish_score, losses_of, save
from tests.iam import assert_allowed_is_needed
from tests.jobs import sets
from tests.retrains import CONFIG, JOB, answering_sweeper
from tests.sessions import forget_sessions, sign_in
from tests.trainer.cli.test_launcher_policy import fleet, refusal
from tests.trainer.conftest import METRICS, weights
from trainer.aws.access import Access
from trainer.aws.objects import Conflict, Objects, open_objects
from trainer.aws.place import ACCOUNT
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import StackOutputs, parameter_name, webhook_parameter
from trainer.base.errors import ConfigError
from trainer.base.instants import iso, utc_now
from trainer.cli.main import main
from trainer.control.cloud import AwsCloud
from trainer.control.functions import control as function
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles
from trainer.launch.checks import spot_role
from trainer.launch.preflight import query_offers
from trainer.launch.prices import list_prices
from trainer.machines.instances import instance_type
from trainer.rehearsal import lambdas, messages
from trainer.rehearsal.account import EmbeddedAccount
from trainer.rehearsal.server import EmbeddedAws
from trainer.rehearsal.world import AwsError
from trainer.retrains.entries import ScheduledRun, entry_key, read_entry
from trainer.retrains.published import read_published, write_published
from trainer.runs.start_file import stored_start
from trainer.runs.store import read_record, start_key
from trainer.runs.stored_receipt import read_receipt

pytestmark = pytest.mark.nightly  # tests/live checks what each role may: tests/live/test_live.py
CONTROL, ROLE = "mayfly-dev-control", "mayfly-dev-us-east-1-control"
BEATEN = {"accuracy": 0.4, "auc": 0.4, "mcc": 0.0}
NOT_WRITTEN = ("code", "retrains", "raw", "raw-index", "live", "attempts", "models/experiments")
BETTER = {"baselines": {"logistic": BEATEN}, "better": {"logistic": {"auc": [0.1, 0.2]}}}
GAINS = {**METRICS, "test": {**METRICS["test"], **BETTER}}


class Context:
    """Lambda's context object, with time left."""

    aws_request_id = "request-1"

    @staticmethod
    def get_remaining_time_in_millis() -> int:
        return 600_000


@dataclass(kw_only=True)
class Stage:
    """An account with a stack, its administrator, and control's handler with control's own key."""

    admin: Access
    cloud: EmbeddedAccount
    outputs: StackOutputs
    own: Access  # control's
    runs: dict[str, str] = field(default_factory=dict)  # what it is -> run id
    waited: str = ""  # state of a scheduled time while the run before it goes on
    told: list[str] = field(default_factory=list)  # what the topic brought
    messages: dict[str, str] = field(default_factory=dict)  # run id -> what people were told of it
    # what control asked of IAM in all of this
    decided: list[tuple[Authorization, Decision]] = field(default_factory=list)

    @property
    def objects(self) -> Objects:
        return open_objects(self.admin, self.outputs.bucket)

    def called(self, event: dict[str, Any] | None = None) -> dict[str, Any]:
        return function.handler(event or {}, Context())

    def begin(self, name: str, at: datetime) -> ScheduledRun:
        """Call control as the schedule of a retrain does."""
        self.called({"retrain": name, "scheduled_time": iso(at)})
        return self.entry(name, at)

    def entry(self, name: str, at: datetime) -> ScheduledRun:
        """Return what became of a scheduled time so far."""
        return read_entry(self.objects, entry_key(name, at))[0]

    def finish(self, name: str, entry: ScheduledRun, tail: bytes = b"") -> None:
        """Let a run's machine work to its end, and control settle it."""
        self.runs[name] = entry.run_id
        finish(self.cloud, self.admin, self.outputs.bucket, entry.run_id, metrics=GAINS, tail=tail)
        self.cloud.clock.advance(5)  # the machine shuts down
        self.called()

    def score(self, scheduled: ScheduledRun, level: float) -> None:
        """Let the score run of a scheduled time find this loss of the challenger, and control decide."""
        entry = self.entry(scheduled.retrain, scheduled.scheduled_at)
        assert entry.state == "scoring", (entry.state, entry.gate, entry.error)
        losses = {"challenger": losses_of(level), "champion": losses_of(0.6)}
        finish_score(self.cloud, self.admin, self.outputs.bucket, entry.score_run_id, losses)
        self.cloud.clock.advance(5)
        self.called()

    def machine(self, run_id: str) -> str:
        record, _ = read_record(self.objects, run_id)
        return record.instances[-1].instance_id


@pytest.fixture(scope="module")
def stage(aws_server: EmbeddedAws, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Let control come across everything once, in one account."""
    admin = aws_server.account()
    aws_server.apply_program(admin, CONFIG)
    cloud, outputs = aws_server.cloud(admin), read_stack(admin, stack="dev")
    own = cloud.credentials("FUNC", CONTROL, role=ROLE)
    controls = replace(admin, access_key=own.access_key, secret_key=own.secret_key)
    stage = Stage(admin=admin, cloud=cloud, outputs=outputs, own=controls)
    folder = tmp_path_factory.mktemp("control")
    file = folder / "BTC-USD_1m.parquet"
    write_candles(file, [synthetic_candles("BTC-USD", bars=3_000)], synthetic=True)
    admin.client("s3").put_object(Bucket=outputs.bucket, Key=f"raw/main/{file.name}", Body=file.read_bytes())
    (folder / "job.toml").write_text(JOB)
    sns = admin.client("sns")
    for one in sns.list_subscriptions_by_topic(TopicArn=outputs.topic_arn)["Subscriptions"]:
        sns.unsubscribe(SubscriptionArn=one["SubscriptionArn"])  # the notifier has its own tests
    subscribe_queue(admin, outputs.topic_arn)
    answering_sweeper(cloud)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        sign_in(admin, patch)
        (folder / "fetch.py").write_text("import ccxt")
        refreshing = ["--set", "data.refresh=fetch.py"]
        for words in (
            ["weekly", *sets("machine.queue_timeout=0")],
            ["waiting", "--set", "machine.market=spot"],
            ["sunday", *refreshing],
            ["model", *sets("machine.nodes=2", "train.distributed=always")],
        ):
            assert main(["retrains", "publish", *words, "--job", "job.toml", "--json"]) == 0
        (folder / "train.py").write_text("import os")
        tables = ("[script]", 'command = "python train.py"', "over = { n = [1, 2] }")
        tables += ("[machine]", "nodes = 2", 'instance = ["g6.xlarge"]', 'max_duration = "10m"')
        (folder / "two.toml").write_text("\n".join(tables))
        assert main(["retrains", "publish", "pair", "--job", "two.toml", "--json"]) == 0
        sign_in(stage.own, patch)
        patch.setenv("PROJECT", "mayfly")
        patch.setenv("STACK", "dev")

        def publish_script() -> None:
            sign_in(admin, patch)
            (folder / "train.py").write_text("import os")
            tables = ("[script]", 'command = "python train.py"', 'secrets = ["KEY"]')
            tables += ("[machine]", 'instance = ["g6.xlarge"]', 'max_duration = "10m"')
            (folder / "script.toml").write_text("\n".join(tables))
            assert main(["retrains", "publish", "waiting", "--job", "script.toml", "--json"]) == 0
            sign_in(stage.own, patch)

        _live(stage, publish_script)
        sign_in(admin, patch)
        stage.told = [message["Message"] for _ in range(2) for message in queued(admin)]
        ids = stage.runs.values()
        stage.messages = {run_id: text for run_id in ids for text in stage.told if run_id in text}
        stage.decided = [(asked, decision) for who, asked, decision in cloud.decisions if who.role == ROLE]
        yield stage
    forget_sessions()


def _live(stage: Stage, publish_script: Callable[[], None]) -> None:
    from moto.ssm.models import ssm_backends  # late: the embedded AWS loads moto in an order of its own

    cloud, world, later = stage.cloud, stage.cloud.world, timedelta(minutes=30)
    first = utc_now().replace(microsecond=0) - timedelta(minutes=110)  # control takes times of two hours
    stage.called()

    world.fill()  # no zone has capacity
    stage.runs["no capacity"] = stage.begin("weekly", first).run_id
    world.full.clear()

    taken = stage.begin("waiting", first)
    stage.runs["taken back"] = taken.run_id
    stage.waited = stage.begin("waiting", first + later).state
    machine = save(cloud, stage.admin, stage.outputs.bucket, taken.run_id).instance_id
    with cloud.lock:
        world.interrupt(machine, cloud.clock.now(), after=timedelta(0))
    cloud.clock.advance(5)
    messages.tell(cloud, messages.WARNING, machine, {"instance-action": "terminate"})
    lambdas.wait_for_invocations(cloud)  # control itself, from its zip
    finish(cloud, stage.admin, stage.outputs.bucket, taken.run_id)  # on the machine of its next attempt
    cloud.clock.advance(5)
    stage.called()
    stage.score(taken, 0.7)

    published, etag = read_published(stage.objects, "weekly") or (None, "")
    assert published is not None
    old = replace(published, image_id="ami-0000000000000gone", published_at=first - timedelta(days=9))
    write_published(stage.objects, old, replaces=etag)
    (parameter,) = ssm_backends[cloud.account]["us-east-1"]._parameters[parameter_name("mayfly", "dev")]
    parameter.last_modified_date -= timedelta(days=9)  # the stack is as old
    stage.finish("done", stage.begin("weekly", first + later))
    stage.called()  # the one that waited begins
    for name, number, level in (("promoted", 1, 0.6), ("promoted again", 2, 0.55)):
        at = first + number * later
        began = stage.entry("waiting", at) if number == 1 else stage.begin("waiting", at)
        stage.finish(name, began, b" " * (number - 1))
        stage.score(began, level)

    prepared = stage.begin("sunday", first)
    brought = {"file": "a-week.parquet", "body": b"bars"}
    finish_prepare(cloud, stage.admin, stage.outputs.bucket, prepared.prepare_run_id, **brought)
    cloud.clock.advance(5)
    stage.called()
    stage.finish("refreshed", stage.entry("sunday", first))

    publish_script()
    # a script whose machine has the role that reads secrets
    secret = stage.begin("waiting", first + 3 * later)
    assert read_record(stage.objects, secret.run_id)[0].instance_role_id == stage.outputs.script_role_id

    for name in ("pair", "model"):
        stage.runs[name] = stage.begin(name, first).run_id

    # What a call that was cut off leaves to the next one, a run beyond its deadline, and one whose function
    # is broken.
    late = stage.begin("weekly", first + 2 * later)
    stage.runs["late"] = late.run_id
    sweep = {
        "name": f"mayfly-{late.run_id}-sweep",
        "run_id": late.run_id,
        "at": utc_now() + timedelta(hours=2),
    }
    AwsCloud(stage.own, stage.outputs).arm_sweep(**sweep)
    cloud.advance(2 * 3600)
    for _ in range(2):
        stage.called()

    # What it asks of an account that is no rehearsal, in a region without a table of prices, and that never
    # used spot.
    types = [instance_type("g6.xlarge")]
    query_offers(replace(stage.own, place=ACCOUNT), outputs=stage.outputs, machines=types, spot=True)
    list_prices(stage.own, types, region="eu-west-1", today=first.date())
    cloud.has_spot_role = False
    with suppress(ConfigError):
        spot_role(stage.own)

    for _ in range(3):  # of a published retrain no Sunday ever came
        cloud.clock.advance(300)
        stage.called()
    alarms.evaluate_due(cloud)

    with cloud.lock:
        function = cloud.functions[CONTROL]
        cloud.functions[CONTROL] = replace(function, handler="trainer.control.nothing.handler")
    lambdas.invoke_event(cloud, CONTROL, b"{}")
    for seconds in (0, 60, 120):
        cloud.clock.advance(seconds)
        retries.retry_due(cloud)
        lambdas.wait_for_invocations(cloud)


def test_controls_policy_allows_what_it_calls_and_no_more(stage: Stage) -> None:
    role = {"RoleName": ROLE, "PolicyName": "control"}
    policy = stage.admin.client("iam").get_role_policy(**role)["PolicyDocument"]
    assert_allowed_is_needed(stage.decided, policy, {})


def test_a_scheduled_run_without_capacity_costs_nothing(stage: Stage) -> None:
    message = stage.messages[stage.runs["no capacity"]]
    assert message.splitlines()[0].endswith(": failed") and "$0.00" in message
    assert "why: no capacity" in message and "InsufficientInstanceCapacity" in message and "\ndo: " in message
    assert message.endswith("to run it now: mayfly retrains run weekly")


@pytest.mark.parametrize("name", ["pair", "model"])
def test_a_scheduled_run_has_its_two_machines_and_ends_them(stage: Stage, name: str) -> None:
    run_id = stage.runs[name]
    record, _ = read_record(stage.objects, run_id)
    start = stored_start(stage.objects.get(key=start_key(run_id, 1)), run_id, 1)
    assert start is not None and len(set(start.addresses)) == len(start.instances) == 2
    assert [one.state for one in record.instances] == ["terminated"] * 2
    receipt = read_receipt(stage.objects, run_id)
    assert receipt is not None and receipt["state"] == "failed"  # no machine ever began
    assert not stage.objects.list(prefix="tokens/")


def test_a_scheduled_run_whose_machine_is_taken_back_is_told(stage: Stage) -> None:
    message = stage.messages[stage.runs["taken back"]]
    assert message.splitlines()[0].endswith(": done")
    receipt = read_receipt(stage.objects, stage.runs["taken back"])
    assert receipt is not None and receipt["state"] == "done"
    assert [attempt["cause"] for attempt in receipt["attempts"]] == ["lost", ""]
    assert receipt["attempts"][0]["error"]["why"] == "Server.SpotInstanceTermination"
    body = stage.objects.get(key=start_key(receipt["run_id"], 2))
    start = stored_start(body, receipt["run_id"], 2)
    assert start is not None and [file.path for file in start.files] == ["a.pt"]
    assert start.instances == tuple(receipt["attempts"][1]["instances"])


def test_a_waiting_time_begins_when_the_run_before_has_ended(stage: Stage) -> None:
    assert stage.waited == "waiting"
    assert stage.messages[stage.runs["promoted"]].splitlines()[0].endswith(": done")


def test_what_a_prepare_run_brought_is_trained_on(stage: Stage) -> None:
    message = stage.messages[stage.runs["refreshed"]]
    assert message.splitlines()[0].endswith(": done") and "data: 1 new file, 10,080 bars" in message
    raw = [item.key for item in stage.objects.list(prefix="raw/main/")]
    assert raw == ["raw/main/BTC-USD_1m.parquet", "raw/main/a-week.parquet"]


def test_a_week_that_control_never_heard_of_is_told(stage: Stage) -> None:
    names = [json.loads(text)["AlarmName"] for text in stage.told if text.startswith("{")]
    assert "mayfly-dev-retrains-overdue" in names
    overdue = MetricId(namespace="Mayfly/mayfly/dev", name="RetrainsOverdue", dimensions=frozenset())
    now = stage.cloud.clock.now()
    counted = stage.cloud.metrics.values(overdue, now - timedelta(days=1), now)
    assert counted[0] == 0.0 and counted[-3:] == [1.0] * 3  # each standing call counts


def test_the_accounts_budget_alarm_may_use_the_topic(stage: Stage) -> None:
    admin, account = stage.admin, stage.cloud.account
    name = "mayfly-dev-us-east-1-account"
    budget = admin.client("budgets").describe_budget(AccountId=account, BudgetName=name)["Budget"]
    assert (budget["BudgetLimit"], budget["TimeUnit"]) == ({"Amount": "250", "Unit": "USD"}, "MONTHLY")
    subject = f"AWS Budgets: {name} has exceeded your alert threshold"

    def publish(of: str) -> None:
        by = ("budgets.amazonaws.com", f"arn:aws:budgets::{of}:*", stage.outputs.topic_arn)
        publish_as_service(stage.cloud, *by, subject=subject, message="$200.10")

    publish(account)
    assert subject in [message["Subject"] for message in queued(admin)]
    with pytest.raises(AwsError):
        publish("1")


def test_an_image_that_is_gone_is_replaced_and_told(stage: Stage) -> None:
    assert "note: the image ami-0000000000000gone is gone" in stage.messages[stage.runs["done"]]


def test_models_are_promoted_by_compare_and_swap_and_rolled_back(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copied by control under its role, in a bucket with S3's conditions and versions; rolled back by an
    administrator.
    """
    name, client = "lstm-direction_BTC-USD_1m", stage.admin.client("s3")
    keys = [one.key for one in stage.objects.list(prefix="models/retrains/")]
    kept = [key.split("/")[2:4] for key in keys if key.endswith(".safetensors")]
    made = {
        "taken back": "waiting",
        "refreshed": "sunday",
        "done": "weekly",
        "promoted": "waiting",
        "promoted again": "waiting",
    }
    assert sorted(kept) == sorted([retrain, stage.runs[run]] for run, retrain in made.items())
    for run in ("promoted", "promoted again"):
        assert "to production: BTC-USD" in stage.messages[stage.runs[run]]
    assert "gate: 0 of 1 go to production; BTC-USD stays" in stage.messages[stage.runs["taken back"]]

    def mayfly(*words: str) -> Any:
        assert main(["models", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    def body() -> bytes:
        key = f"models/production/waiting/{name}.safetensors"
        read: bytes = client.get_object(Bucket=stage.outputs.bucket, Key=key)["Body"].read()
        return read

    newest, oldest = mayfly("production", name)["production"]
    assert body() == weights(name) + b" "
    assert mayfly("rollback", name)["put"]["version_id"] == oldest["version_id"]
    assert body() == weights(name)
    assert mayfly("rollback", name, "--version", newest["version_id"])["replaced"]["bytes"] == oldest["bytes"]
    assert body() == weights(name) + b" "

    # Who did not see the present model replaces nothing: S3 refuses the copy.
    source = {"source": newest["key"], "version_id": oldest["version_id"], "key": newest["key"]}
    for condition in ({"create": True}, {"if_match": '"of-another"'}):
        with pytest.raises(Conflict):
            stage.objects.copy(**source, **condition)
    assert body() == weights(name) + b" "


def test_a_stolen_control_launches_only_what_the_stack_launches(stage: Stage) -> None:
    """docs/security.md says the same."""
    ec2 = stage.own.client("ec2", total_max_attempts=1)
    tags = {"project": "mayfly", "stack": "dev", "run_id": "r", "deadline": "2099-01-01T00:00:00Z"}
    assert refusal(ec2.create_fleet, **fleet(stage, tags=tags)).startswith("DryRunOperation")
    template = {"LaunchTemplateName": "other", "LaunchTemplateData": {"InstanceType": "g6.xlarge"}}
    made = stage.admin.client("ec2").create_launch_template(**template)
    other = made["LaunchTemplate"]["LaunchTemplateId"]
    less = [{name: value for name, value in tags.items() if name != left_out} for left_out in tags]
    for changed, resource in (
        ({"override": {"InstanceType": "p5.48xlarge"}}, ":instance/*"),
        ({"template": other}, f":launch-template/{other}"),
        *(({"tags": fewer}, "/*") for fewer in less),
    ):
        said = refusal(ec2.create_fleet, **fleet(stage, **{"tags": tags, **changed}))
        assert said.startswith("UnauthorizedOperation") and resource in said, said
    request = fleet(stage, tags=tags)
    override = request["LaunchTemplateConfigs"][0]["Overrides"][0]
    interface = {"DeviceIndex": 0, "SubnetId": override["SubnetId"], "Groups": [stage.outputs.security_group]}
    bare = {  # all is the stack's own, but for the template that says how a machine ends
        "ImageId": override["ImageId"],
        "InstanceType": override["InstanceType"],
        "NetworkInterfaces": [interface],
        "TagSpecifications": [one for one in request["TagSpecifications"] if one["ResourceType"] != "fleet"],
        "MinCount": 1,
        "MaxCount": 1,
        "DryRun": True,
    }
    assert refusal(ec2.run_instances, **bare).startswith("UnauthorizedOperation")


def test_a_stolen_control_changes_no_input_and_no_right(stage: Stage) -> None:
    services = ("s3", "scheduler", "iam", "lambda", "ssm")
    s3, scheduler, iam, functions, ssm = (stage.own.client(name) for name in services)
    bucket, group = stage.outputs.bucket, stage.outputs.schedule_group
    schedule = {"ScheduleExpression": "rate(1 minutes)", "FlexibleTimeWindow": {"Mode": "OFF"}}
    target = {"Arn": stage.outputs.control_arn, "RoleArn": f"arn:aws:iam::{stage.cloud.account}:role/{ROLE}"}
    outputs = {"Name": "/mayfly/mayfly/dev", "Value": "{}"}
    for call, arguments in (
        *((s3.put_object, {"Bucket": bucket, "Key": f"{prefix}/x", "Body": b"x"}) for prefix in NOT_WRITTEN),
        (s3.delete_object, {"Bucket": bucket, "Key": "runs/x"}),
        (s3.delete_object, {"Bucket": bucket, "Key": "models/production/x", "VersionId": "v"}),
        (scheduler.delete_schedule, {"Name": "standing-sweep", "GroupName": group}),
        (scheduler.delete_schedule, {"Name": "weekly", "GroupName": f"{group}-retrains"}),
        (scheduler.create_schedule, {"Name": "mayfly-x", "GroupName": group, "Target": target, **schedule}),
        (iam.put_role_policy, {"RoleName": ROLE, "PolicyName": "more", "PolicyDocument": "{}"}),
        (functions.update_function_code, {"FunctionName": CONTROL, "ZipFile": b"x"}),
        (functions.invoke, {"FunctionName": CONTROL}),
        (ssm.get_parameter, {"Name": webhook_parameter("mayfly", "dev"), "WithDecryption": True}),
        (ssm.put_parameter, {**outputs, "Type": "String", "Overwrite": True}),
    ):
        said = refusal(call, **arguments)
        assert said.startswith(("UnauthorizedOperation", "AccessDenied")), (arguments, said)
