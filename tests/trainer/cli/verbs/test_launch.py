from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.records import DEADLINE, at, intent, make_record, starting
from tests.sessions import forget_sessions
from tests.trainer.cli.conftest import Terminal
from trainer.aws.objects import Objects, open_objects
from trainer.aws.stack import read_stack
from trainer.base.instants import utc_now
from trainer.cli.main import main
from trainer.cli.verbs import launch as launch_verb
from trainer.cli.verbs.launch import going_on
from trainer.runs.attempts import Queue
from trainer.runs.record import RunRecord
from trainer.runs.snapshots import SnapshotFile
from trainer.runs.start_file import CarriedObject, StartFile, start_to_json
from trainer.runs.store import carried_key, read_record, start_key, swap_record


def launch(*words: object) -> int:
    return main(["launch", *map(str, words)])


def objects_in(access) -> set[tuple[str, str]]:
    s3 = access.client("s3")
    return {
        (bucket["Name"], entry["Key"])
        for bucket in s3.list_buckets()["Buckets"]  # another test of this account may have made one
        for entry in s3.list_objects_v2(Bucket=bucket["Name"]).get("Contents", ())
        if entry["Key"]
        != "runs/index.json"  # settling earlier runs renews it, whatever becomes of this launch
    }


# --- dry run: the plan as text
# ---------------------------------------------------------------------------------------


