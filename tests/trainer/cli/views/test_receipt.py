from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from tests.jobs import job_of
from tests.nodes import NOW
from tests.trainer.control.conftest import MemoryCloud
from tests.trainer.targets.test_trading import TOLD
from trainer.aws.place import ACCOUNT
from trainer.base.errors import ConfigError
from trainer.cli.parser import build_parser
from trainer.cli.sources.desk import CandleDesk
from trainer.cli.terminal import Console
from trainer.cli.tracking.track import Tracked
from trainer.cli.verbs.launch import end_of_run
from trainer.cli.views.drawing import drawn
from trainer.cli.views.receipt import receipt_view, spot_saved
from trainer.targets.direction import Direction
from trainer.targets.marks import judged, verdict
from trainer.targets.volatility import Volatility

RECEIPT = {
    "parent": "",
    "ancestors": [],
    "work": "train",
    "run_id": "run-1",
    "created_at": "2026-11-20T12:00:00Z",
    "job": {},
    "state": "failed",
    "exit_code": 100,
    "error": {"code": 100, "what": "training failed for B", "why": "", "do": "mayfly logs run-1 says why."},
    "seconds": {"preflight": 1.0, "train": 65.0, "total": 66.0},
    "dollars": {"estimated": 1.0, "spent_low": 0.5, "spent_high": 0.75},
    "data": {"bars": 6000, "holes": 2, "synthetic": True, "files": []},
    "attempts": [],
    "instances": [
        {
            "instance_id": "i-1",
            "instance_type": "g6.xlarge",
            "market": "on_demand",
            "availability_zone": "us-east-1a",
            "price_usd_per_hour": 0.8048,
            "state": "terminated",
            "proof": "described terminated",
        }
    ],
    "models": [
        {
            "piece": "A",
            "series": ["A"],
            "family": "lstm",
            "key": "k",
            "version_id": "v1",
            "sha256": "abc",
            "metrics": {
                "about": Direction().about(),
                "test": {"accuracy": 0.51, "base_rate": 0.5, "auc": None},
            },
        }
    ],
    "failed": [{"piece": "B", "reason": "its worker died twice"}],
    "left_out": ["CCC.csv: high is not above zero in a bar of CCC"],
    "deadline": "2026-11-20T13:00:00Z",
    "deadline_cause": "budget",
    "retries": 1,
    "note": "",
    "left": [],
    "log_tail": "",
    "host": "",
    "boot": None,
    "inputs": {},
    "files": [],
    "scripts": [],
    "checkpoints": {},
    "devices": {},
}


def with_marks(receipt):
    """Return a receipt with its models judged, as it is made and read."""
    models = judged(receipt["models"])
    return {**receipt, "models": models, "verdict": verdict(models)}


def text_of(receipt, width=100, days=0):
    return drawn(receipt_view(with_marks(receipt), days), width=width)


def test_a_receipt_shows_outcome_time_dollars_and_instances():
    text = text_of(RECEIPT)
    for part in (
        "outcome   ✗ failed · 1 of 2 models · exit code 100",
        "because   training failed for B.\n            mayfly logs run-1 says why.",
        "time      1m06s in all\n            preflight 1s · train 1m05s",
        "dollars   spent $0.50 to $0.75 · estimated $1.00\n            g6.xlarge on-demand: $0.80 an hour with its disk",
        "data      6,000 bars (SYNTHETIC) · 2 holes",
        "i-1       g6.xlarge  on-demand  us-east-1a  ✓ terminated  described terminated",
        "0.5100 (0.5000)",
        "✗ B: its worker died twice",
        "✗ left out: CCC.csv: high is not above zero in a bar of CCC",
        "1 model was retried",
    ):
        assert part in text


def test_attempts_are_shown_once_a_machine_was_lost():
    money = {"seconds_low": 60.0, "seconds_high": 90.0, "spent_low": 0.02, "spent_high": 0.02}
    error = {"what": "the spot instance i-1 was taken back", "why": "Server.SpotInstanceTermination"}
    first = {"number": 1, "instances": ["i-1"], "error": error, **money}
    last = {"number": 2, "instances": ["i-2"], "error": None, **money}
    assert "attempts" not in text_of({**RECEIPT, "attempts": [last]})
    text = text_of({**RECEIPT, "attempts": [first, last]})
    assert "the spot instance i-1 was taken back" in text and "the run's" in text
    assert "computed twice" not in text  # of a script nobody knows
    twice = text_of({**RECEIPT, "attempts": [first, last], "steps_twice": 1})
    assert "1 step was computed twice, by the machines' reports" in twice


