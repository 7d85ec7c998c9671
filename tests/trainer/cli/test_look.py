"""status, receipts, logs, pull, models and stop, as they are typed, on an account with a closed run and one
nobody watches.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from contextlib import nullcontext

import pytest

from tests.pieces import named
from tests.trainer.conftest import weights
from tests.trainer.runs.test_training_events import EPOCH, PROGRESS
from tests.trainer.store.test_verification import decision
from trainer.aws.access import own_access
from trainer.aws.objects import S3Objects
from trainer.base.errors import ConnectionFailed
from trainer.cli.verbs import models, receipts
from trainer.runs.receipt import FORMAT
from trainer.runs.store import receipt_key
from trainer.store.decisions import read_decision, write_decision

pytestmark = pytest.mark.slow  # each begins with an account in which runs have been
CLOSED_RUN, OPEN_RUN = "20261120-120000-crypto-k3v9", "20261121-120000-crypto-m4w8"


def test_status_settles_a_run_that_nobody_watches(mayfly, account):
    code, told, _ = mayfly("status", "--json")
    assert (code, [item["state"] for item in told["runs"]]) == (0, ["done", "interrupted"])
    assert account.get(key=f"runs/{OPEN_RUN}/receipt.json") is not None


def test_status_of_an_ended_run_is_what_receipts_prints(mayfly, account):
    receipt = json.loads(account.get(key=receipt_key(CLOSED_RUN)).body)
    receipt["checkpoints"] = {"snapshots": 3, "objects": 3, "bytes": 5_000_000, "usd": 0.01}
    account.put(key=receipt_key(CLOSED_RUN), body=json.dumps(receipt).encode())
    shown = mayfly("receipts", CLOSED_RUN)[1]
    assert "the newest checkpoints until" in shown and mayfly("status", CLOSED_RUN)[1] == shown


def test_status_is_a_table_and_one_run_is_its_receipt(mayfly):
    _, table, _ = mayfly("status")
    assert table.splitlines()[0].split()[:3] == ["run", "state", "phase"]
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [
        [CLOSED_RUN, "done"],
        [OPEN_RUN, "interrupted"],
    ]
    _, detail, _ = mayfly("status", OPEN_RUN)
    assert "the launcher ended before an instance was started" in detail


def test_receipts_are_listed_and_printed_one_by_one(mayfly):
    _, told, _ = mayfly("receipts", "--json")
    assert [(item["run_id"], item["exit_code"]) for item in told["receipts"]] == [
        (CLOSED_RUN, 0),
        (OPEN_RUN, 105),
    ]
    _, receipt, _ = mayfly("receipts", CLOSED_RUN, "--json")
    assert receipt["models"][0]["piece"] == "BTC-USD"
    _, text, _ = mayfly("receipts")
    assert len(text.splitlines()) == 3


def test_receipts_are_summed(mayfly):
    _, told, _ = mayfly("receipts", "--by", "month", "--json")
    assert [(one["group"], one["runs"]) for one in told["sums"]] == [("2026-11", 2)]
    _, text, _ = mayfly("receipts", "--by", "job")
    assert [line.split()[:2] for line in text.splitlines()][1:] == [["crypto", "2"], ["all", "2"]]
    assert "BTC-USD" in mayfly("receipts", "--by", "symbol")[1]
    code, _, err = mayfly("receipts", CLOSED_RUN, "--by", "month")
    assert code == 2 and "--by sums all receipts" in err


@pytest.mark.parametrize("verb", ["receipts", "status", "stop"])
def test_every_view_of_a_receipt_has_the_date_that_ends_models(mayfly, account, verb):
    code, out, _ = mayfly(verb, CLOSED_RUN)
    assert code == 0 and "models are deleted after 2027-05-19 (retention.experiment_days = 180)" in out


@pytest.mark.parametrize("verb", ["status", "receipts", "logs", "stop", "pull"])
def test_an_unknown_run_is_exit_2_with_the_nearest(mayfly, verb):
    code, _, err = mayfly(verb, "20261120-120000-crypto-k3v8")
    assert code == 2
    assert "Did you mean 20261120-120000-crypto-k3v9" in err
    code, told, _ = mayfly(verb, "20261120-120000-crypto-k3v8", "--json")
    assert told["error"]["code"] == code == 2


def test_last_and_a_part_of_an_id_name_a_run(mayfly, tmp_path):
    assert mayfly("logs", "k3v9") == (0, "booted\nstaged\ntrained\n", f"run {CLOSED_RUN}\n")
    assert mayfly("status", "last", "--json")[1]["runs"][0]["run_id"] == OPEN_RUN
    assert mayfly("receipts", "m4w8", "--json")[1]["run_id"] == OPEN_RUN
    assert mayfly("stop", "last", "--json")[1]["run_id"] == OPEN_RUN
    assert mayfly("pull", "k3", "--json", "--out", str(tmp_path / "out"))[1]["run_id"] == CLOSED_RUN
    model = mayfly("models", "pull", "k3v9/lstm_BTC-USD_1m", "--out", str(tmp_path), "--json")[1]
    assert model["run_id"] == CLOSED_RUN
    for verb in ("status", "receipts", "logs", "stop", "pull"):
        code, _, err = mayfly(verb, "crypto")
        assert code == 2 and f"'crypto' is a part of 2 runs' ids ({OPEN_RUN}, {CLOSED_RUN})" in err


def test_logs_come_in_order_and_tail_cuts(mayfly):
    assert mayfly("logs", CLOSED_RUN)[1] == "booted\nstaged\ntrained\n"
    assert mayfly("logs", CLOSED_RUN, "--tail", "2")[1] == "staged\ntrained\n"
    assert mayfly("logs", CLOSED_RUN, "--json")[1]["lines"] == ["booted", "staged", "trained"]
    assert mayfly("logs", CLOSED_RUN, "-f")[1] == "booted\nstaged\ntrained\n"
    assert mayfly("logs", CLOSED_RUN, "--tail", "-1")[0] == 2


def test_a_line_of_a_log_ends_with_a_line_feed_alone(mayfly, account):
    line = "a\u2028b\x85c\x0bd\n"
    account.put(key=f"attempts/AROA1:i-1/{CLOSED_RUN}/1/0/log/000003.log", body=f"{line}{line}".encode())
    shown = "a\\u2028b\\x85c\\x0bd\n"
    assert mayfly("logs", CLOSED_RUN, "--tail", "3")[1] == f"trained\n{shown}{shown}"
    assert mayfly("logs", CLOSED_RUN, "--json")[1]["lines"][-2:] == [line[:-1], line[:-1]]


def put_events(account, *events):
    lines = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    account.put(key=f"attempts/AROA1:i-1/{CLOSED_RUN}/1/0/metrics/000001.jsonl", body=lines)


def test_logs_with_metrics_are_the_last_epochs_of_each_model(mayfly, account):
    assert mayfly("logs", CLOSED_RUN, "--metrics")[1] == "no epoch has ended yet\n"
    put_events(
        account,
        *({**EPOCH, "epoch": number, "validation_loss": 0.7 - number / 10} for number in range(1, 6)),
        {"event": 5},
    )
    code, out, err = mayfly("logs", CLOSED_RUN, "--metrics")
    assert code == 0 and [line.split()[0] for line in out.splitlines()[1:4]] == ["BTC-USD", "4", "5"]
    assert err == "warning: left out 1 line of the metrics that can't be read\n"
    assert len(mayfly("logs", CLOSED_RUN, "--metrics", "--tail", "5")[1].splitlines()) == 7
    told = mayfly("logs", CLOSED_RUN, "--metrics", "--json")[1]
    assert told["models"]["BTC-USD"][0] == {
        "epoch": 1,
        "train_loss": 0.7,
        "validation_loss": pytest.approx(0.6),
    }
    assert mayfly("logs", CLOSED_RUN, "--metrics", "-f")[0] == 2


def test_pull_writes_events_and_tensorboard_in_its_folder_only(mayfly, account, tmp_path):
    put_events(account, EPOCH, {**EPOCH, "model": "../../../evil"}, PROGRESS)
    code, out, err = mayfly("pull", CLOSED_RUN, "--out", str(tmp_path / "out"))
    assert code == 0 and str(tmp_path / "out" / "observed") in out.splitlines()
    assert f"tensorboard --logdir {tmp_path / 'out' / 'observed' / 'tensorboard'}" in err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out/observed/tensorboard").iterdir()] == [EPOCH["model"]]
    assert (tmp_path / "out/events.jsonl").read_bytes().count(b"\n") == 3


def test_pull_writes_models_receipt_and_log(mayfly, tmp_path):
    code, told, _ = mayfly("pull", CLOSED_RUN, "--out", str(tmp_path / "out"), "--json")
    assert code == 0
    assert sorted(told["files"]) == ["log.txt", "lstm_BTC-USD_1m.safetensors", "receipt.json", "report.html"]
    body = (tmp_path / "out" / "lstm_BTC-USD_1m.safetensors").read_bytes()
    assert hashlib.sha256(body).hexdigest() == told["models"][0]["sha256"]
    assert json.loads((tmp_path / "out" / "receipt.json").read_text())["run_id"] == CLOSED_RUN
    assert (tmp_path / "out" / "log.txt").read_text() == "booted\nstaged\ntrained\n"


def test_models_are_listed_and_pulled(mayfly, tmp_path):
    _, told, _ = mayfly("models", "list", "--json")
    assert [(item["name"], item["run_id"]) for item in told["models"]] == [("lstm_BTC-USD_1m", CLOSED_RUN)]
    assert "log loss 0.6912" in mayfly("models", "list")[1]
    code, out, _ = mayfly("models", "pull", "lstm_BTC-USD_1m", "--out", str(tmp_path))
    assert code == 0
    assert out.strip() == str(tmp_path / "lstm_BTC-USD_1m.safetensors")


def test_a_pulled_log_has_no_control_characters(mayfly, account, tmp_path):
    evil = "\x1b]0;owned\x07\x1b[2K\r\u202e\x9b31m last\n"
    account.put(key=f"attempts/AROA1:i-1/{CLOSED_RUN}/1/0/log/000003.log", body=evil.encode())
    assert mayfly("pull", CLOSED_RUN, "--out", str(tmp_path))[0] == 0
    log = (tmp_path / "log.txt").read_text()
    assert log.endswith("\\x9b31m last\n") and all(item.isprintable() or item == "\n" for item in log)


def test_a_model_is_promoted_by_hand_and_taken_back(mayfly, account, monkeypatch):
    code, out, err = mayfly("models", "promote", "k3v9/lstm_BTC-USD_1m")
    assert (code, out) == (0, f"lstm_BTC-USD_1m of run {CLOSED_RUN} is in production\n")
    assert "rollback" not in err  # there is nothing to go back to
    assert mayfly("models", "rollback", "lstm_BTC-USD_1m")[0] == 2
    account.put(key="models/production/main/lstm_BTC-USD_1m.safetensors", body=b"another")
    monkeypatch.setattr("trainer.cli.verbs.models.connected", lambda **_: nullcontext(own_access()))
    err = mayfly("models", "promote", "k3v9/lstm_BTC-USD_1m", "--rehearse")[2]
    assert err.endswith("to take it back: mayfly models rollback main/lstm_BTC-USD_1m --rehearse\n")
    assert mayfly("models", "rollback", "main/lstm_BTC-USD_1m")[0] == 0
    assert account.get(key="models/production/main/lstm_BTC-USD_1m.safetensors").body == b"another"
    mayfly("models", "promote", "k3v9/lstm_BTC-USD_1m")
    told = mayfly("models", "promote", "lstm_BTC-USD_1m", "--json")[1]
    assert (told["promoted"], told["run_id"], told["name"]) == (False, CLOSED_RUN, "main/lstm_BTC-USD_1m")
    assert mayfly("models", "production", "--json")[1]["production"][0]["version_id"] == told["version_id"]
    code, _, err = mayfly("models", "promote", f"{OPEN_RUN}/lstm_BTC-USD_1m")
    assert code == 2 and "no model" in err


@pytest.mark.parametrize("decided", [True, False], ids=["decided", "never decided"])
def test_what_was_cut_off_before_its_note_ends_when_repeated(mayfly, account, monkeypatch, decided):
    key, name = "models/production/main/lstm_BTC-USD_1m.safetensors", "main/lstm_BTC-USD_1m"
    account.put(key=key, body=b"another")
    if decided:
        write_decision(account, decision(hashlib.sha256(b"another").hexdigest(), name=name))
    for words in (["promote", "k3v9/lstm_BTC-USD_1m"], ["rollback", name]):
        with monkeypatch.context() as network:
            network.setattr("trainer.store.decisions.write_decision", cut_off)
            assert mayfly("models", *words)[0] == 103
        there = account.get(key=key).body
        assert mayfly("models", *words)[0] == 0
        assert account.get(key=key).body == there
        assert read_decision(account, name).winner == hashlib.sha256(there).hexdigest()
    assert there == b"another"
    assert mayfly("models", "rollback", name)[0] == 0  # that is another one
    assert account.get(key=key).body != there


def test_a_note_is_about_the_model_that_its_command_put(mayfly, account, monkeypatch):
    """Control's gate replaces a model between a person's copy and the note about it."""
    key, name = "models/production/main/lstm_BTC-USD_1m.safetensors", "main/lstm_BTC-USD_1m"
    account.put(key=key, body=b"another")
    note, by_gate = models.note_by_hand, hashlib.sha256(b"the gate's").hexdigest()

    def overtaken(*asked, **named):
        account.put(key=key, body=b"the gate's")
        write_decision(account, decision(by_gate, name=name))
        note(*asked, **named)

    monkeypatch.setattr(models, "note_by_hand", overtaken)
    for words in (["promote", "k3v9/lstm_BTC-USD_1m"], ["rollback", name]):
        assert mayfly("models", *words)[0] == 0
        assert (made := read_decision(account, name)) == decision(by_gate, name=name), made


def test_a_rollback_without_a_decision_is_repeated_safely(mayfly, account, monkeypatch):
    """The second one would put the rejected model back: an earlier Mayfly noted no promotions."""
    key, name = "models/production/main/lstm_BTC-USD_1m.safetensors", "main/lstm_BTC-USD_1m"
    for body in (b"good", b"rejected"):
        account.put(key=key, body=body)
    with monkeypatch.context() as network:
        network.setattr("trainer.store.decisions.write_decision", cut_off)
        assert mayfly("models", "rollback", name)[0] == 103
    assert mayfly("models", "rollback", name)[0] == 0
    assert account.get(key=key).body == b"good"
    assert read_decision(account, name).winner == hashlib.sha256(b"good").hexdigest()


def cut_off(*_):
    raise ConnectionFailed("cannot write the decision", do="Try again.")


def test_a_production_model_is_verified_and_told_apart(mayfly, account):
    assert mayfly("models", "verify")[1] == "no production models yet\n"
    mayfly("models", "promote", "k3v9/lstm_BTC-USD_1m")
    code, out, _ = mayfly("models", "verify", "main/lstm_BTC-USD_1m")
    assert code == 0 and "by hand" in out
    assert (
        mayfly("models", "diff", "lstm_BTC-USD_1m", "k3v9/lstm_BTC-USD_1m")[1]
        == "their cards differ in nothing\n"
    )
    code, _, err = mayfly("models", "diff", "lstm_BTC-USD_1m")
    assert code == 2 and "there is nothing to compare main/lstm_BTC-USD_1m with" in err
    write_decision(account, decision("ab" * 32, name="main/lstm_BTC-USD_1m"))
    code, out, _ = mayfly("models", "verify")
    assert code == 100 and "left model abababababab" in " ".join(out.split())
    (told,) = mayfly("models", "verify", "--json")[1]["models"]
    assert told["name"] == "main/lstm_BTC-USD_1m" and len(told["flaws"]) == 1
    shown = mayfly("models", "production")[1]
    assert "main/lstm_BTC-USD_1m: promoted on 2026-11-22 03:00 UTC" in shown and "log loss gains" in shown
    assert mayfly("models", "production", "--json")[1]["decisions"]["main/lstm_BTC-USD_1m"]["challenge"] == 1


def test_a_diff_takes_a_model_or_a_version(mayfly, account):
    mayfly("models", "promote", "k3v9/lstm_BTC-USD_1m")
    words = ("lstm_BTC-USD_1m", "k3v9/lstm_BTC-USD_1m", "--version", "v1")
    code, _, err = mayfly("models", "diff", *words)
    assert code == 2 and "k3v9/lstm_BTC-USD_1m and --version don't go together" in err


def test_a_model_whose_bytes_are_not_the_receipts_stays_out(mayfly, account):
    receipt = json.loads(account.get(key=f"runs/{CLOSED_RUN}/receipt.json").body)
    receipt["models"][0]["sha256"] = "0" * 64
    account.put(key=f"runs/{CLOSED_RUN}/receipt.json", body=json.dumps(receipt).encode())
    code, _, err = mayfly("models", "promote", "lstm_BTC-USD_1m")
    assert code == 103 and "its bytes have another sha256 than its receipt says" in err
    assert mayfly("models", "production")[1] == "no production models yet\n"


@pytest.mark.parametrize("action", ["verify", "production"])
def test_all_production_models_are_found_in_one_listing(mayfly, account, monkeypatch, action):
    for symbol in "ABC":
        account.put(
            key=f"models/production/main/lstm_{symbol}_1m.safetensors", body=weights(f"lstm_{symbol}_1m")
        )
    listed = []
    for name in ("list", "history"):
        was = getattr(S3Objects, name)

        def counting(self, *, prefix, was=was, **more):
            listed.append(prefix)
            return was(self, prefix=prefix, **more)

        monkeypatch.setattr(S3Objects, name, counting)
    code, out, _ = mayfly("models", action)
    assert code == 0 and [f"main/lstm_{symbol}_1m" in out for symbol in "ABC"] == [True] * 3
    assert listed == ["models/production/"]


@pytest.mark.parametrize("name", ["../x", "none", "a/../../b"])
def test_versions_of_no_production_model_are_refused(mayfly, name):
    code, _, err = mayfly("models", "production", name)
    assert code == 2 and err.startswith(f"error: there is no production model '{name}'.")


NAMED_BY = (
    "status", "logs", "stop", "pull", "receipts", "models pull", "models promote", "models rollback", "models production",
    "models verify", "models diff",
    "predict --data . --run", "predict --data .", "retrains history", "retrains preview", "retrains run", "retrains pause",
)  # fmt: skip


def test_a_name_that_a_verb_is_given_leads_nowhere_else(mayfly, tmp_path, monkeypatch):
    """Names are looked up among those that are there, or refused: no key and no path is made of one."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    asked = []
    for method in ("get", "head", "put"):
        right = getattr(S3Objects, method)
        spy = lambda self, right=right, **named: asked.append(named["key"]) or right(self, **named)  # noqa: E731
        monkeypatch.setattr(S3Objects, method, spy)
    for verb, name in itertools.product(NAMED_BY, ("../x", "/etc/passwd")):
        code, out, err = mayfly(*verb.split(), name)
        assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1, (
            verb,
            name,
            out,
            err,
        )
    assert asked and not [key for key in asked if ".." in key or "passwd" in key]
    assert not list((tmp_path / "empty").iterdir())


