"""A look at a run: what a node left is read once, bounded in number and seconds, whatever it is."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import replace

import pytest

from tests.models import make_model
from tests.pieces import named
from tests.records import RUN, created, launched, piece
from tests.trainer.control.conftest import SHA256
from trainer.aws.objects import SpoiledObject
from trainer.base.errors import ConfigError, ConnectionFailed, PermissionDenied
from trainer.cli import parts as parts_module
from trainer.cli.parts import EventsReader, LogReader
from trainer.control import observe as observe_module
from trainer.control import reported as reported_module
from trainer.control.drive import drive
from trainer.control.observe import files_so_far, left_behind, observe, outputs_seen
from trainer.runs.receipt import models_of, scripts_of
from trainer.runs.reports import NodeResult
from trainer.runs.store import create_record, read_record, receipt_key, record_key, swap_record
from trainer.runs.stored_receipt import read_receipt, receipt_from_json


class Left(Exception):
    pass


def _leave_when_running(progress) -> None:
    if progress.state == "running":
        raise Left


@pytest.fixture
def run(make_cloud):
    """Return a cloud whose run has its instance, which says nothing by itself, and the run's record."""
    cloud, record = make_cloud()
    cloud.node_works = cloud.node_beats = False
    with pytest.raises(Left):
        drive(cloud, record.run_id, poll_seconds=5, sleep=cloud.sleep, on_event=_leave_when_running)
    return cloud, read_record(cloud.objects, record.run_id)[0]


LEASE = {"at": "2026-11-20T12:00:00Z", "lease_until": "2026-11-20T12:01:00Z"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" * 200_000,
        b'{"at": 5}',
        json.dumps({**LEASE, "lease_until": "9999-12-31T23:59:59Z"}).encode(),
    ],
)
def test_a_spoiled_lease_counts_as_none(run, body):
    cloud, record = run
    cloud.objects.write(record.nodes[0].lease, body)
    assert observe(cloud, record).heartbeat is None


def test_spoiled_progress_is_said_and_the_lease_counts(run):
    cloud, record = run
    cloud.objects.write(record.nodes[0].lease, json.dumps(LEASE).encode())
    cloud.objects.write(record.nodes[0].progress, b'{"rate": "fast"}')
    beat = observe(cloud, record).heartbeat
    assert beat is not None and "the node's progress can't be read" in beat.message


@pytest.mark.parametrize(
    "body", [b"", b"[" * 200_000, b'{"state": "done", "models": [{"key": "../.bashrc"}]}']
)
def test_a_spoiled_result_is_a_failed_run_with_a_receipt(run, body):
    cloud, record = run
    cloud.objects.write(record.nodes[0].result, body)
    receipt = drive(cloud, record.run_id, poll_seconds=5, sleep=cloud.sleep)
    assert (receipt["state"], receipt["exit_code"], receipt["models"]) == ("failed", 100, [])
    assert "can't be read" in receipt["error"]["what"]


def test_a_result_may_name_the_runs_own_models_alone(run):
    cloud, record = run
    model = piece("BTC-USD", model="lstm-direction_BTC-USD_1m")
    told = {**named("ETH-USD"), "family": "lstm", "version_id": "v", "sha256": "ab" * 32}
    other = {**told, "key": f"{record.nodes[0].models}lstm-direction_ETH-USD_1m.safetensors"}
    cloud.objects.write(record.nodes[0].result, json.dumps({"state": "done", "models": [other]}).encode())
    seen = observe(cloud, replace(record, pieces=(model,))).result
    assert seen is not None and seen.state == "failed" and "was not launched for" in seen.error["why"]


def test_a_model_that_its_writer_made_unreadable_counts_as_none(run, monkeypatch):
    cloud, record = run
    made, sound = (piece(one, model=f"lstm-direction_{one}_1m") for one in ("BTC-USD", "ETH-USD"))
    key, other = (f"{record.nodes[0].models}{one.model}.safetensors" for one in (made, sound))
    for one in (key, other):
        cloud.objects.write(one, b"weights", sha256=SHA256)
    head = cloud.objects.head

    def refused(*, key, version_id=""):
        if key.endswith(f"{made.model}.safetensors"):
            raise SpoiledObject(f"cannot read {key}", why="InvalidRequest")
        return head(key=key, version_id=version_id)

    monkeypatch.setattr(cloud.objects, "head", refused)
    left = left_behind(cloud.objects, replace(record, pieces=(made, sound)))
    assert [model["key"] for model in models_of(replace(record, pieces=(made, sound)), left)] == [other]