def test_what_checkpoints_cost_is_beside_the_dollars():
    sent = {"snapshots": 30, "objects": 30, "bytes": 54_000_000_000, "usd": 0.286}
    dollars = {**RECEIPT["dollars"], "spent_high": 28.6}
    text = text_of({**RECEIPT, "dollars": dollars, "checkpoints": sent})
    assert "besides, checkpoints: 54,000.0 MB sent to S3, $0.29, 1.00% of that" in text
    assert "checkpoints" not in text_of(RECEIPT)


def test_a_receipt_says_until_when_checkpoints_stay():
    sent = {"snapshots": 30, "objects": 30, "bytes": 54_000_000, "usd": 0.01}
    made = {**RECEIPT, "checkpoints": sent, "closed_at": "2026-11-20T12:10:00Z"}
    text = drawn(receipt_view(with_marks(made), 0, checkpoint_days=9))
    assert "kept      the newest checkpoints until 2026-11-29 (retention.checkpoint_days = 9)" in text
    none = drawn(receipt_view(with_marks({**made, "checkpoints": {}}), 0, checkpoint_days=9))
    assert "the newest checkpoints" not in none


def test_the_deadline_is_printed_with_its_cause():
    assert "deadline  2026-11-20T13:00:00Z, set by the budget" in text_of(RECEIPT)
    assert "set by three times the slow estimate" in text_of({**RECEIPT, "deadline_cause": "estimate"})


def test_a_receipt_without_an_instance_is_shown():
    text = text_of(
        {**RECEIPT, "instances": [], "models": [], "failed": [], "data": {}, "error": None, "retries": 0}
    )
    assert "machine   none was started" in text and "models    none" in text


def test_what_the_cache_gave_or_why_it_gave_nothing_is_shown():
    counts = {
        "s3_files": 1,
        "s3_bytes": 5,
        "cache_files": 2,
        "cache_bytes": 2_400_000,
        "cache_added": 1,
        "cache_refused": 1,
    }
    told = text_of({**RECEIPT, "inputs": {**counts, "cache_failed": ""}})
    assert "2 of 3 files (2.4 MB), the rest from S3 · 1 refused and fetched from S3" in told
    assert "not used, inputs came from S3: no way" in text_of(
        {**RECEIPT, "inputs": {**counts, "cache_failed": "no way"}}
    )
    assert "cache" not in text_of(
        {**RECEIPT, "inputs": {**dict.fromkeys(counts, 0), "s3_files": 3, "cache_failed": ""}}
    )


def test_a_model_of_volatility_stands_beside_har():
    har = {"correlation": 0.62, "qlike": 0.74}
    loss = {"gain": -0.102, "error": 0.02, "freedom": 9, "low": -0.147, "high": -0.057}
    gains = {"qlike": loss, "mse": loss}
    test = {
        "correlation": 0.641,
        "qlike": 0.842,
        "baselines": {"har": har},
        "better": {"har": gains},
        "cells": 60,
    }
    scores = {"about": Volatility().about(), "test": test}
    model = {**RECEIPT["models"][0], "family": "tcn", "target": "volatility", "metrics": scores}
    text = text_of({**RECEIPT, "models": [model]})
    assert "correlation (HAR)" in text and "0.6410 (0.6200)" in text
    (line,) = (line for line in text.splitlines() if "0.8420" in line)
    assert line.split()[:5] == ["↓", "A", "0.8420", "0.7400", "har"] and "-0.1020 [-0.1472, -0.0568]" in line
    assert "verdict   none of 1 is worth using, 1 worse; nothing to put to use" in text
    assert "AUC" not in text and "tcn-volatility" in text_of({**RECEIPT, "models": [model]}, 150)


def scored(piece, gain):
    """Return a model whose log loss is so many standard errors better than the logistic baseline's; None with too
    few cells.
    """
    one = None if gain is None else {"gain": gain / 1000, "error": 0.001, "freedom": 25}
    baselines = {"logistic": {"auc": 0.52, "log_loss": 0.693}, "base_rate": {"auc": 0.5, "log_loss": 0.7}}
    test = {
        "auc": 0.55,
        "log_loss": 0.69,
        "n": 12_000,
        "cells": 7 if gain is None else 500,
        "cell": "1 day",
        "first": "2026-01-01",
        "last": "2026-05-12",
        "baselines": baselines,
        "better": {name: {"log_loss": one, "brier": one} for name in baselines},
    }
    return {**RECEIPT["models"][0], "piece": piece, "metrics": {"about": Direction().about(), "test": test}}


