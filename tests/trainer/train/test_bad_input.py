"""Bad symbols among good, through the command: each is reported by name, and the others are trained."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs import sets
from trainer.store.card import Card, read_card
from trainer.train.__main__ import main

SECONDS = 500
SMALL = ("--device", "cpu", "--epochs", "1", *sets("model.hidden=4", "train.batch=64", "model.lookback=20"))
Change = Callable[[dict[str, np.ndarray]], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The answer of a training: by symbol where an event has one."""

    exit_code: int
    stderr: str
    done: Mapping[str, dict[str, Any]]
    reasons: Mapping[str, str]
    events: list[dict[str, Any]]
    out: Path

    def card(self, symbol: str) -> Card:
        return read_card(self.out / self.done[symbol]["file"])


def run(python: list[str], data: Path, folder: Path, *arguments: str) -> Outcome:
    command = [*python, "-m", "trainer.train", "--data", str(data), "--out", str(folder / "out")]
    command += ["--events", str(folder / "events"), *SMALL, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    events = [json.loads(line) for line in (folder / "events" / "events.jsonl").read_text().splitlines()]
    return Outcome(
        exit_code=process.returncode,
        stderr=process.stderr,
        done={event["piece"]: event for event in events if event["event"] == "model_done"},
        reasons={event["piece"]: event["reason"] for event in events if event["event"] == "model_failed"},
        events=events,
        out=folder / "out",
    )


@pytest.fixture
def candles(tmp_path: Path, write_candles: Any) -> Callable[..., None]:
    """Return a function that writes a symbol's candles, changed by hand, and the folder they go to is
    `tmp_path / "data"`.
    """
    folder = tmp_path / "data"
    folder.mkdir()

    def write(symbol: str, change: Change | None = None, *, bars: int = 1000, seed: int = 0) -> None:
        path = write_candles(folder, symbol, bars=bars, seed=seed)
        if change is not None:
            table = pq.read_table(path)
            columns = {name: table[name].to_numpy().copy() for name in table.column_names}
            change(columns)
            pq.write_table(pa.table(columns), path)

    return write


def still_volume(columns: dict[str, np.ndarray]) -> None:
    columns["volume"][:] = 5.0


def impossible_volume(columns: dict[str, np.ndarray]) -> None:
    columns["volume"][600:] = 1e308


def rising(columns: dict[str, np.ndarray]) -> None:
    close = 100 * np.exp(1e-4 * np.arange(len(columns["close"])))
    columns.update(open=close, high=close * 1.0001, low=close / 1.0001, close=close)


def nan_close(columns: dict[str, np.ndarray]) -> None:
    columns["close"][500] = np.nan


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sequential", pytest.param("fused", marks=pytest.mark.nightly)])
def test_bad_symbols_are_reported_and_the_others_trained(candles, tmp_path, strategy, python):
    candles("GOOD-USD", seed=1)
    candles("STILL-USD", still_volume, seed=2)
    candles("HUGE-USD", impossible_volume, seed=3)
    candles("RISE-USD", rising)
    candles("SHORT-USD", bars=600, seed=4)  # windows, but fewer than a batch
    candles("TINY-USD", bars=100, seed=5)
    candles("OTHER-USD", seed=6)
    pack = ("--workers", "1", *sets("expert.pack=4", f"expert.strategy={strategy}", "train.batch=300"))
    found = run(python, tmp_path / "data", tmp_path / "all", *pack)
    assert found.exit_code == 100
    assert set(found.done) == {"GOOD-USD", "STILL-USD", "OTHER-USD"}
    said = {
        "HUGE-USD": "volume is above 1e+100 in a bar of HUGE-USD",
        "RISE-USD": "RISE-USD has labels of one class only in training",
        "SHORT-USD": "batch 300 is larger than the",
        "TINY-USD": "TINY-USD has 100 bars",
    }
    assert set(found.reasons) == set(said)
    for symbol, words in said.items():
        reason = found.reasons[symbol]
        assert words in reason and symbol in reason and f"{symbol}  failed: " in found.stderr
    (ended,) = [event for event in found.events if event["event"] == "ended"]
    assert (ended["done"], ended["failed"], ended["retries"]) == (3, 4, 0)
    # A feature that never moves is scaled to nothing, not to NaN.
    card = found.card("STILL-USD")
    assert 1.0 in card.of().scaler["std"] and np.isfinite(card.metrics["test"]["log_loss"])
    if strategy == "sequential":  # the bad ones left no trace in their neighbours
        alone = run(python, tmp_path / "data", tmp_path / "alone", *pack, "--symbols", "GOOD-USD")
        assert alone.card("GOOD-USD").training["history"] == found.card("GOOD-USD").training["history"]


@pytest.mark.parametrize(
    ("change", "bars", "settings", "said"),
    [
        (None, 100, (), "TINY-USD has 100 bars"),
        (rising, 1000, (), "labels of one class only in training"),
        (None, 1000, ("--set", "train.batch=5000"), "batch 5000 is larger than the"),
        (nan_close, 1000, (), "TINY-USD_1m_2024-2024.parquet"),
    ],
    ids=["too few bars", "one class", "batch larger than the data", "a price that is not a number"],
)
def test_a_job_that_cannot_train_ends_with_one_error(candles, tmp_path, capsys, change, bars, settings, said):
    candles("TINY-USD", change, bars=bars)
    assert main(["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), *SMALL, *settings]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and said in line