END: dict[str, object] = {
    "kind": "script",
    "series": [],
    "fold": 1,
    "seed": 0,
    "exit_code": 0,
    "starts": 1,
    "done": True,
}


@pytest.fixture
def script(run):
    """Return the cloud of a script's run over two values, whose node wrote a file of each, listed them and is done."""
    cloud, record = run
    values = [replace(piece(one), kind="script", series=()) for one in ("a", "b")]
    record = replace(record, work="script", leaves="files", pieces=tuple(values))
    swap_record(cloud.objects, record, cloud.objects.stored[record_key(record.run_id)][-1].etag)
    (keys,), files = record.nodes, []
    for name in ("a", "b"):
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        cloud.objects.write(key := f"{keys.outputs}{sha256}", name.encode())
        stored = cloud.objects.stored[key][-1] = replace(cloud.objects.stored[key][-1], checksum=sha256)
        told = {"key": key, "version_id": stored.version_id, "sha256": sha256, "bytes": 1}
        files.append({"file": f"{name}/x.csv", **told})
    ends = [{**END, "piece": name, "values": {"x": name}} for name in ("a", "b")]
    cloud.objects.write(keys.output_index, json.dumps({"files": files, "scripts": ends}).encode())
    cloud.objects.write(keys.result, json.dumps({"state": "done", "scripts": ends}).encode())
    return cloud, record, [item["key"] for item in files]


def test_a_script_is_done_if_s3_has_every_file_that_it_lists(script):
    cloud, record, _ = script
    receipt = drive(cloud, record.run_id, poll_seconds=5, sleep=cloud.sleep)
    assert (receipt["state"], receipt["failed"]) == ("done", [])
    assert [item["file"] for item in receipt["files"]] == ["a/x.csv", "b/x.csv"]


def test_a_script_whose_listed_file_is_missing_has_failed(script):
    cloud, record, (_, gone) = script
    del cloud.objects.stored[gone]
    receipt = drive(cloud, record.run_id, poll_seconds=5, sleep=cloud.sleep)
    assert (receipt["state"], receipt["exit_code"]) == ("failed", ConfigError.exit_code)
    assert receipt["error"]["what"] == "output files are not what the node reported: b/x.csv"
    assert [item["file"] for item in receipt["files"]] == ["a/x.csv"]
    assert [(item["piece"], item["done"]) for item in receipt["scripts"]] == [("a", True), ("b", False)]
    assert [item["piece"] for item in receipt["failed"]] == ["b"]
    assert receipt_from_json(cloud.objects.body(receipt_key(record.run_id)), record.run_id)


@pytest.mark.parametrize("body", [b"", b"[", b'{"files": [{"file": "../x"}]}'])
def test_a_script_whose_list_can_not_be_read_has_failed(script, body):
    cloud, record, _ = script
    cloud.objects.write(record.nodes[0].output_index, body)
    receipt = drive(cloud, record.run_id, poll_seconds=5, sleep=cloud.sleep)
    assert (receipt["state"], receipt["files"]) == ("failed", [])
    assert receipt["error"]["what"] == "output files are not what the node reported: their list"
    assert [item["done"] for item in receipt["scripts"]] == [False, False]


def test_a_value_whose_file_is_missing_is_made_again(script):
    """Its machine was lost: the next attempt, or a run that continues it, makes that value anew."""
    cloud, record, (_, gone) = script
    del cloud.objects.stored[gone], cloud.objects.stored[record.nodes[0].result]
    left = left_behind(cloud.objects, record)
    assert [item["piece"] for item in scripts_of(left) if item["done"]] == ["a"]


@pytest.mark.parametrize("where", ["bootstrap.log", "console", "bootstrap.log before console"])
def test_a_boot_that_failed_leaves_its_last_lines_in_the_receipt(run, where):
    cloud, record = run
    said = (
        "".join(f"line {number}\n" for number in range(90))
        + "bootstrap: the image has no python\nbootstrap: powering off\n"
    )
    if "bootstrap.log" in where:
        cloud.objects.write(record.nodes[0].bootstrap_log, said.encode())
    if "console" in where:
        cloud.consoles[record.nodes[0].instance_id] = said if where == "console" else "a kernel\n"
    cloud.end(record.nodes[0].instance_id, "Client.InstanceInitiatedShutdown")
    receipt = drive(cloud, record.run_id, poll_seconds=5, sleep=cloud.sleep)
    assert receipt["error"]["why"] == "Client.InstanceInitiatedShutdown; the image has no python"
    assert receipt["log_tail"].splitlines() == said.splitlines()[-20:]


