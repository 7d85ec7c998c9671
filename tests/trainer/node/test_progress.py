"""The progress that the trainer's events add up to."""

from __future__ import annotations

from functools import reduce
from typing import Any

from tests.pieces import named
from trainer.base.strict_json import Fields
from trainer.node.progress import Progress, advance
from trainer.runs.reports import piece_share, script_entry

MODELS = [{"model": f"lstm_{symbol}_1m", **named(symbol)} for symbol in "AB"]
STARTED = {"event": "started", "models": MODELS, "data": {"bars": 7}}


def after(*events: dict[str, Any]) -> Progress:
    return reduce(advance, events, Progress())


def step(symbol: str, worker: int, rate: float, **more: Any) -> dict[str, Any]:
    return {
        "event": "progress",
        "model": f"lstm_{symbol}_1m",
        "piece": symbol,
        "worker": worker,
        "rate": rate,
        "unit": "chunks",
        **more,
    }


def test_a_model_waits_trains_and_is_done() -> None:
    told = {"epoch": 1, "epochs": 2, "step": 3, "steps": 9, "loss": 0.5}
    assert after(STARTED).pieces == {"A": {"state": "waiting"}, "B": {"state": "waiting"}}
    training = after(STARTED, step("A", 0, 100.0, **told))
    assert training.pieces["A"] == {"state": "training", **told}
    scoring = advance(training, {"event": "scoring", "piece": "A", "model": "lstm_A_1m"})
    assert scoring.pieces["A"] == {"state": "scoring", **told}
    done = advance(scoring, {"event": "model_done", "piece": "A", "model": "lstm_A_1m"})
    assert done.pieces["A"]["state"] == "done"
    assert [event["piece"] for event in done.done] == ["A"]
    assert done.data == {"bars": 7}


def test_a_script_has_a_share_by_what_it_tells() -> None:
    def share(**told: int) -> float:
        event = {**step("A", 0, 0.0, loss=0.5, **told), "event": "script"}
        return piece_share(after(STARTED, {**event, "rate": None}).pieces["A"])

    assert share(epoch=3, epochs=4) == 0.5  # the third has begun
    assert share(step=1, steps=4) == share(step=1, steps=4, epoch=1) == 0.25
    assert share(step=1, steps=2, epoch=2, epochs=2) == 0.75
    assert share(epoch=3) == share(step=3) == 0.0


def test_a_piece_keeps_the_step_with_which_this_machine_began() -> None:
    begun = {"event": "model_started", "model": "lstm_A_1m", "piece": "A"}
    resumed = {**begun, "event": "resumed", "epoch": 3}
    assert after(STARTED, begun).pieces["A"] == {"state": "training", "began": 0}
    there = after(STARTED, begun, {**resumed, "step": 23, "lost_steps": None})
    assert there.pieces["A"]["began"] == 23
    # Its worker dies: what it repeats then was taken on this machine.
    again = reduce(advance, (begun, {**resumed, "step": 29, "lost_steps": 4}), there)
    assert again.pieces["A"]["began"] == 23
    assert advance(again, STARTED).pieces["A"] == {"state": "waiting", "began": 23}


def test_the_rate_is_that_of_all_workers_until_the_end() -> None:
    training = after(STARTED, step("A", 0, 100.0), step("B", 1, 50.0), step("A", 0, 120.0))
    assert (training.rate, training.unit) == (170.0, "chunks")
    assert advance(training, {"event": "ended"}).rate is None


def test_a_retry_counts_and_a_failure_keeps_its_reason() -> None:
    progress = after(
        STARTED,
        {"event": "retry", "model": "lstm_A_1m", "piece": "A", "reason": "killed"},
        {"event": "model_failed", "model": "lstm_A_1m", "piece": "A", "reason": "killed twice"},
    )
    assert (progress.retries, progress.failed) == (1, ({**named("A"), "reason": "killed twice"},))
    assert progress.pieces["A"]["state"] == "failed"


def test_trials_end_as_a_result_lists_them() -> None:
    trial = {"trial": 1, "values": {"train.ema": "0.9"}, "end": "pruned", "epochs": 3}
    event = {"event": "trial_done", "model": "lstm_A_1m", "piece": "A", "score": 0.5, **trial}
    failed = {**event, "model": "lstm_B_1m", "piece": "B", "score": None, "end": "failed", "reason": "NaN"}
    progress = after(STARTED, event, failed)
    assert progress.pieces_done == ("A", "B") and progress.failed == ()
    first, second = (script_entry(Fields(dict(one), "trial")) for one in progress.trials)
    best = {"metric": "validation_loss", "value": 0.5, "better": "min"}
    assert first.items() >= {**named("A"), **trial, "best": best, "done": True}.items()
    assert (second["best"], second["notes"], second["end"]) == ({}, ["NaN"], "failed")
    assert advance(progress, STARTED).trials == progress.trials


def test_a_study_has_the_trials_of_its_series_fold_and_seed() -> None:
    trials = [
        {
            "model": f"lstm_{symbol}_1m_t{number}",
            **named(symbol, title=f"{symbol} t{number}"),
            "kind": "trial",
        }
        for symbol in "AB"
        for number in (1, 2)
    ]
    progress = after({**STARTED, "models": [*MODELS, *trials]})
    assert progress.trials_of({"model": "lstm_B_1m"}) == {"B t1": "lstm_B_1m_t1", "B t2": "lstm_B_1m_t2"}
    assert after(STARTED).trials_of({"model": "lstm_B_1m"}) == {}


def test_an_unknown_event_changes_nothing() -> None:
    assert advance(after(STARTED), {"event": "of a later version"}) == after(STARTED)


def test_models_of_an_earlier_attempt_are_done_from_the_start() -> None:
    told = after({**STARTED, "finished": ["A"]}, step("B", 0, 100.0))
    assert {name: piece["state"] for name, piece in told.pieces.items()} == {"A": "done", "B": "training"}
    assert told.pieces_done == ("A",) and not told.done
    stopped = advance(told, {"event": "model_stopped", "piece": "B", "model": "lstm_B_1m", "worker": 0})
    assert stopped.pieces["B"]["state"] == "waiting" and stopped.rate is None


def test_pieces_of_other_nodes_are_left_out_at_the_end() -> None:
    done = {"event": "model_done", "piece": "A", "model": "lstm_A_1m"}
    ended = after(STARTED, done, {"event": "ended", "elsewhere": ["B"]})
    assert (list(ended.pieces), ended.elsewhere, len(ended.models)) == (["A"], {"B"}, 2)
    late = {"event": "straggler", "node": 2, "piece": "B", "model": "lstm_B_1m"}
    assert after(STARTED, {"event": "node_lost", "node": 1}).message == "node 1 is lost"
    assert after(STARTED, late).message == "node 2 is not done with B"