def test_predict_names_a_model_of_a_run_and_no_copy_of_it(mayfly, candles):
    code, _, err = mayfly("predict", "--run", "k3v9", "--data", str(candles))
    assert code == 2 and "lstm_BTC-USD_1m.safetensors" in err and "/tmp/" not in err


def test_a_stopped_run_has_a_receipt_and_stops_once(mayfly):
    code, receipt, _ = mayfly("stop", OPEN_RUN, "--json")
    assert (code, receipt["state"], receipt["exit_code"]) == (0, "stopped", 130)
    code, again, err = mayfly("stop", OPEN_RUN, "--json")
    assert (code, again) == (0, receipt)
    assert "has ended already" in err


DAMAGED_RECEIPTS = (
    b"\xff",
    b"[" * 200_000,
    json.dumps({"format": FORMAT, "run_id": OPEN_RUN, "state": "done"}).encode(),  # another run's
    json.dumps({"format": FORMAT, "run_id": CLOSED_RUN, "state": 5}).encode(),
    b"",
)


def test_a_damaged_receipt_is_one_line_beside_other_runs(mayfly, account):
    for body in DAMAGED_RECEIPTS:
        account.put(key=f"runs/{CLOSED_RUN}/receipt.json", body=body)
        code, told, _ = mayfly("status", "--json")
        assert (code, [item["state"] for item in told["runs"]]) == (103, ["unreadable", "interrupted"])
        code, _, err = mayfly("receipts", CLOSED_RUN)
        assert code == 103 and f"cannot read the receipt of run {CLOSED_RUN}" in err
    for words, shown in (("status", OPEN_RUN), ("receipts", OPEN_RUN), ("models list", "no models yet")):
        code, out, err = mayfly(*words.split())
        assert code == 103 and shown in out
        assert err.count("\n") == 1 and f"cannot read the receipt of run {CLOSED_RUN}" in err
    for verb in ("status", "stop", "pull"):
        code, _, err = mayfly(verb, CLOSED_RUN)
        assert code == 103 and f"cannot read the receipt of run {CLOSED_RUN}" in err