def test_models_are_sorted_and_signs_explained_once():
    models = [scored("C", 9), scored("A", -0.1), scored("D", None), scored("B", -9), scored("E", 1)]
    lines = text_of({**RECEIPT, "models": models, "failed": []}, 120).splitlines()
    signs = [line.split(" 0.6900")[0].split()[-2:] for line in lines if " 0.6900" in line]
    assert signs == [["✓", "C"], ["?", "E"], ["?", "D"], ["=", "A"], ["↓", "B"]]
    told = "1 of 5 is worth using (C), 2 too little to tell, 1 no different from logistic, 1 worse"
    assert any(line.strip() == f"verdict   {told}" for line in lines)
    for part in (
        "0.6930 logistic  +0.0090 [+0.0069, +0.0111]",
        "12,000 (7 of 20)",
        "✓ beats every baseline on the test span beyond chance, among all models of its run",
        "? chance is not excluded",
        "= a baseline is as good",
        "↓ a baseline is better beyond chance",
        "test 2026-01-01 to 2026-05-12: gain over the baseline beside it, with its 95 % interval",
    ):
        assert sum(part in line for line in lines) == 1, part


def test_scores_of_held_out_twins_are_named_as_such():
    model = scored("A", 9)
    assert "held-out" not in text_of({**RECEIPT, "models": [model]}, 120)
    about = {**model["metrics"]["about"], "refit_until": "2026-06-01T00:00:00Z"}
    refit = {**model, "metrics": {**model["metrics"], "about": about}}
    told = (
        "scores of the held-out twins; the models themselves were trained again on all bars, until 2026-06-01"
    )
    assert told in text_of({**RECEIPT, "models": [refit]}, 160)


def test_many_models_are_folded():
    models = [scored(f"S{number:03}", number) for number in range(100)]
    text = text_of({**RECEIPT, "models": models, "failed": []}, 120)
    assert "S099" in text and "S070" in text and "S069" not in text
    assert "and 70 more models, --json has all" in text


def test_narrow_tables_drop_hashes_first_and_keep_the_gain():
    receipt = {**RECEIPT, "models": [scored("A", 9)]}
    headers = [
        next(line for line in text_of(receipt, width).splitlines() if "gain [95 %]" in line)
        for width in (150, 80, 60)
    ]
    assert "sha256" in headers[0] and "sha256" not in headers[1] and "lstm" in text_of(receipt, 150)
    assert all("log loss" in header for header in headers)


def test_ids_stay_whole_and_words_are_not_broken_at_60_columns():
    run_id, instance_id = "20261120-120000-crypto-lstm-k3v9", "i-0123456789abcdef0"
    receipt = {
        **RECEIPT,
        "run_id": run_id,
        "instances": [{**RECEIPT["instances"][0], "instance_id": instance_id}],
    }
    text = text_of(receipt, 60)
    assert run_id in text and instance_id in text
    assert {"described", "terminated", "preflight"} <= set(text.split())


def test_a_scripts_receipt_shows_end_last_lines_and_files():
    end = {
        "piece": "net",
        "exit_code": -9,
        "starts": 2,
        "seconds": 65.0,
        "last_lines": ["loss 0.5", "\x1b[2Jx"],
        "notes": ["told"],
        "best": {},
        "done": False,
    }
    file = {"file": "m.pt", "bytes": 1, "sha256": "0123456789abcdef"}
    receipt = {
        **RECEIPT,
        "work": "script",
        "models": [],
        "failed": [],
        "files": [file] * 41,
        "scripts": [end],
    }
    text = " ".join(text_of({**receipt, "dollars": {**RECEIPT["dollars"], "estimated": 0.0}}).split())
    for part in (
        "✗ failed · 41 files · exit code 100",
        "script net · signal 9 · 1m05s · started 2 times told",
        "last lines loss 0.5 \\x1b[2Jx",
        "files m.pt · 1 byte · 0123456789ab",
        "and 1 more",
        "spent $0.50 to $0.75 · not estimated",
    ):
        assert part in text
    assert "SYNTHETIC" not in text


def test_values_are_sorted_with_a_winner_and_notes():
    end = {
        "exit_code": 0,
        "starts": 2,
        "seconds": 65.0,
        "last_lines": [],
        "notes": [],
        "best": {},
        "done": True,
    }
    score = {"metric": "mse", "better": "min"}
    told = "script.best names x"
    scripts = [
        {**end, "piece": "lr=0.3", "best": {**score, "value": 0.25}},
        {**end, "piece": "lr=0.1", "best": {**score, "value": 0.125}, "notes": [told]},
        {**end, "piece": "lr=9", "done": False, "exit_code": 1, "last_lines": ["diverged"]},
    ]
    devices = {"out_of_service": ["GPU 3: a, b, c failed there"]}
    receipt = {
        **RECEIPT,
        "work": "script",
        "models": [],
        "failed": [],
        "files": [],
        "scripts": scripts,
        "devices": devices,
    }
    text = " ".join(text_of(receipt).split())
    assert "out of service: GPU 3: a, b, c failed there" in text
    assert "winner lr=0.1 · mse 0.125 values" in text and f"1 value: {told}" in text
    assert [text.index(f" {name} ") for name in ("lr=0.1", "lr=0.3", "lr=9")] == sorted(
        text.index(f" {name} ") for name in ("lr=0.1", "lr=0.3", "lr=9")
    )
    assert "last lines of lr=9: diverged" in text


