"""examples/weekly: its job and commands, and its job with a script of a user's on recorded answers, as ccxt
returns them.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.jobs import with_settings
from tests.pages import block_of
from trainer.bars.check import check_data
from trainer.cli.parser import build_parser
from trainer.cli.sources.refresh_script import with_refresh_script
from trainer.job.reading import job_from, load_job
from trainer.retrains.schedule import read_schedules

EXAMPLE = Path(__file__).parents[1] / "examples" / "weekly"
OWN = Path(__file__).parent / "recorded" / "own_refresh.py"
RECORDED = json.loads((Path(__file__).parent / "recorded" / "ohlcv_1h.json").read_text())
HOUR = 3_600_000
BEGAN = RECORDED["BTC/USD"][0][0]


class RecordedExchange:
    """The part of ccxt's exchanges that the script uses: candles are given from `since` on, a page at a time, the open
    one too.
    """

    now = 0.0
    asked: list[tuple[str, int]] = []

    def parse_timeframe(self, timeframe: str) -> int:
        return {"1h": 3600}[timeframe]

    def milliseconds(self) -> int:
        return int(self.now)

    def fetch_ohlcv(self, symbol: str, timeframe: str, since: int, limit: int) -> list[list[Any]]:
        self.asked.append((symbol, since))
        rows = [
            row for row in RECORDED[symbol] if since <= row[0] < since + limit * HOUR and row[0] <= self.now
        ]
        return [list(row) for row in rows]


@pytest.fixture
def fetch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A user's script, with ccxt's answers from the recording."""
    ccxt = ModuleType("ccxt")
    ccxt.coinbaseexchange = RecordedExchange  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ccxt", ccxt)
    spec = importlib.util.spec_from_file_location("fetch", OWN)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PAGE", 20)
    monkeypatch.setattr(module, "FIRST_BARS", 48)
    return module


def rows(folder: Path, pattern: str) -> list[str]:
    return [line for path in sorted(folder.glob(pattern)) for line in path.read_text().splitlines()[1:]]


def test_each_call_adds_new_bars_and_the_job_trains_on_all(
    fetch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordedExchange, "now", BEGAN + 48.5 * HOUR)
    fetch.main(tmp_path)
    first = sorted(path.name for path in tmp_path.iterdir())
    assert first == [f"{coin}-USD_1h_20261115T0000.csv" for coin in ("BTC", "ETH", "SOL")]
    assert len(rows(tmp_path, "BTC*")) == 48  # not the open one
    fetch.main(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3  # nothing new, no file

    monkeypatch.setattr(RecordedExchange, "now", BEGAN + 95.2 * HOUR)
    fetch.main(tmp_path)
    assert len(list(tmp_path.iterdir())) == 6
    times = [line.split(",")[0] for line in rows(tmp_path, "BTC*")]
    hours = [
        datetime.fromtimestamp((BEGAN + hour * HOUR) / 1000, timezone.utc).isoformat() for hour in range(95)
    ]
    assert times == hours
    assert len(rows(tmp_path, "SOL*")) == 92  # three hours had no trade

    job = job_from(load_job(EXAMPLE / "job.toml")).with_data(refresh=str(OWN))
    sent, files = with_refresh_script(job)  # it imports what a prepare run has
    assert sent.data.refresh == f"{next(iter(files))}.py"
    assert list(files.values()) == [OWN.read_bytes()]
    small = with_settings(
        job, lookback=4, horizon=1, features=["log_return_1", "bar_range"], embargo=1, batch=16
    )
    report = check_data(tmp_path, small)
    assert {entry["symbol"]: entry["bars"] for entry in report["symbols"]} == {
        "BTC-USD": 95,
        "ETH-USD": 95,
        "SOL-USD": 92,
    }


def test_its_readme_has_a_schedule_that_the_stack_takes() -> None:
    shown = block_of("examples/weekly/README.md", "yaml", "config:")
    (schedule,) = read_schedules(yaml.safe_load(shown)["config"]["mayfly:retrains"])
    assert (schedule.name, schedule.time_zone) == ("coins", "UTC")


def test_it_needs_no_script() -> None:
    job = job_from(load_job(EXAMPLE / "job.toml"))
    assert (job.data.refresh, job.data.set) == ("fetch", "coins")
    assert [path.name for path in sorted(EXAMPLE.iterdir())] == ["README.md", "job.toml"]
    shown = block_of("examples/weekly/README.md", "", "mayfly data fetch")
    (line,) = [line for line in shown.splitlines() if line.startswith("mayfly data fetch")]
    arguments = build_parser().parse_args(line.split()[1:])
    assert (arguments.verb, arguments.source, arguments.timeframe) == ("data_fetch", "coinbase", "1h")
    assert arguments.symbols == ["BTC-USD", "ETH-USD", "SOL-USD"]
