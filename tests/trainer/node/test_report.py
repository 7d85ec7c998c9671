"""The words for a node's end, its heartbeat and its result."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.pieces import named
from trainer.base.errors import ConfigError, DataError, TrainerError, TrainingFailed
from trainer.base.silence import HALF_MORE, MOST_SECONDS
from trainer.node.devices import Devices
from trainer.node.identity import NodeIdentity
from trainer.node.progress import Progress
from trainer.node.report import Status, boot, ending, failed_models, lease, progress, result
from trainer.runs.lease import LONGEST_BOUND, read_lease, silent
from trainer.runs.reports import MOST_PROGRESS_BYTES, MOST_SHOWN, heartbeat, read_result

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
DEADLINE = NOON + timedelta(hours=1)
MODELS = {f"lstm_{symbol}_1m": named(symbol) for symbol in "AB"}


def status(*, done: str = "", **progress: Any) -> Status:
    identity = NodeIdentity(
        run_id="r", attempt=2, node=0, deadline=DEADLINE, instance_id="i-1", instance_type="p3.8xlarge"
    )
    models = [named(symbol) for symbol in done]
    return Status(
        identity=identity, progress=Progress(models=MODELS, done=tuple(models), **progress), models=models
    )


def end(
    status: Status, *, stop: str = "", error: TrainerError | None = None, now: datetime = NOON
) -> tuple[str, int]:
    return ending(status=status, stop_reason=stop, error=error, now=now)[:2]


def test_a_bound_above_the_longest_spoils_no_lease() -> None:
    one = status()
    one.progress_at, one.progress_bound = NOON, HALF_MORE * MOST_SECONDS  # of a trainer, which acts first
    assert read_lease(json.dumps(lease(one, NOON)).encode(), NOON).progress_bound == LONGEST_BOUND


def test_progress_while_the_lease_is_made_spoils_no_lease() -> None:
    one = status()
    one.progress_at = NOON + timedelta(milliseconds=1)
    assert read_lease(json.dumps(lease(one, NOON)).encode(), NOON).progress_at == NOON


def test_the_most_urgent_message_is_shown() -> None:
    one = status()
    one.message = "3 inputs"
    told = [json.loads(progress(one))["message"]]
    for words in ({"message": "node 1 is lost"}, {"tuning": True}):
        one.progress = replace(one.progress, **words)
        told.append(json.loads(progress(one))["message"])
    one.idle = "GPUs nearly idle"
    told.append(json.loads(progress(one))["message"])
    assert told == ["3 inputs", "node 1 is lost", "looking for the fastest settings", "GPUs nearly idle"]


def test_complete_work_is_done_despite_a_stop_request() -> None:
    assert end(status(done="AB")) == ("done", 0)
    assert end(status(done="AB"), stop="stop.json") == ("done", 0)


def test_models_of_an_earlier_attempt_are_not_missing() -> None:
    later = status(done="B", pieces={"A": {"state": "done"}})
    assert not failed_models(later, "") and end(later, stop="stop.json") == ("done", 0)
    assert json.loads(progress(later))["models_done"] == 2


def test_a_stop_is_stopped_and_at_the_deadline_expired() -> None:
    error = TrainingFailed("the trainer ended with exit code 130")
    assert end(status(done="A"), stop="SIGTERM", error=error) == ("stopped", 130)
    assert end(status(done="A"), stop="SIGTERM", error=error, now=DEADLINE) == ("expired", 104)


def test_a_failure_on_an_earlier_machine_is_reported() -> None:
    """The trainer is told that nothing is to be done about it, and so shows it as done."""
    here = status(done="A")
    here.progress = replace(here.progress, pieces={**here.progress.pieces, "B": {"state": "done"}})
    here.failed_before = [{**named("B"), "reason": "loss is NaN"}]
    assert [entry["reason"] for entry in failed_models(here, "ended") if entry["piece"] == "B"] == [
        "loss is NaN"
    ]
    shown = json.loads(progress(here))
    assert shown["progress"]["B"]["state"] == "failed"
    assert shown["models_done"] == len(here.models)


def test_work_that_ends_by_notice_is_interrupted() -> None:
    error = TrainingFailed("the trainer ended with exit code 130")
    assert end(status(done="A"), stop="spot", error=error) == ("interrupted", 105)
    assert end(status(done="AB"), stop="spot") == ("done", 0)
    ended = ending(status=status(), stop_reason="spot", error=error, now=NOON)
    value = result(status(), ended=ended, unfinished="taken", python_packages="node lock")
    assert value["reason"] == "spot"
    prefix = "models/experiments/i-1/r/2/"
    assert read_result(json.dumps(value).encode(), models_prefix=prefix).state == "interrupted"


@pytest.mark.parametrize(("error", "code"), [(DataError("bad"), 100), (ConfigError("torch"), 103)])
def test_bad_data_is_100_on_a_node_and_others_keep_their_code(error: TrainerError, code: int) -> None:
    assert end(status(), error=error) == ("failed", code)


def test_a_result_names_the_devices_that_were_found() -> None:
    one = status()
    one.devices = Devices(expected=4, found=3, kind="cuda", note="")
    value = result(one, ended=("failed", 100, None), unfinished="", python_packages="node lock")
    assert value["devices"] == {"expected": 4, "found": 3, "kind": "cuda", "note": ""}


def test_every_model_that_is_not_there_is_reported_with_a_reason() -> None:
    failed = status(done="", failed=({**named("A"), "reason": "killed twice"},))
    value = result(
        failed, ended=("failed", 100, None), unfinished="the trainer ended", python_packages="node lock"
    )
    assert value["failed"] == [
        {**named("A"), "reason": "killed twice"},
        {**named("B"), "reason": "the trainer ended"},
    ]


def test_desk_and_sweeper_read_lease_and_progress() -> None:
    told = status(done="A", pieces={"A": {"state": "done", "loss": math.nan, "step": 3}}, rates={0: 5.0})
    told.enter("boot", NOON)
    at = NOON + timedelta(seconds=3)
    read = heartbeat(read_lease(json.dumps(lease(told, at)).encode(), at), progress(told))
    assert (read.instance_id, read.phase, read.phases, read.models_done) == ("i-1", "boot", {"boot": NOON}, 1)
    assert read.progress == {"A": {"state": "done", "step": 3}}  # a loss that is not a number is none
    assert not silent(launched_at=NOON, lease_until=read.lease_until, now=read.lease_until)


def test_progress_counts_what_was_read() -> None:
    read = {"files": [{"file": "a.csv"}], "bars": 900, "holes": 2, "synthetic": True}
    told = heartbeat(
        read_lease(json.dumps(lease(status(), NOON)).encode(), NOON), progress(status(data=read))
    )
    assert told.data == {"files": [], "bars": 900, "holes": 2, "synthetic": True}
    assert json.loads(progress(status(data={"bars": "many", "holes": 2})))["data"] == {"holes": 2}


@pytest.mark.parametrize("num_models", [500, 5000])
def test_lease_and_progress_are_bounded_for_any_number_of_models(num_models: int) -> None:
    entry = {
        "epoch": 3,
        "epochs": 15,
        "step": 120,
        "steps": 900,
        "loss": 0.6931471,
        "train_loss": 0.69,
        "validation_loss": 0.7,
    }
    symbols = {f"SYMBOL-{number:05d}": {"state": "waiting", **entry} for number in range(num_models)}
    symbols["SYMBOL-04999"] = {"state": "training", **entry}
    told = status(pieces=symbols)
    assert len(json.dumps(lease(told, NOON))) < 512
    body = progress(told)
    read = heartbeat(read_lease(json.dumps(lease(told, NOON)).encode(), NOON), body)
    assert len(body) <= MOST_PROGRESS_BYTES and len(read.progress) == min(len(symbols), MOST_SHOWN)
    assert read.progress["SYMBOL-04999"]["state"] == "training"  # models at work are told first


def test_fewer_models_are_told_of_where_their_names_are_long() -> None:
    told = status(pieces={f"{number:0250}": {"state": "waiting", "loss": 0.5} for number in range(5_000)})
    read = heartbeat(read_lease(json.dumps(lease(told, NOON)).encode(), NOON), progress(told))
    assert 0 < len(read.progress) < MOST_SHOWN


def test_the_steps_of_a_boot_are_told_in_seconds() -> None:
    booted, *stages, now = (NOON + timedelta(seconds=after) for after in (0, 20, 50, 49))
    steps = boot(booted, stages, now, baked=True)
    assert steps == {"code": 20.0, "environment": 30.0, "agent": 0.0, "baked": True}
    assert boot(booted, stages[:1], now, baked=True) == {}  # bootstrap.sh did not say when


def test_a_result_is_readable_however_long_its_texts() -> None:
    failed = status(failed=({**named("A"), "reason": "x" * 99_999},))
    error = TrainingFailed("y" * 99_999, why="it\x1b[31m").as_dict()
    value = result(
        failed, ended=("failed", 100, error), unfinished="the trainer ended", python_packages="node lock"
    )
    read = read_result(json.dumps(value).encode(), models_prefix="models/experiments/r/2/")
    assert [item["piece"] for item in read.failed] == ["A", "B"]
    assert read.error is not None and read.error["what"].endswith(" ...")
