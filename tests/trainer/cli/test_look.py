"""status, receipts, logs, pull, models and stop, as they are typed, on an account with a closed run and one nobody watches."""

from __future__ import annotations

import hashlib
import json

import pytest

from trainer.cli.main import main

pytestmark = pytest.mark.slow  # each begins with an account in which runs have been
CLOSED_RUN, OPEN_RUN = "20261120-120000-crypto-k3v9", "20261121-120000-crypto-m4w8"


@pytest.fixture
def mayfly(account, capsys):
    """Run one command and return its exit code, its stdout (read as JSON with --json) and its stderr."""

    def call(*words: str):
        code = main(list(words))
        out, err = capsys.readouterr()
        return code, json.loads(out) if "--json" in words else out, err

    return call


def test_status_settles_a_run_that_nobody_watches_and_tells_the_truth(mayfly, account):
    code, told, _ = mayfly("status", "--json")
    assert code == 0
    assert [(item["run_id"], item["state"]) for item in told["runs"]] == [(CLOSED_RUN, "done"), (OPEN_RUN, "interrupted")]
    assert account.get(key=f"runs/{OPEN_RUN}/receipt.json") is not None


def test_status_is_a_table_and_one_run_is_its_receipt(mayfly):
    _, table, _ = mayfly("status")
    assert table.splitlines()[0].split()[:3] == ["run", "state", "instance"]
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [[CLOSED_RUN, "done"], [OPEN_RUN, "interrupted"]]
    _, detail, _ = mayfly("status", OPEN_RUN)
    assert "the launcher ended before an instance was started" in detail


def test_receipts_are_listed_and_printed_one_by_one(mayfly):
    _, told, _ = mayfly("receipts", "--json")
    assert [(item["run_id"], item["exit_code"]) for item in told["receipts"]] == [(CLOSED_RUN, 0), (OPEN_RUN, 105)]
    _, receipt, _ = mayfly("receipts", CLOSED_RUN, "--json")
    assert receipt["models"][0]["symbol"] == "BTC-USD"
    _, text, _ = mayfly("receipts")
    assert len(text.splitlines()) == 3


@pytest.mark.parametrize("verb", ["status", "receipts", "logs", "stop", "pull"])
def test_an_unknown_run_is_exit_2_with_the_nearest(mayfly, verb):
    code, _, err = mayfly(verb, "20261120-120000-crypto-k3v8")
    assert code == 2
    assert "Did you mean 20261120-120000-crypto-k3v9" in err
    code, told, _ = mayfly(verb, "20261120-120000-crypto-k3v8", "--json")
    assert told["error"]["code"] == code == 2


def test_logs_come_in_order_and_tail_cuts(mayfly):
    assert mayfly("logs", CLOSED_RUN)[1] == "booted\nstaged\ntrained\n"
    assert mayfly("logs", CLOSED_RUN, "--tail", "2")[1] == "staged\ntrained\n"
    assert mayfly("logs", CLOSED_RUN, "--json")[1]["lines"] == ["booted", "staged", "trained"]
    assert mayfly("logs", CLOSED_RUN, "-f")[1] == "booted\nstaged\ntrained\n"
    assert mayfly("logs", CLOSED_RUN, "--tail", "-1")[0] == 2


def test_pull_writes_models_receipt_and_log(mayfly, tmp_path):
    code, told, _ = mayfly("pull", CLOSED_RUN, "--out", str(tmp_path / "out"), "--json")
    assert code == 0
    assert sorted(told["files"]) == ["log.txt", "lstm_BTC-USD_1m.safetensors", "receipt.json"]
    body = (tmp_path / "out" / "lstm_BTC-USD_1m.safetensors").read_bytes()
    assert hashlib.sha256(body).hexdigest() == told["models"][0]["sha256"]
    assert json.loads((tmp_path / "out" / "receipt.json").read_text())["run_id"] == CLOSED_RUN
    assert (tmp_path / "out" / "log.txt").read_text() == "booted\nstaged\ntrained\n"


def test_models_are_listed_and_pulled(mayfly, tmp_path):
    _, told, _ = mayfly("models", "list", "--json")
    assert [(item["name"], item["run_id"]) for item in told["models"]] == [("lstm_BTC-USD_1m", CLOSED_RUN)]
    assert "AUC 0.5300" in mayfly("models", "list")[1]
    code, out, _ = mayfly("models", "pull", "lstm_BTC-USD_1m", "--out", str(tmp_path))
    assert code == 0
    assert out.strip() == str(tmp_path / "lstm_BTC-USD_1m.safetensors")


def test_stopping_a_run_ends_it_with_a_receipt_and_stopping_it_again_says_so(mayfly):
    code, receipt, _ = mayfly("stop", OPEN_RUN, "--json")
    assert (code, receipt["state"], receipt["exit_code"]) == (0, "stopped", 130)
    code, again, err = mayfly("stop", OPEN_RUN, "--json")
    assert (code, again) == (0, receipt)
    assert "has ended already" in err