def test_an_unreadable_console_leaves_the_run_its_receipt(run, monkeypatch):
    cloud, record = run

    def refuse(*, instance_id):
        raise PermissionDenied(f"cannot read the console of {instance_id}", why="UnauthorizedOperation")

    monkeypatch.setattr(cloud, "console_output", refuse)
    cloud.end(record.nodes[0].instance_id, "Client.InstanceInitiatedShutdown")
    receipt = drive(cloud, record.run_id, poll_seconds=5, sleep=cloud.sleep)
    assert (receipt["state"], receipt["log_tail"]) == ("failed", "")


def test_each_model_is_asked_for_once_while_a_run_closes(make_cloud, monkeypatch):
    cloud, record = make_cloud()
    asked = []
    head = cloud.objects.head

    def counted(*, key, version_id=""):
        asked.append(key)
        return head(key=key, version_id=version_id)

    monkeypatch.setattr(cloud.objects, "head", counted, raising=False)
    drive(cloud, record.run_id, poll_seconds=5, sleep=cloud.sleep)
    models = [key for key in asked if key.startswith("models/")]
    assert len(models) == len(set(models)) == 2


def test_asking_for_models_ends_in_time_when_s3_does_not_answer(run, monkeypatch):
    cloud, record = run
    never = threading.Event()
    monkeypatch.setattr(reported_module, "S3_SECONDS", 0.05)
    monkeypatch.setattr(cloud.objects, "head", lambda **_: never.wait(), raising=False)
    model = {"key": "models/experiments/r/1/lstm_A_1m.safetensors", "version_id": "v"}
    try:
        with pytest.raises(ConnectionFailed, match="the 30 models of"):
            observe_module.models_seen(cloud.objects, record, NodeResult(state="done", models=(model,) * 30))
    finally:
        never.set()


def test_what_lies_under_another_instances_id_is_not_looked_at(run):
    cloud, record = run
    (own,) = record.nodes
    for other in (
        replace(own, instance_id="i-9999"),
        replace(own, role_id="AROA9"),
        replace(own, attempt=2),
        replace(own, node=1),
    ):
        cloud.objects.write(other.lease, json.dumps(LEASE).encode())
        cloud.objects.write(other.result, json.dumps({"state": "failed"}).encode())
        cloud.objects.write(f"{other.models}lstm_BTC-USD_1m.safetensors", b"forged")
    seen = observe(cloud, record)
    assert (seen.heartbeat, seen.result) == (None, None)
    models = observe_module.models_seen(cloud.objects, record, None)
    # node 1 of this instance has its prefix
    assert [model.key for model in models] == [f"{own.models}lstm_BTC-USD_1m.safetensors"]


def test_without_a_result_the_runs_own_models_count(run):
    """Its receipt can be read back, whatever else lies there."""
    cloud, record = run
    (own,) = record.nodes
    for name in (
        "lstm_BTC-USD_1m",
        "deep/lstm_BTC-USD_1m",
        "deep/er/lstm_BTC-USD_1m",
        ".hidden",
        "lstm_OTHER_1m",
    ):
        cloud.objects.write(f"{own.models}{name}.safetensors", b"", SHA256)
    seen = observe_module.models_seen(cloud.objects, record, None)
    assert [model.key for model in seen] == [f"{own.models}lstm_BTC-USD_1m.safetensors"]
    cloud.end(own.instance_id, "Client.InstanceInitiatedShutdown")
    receipt = drive(cloud, record.run_id, poll_seconds=5, sleep=cloud.sleep)
    assert {model["key"].count("/") for model in receipt["models"]} == {5}


@pytest.mark.parametrize(
    ("value", "is_told"), [(0.5, True), (1e30, False), (json.loads("[" * 13 + "]" * 13), False)]
)
def test_a_receipt_has_no_metrics_that_its_reader_refuses(run, tmp_path, value, is_told):
    """A card may have larger numbers, and more lists in each other."""
    cloud, record = run
    (own,) = record.nodes
    metrics = {"about": {}, "test": {"n": 5, "loss": value}}
    make_model(tmp_path / "model", metrics=metrics)
    body = (tmp_path / "model").read_bytes()
    cloud.objects.write(f"{own.models}lstm_BTC-USD_1m.safetensors", body, SHA256)
    cloud.end(own.instance_id, "Client.InstanceInitiatedShutdown")
    drive(cloud, record.run_id, poll_seconds=5, sleep=cloud.sleep)
    (model,) = read_receipt(cloud.objects, record.run_id)["models"]
    assert model["metrics"] == (metrics if is_told else {})