def test_trials_are_a_table_with_what_was_searched_as_columns():
    values = {"train.learning_rate": "0.003", "model.hidden": "8"}
    best = {"metric": "validation_loss", "value": 0.5, "better": "min"}
    ended = {"kind": "trial", "trial": 2, "epochs": 9, "end": "done"}
    trial = {"piece": "BTC-USD t2", "values": values, "best": best, **ended}
    trials = [
        trial,
        {**trial, "piece": "BTC-USD t1", "values": {}, "best": {}, "epochs": 0, "end": "left_out"},
    ]
    text = " ".join(text_of({**RECEIPT, "trials": trials}).split())
    assert "trial learning_rate hidden validation epochs end BTC-USD t2 0.003 8 0.50000 9 done" in text
    assert "BTC-USD t1 - - - 0 left out" in text and "2 trials: 1 done, 1 left out" in text
    assert "trials" not in text_of(RECEIPT)


def test_a_scripts_trials_are_sorted_by_its_score():
    best = {"metric": "auc", "better": "max"}
    ended = {"kind": "script", "series": [], "fold": 1, "seed": 0, "done": True, "exit_code": 0, "epochs": 3}
    ended |= {"values": {"rate": "0.1"}, "last_lines": [], "notes": [], "starts": 1, "seconds": 2.0}
    scripts = [
        {**ended, "piece": "t1", "trial": 1, "end": "pruned", "best": {**best, "value": 0.9}},
        {**ended, "piece": "t2", "trial": 2, "end": "done", "best": {**best, "value": 0.6}},
        {**ended, "piece": "t3", "trial": 3, "end": "done", "best": {**best, "value": 0.7}},
        {**ended, "piece": "t4", "trial": 4, "end": "failed", "best": {}, "last_lines": ["diverged"]},
    ]
    text = " ".join(text_of({**RECEIPT, "work": "script", "models": [], "scripts": scripts}).split())
    assert "2 of 4 trials" in text and "trial rate auc scores end t3 0.1 0.70000 3 done t2" in text
    assert "4 trials: 2 done, 1 pruned, 1 failed; the most auc is the best" in text
    assert "last lines of t4: diverged" in text and "winner" not in text


def test_the_log_of_a_boot_that_failed_is_shown():
    text = text_of({**RECEIPT, "log_tail": "bootstrap: install packages\nbootstrap: failed"})
    assert "its log   bootstrap: install packages\n            bootstrap: failed" in text


def test_the_run_that_was_continued_is_shown():
    assert "continues  run-0" in text_of({**RECEIPT, "parent": "run-0"})
    assert "continues" not in text_of(RECEIPT)


def test_the_date_that_ends_models_is_in_the_receipt():
    text = text_of(RECEIPT, days=30)
    assert "models are deleted after 2026-12-20 (retention.experiment_days = 30)" in text
    assert "mayfly pull run-1 keeps a copy" in " ".join(text.split())
    file = {"file": "m.pt", "bytes": 1, "sha256": "0123456789abcdef"}
    made = {**RECEIPT, "models": [], "work": "script", "files": [file]}
    assert "files are deleted after 2026-12-20" in text_of(made, days=30)


@pytest.mark.parametrize("changed", [{"models": []}, {"work": "prepare"}])
def test_a_receipt_has_no_date_where_nothing_is_deleted(changed):
    assert "are deleted after" not in text_of(RECEIPT)
    assert "are deleted after" not in text_of({**RECEIPT, **changed}, days=30)


def test_the_next_commands_of_an_own_model_give_its_file(tmp_path, capsys):
    file = tmp_path / "my nets" / "net.py"
    job = job_of(path="candles", **{"model.name": f"{file}:Net"})
    desk = CandleDesk(job, Console(plain=True), ExitStack(), ACCOUNT, found=SimpleNamespace(job=job))
    assert desk.looks(RECEIPT)[-1] == f"predict --run run-1 --data candles --last 5 --model-file '{file}'"


