"""What the trainer's events add up to."""

from __future__ import annotations

from functools import reduce
from typing import Any

from trainer.node.progress import Progress, advance

STARTED = {"event": "started", "models": [{"model": "lstm_A_1m", "symbol": "A"}], "data": {"bars": 7}}


def after(*events: dict[str, Any]) -> Progress:
    return reduce(advance, events, Progress())


def step(symbol: str, worker: int, rate: float, **more: Any) -> dict[str, Any]:
    return {"event": "progress", "symbol": symbol, "worker": worker, "windows_per_second": rate, **more}


def test_a_model_waits_trains_and_is_done() -> None:
    told = {"epoch": 1, "epochs": 2, "step": 3, "steps": 9, "loss": 0.5}
    assert after(STARTED).symbols == {"A": {"state": "waiting"}}
    training = after(STARTED, step("A", 0, 100.0, **told))
    assert training.symbols == {"A": {"state": "training", **told}}
    done = advance(training, {"event": "model_done", "symbol": "A", "model": "lstm_A_1m"})
    assert done.symbols["A"]["state"] == "done"
    assert [event["symbol"] for event in done.done] == ["A"]
    assert done.data == {"bars": 7}


def test_the_rate_is_that_of_all_workers_until_the_end() -> None:
    training = after(STARTED, step("A", 0, 100.0), step("B", 1, 50.0), step("A", 0, 120.0))
    assert training.windows_per_second == 170.0
    assert advance(training, {"event": "ended"}).windows_per_second is None


def test_a_retry_counts_and_a_failure_keeps_its_reason() -> None:
    progress = after(
        STARTED,
        {"event": "retry", "symbol": "A", "reason": "killed"},
        {"event": "model_failed", "symbol": "A", "reason": "killed twice"},
    )
    assert (progress.retries, progress.failed) == (1, ({"symbol": "A", "reason": "killed twice"},))
    assert progress.symbols["A"]["state"] == "failed"


def test_an_unknown_event_changes_nothing() -> None:
    assert advance(after(STARTED), {"event": "of a later version"}) == after(STARTED)
