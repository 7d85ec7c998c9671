"""Sums of receipts: nothing is counted twice, and shares add up to what was spent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pieces import named
from tests.records import at, launched, make_record, piece, seen
from trainer.job.model_names import TRIAL
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.receipt_sums import By, summed
from trainer.runs.reports import NodeResult


def receipt(day: str, job: str, *symbols: str, high: float = 1.0, **fields: Any) -> dict[str, Any]:
    """Return a receipt of a run with a model of each symbol, the last of them failed."""
    pieces = [{"piece": name, "kind": "symbol", "series": name.split("+")} for name in symbols]
    return {
        "created_at": f"{day}T12:00:00Z",
        "work": "train" if symbols else "script",
        "job": {"name": job},
        "seconds": {"total": 60.0},
        "dollars": {"estimated": 0.5, "spent_low": high / 2, "spent_high": high},
        "models": pieces[:-1],
        "failed": pieces[-1:],
        **fields,
    }


RECEIPTS = [
    receipt("2026-10-31", "coins", "BTC", "ETH", high=2.0),
    receipt("2026-11-01", "coins", "BTC", "ETH", "SOL", "BTC", high=4.0),
    receipt("2026-11-02", "stocks", "AAA+BBB", high=1.0),
    receipt("2026-11-03", "net", high=0.25),
]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("month", [("2026-10", 1, 2.0), ("2026-11", 3, 5.25)]),
        ("job", [("coins", 2, 6.0), ("stocks", 1, 1.0), ("net", 1, 0.25)]),
        (
            "symbol",
            [
                ("BTC", 2, 3.0),
                ("ETH", 2, 2.0),
                ("SOL", 1, 1.0),
                ("AAA", 1, 0.5),
                ("BBB", 1, 0.5),
                ("-", 1, 0.25),
            ],
        ),
    ],
)
def test_receipts_are_summed(by: By, expected: list[tuple[str, int, float]]) -> None:
    found = summed(RECEIPTS, by)
    assert [(one.group, one.runs, one.high) for one in found] == expected
    assert sum(one.high for one in found) == pytest.approx(7.25)
    assert sum(one.low for one in found) == pytest.approx(3.625)
    assert sum(one.seconds for one in found) == pytest.approx(240.0)
    assert sum(one.estimated for one in found) == pytest.approx(2.0)


def test_runs_without_an_estimate_are_told_apart() -> None:
    unknown = {"estimated": 0.0, "spent_low": 1.0, "spent_high": 1.0}
    found = summed([*RECEIPTS, receipt("2026-11-04", "net", dollars=unknown)], "job")
    assert [(one.group, one.runs, one.estimated_runs) for one in found] == [
        ("coins", 2, 2),
        ("stocks", 1, 1),
        ("net", 2, 1),
    ]


def test_trials_that_did_not_end_are_no_models() -> None:
    """Of a search that ended after its first model: the other symbol has its trials among what was not made."""
    trials = (piece("ETH", piece=f"ETH t{number}", kind=TRIAL, model=f"t{number}") for number in range(1, 4))
    record = make_record(
        pieces=(piece("BTC"), piece("ETH"), *trials),
        attempts=launched(),
        instances=(seen(terminated_at=at(600)),),
        outcome="expired",
        closed_at=at(700),
    )
    made = {
        **named("BTC"),
        "series": ["BTC"],
        "family": "lstm",
        "key": record.nodes[0].models + "lstm_BTC_1m",
    }
    result = NodeResult(state="expired", models=({**made, "version_id": "v1", "sha256": "ab" * 32},))
    ended = make_receipt(record, Observation(result=result))
    assert [one["piece"] for one in ended["failed"]] == ["ETH", "ETH t1", "ETH t2", "ETH t3"]
    shares = {one.group: one.high for one in summed([ended], "symbol")}
    assert shares["BTC"] == shares["ETH"] > 0


def test_nothing_is_summed_without_receipts() -> None:
    assert summed([], "month") == []
