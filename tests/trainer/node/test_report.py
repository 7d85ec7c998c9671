"""How a node's end is called, and what its heartbeat and result say."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from trainer.errors import ConfigError, DataError, TrainerError
from trainer.node.identity import NodeIdentity
from trainer.node.progress import Progress
from trainer.node.report import Status, ending, heartbeat, result
from trainer.runs.lease import read_heartbeat, silent

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
DEADLINE = NOON + timedelta(hours=1)
MODELS = {f"lstm_{symbol}_1m": {"symbol": symbol, "fold": 1, "seed": 0} for symbol in "AB"}


def status(*, done: str = "", **progress: Any) -> Status:
    identity = NodeIdentity(run_id="r", attempt=2, node=0, deadline=DEADLINE, instance_id="i-1", instance_type="p3.8xlarge")
    models = [{"symbol": symbol, "fold": 1, "seed": 0} for symbol in done]
    return Status(identity=identity, progress=Progress(models=MODELS, **progress), models=models)


def end(
    status: Status,
    *,
    stop: str = "",
    error: TrainerError | None = None,
    trainer_exit: int | None = None,
    now: datetime = NOON,
) -> tuple[str, int]:
    return ending(status=status, stop_reason=stop, error=error, trainer_exit=trainer_exit, now=now)[:2]


def test_all_models_in_s3_is_done_even_if_somebody_wanted_a_stop_meanwhile() -> None:
    assert end(status(done="AB"), trainer_exit=0) == ("done", 0)
    assert end(status(done="AB"), trainer_exit=0, stop="stop.json") == ("done", 0)


def test_a_model_that_never_reached_s3_is_a_failure() -> None:
    lost = status(done="A")
    lost.failed.append({"symbol": "B", "fold": 1, "seed": 0, "reason": "S3 did not take it"})
    assert end(lost, trainer_exit=0) == ("failed", 100)


def test_a_stop_before_the_deadline_is_stopped_and_at_the_deadline_expired() -> None:
    assert end(status(done="A"), stop="SIGTERM", trainer_exit=130) == ("stopped", 130)
    assert end(status(done="A"), stop="SIGTERM", trainer_exit=130, now=DEADLINE) == ("expired", 104)


@pytest.mark.parametrize(("error", "code"), [(DataError("bad"), 100), (ConfigError("torch"), 103)])
def test_bad_data_costs_100_on_a_node_and_other_errors_keep_their_code(error: TrainerError, code: int) -> None:
    assert end(status(), error=error) == ("failed", code)


def test_the_trainers_own_error_is_the_nodes() -> None:
    told = {"code": 2, "what": "no such column", "why": "", "do": ""}
    _, code, error = ending(status=status(error=told), stop_reason="", error=None, trainer_exit=100, now=NOON)
    assert (code, error) == (100, {**told, "code": 100})


def test_every_model_that_is_not_there_is_reported_with_a_reason() -> None:
    failed = status(done="", failed=({"symbol": "A", "fold": 1, "seed": 0, "reason": "killed twice"},))
    value = result(failed, ended=("failed", 100, None), unfinished="the trainer ended", python_packages="node lock")
    assert value["failed"] == [
        {"symbol": "A", "fold": 1, "seed": 0, "reason": "killed twice"},
        {"symbol": "B", "fold": 1, "seed": 0, "reason": "the trainer ended"},
    ]


def test_a_heartbeat_is_one_that_the_sweeper_reads() -> None:
    told = status(done="A", symbols={"A": {"state": "done"}})
    told.enter("boot", NOON)
    read = read_heartbeat(heartbeat(told, NOON + timedelta(seconds=3)))
    assert (read.instance_id, read.phase, read.phases, read.models_done) == ("i-1", "boot", {"boot": NOON}, 1)
    assert not silent(launched_at=NOON, lease_until=read.lease_until, now=read.lease_until)