def test_a_damaged_record_is_one_line_beside_other_runs(mayfly, account):
    spoiled = "20261119-120000-crypto-bad1"
    record = json.loads(account.get(key=f"runs/{CLOSED_RUN}/run.json").body)
    changes = ({"deadline": 5}, {"ladder": {}}, {"run_id": OPEN_RUN}, {"budget_usd": "much"}, {"format": []})
    for change in changes:
        account.put(
            key=f"runs/{spoiled}/run.json",
            body=json.dumps({**record, "run_id": spoiled, "state": "running", **change}).encode(),
        )
        code, told, _ = mayfly("status", "--json")
        states = [item["state"] for item in told["runs"]]
        assert (code, states) == (103, ["unreadable", "done", "interrupted"]), change
        code, out, err = mayfly("receipts")
        assert code == 103 and len(out.splitlines()) == 3, change
        assert f"cannot read the record of run {spoiled}" in err, change
        assert mayfly("stop", spoiled)[0] == mayfly("logs", spoiled)[0] == 103, change


@pytest.mark.parametrize(
    "name", ["..", ".bashrc", "Makefile", "/etc/passwd", "a/../../b.safetensors", ".a.safetensors"]
)
def test_nothing_is_pulled_under_a_name_that_is_not_a_models(mayfly, account, tmp_path, name):
    receipt = json.loads(account.get(key=f"runs/{CLOSED_RUN}/receipt.json").body)
    receipt["models"][0]["key"] = f"models/experiments/AROA1:i-1/{CLOSED_RUN}/1/{name}"
    account.put(key=f"runs/{CLOSED_RUN}/receipt.json", body=json.dumps(receipt).encode())
    code, _, err = mayfly("pull", CLOSED_RUN, "--out", str(tmp_path / "a" / "b"))
    assert code == 103 and "cannot read the receipt" in err
    assert list(tmp_path.iterdir()) == []