def test_a_last_word_corrects_an_outcome_downwards_too(run):
    cloud, record = run
    cloud.objects.write(record.nodes[0].result, json.dumps({"state": "done"}).encode())
    said = []

    def changes_its_mind(progress) -> None:
        if progress.outcome == "done" and not said:
            said.append(progress)
            error = {"code": 100, "what": "it failed after all", "why": "", "do": ""}
            cloud.objects.write(
                record.nodes[0].result,
                json.dumps({"state": "failed", "exit_code": 100, "error": error}).encode(),
            )

    receipt = drive(cloud, record.run_id, poll_seconds=5, sleep=cloud.sleep, on_event=changes_its_mind)
    assert receipt["state"] == "failed"
    assert receipt["exit_code"] == 100
    assert receipt["error"]["what"] == "it failed after all"


@pytest.fixture
def booting(make_cloud, make_record):
    """A cloud with a run whose one instance has left nothing so far."""
    cloud, record = make_cloud(run_id="20261120-120000-other-aaaa")
    record = replace(
        record,
        run_id="20261120-120000-crypto-k3v9",
        state="running",
        attempts=launched(created(instance_ids=("i-9",))),
    )
    create_record(cloud.objects, record)
    return cloud, record


def test_a_boot_is_followed_from_its_log_to_the_agents_parts(booting):
    cloud, record = booting
    (keys,), reader = record.nodes, LogReader(cloud, record.run_id)
    assert reader.read_new() == ""
    for text, new in (("fetch\n", "fetch\n"), ("fetch\ninstall\n", "install\n"), ("fetch\ninstall\n", "")):
        cloud.objects.write(keys.bootstrap_log, text.encode())
        assert reader.read_new() == new
    cloud.objects.write(f"{keys.log}000001.log", b"phase stage\n")
    assert reader.read_new() == "phase stage\n"
    cloud.objects.write(keys.bootstrap_log, b"fetch\ninstall\nphase stage\npowering off\n")
    assert reader.read_new() == ""  # it holds what the agent said, too


@pytest.mark.parametrize("what", ["log", "metrics"])
def test_lines_read_before_a_failure_are_shown_by_the_next_look(booting, monkeypatch, what):
    cloud, record = booting
    ids = ("i-8", "i-9")
    record = replace(record, num_nodes=2, attempts=launched(created(instance_ids=ids)), run_id=f"{RUN}-two")
    create_record(cloud.objects, record)
    reader_type = LogReader if what == "log" else EventsReader
    reader, get, fails = reader_type(cloud, record.run_id), cloud.objects.get, [True]
    for keys in record.nodes:
        cloud.objects.write(f"{getattr(keys, what)}000001.x", b"phase train\n")

    def failing(*, key, **more):
        if key.startswith(getattr(record.nodes[1], what)) and fails:
            fails.pop()
            raise ConnectionFailed("cannot read it")
        return get(key=key, **more)

    monkeypatch.setattr(cloud.objects, "get", failing)
    with pytest.raises(ConnectionFailed):
        reader.read_new()
    if what == "log":
        assert reader.read_new() == "node 0 | phase train\nnode 1 | phase train\n"
    else:
        assert reader.read_new().raw == b"phase train\n" * 2 and reader.read_new().raw == b""


def test_a_log_after_the_console_is_shown_from_its_beginning(booting):
    cloud, record = booting
    cloud.consoles["i-9"] = "Linux version 7\n"
    reader = LogReader(cloud, record.run_id)
    assert reader.read_new() == "Linux version 7\n"
    cloud.objects.write(record.nodes[0].bootstrap_log, b"fetch\n")
    assert (reader.read_new(), reader.read_new()) == ("fetch\n", "")


def test_a_log_beyond_the_limit_says_where_its_rest_is(booting, monkeypatch):
    cloud, record = booting
    (keys,), reader = record.nodes, LogReader(cloud, record.run_id)
    monkeypatch.setattr(parts_module, "MOST_BYTES", 5)
    cloud.objects.write(f"{keys.log}000001.log", b"first\n")
    assert reader.read_new() == "first\n"
    cloud.objects.write(f"{keys.log}000002.log", b"second\n")
    assert reader.read_new().endswith(f"the rest is in the bucket from {keys.log}000002.log on\n")
    assert reader.read_new() == ""


