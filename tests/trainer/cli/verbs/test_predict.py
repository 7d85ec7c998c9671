"""predict, as it is typed and from Python: one table for many models, and one line for each mistake, before
AWS is asked.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainer
from tests.models import SETTINGS, make_model
from trainer.base.errors import UsageError
from trainer.cli.main import main
from trainer.cli.verbs import predict as verb
from trainer.data.features import FEATURES
from trainer.data.read.reading import read_candles
from trainer.models import MODELS
from trainer.targets import TARGETS
from trainer.train.predict.symbols import Predictions

BTC = "lstm-direction_BTC-USD_1m"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("models")
    for seed, symbol in enumerate(("BTC-USD", "ETH-USD")):
        make_model(folder / f"lstm-direction_{symbol}_1m.safetensors", symbols=(symbol,), seed=seed)
    return folder


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a verb asks for AWS, embedded or not."""

    def connected(**_: Any) -> Any:
        raise AssertionError("AWS was asked")

    monkeypatch.setattr("trainer.cli.connect.connected", connected)
    monkeypatch.setattr("trainer.cli.verbs.launch.connected", connected)


def test_a_folder_of_models_is_one_table_in_python_too(models, candles, capsys, no_aws):
    assert main(["predict", str(models), "--data", str(candles), "--last", "3"]) == 0
    out = capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == ["model", "symbol", "bar", "available_at", "probability"]
    assert [row["symbol"] for row in rows] == ["BTC-USD"] * 3 + ["ETH-USD"] * 3
    assert rows[0]["model"] == "lstm-direction_BTC-USD_1m"
    table = trainer.predict(models, data=candles, last=3)
    assert list(table.columns) == list(rows[0]) and str(table["bar"].dtype) == "datetime64[ns, UTC]"
    for name in ("bar", "available_at"):
        table[name] = table[name].dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert table.to_csv(index=False) == out
    assert main(["predict", str(models), "--data", str(candles), "--last", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"] == table.to_dict("records")


def test_a_macs_hidden_files_beside_models_are_left_out(models, candles, tmp_path, capsys, no_aws):
    """A Mac puts `._NAME` beside NAME in archives, and on disks and shares without its attributes."""
    for path in models.glob("*.safetensors"):
        shutil.copy(path, tmp_path)
        (tmp_path / f"._{path.name}").write_bytes(b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X")
    assert main(["predict", str(tmp_path), "--data", str(candles), "--last", "1"]) == 0
    assert capsys.readouterr().out.count("\n") == 3


def test_symbols_without_bars_are_named_and_are_no_error(models, candles, tmp_path, capsys, no_aws):
    only = tmp_path / "ETH-USD_1m.parquet"
    only.write_bytes((candles / only.name).read_bytes())
    assert main(["predict", str(models), "--data", str(tmp_path), "--last", "1"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert err.startswith(f"left out: lstm-direction_BTC-USD_1m: {tmp_path} holds no bars of BTC-USD.")
    with pytest.warns(UserWarning, match="holds no bars of BTC-USD"):
        assert list(trainer.predict(models, data=tmp_path, last=1)["symbol"]) == ["ETH-USD"]


def test_bars_made_from_shorter_ones_are_named_once(candles, tmp_path, capsys, no_aws):
    for name, features in (
        ("few", ["log_return_1"]),
        ("some", ["log_return_1", "rsi_14"]),
    ):  # read apart: other inputs
        make_model(tmp_path / f"{name}.safetensors", symbols=("BTC-USD",), features=features, timeframe="5m")
    assert main(["predict", str(tmp_path), "--data", str(candles), "--last", "1"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert err == "note: BTC-USD: bars of 5m are made from bars of 1m\n"
    with pytest.warns(UserWarning, match="^BTC-USD: bars of 5m are made from bars of 1m$"):
        trainer.predict(tmp_path, data=candles, last=1)


def test_files_of_other_symbols_are_not_noted(models, candles, tmp_path, capsys, no_aws):
    for symbol, header in (("BTC-USD", "volume"), ("ETH-USD", "other"), ("SOL-USD", "other")):
        bars = read_candles(candles, symbols=("BTC-USD",))["BTC-USD"]
        prices = zip(bars.timestamp // 10**9, bars.open, bars.high, bars.low, bars.close, strict=True)
        lines = "".join(f"{','.join(map(str, row))},1\n" for row in prices)
        (tmp_path / f"{symbol}_1m.csv").write_text(f"time,open,high,low,close,{header}\n{lines}")
    assert main(["predict", str(models), "--data", str(tmp_path), "--last", "1"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "note: ETH-USD_1m.csv: there is no volume, so it counts as zero",
        "note: BTC-USD_1m.csv, ETH-USD_1m.csv: times are epoch numbers in s",
    ]


def test_a_symbol_may_be_written_with_a_slash(models, candles):
    assert list(trainer.predict(models, data=candles, symbols=["ETH/USD"], last=1)["symbol"]) == ["ETH-USD"]


def test_a_damaged_model_beside_others_sets_the_exit_code(models, candles, tmp_path, capsys, no_aws):
    (tmp_path / "bad.safetensors").write_bytes(b"short")
    words = [str(models), str(tmp_path / "bad.safetensors"), "--data", str(candles), "--last", "1", "--json"]
    assert main(["predict", *words]) == 2
    told = json.loads(capsys.readouterr().out)
    assert len(told["predictions"]) == 2
    assert [(item["model"], item["code"]) for item in told["problems"]] == [("bad", 2)]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["NAME", "--data", "/nope"], "data folder /nope does not exist."),
        (["nowhere.safetensors", "--data", "."], "model nowhere.safetensors does not exist."),
        (["./nowhere", "--data", "."], "model nowhere does not exist."),
        (["/nope/models/", "--data", "."], "model /nope/models does not exist."),
        ([".", "--data", "."], "folder . holds no models"),
        (["notes.txt", "--data", "."], "notes.txt is not a model"),
        (["--data", "."], "predict takes MODEL or --run RUN (neither was given)."),
        (["NAME", "--run", "RUN", "--data", "."], "predict takes MODEL or --run RUN (both were given)."),
        (
            ["MODELS", "MODELS/lstm-direction_BTC-USD_1m.safetensors", "--data", "."],
            "two models are called lstm-direction_BTC-USD_1m",
        ),
        (["MODELS", "--data", "."], "data folder . holds no candles"),
    ],
)
def test_each_mistake_is_one_line_and_no_aws_is_asked(
    words, line, models, tmp_path, monkeypatch, capsys, no_aws
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("nothing")
    assert main(["predict", *(word.replace("MODELS", str(models)) for word in words)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith(f"error: {line}")


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ("/nope", "data folder /nope does not exist."),
        (
            "empty",
            "data folder empty holds no candles (no file ends in .parquet, .pq, .feather, .arrow, .csv, .csv.gz, .txt).",
        ),
        ("AAPL.xlsx", "AAPL.xlsx is not a candle file"),
        ("a" * 300, f"cannot read {'a' * 300} (File name too long)."),
    ],
)
def test_a_launch_without_usable_data_starts_nothing(data, line, monkeypatch, tmp_path, capsys, no_aws):
    def started(*_: Any) -> Any:
        raise AssertionError("the data check was started")

    monkeypatch.setattr("trainer.cli.sources.desk.CheckChild", started)
    monkeypatch.setenv("MAYFLY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty" / ".hidden").mkdir(parents=True)
    for name in ("AAPL.xlsx", "empty/.hidden/AAPL_1d.csv", "empty/._AAPL_1d.csv"):
        (tmp_path / name).write_text("")
    assert main(["launch", "--rehearse", "--data", data]) == 2
    assert capsys.readouterr().err.startswith(f"error: {line}")
    assert not (tmp_path / "home").exists()


def test_python_gets_the_errors_of_the_command(candles):
    with pytest.raises(UsageError, match="model nowhere.safetensors does not exist"):
        trainer.predict("nowhere.safetensors", data=candles)


def test_a_name_means_the_newest_finished_model(account, candles, capsys):
    assert main(["predict", "lstm_BTC-USD_1m", "--data", str(candles)]) == 2  # its weights are none
    name, error = capsys.readouterr().err.splitlines()
    assert name == (
        "model lstm_BTC-USD_1m of run 20261120-120000-crypto-k3v9 (done, 2026-11-20 12:06 UTC); "
        "experiments expire, this one after 2027-05-19"
    )
    assert error.startswith("error: ") and "has a card that can't be used" in error


def test_a_run_that_is_not_there_is_named_with_the_nearest(account, candles, capsys):
    assert main(["predict", "--run", "20261120-120000-crypto-k3v8", "--data", str(candles)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(
        "error: no run '20261120-120000-crypto-k3v8'. Did you mean 20261120-120000-crypto-k3v9"
    )


def few(rows: int) -> Predictions:
    times = np.arange(rows, dtype=np.int64) * 60_000_000_000
    values = {"probability": np.full(rows, 0.123456789)}
    ends = times + 60_000_000_000
    return Predictions(
        model="lstm-direction_A_1m", symbol="A", bar=times, available_at=ends, columns=values, synthetic=False
    )


def test_at_a_terminal_few_rows_are_a_table_and_many_are_csv(monkeypatch, capsys):
    monkeypatch.setattr(verb, "is_terminal", lambda stream: True)
    verb._write(iter([few(2), few(1)]))
    head, first, *more = capsys.readouterr().out.splitlines()
    assert head.split() == ["model", "symbol", "bar", "available_at", "probability"] and len(more) == 2
    assert first.split()[1:] == ["A", "1970-01-01T00:00:00Z", "1970-01-01T00:01:00Z", "0.12346"]
    verb._write(iter([few(verb.MOST_DRAWN), few(1), few(2)]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "model,symbol,bar,available_at,probability" and len(lines) == 1 + verb.MOST_DRAWN + 3
    assert lines[1].endswith(",0.123456789")


def make_agent(folder: Path) -> None:
    target, model = TARGETS["position"](), MODELS["lstm"](**SETTINGS["lstm"])
    make_model(
        folder / "lstm-position_BTC-USD_1m.safetensors",
        target=target.name,
        symbols=("BTC-USD",),
        target_settings=target.card_keys(),
        architecture=model.architecture(features=len(FEATURES), outputs=target.outputs),
    )


@pytest.mark.parametrize(("held", "column"), [("0", "held_0"), ("-1", "held_-1"), ("0.9", "held_1")])
def test_an_agent_says_what_to_hold_next(held, column, tmp_path, candles, capsys, no_aws):
    make_agent(tmp_path)
    whole = trainer.predict(tmp_path, data=candles)
    assert list(whole.columns[4:]) == ["held_-1", "held_0", "held_1"]
    assert whole.iloc[:, 4:].isin([-1.0, 0.0, 1.0]).all(axis=None)
    assert main(["predict", str(tmp_path), "--data", str(candles), "--held", held]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row["bar"] == whole["bar"].iloc[-1].strftime("%Y-%m-%dT%H:%M:%SZ")
    assert float(row["position"]) == whole[column].iloc[-1]
    assert float(row["trade"]) == float(row["position"]) - float(held)


def test_what_is_held_is_for_agents_and_within_their_positions(models, tmp_path, candles, capsys, no_aws):
    assert main(["predict", str(models), "--data", str(candles), "--held", "0"]) == 2
    assert "says nothing of what to hold" in capsys.readouterr().err
    make_agent(tmp_path)
    for held in ("2", "nan"):
        assert main(["predict", str(tmp_path), "--data", str(candles), "--held", held]) == 2
        assert "beyond the agent's positions" in capsys.readouterr().err