def test_terminal_codes_are_escaped_in_logs_receipts_and_lists(mayfly, account, tmp_path):
    evil = "\x1b]0;owned\x07\x1b[2K\r\u202e\x9b31m"
    account.put(key=f"attempts/AROA1:i-1/{CLOSED_RUN}/1/0/log/000003.log", body=f"{evil} last\n".encode())
    receipt = json.loads(account.get(key=f"runs/{CLOSED_RUN}/receipt.json").body)
    receipt["models"][0]["piece"] = receipt["models"][0]["family"] = receipt["note"] = evil
    receipt["models"][0]["metrics"]["about"]["metrics"]["auc"]["title"] = evil
    receipt["instances"] = [
        {
            **dict.fromkeys(("instance_id", "instance_type", "market", "availability_zone", "state"), evil),
            "price_usd_per_hour": 1,
        }
    ]
    receipt["failed"] = [{**named("A"), "reason": f"{evil}\n  outcome   ✓ done"}]
    account.put(key=f"runs/{CLOSED_RUN}/receipt.json", body=json.dumps(receipt).encode())
    for words in (("logs",), ("status",), ("receipts",), ("pull", "--out", str(tmp_path / "out"))):
        out, err = mayfly(words[0], CLOSED_RUN, *words[1:])[1:]
        assert all(letter.isprintable() or letter == "\n" for letter in out + err)
    assert "\\x1b]0;owned" in mayfly("logs", CLOSED_RUN)[1]
    (outcome,) = [
        line for line in mayfly("receipts", CLOSED_RUN)[1].splitlines() if line.startswith("  outcome")
    ]
    assert outcome.endswith("exit code 0")
    for words in ("status", "receipts", "models list"):
        out, err = mayfly(*words.split())[1:]
        assert all(letter.isprintable() or letter == "\n" for letter in out + err)


def test_a_report_is_written_and_opened_where_there_is_a_screen(mayfly, account, tmp_path, monkeypatch):
    opened: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(receipts.webbrowser, "open", opened.append)
    screens = iter((False, True))
    monkeypatch.setattr(receipts, "has_screen", lambda: next(screens))
    path = tmp_path / CLOSED_RUN / "report.html"
    code, out, _ = mayfly("receipts", CLOSED_RUN, "--open")
    assert (code, out, opened) == (0, f"{CLOSED_RUN}/report.html\n", [])
    assert account.get(key=f"runs/{CLOSED_RUN}/report.html").body == path.read_bytes()
    assert mayfly("receipts", CLOSED_RUN, "--open", "--json")[1]["report"] == f"{CLOSED_RUN}/report.html"
    assert opened == [path.as_uri()]
    assert mayfly("receipts", "--open")[0] == 2