def test_a_dry_run_prints_the_plan_and_writes_nothing(rehearsed, candles, capsys):
    before = objects_in(rehearsed)
    assert (
        launch("--rehearse", "--instance", "p3.8xlarge", "--data", candles, "--epochs", 2, "--dry-run") == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mayfly · rehearsal · 2 models: lstm → direction"
    assert lines[1] == "BTC-USD, ETH-USD · 6,000 SYNTHETIC bars of 1m · warm-up 256 bars · 2 epochs"
    shown = ["instance", "market", "zones", "GPUs", "$/h", "est.", "time", "est.", "cost"]
    assert lines[3].split()[:9] == shown and lines[3].endswith("this desk")
    assert lines[4].startswith("1  p3.8xlarge  on-demand      5  4×V100 16GB  12.28  ")
    assert lines[5] == "   p3.8xlarge: retired by AWS in 2026: rehearsals only; 2 of 4 GPUs idle"
    assert lines[7].startswith("the models on")
    assert next(line for line in lines if line.startswith("Prices: ")).startswith(
        "Prices: list prices of us-east-1, 2026-07-20, with $0.038 an hour for the root disk. Times: an"
    )
    assert lines[-2].startswith(
        "Hard stop 35m after the launch ($7.16 at most, on demand), even if this desk is off"
    )
    assert lines[-2].endswith("Set by the default of machine.max_duration.")
    assert lines[-1] == "dry run: nothing was uploaded and nothing launched"
    assert objects_in(rehearsed) == before


def test_a_dry_run_in_json_prints_the_plan_alone(rehearsed, candles, capsys):
    types = ("--instance", "g6.xlarge", "--instance", "p3.8xlarge")
    assert launch("--rehearse", *types, "--data", candles, "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert [candidate["instance_type"] for candidate in plan["candidates"]] == ["g6.xlarge", "p3.8xlarge"]
    assert plan["rungs"][0].startswith("g6.xlarge on_demand us-east-1")
    assert plan["data"] == {
        "timeframe": "1m",
        "bars": {"BTC-USD": 3000, "ETH-USD": 3000},
        "synthetic": True,
        "left_out": [],
        "notes": [],
        "files": [],
    }
    assert plan["job"]["data"]["symbols"] == ["BTC-USD", "ETH-USD"]
    assert (plan["hard_stop"]["seconds"], plan["max_duration_seconds"]) == (1800, 2100)
    assert plan["hard_stop"]["cause"] == "default_duration"


def test_a_flag_wins_over_the_job_file_and_set_over_both(rehearsed, candles, capsys, tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(
        f'name = "mine"\n[data]\npath = "{candles}"\nsymbols = ["BTC-USD"]\n[model]\nhidden ='
        " 32\n[train]\nepochs = 5\n"
    )
    flags = ("--epochs", 7, "--set", "model.hidden=16", "--symbols", "ETH-USD", "--target", "quantiles")
    words = ("--rehearse", "--instance", "g6.xlarge", "--job", job, "--dry-run", "--json")
    assert launch(*words, *flags) == 0
    chosen = json.loads(capsys.readouterr().out)["job"]
    assert (chosen["name"], chosen["train"]["epochs"], chosen["model"]["hidden"]) == ("mine", 7, 16)
    assert (chosen["data"]["symbols"], chosen["target"]["name"]) == (["ETH-USD"], "quantiles")


def test_a_budget_becomes_the_hard_stop(rehearsed, candles, capsys):
    limits = ("--max-duration", "2h", "--epochs", 1, "--budget", "12.28")
    assert launch("--rehearse", "--instance", "p3.8xlarge", "--data", candles, *limits, "--dry-run") == 0
    assert "Hard stop 1h after the launch ($12.28 at most, on demand)" in capsys.readouterr().out


def test_a_script_on_a_type_without_a_gpu_has_a_plan(rehearsed, capsys, tmp_path):
    (tmp_path / "train.py").write_text("print('hello')\n")
    words = ("--script", tmp_path / "train.py", "--max-duration", "30m", "--instance", "m7i.large")
    assert launch("--rehearse", *words, "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["rungs"][0].startswith("m7i.large on_demand us-east-1")
    assert plan["candidates"][0]["gpus"] == 0 and plan["candidates"][0]["note"] == ""


def test_a_months_budget_is_warned_of_at_the_plan(rehearsed, candles, capsys, monkeypatch):
    def with_budget(access, *, stack):
        return replace(read_stack(access, stack=stack), account_budget=1)

    monkeypatch.setattr("trainer.cli.verbs.launch.read_stack", with_budget)
    assert launch("--rehearse", "--instance", "g5.48xlarge", "--data", candles, "--dry-run", "--json") == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any("passes at its hard stop" in note and "account_budget, $1.00" in note for note in notes)


def test_candles_come_from_the_local_folder(rehearsed, candles, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MAYFLY_LOCAL", str(tmp_path / "mine"))
    (tmp_path / "mine" / "candles").mkdir(parents=True)
    (tmp_path / "mine" / "candles" / "main").symlink_to(candles)
    assert launch("--rehearse", "--instance", "g6.xlarge", "--dry-run", "--json") == 0
    told = capsys.readouterr()
    plan = json.loads(told.out)
    assert plan["data"]["bars"] == {"BTC-USD": 3000, "ETH-USD": 3000}
    assert f"candles of {tmp_path / 'mine/candles/main'}" in told.err


def test_a_rehearsal_without_candles_runs_the_demos_job(rehearsed, capsys, monkeypatch, tmp_path):
    (tmp_path / "shared" / "data" / "raw").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("DATA", "/nope")  # anybody's variable: what trains is what was named
    assert launch("--rehearse", "--instance", "p3.8xlarge", "--dry-run") == 0
    printed = capsys.readouterr()
    assert (
        "no --data and no data set main, so this is the demo's job: SYNTHETIC bars of BTC-USD, ETH-USD,"
        " SOL-USD" in printed.err
    )
    assert "crypto-lstm · rehearsal · 3 models: lstm → direction" in printed.out
    assert "BTC-USD, ETH-USD, SOL-USD · 60,000 SYNTHETIC bars of 1m (the last 20,000 of each)" in printed.out


# --- bad input: one line and its exit code, before anything is written
# -----------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> str:
    """Launch, expect this exit code and one line on stderr that says error, and return it."""
    assert launch("--instance", "g6.xlarge", *words) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    errors = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    return errors[0]


@pytest.mark.parametrize(
    ("code", "words", "line"),
    [
        (2, "--data CANDLES --symbols DOGE-USD", "BTC-USD, ETH-USD"),
        (2, "--data CANDLES --set model.lookback=5000", "BTC-USD has 3,000 bars"),
        (104, "--data CANDLES --budget 0.001", "a budget of $0.001 is too small"),
    ],
)
def test_bad_input_is_one_line_with_its_code(rehearsed, candles, capsys, code, words, line):
    assert line in refused(capsys, code, "--rehearse", *words.replace("CANDLES", str(candles)).split())


def test_an_error_of_the_data_check_has_its_parts_in_json(rehearsed, candles, capsys):
    assert (
        launch("--rehearse", "--data", candles, "--symbols", "DOGE-USD", "--instance", "g6.xlarge", "--json")
        == 2
    )
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == 2
    assert "DOGE-USD" in error["what"]


# --- AWS: what is missing, what is retired, who says yes
# -------------------------------------------------------------


def test_without_credentials_a_launch_names_what_is_missing(monkeypatch, capsys, tmp_path):
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "PROFILE", "REGION", "DEFAULT_REGION", "ENDPOINT_URL"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    forget_sessions()  # an earlier test's would have its credentials
    assert launch("--instance", "p3.8xlarge") == 103
    forget_sessions()
    line = capsys.readouterr().err
    assert line.startswith("error: no AWS credentials and no AWS region found, so there is no stack to ask")
    assert "Set AWS_PROFILE and AWS_REGION, and create the stack" in line and "--rehearse" in line
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert launch("--instance", "p3.8xlarge") == 103
    forget_sessions()
    assert "Set AWS_REGION, and create the stack with pulumi up if" in capsys.readouterr().err


def test_an_unknown_stack_names_pulumi_up_and_the_nearest(as_aws, capsys):
    line = refused(capsys, 103, "--stack", "dew")
    assert "there is no stack 'dew' in us-east-1 (no SSM parameter /mayfly/mayfly/dew)" in line
    assert "Did you mean dev? If it is in another region, set AWS_REGION" in line
    assert "pulumi up --stack dew" in line


def test_a_retired_type_stops_on_aws_before_any_write(as_aws, candles, capsys):
    before = objects_in(as_aws)
    assert launch("--instance", "p3.8xlarge", "--data", candles, "-y") == 2
    line = capsys.readouterr().err
    assert (
        "error: p3.8xlarge cannot be launched on AWS (AWS ended P3 between 2026-04-01 and 2026-05-01)" in line
    )
    assert "g6.12xlarge (about " in line
    assert objects_in(as_aws) == before


def test_an_empty_raw_on_aws_names_data(as_aws, capsys):
    assert "Name your candles with --data PATH" in refused(capsys, 2, "-y")


def test_on_aws_nothing_starts_without_a_yes(as_aws, candles, capsys):
    before = objects_in(as_aws)
    line = refused(capsys, 2, "--data", candles)
    assert (
        line == "error: this would spend money and was not confirmed (there is no terminal to ask on). "
        "Add -y to launch, or --dry-run to look."
    )
    assert launch("--instance", "g6.xlarge", "--data", candles, "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["why"] == "--json was given"
    assert objects_in(as_aws) == before


@pytest.mark.parametrize(
    ("answer", "instance", "question"),
    [
        ("", "g6.xlarge", "Launch? [y/N] "),
        ("perhaps", "g7e.2xlarge", "Launch on g7e.2xlarge, which the image is not known to support? [y/N] "),
    ],
)
def test_anything_but_yes_is_a_no_and_nothing_is_written(
    as_aws, candles, monkeypatch, answer, instance, question
):
    screen = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("trainer.launch.checks.sweeper", lambda access, outputs: "swept once")
    before = objects_in(as_aws)
    assert launch("--instance", instance, "--data", candles) == 130
    assert question in screen.getvalue()
    assert "note: swept once" in screen.getvalue()
    assert ("its image is not known to support it" in screen.getvalue()) is (instance == "g7e.2xlarge")
    assert "error: not launched." in screen.getvalue()
    assert objects_in(as_aws) == before


def test_a_quota_of_nothing_ends_a_launch_before_any_write(as_aws, aws_server, candles, capsys, monkeypatch):
    monkeypatch.setattr("trainer.launch.checks.sweeper", lambda access, outputs: "")
    quotas, before = aws_server.cloud(as_aws).quotas, objects_in(as_aws)
    quotas["L-DB2E81BA"] = 0.0
    try:
        line = refused(capsys, 102, "--data", candles, "-y")
        assert launch("--instance", "g6.xlarge", "--data", candles, "--dry-run") == 102
    finally:
        del quotas["L-DB2E81BA"]
    assert "is 0 vCPUs" in line and "/L-DB2E81BA" in line
    assert "Hard stop" in capsys.readouterr().out  # a dry run shows the plan all the same
    assert objects_in(as_aws) == before


def test_a_run_that_is_left_says_who_goes_on():
    """With its machine, in line for capacity, and between two machines."""
    queue = Queue(since=at(3), until=at(600), deadline=DEADLINE, next_at=at(30), first=1, walks=2)
    full = intent(outcome="refused", error_code="InsufficientInstanceCapacity")
    waiting = starting(full)
    waiting = replace(waiting, attempts=(replace(waiting.attempts[0], queue=queue),))
    assert going_on(make_record(state="running"), ["i-1"]) == "i-1 continues, and ends"
    line = going_on(waiting, [])
    assert line.startswith("waiting for capacity since 12:00:03 UTC: g5.12xlarge on-demand in us-east-1a")
    assert line.endswith("the last one at 12:10:00; control starts its machine, and it ends")
    lost = going_on(make_record(state="recovering"), ["i-1"])
    assert lost == "it lost its machine; control starts another, and it ends"


def test_a_detached_launch_leaves_an_armed_run_and_its_id(stack, connect, candles, capsys):
    access, outputs = stack
    connect(access)
    words = ["--rehearse", "--instance", "p3.8xlarge", "--data", candles, "--epochs", 1, "--detach", "--json"]
    assert launch(*words) == 0
    printed = capsys.readouterr()
    left = json.loads(printed.out)
    assert "note: control may not start p3.8xlarge: a lost machine ends a run that you left." in printed.err
    assert [line.partition("mayfly ")[2] for line in printed.err.splitlines()[-3:]] == [
        f"{command} --rehearse"
        for command in (f"logs {left['run_id']} -f", f"status {left['run_id']} -f", f"stop {left['run_id']}")
    ]
    (instance_id,) = left["instances"]
    reservations = access.client("ec2").describe_instances(InstanceIds=[instance_id])["Reservations"]
    tags = {tag["Key"]: tag["Value"] for tag in reservations[0]["Instances"][0]["Tags"]}
    assert (tags["run_id"], tags["deadline"], left["deadline_cause"]) == (
        left["run_id"],
        left["deadline"],
        "default_duration",
    )
    schedules = access.client("scheduler").list_schedules(GroupName=outputs.schedule_group)["Schedules"]
    assert {f"mayfly-{left['run_id']}-sweep", f"mayfly-{left['run_id']}-kill-1"} <= {
        entry["Name"] for entry in schedules
    }
    keys = {key for _, key in objects_in(access)}
    assert {"raw/main/BTC-USD_1m.parquet", f"runs/{left['run_id']}/manifest.json", tags["bundle_key"]} <= keys


def test_a_late_ctrl_c_says_that_a_run_was_launched(stack, connect, candles, capsys, monkeypatch):
    """It has left its signal handlers, and its command still prints, or releases what it holds."""

    def press(*_: object) -> int:
        raise KeyboardInterrupt

    connect(stack[0])
    monkeypatch.setattr(launch_verb, "detached", press)
    words = ["--rehearse", "--instance", "g6.xlarge", "--data", candles, "--epochs", 1, "--detach", "--json"]
    assert launch(*words) == 130
    error = json.loads(capsys.readouterr().out)["error"]
    run_id = error["do"].split()[2]
    assert error == {
        "code": 130,
        "what": f"interrupted after {run_id} was launched",
        "why": "Ctrl-C",
        "do": f"mayfly status {run_id} --rehearse shows it.",
    }


# --- the example
# -----------------------------------------------------------------------------------------------------


def test_the_example_shows_every_key_of_a_job_with_its_help():
    from tests.jobs import job_keys
    from trainer.job.reading import job_from, load_job
    from trainer.job.tables import TABLES, TOP

    path = Path(__file__).parents[4] / "examples" / "crypto-lstm.toml"
    tables, lines = load_job(path), path.read_text(encoding="utf-8").splitlines()
    values = {key: tables[key] for key in TOP} | {
        f"{table}.{key}": tables[table][key] for table in TABLES if table in tables for key in tables[table]
    }
    keys = job_keys(job_from(tables))
    assert list(values) == [key for key, _, _ in keys]
    for key, default, help in keys:
        table, _, name = key.rpartition(".")
        after = lines.index(f"[{table}]") if table else 0
        at = next(
            index for index, line in enumerate(lines) if index > after and line.startswith(f"{name} = ")
        )
        assert f"# {help}" in lines[max(0, at - 3) : at], f"{key} has its help above it"
        if values[key] != (list(default) if isinstance(default, tuple) else default):
            assert "# default: " in lines[at], f"{key} differs from its default and says so"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--interrupt", "40%"), "--interrupt is for rehearsals"),
        (("--rehearse", "--interrupt", "140%"), "--interrupt is '140%'"),
        (("--rehearse", "--interrupt", "40%", "--on-demand"), "--interrupt with --on-demand"),
    ],
)
def test_an_interruption_that_can_not_be_is_one_error(words, line, capsys):
    assert launch("--instance", "g6.xlarge", *words) == 2
    assert capsys.readouterr().err.startswith(f"error: {line} (")


def test_an_interruption_buys_spot(rehearsed, candles, capsys):
    words = ("--instance", "g6.xlarge", "--data", candles, "--dry-run", "--json")
    assert launch("--rehearse", "--interrupt", "40%", *words) == 0
    assert json.loads(capsys.readouterr().out)["candidates"][0]["market"] == "spot"


# --- a run that continues another one
# ----------------------------------------------------------------------------------------


def test_a_run_that_is_not_there_can_not_be_continued(rehearsed, candles, capsys):
    before = objects_in(rehearsed)
    words = ("--rehearse", "--instance", "g6.xlarge", "--data", candles, "--dry-run")
    assert launch(*words, "--resume", "nope") == 2
    assert "error: no run 'nope'" in capsys.readouterr().err
    assert objects_in(rehearsed) == before


def closed(objects: Objects, run_id: str) -> RunRecord:
    """Close a run that never had a machine, as one whose deadline has passed; return its record."""
    record, etag = read_record(objects, run_id)
    swap_record(objects, replace(record, state="closed", outcome="expired", closed_at=utc_now()), etag)
    return record


def give_checkpoints(objects: Objects, run_id: str) -> None:
    """Give a run's first attempt a file of CHECKPOINTS to begin with."""
    sha256, body = hashlib.sha256(b"weights").hexdigest(), b"weights"
    key = carried_key(run_id, 1, sha256)
    objects.put(key="raw/weights", body=body)
    version = objects.head(key="raw/weights").version_id
    objects.copy(source="raw/weights", version_id=version, key=key, create=True, sha256=sha256)
    version = objects.head(key=key).version_id
    start = StartFile(
        run_id=run_id,
        attempt=1,
        objects=(CarriedObject(sha256=sha256, size=len(body), key=key, version_id=version),),
        files=(SnapshotFile(path="a/data", size=len(body), sha256=sha256, object=sha256, offset=0),),
    )
    objects.put(key=start_key(run_id, 1), body=start_to_json(start), create=True)


@pytest.mark.nightly
def test_a_launch_continues_a_run_of_the_same_work(rehearsed, candles, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("trainer.cli.verbs.launch.start", lambda cloud, run_id, **follow: follow["known"])
    objects = open_objects(rehearsed, read_stack(rehearsed, stack="dev").bucket)
    words = ("--rehearse", "--instance", "g6.xlarge", "--data", candles, "--detach")
    assert launch(*words) == 0
    printed = capsys.readouterr()
    first = closed(objects, printed.out.strip())
    assert "control may not start" not in printed.err
    assert launch(*words, "--resume", first.run_id) == 2
    assert "it finished nothing that counts" in capsys.readouterr().err
    give_checkpoints(objects, first.run_id)
    shutil.copy(candles / "BTC-USD_1m.parquet", tmp_path / "SOL-USD_1m.parquet")
    before, elsewhere = objects_in(rehearsed), ("--data", tmp_path, "--set", "data.set=another")
    for differs, why in (
        (("--epochs", 2), "it may have trained 15 epochs, this job asks for 2"),
        (elsewhere, "the input data/"),
    ):
        for dry in ((), ("--dry-run",)):
            assert launch(*words, *differs, "--resume", first.run_id, *dry) == 2
            assert why in capsys.readouterr().err
    assert objects_in(rehearsed) == before, "it is refused before anything is uploaded"
    assert launch(*words, "--dry-run", "--resume", first.run_id) == 0
    assert f"note: continues {first.run_id}: its finished work" in capsys.readouterr().out
    assert launch(*words, "--max-duration", "3h", "--resume", first.run_id) == 0
    second = closed(objects, capsys.readouterr().out.strip())
    assert (second.parent, second.parent_counts, first.parent) == (first.run_id, "all", "")
    assert second.deadline - second.created_at == timedelta(hours=3)