@pytest.mark.parametrize(("data", "named"), [("/my candles", True), ("s3://bucket/candles", False)])
def test_the_next_commands_are_below_a_receipt(data, named, capsys):
    arguments = build_parser().parse_args(["launch", "--rehearse", "--data", data])
    checked = SimpleNamespace(job=job_of(path="/my candles"))  # of a bucket: a copy that is gone by then
    desk = CandleDesk(
        job_of(path=data), Console(plain=True), ExitStack(), ACCOUNT, found=checked, is_fetched=not named
    )
    account: Any = SimpleNamespace(
        objects=MemoryCloud(NOW).objects, outputs=SimpleNamespace(experiment_days=0, checkpoint_days=7)
    )
    assert end_of_run(arguments, with_marks(RECEIPT), account, desk, Console(plain=True)) == 100
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("mayfly ")[1] for line in lines[2:5]] == [
        "logs run-1 --rehearse",
        "logs run-1 --metrics --rehearse",
        "pull run-1 --rehearse",
    ]
    predict = ["predict --run run-1 --data '/my candles' --last 5 --rehearse"]
    assert [line.split("mayfly ")[1] for line in lines[5:]] == (predict if named else [])


@pytest.mark.parametrize("error", [ConfigError("it is down"), RuntimeError("a fault of ours"), None])
def test_a_tracker_changes_no_exit_code(error, monkeypatch, capsys):
    def track(cloud, receipt, tracker):
        if error is not None:
            raise error
        return Tracked(tracker=tracker, where="http://there", was_there=False)

    monkeypatch.setattr("trainer.cli.verbs.launch.track", track)
    arguments = build_parser().parse_args(["launch", "--rehearse"])
    desk = CandleDesk(job_of(track="mlflow"), Console(plain=True), ExitStack(), ACCOUNT)
    outputs = SimpleNamespace(experiment_days=0, checkpoint_days=7)
    account: Any = SimpleNamespace(access=None, outputs=outputs, objects=MemoryCloud(NOW).objects)
    monkeypatch.setattr("trainer.cli.verbs.launch.AwsCloud", lambda *_: None)
    assert end_of_run(arguments, with_marks(RECEIPT), account, desk, Console(plain=True)) == 100
    said = capsys.readouterr().err
    if error is None:
        assert "\ntracked in mlflow: http://there\n" in f"\n{said}"
    elif isinstance(error, ConfigError):
        assert "note: it is down. Repeat it: " in said and "pull run-1 --track mlflow --rehearse\n" in said
    else:
        assert "RuntimeError: a fault of ours" in said


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.0, 0.0, ""),
        (1.5, 2.0, "spot saved $1.50 to $2.00 against on demand"),
        (-0.5, 2.0, "spot saved $0.00 to $2.00 against on demand"),
        (-2.0, -1.0, "spot cost $1.00 to $2.00 more than on demand would have"),
    ],
)
def test_what_spot_saved_is_one_line(low, high, text):
    assert spot_saved({"spot_saved_low": low, "spot_saved_high": high}) == text


def test_what_a_run_left_is_named():
    left = [{"kind": "volume", "id": "vol-1", "state": "available"}]
    text = text_of({**RECEIPT, "left": left})
    assert "volume vol-1 (available)" in text and "--fix deletes it" in text
    assert "doctor" not in text_of({**RECEIPT, "left": []})


def test_a_spot_request_is_cancelled_since_doctor_deletes_none():
    left = [{"kind": "spot request", "id": "sir-1", "state": "active"}]
    text = text_of({**RECEIPT, "left": left})
    assert "spot request sir-1 (active)" in text and "--fix" not in text
    assert "aws ec2 cancel-spot-instance-requests --spot-instance-request-ids sir-1" in " ".join(text.split())


def test_a_receipt_says_that_nobody_could_look_for_what_is_left():
    assert "nobody could look" in text_of({**RECEIPT, "left": None})
    assert "nobody could look" not in text_of({**RECEIPT, "left": None, "instances": []})


def test_what_trading_would_have_made_is_below_the_models():
    models = [scored("A", 1), scored("B", -1)]
    for model, sharpe in zip(models, (0.05, -0.02), strict=True):
        model["metrics"]["test"]["trading"] = {**TOLD, "sharpe": sharpe}
    text = text_of({**RECEIPT, "models": models, "failed": []}, 120)
    assert "if traded  piece            rule [95 %]  buy and hold" in text
    assert text.index("with its 95 % interval") < text.index("if traded") < text.index("with 2 models tried")
    assert "if traded" not in text_of({**RECEIPT, "models": [scored("A", 1)]}, 120)
