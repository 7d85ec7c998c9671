"""What a run cost besides its machines: checkpoints, by the words of its nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.records import at, created, intent, launched, make_record, rung, seen
from trainer.runs.attempts import Attempt
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.reports import Heartbeat, NodeResult
from trainer.runs.snapshots import snapshot_usd
from trainer.runs.spending import budget_left, checkpoints_sent, spent
from trainer.runs.start_file import StartFile

SENT: dict[str, Any] = {"snapshots": 30, "objects": 60, "bytes": 54_000_000_000}
START = StartFile(run_id="r", attempt=2, sent={"snapshots": 10, "objects": 10, "bytes": 1000})


def beat(**sent: int) -> Heartbeat:
    durable = {"number": 30, "at": at(100), "lag_seconds": 1.0, **sent}
    return Heartbeat(instance_id="i-1", at=at(300), lease_until=at(390), durable=durable)


@pytest.mark.parametrize(
    "observed",
    [
        Observation(result=NodeResult(state="done", checkpoints=SENT), heartbeat=beat(**SENT)),
        Observation(result=NodeResult(state="failed"), heartbeat=beat(**SENT)),
        Observation(heartbeat=beat(**SENT)),
    ],
)
def test_checkpoints_are_priced_by_what_was_sent(observed: Observation) -> None:
    told = checkpoints_sent(observed, most_usd=100.0)
    assert told == {**SENT, "usd": pytest.approx(snapshot_usd(puts=90, size=54_000_000_000), abs=1e-6)}
    assert told["usd"] == pytest.approx(0.0822, abs=0.0001)


def test_those_of_earlier_attempts_are_among_them() -> None:
    observed = Observation(result=NodeResult(state="done", checkpoints=SENT), start=START)
    told = checkpoints_sent(observed, most_usd=100.0)
    assert (told["snapshots"], told["objects"], told["bytes"]) == (40, 70, 54_000_001_000)
    assert checkpoints_sent(Observation(start=START), most_usd=1.0)["objects"] == 10


def test_no_word_of_a_node_makes_them_more_than_its_machines() -> None:
    lying = Observation(result=NodeResult(state="done", checkpoints={**SENT, "bytes": 10**15}))
    assert checkpoints_sent(lying, most_usd=0.25)["usd"] == 0.25


def test_a_run_that_sent_none_has_no_entry() -> None:
    assert checkpoints_sent(Observation(), most_usd=1.0) == {}
    assert (
        checkpoints_sent(
            Observation(heartbeat=Heartbeat(instance_id="", at=at(0), lease_until=at(1))), most_usd=1.0
        )
        == {}
    )


# a call whose answer was lost, and for whose instance nobody looked before AWS had forgotten it
UNSEEN = intent(
    token="t2",
    deadline=at(1300),
    intended_at=at(1000),
    called_at=at(1000),
    outcome="abandoned",
    given_up_at=at(9000),
)


def test_an_unseen_machine_is_counted_until_a_layer_ended_it() -> None:
    """The sweeper comes every two minutes, and a one-time schedule is as precise as one."""
    record = make_record(attempts=(Attempt(number=1, launches=(UNSEEN,)),), closed_at=at(9100))
    price = record.ladder[0].price_usd_per_hour
    assert spent(record, Observation(), at(9100)) == (0.0, pytest.approx((300 + 180) / 3600 * price))
    of_three = replace(record, num_nodes=3)
    assert spent(of_three, Observation(), at(9100))[1] == pytest.approx(3 * (300 + 180) / 3600 * price)


def test_a_budget_counts_a_machine_that_nobody_saw() -> None:
    """The run goes on under another token, with what its receipt can't say to be left."""
    record = make_record(attempts=(Attempt(number=1, launches=(UNSEEN,)),), budget_usd=1.0)
    _, high = spent(record, Observation(), at(9100))
    assert budget_left(record, at(9100)) == pytest.approx(1.0 - high)
    on_spot = replace(record, ladder=(rung(market="spot"),))
    assert budget_left(on_spot, at(9100)) == pytest.approx(1.0 - high)  # at the worst price


def test_an_attempt_costs_nothing_of_another_ones() -> None:
    attempts = (
        Attempt(number=1, launches=(created(),), created_at=at(5), ended_at=at(900), cause="lost"),
        Attempt(number=2, launches=(UNSEEN,)),
    )
    gone = seen(launched_at=at(5), terminated_at=at(905))
    record = make_record(
        state="closed", outcome="expired", attempts=attempts, instances=(gone,), closed_at=at(9100)
    )
    receipt = make_receipt(record, Observation())
    high = [attempt["spent_high"] for attempt in receipt["attempts"]]
    assert sum(high) == pytest.approx(receipt["dollars"]["spent_high"], abs=1e-5) and all(high)


def test_an_outsiders_result_is_no_sign_of_life() -> None:
    """One of a call that was given up lived for minutes, and AWS forgot it before anybody saw its end."""
    mine = seen(instance_id="i-1", launched_at=at(335), running_seen_at=at(340), terminated_at=at(1470))
    late = seen("gone", instance_id="i-0", launched_at=at(2), terminated_at=at(6000))
    record = make_record(attempts=launched(), instances=(mine, late))
    result = NodeResult(state="done", phases={"boot": at(340), "end": at(1460)})
    low, _ = spent(record, Observation(result=result), at(6100))
    assert low == pytest.approx((1460 - 340) / 3600 * record.ladder[0].price_usd_per_hour)
