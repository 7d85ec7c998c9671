from __future__ import annotations

from trainer.cli.receipt_view import receipt_lines
from trainer.targets.direction import Direction
from trainer.targets.volatility import Volatility

RECEIPT = {
    "run_id": "run-1",
    "job": {},
    "state": "failed",
    "exit_code": 100,
    "error": {"code": 100, "what": "training failed for B", "why": "", "do": "mayfly logs run-1 says why."},
    "seconds": {"preflight": 1.0, "train": 65.0, "total": 66.0},
    "dollars": {"estimated": 1.0, "spent_low": 0.5, "spent_high": 0.75},
    "data": {"bars": 6000, "holes": 2, "synthetic": True, "files": []},
    "instances": [
        {
            "instance_id": "i-1",
            "instance_type": "g6.xlarge",
            "market": "on_demand",
            "availability_zone": "us-east-1a",
            "state": "terminated",
            "proof": "described terminated",
        }
    ],
    "models": [
        {
            "piece": "A",
            "family": "lstm",
            "key": "k",
            "version_id": "v1",
            "sha256": "abc",
            "metrics": {"about": Direction().about(), "test": {"accuracy": 0.51, "base_rate": 0.5, "auc": None}},
        }
    ],
    "failed": [{"piece": "B", "reason": "its worker died twice"}],
    "retries": 1,
    "note": "",
}


def test_a_receipt_says_the_end_the_time_the_money_and_every_instance():
    text = "\n".join(receipt_lines(RECEIPT))
    for part in (
        "state      failed (exit code 100)",
        "because    training failed for B. mayfly logs run-1 says why.",
        "time       1m06s: preflight 1 s  train 1m05s",
        "dollars    $0.50 to $0.75 spent, $1.00 estimated",
        "data       6,000 bars used (SYNTHETIC), 2 holes",
        "instance   i-1 g6.xlarge on-demand us-east-1a: terminated (described terminated)",
        "0.5100 (0.5000)",
        "failed     B: its worker died twice",
        "retries    1",
    ):
        assert part in text


def test_the_deadline_is_printed_with_its_cause_where_the_receipt_has_one():
    told = receipt_lines({**RECEIPT, "deadline": "2026-11-20T13:00:00Z", "deadline_cause": "budget"})
    assert "deadline   2026-11-20T13:00:00Z, set by the budget" in told
    format_1 = {**RECEIPT, "format": 1, "deadline": "2026-11-20T13:00:00Z"}
    assert not [line for line in receipt_lines(format_1) if line.startswith("deadline")]


def test_a_receipt_of_a_run_that_never_had_an_instance_is_still_one():
    bare = {**RECEIPT, "instances": [], "models": [], "failed": [], "data": {}, "error": None, "retries": 0}
    assert "models     none" in receipt_lines(bare)


def test_a_model_of_volatility_stands_beside_har():
    har = {"correlation": 0.62, "qlike": 0.74}
    test = {"correlation": 0.641, "qlike": 0.842, "baselines": {"har": har}}
    scores = {"about": Volatility().about(), "test": test}
    model = {**RECEIPT["models"][0], "family": "tcn", "target": "volatility", "metrics": scores}
    text = "\n".join(receipt_lines({**RECEIPT, "models": [model]}))
    assert "correlation (HAR)" in text and "0.6410 (0.6200)" in text and "0.8420 (0.7400)" in text
    assert "AUC" not in text and "tcn-volatility" in text


def test_the_log_of_a_boot_that_failed_is_shown():
    lines = receipt_lines({**RECEIPT, "log_tail": "bootstrap: install packages\nbootstrap: failed"})
    at = lines.index("its log    bootstrap: install packages")
    assert lines[at + 1] == "           bootstrap: failed"