def test_the_end_of_a_long_log_is_read_without_its_beginning(booting, monkeypatch):
    """A log of days is tens of thousands of parts, and `logs --tail` wants the last lines of the last node."""
    cloud, record = booting
    ids = ("i-8", "i-9")
    record = replace(record, num_nodes=2, attempts=launched(created(instance_ids=ids)), run_id=f"{RUN}-two")
    create_record(cloud.objects, record)
    first, last = record.nodes
    cloud.objects.write(f"{first.log}000001.log", b"first\nsecond\n")
    for number in range(1, 1001):
        cloud.objects.write(f"{last.log}{number:06d}.log", f"line {number}\n".encode())
    asked, get = [], cloud.objects.get

    def noted(*, key, **more):
        asked.append(key)
        return get(key=key, **more)

    monkeypatch.setattr(cloud.objects, "get", noted)
    reader = LogReader(cloud, record.run_id)
    assert reader.read_last(2) == "node 1 | line 999\nnode 1 | line 1000\n"
    assert len(asked) < 100
    assert reader.read_new() == ""
    cloud.objects.write(f"{first.log}000002.log", b"third\n")
    assert reader.read_new() == "node 0 | third\n"
    end = LogReader(cloud, record.run_id).read_last(1002)
    assert end.startswith("node 0 | second\nnode 0 | third\nnode 1 | line 1\n") and end.count("\n") == 1002


def test_the_last_lines_of_a_boot_are_its_logs(booting):
    cloud, record = booting
    cloud.objects.write(record.nodes[0].bootstrap_log, b"fetch\ninstall\n")
    reader = LogReader(cloud, record.run_id)
    assert (reader.read_last(1), reader.read_new()) == ("install\n", "")


def test_an_unreadable_console_is_reported_once(booting, monkeypatch):
    cloud, record = booting

    def refuse(*, instance_id):
        raise PermissionDenied(f"cannot read the console of {instance_id}", why="UnauthorizedOperation")

    monkeypatch.setattr(cloud, "console_output", refuse)
    reader = LogReader(cloud, record.run_id)
    assert "cannot read the console of i-9" in reader.read_new()
    assert reader.read_new() == ""
    cloud.objects.write(record.nodes[0].bootstrap_log, b"fetch\n")
    assert reader.read_new() == "fetch\n"


def test_the_console_is_read_where_the_bootstrap_sent_nothing(booting):
    cloud, record = booting
    cloud.consoles["i-9"] = "Kernel panic\n"
    reader = LogReader(cloud, record.run_id)
    assert (reader.read_new(), reader.read_new()) == ("Kernel panic\n", "")


def test_a_file_and_a_folder_of_two_nodes_are_not_both_listed(make_cloud):
    cloud, record = make_cloud(leaves="files", attempts=launched(created(instance_ids=("i-1", "i-2"))))
    assert [keys.instance_id for keys in record.nodes] == ["i-1", "i-2"]
    for keys, path in zip(record.nodes, ("a", "a/b"), strict=True):
        key = f"{keys.outputs}{SHA256}"
        cloud.objects.write(key, b"weights", sha256=SHA256)
        stored = cloud.objects.stored[key][-1]
        cloud.objects.stored[key][-1] = replace(stored, checksum=SHA256)
        entry = {"key": key, "version_id": stored.version_id, "sha256": SHA256, "bytes": stored.size}
        cloud.objects.write(keys.output_index, json.dumps({"files": [{"file": path, **entry}]}).encode())
    assert [item["file"] for item in outputs_seen(cloud.objects, record).outputs] == ["a/b"]


def test_files_that_a_look_has_fetched_are_not_asked_for_again(make_cloud, monkeypatch):
    """`pull --live` looks every few seconds: 10,000 files would be 10,000 requests each time."""
    cloud, record = make_cloud(leaves="files", attempts=launched(created(instance_ids=("i-1",))))
    (keys,) = record.nodes
    files, asked, head = [], [], cloud.objects.head
    for number in range(3):
        sha256 = f"{number:064x}"
        key = f"{keys.outputs}{sha256}"
        cloud.objects.write(key, b"weights", sha256=sha256)
        stored = cloud.objects.stored[key][-1]
        cloud.objects.stored[key][-1] = replace(stored, checksum=sha256)
        version = {"key": key, "version_id": stored.version_id}
        files.append({"file": f"f{number}", **version, "sha256": sha256, "bytes": stored.size})
    cloud.objects.write(keys.output_index, json.dumps({"files": files}).encode())

    def noted(*, key, **more):
        asked.append(key)
        return head(key=key, **more)

    monkeypatch.setattr(cloud.objects, "head", noted)
    had = {(item["key"], item["version_id"]) for item in files[:2]}
    assert [item["file"] for item in files_so_far(cloud.objects, record, had=had)] == ["f0", "f1", "f2"]
    assert [key for key in asked if key.startswith(keys.outputs)] == [files[2]["key"]]
