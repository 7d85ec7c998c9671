"""The refresh of a folder from the sources that its files name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.data.fetch.test_fetching import BEGIN, HOUR, MemorySource, fetch
from trainer.base.errors import DataError
from trainer.data.fetch.folder import fetched_files
from trainer.data.fetch.update import main, requests_of, update
from trainer.data.read.reading import read_candles
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles


def test_each_symbol_goes_on_from_its_last_file(tmp_path: Path) -> None:
    source = MemorySource(symbols={"BTC-USD": 0, "ETH-USD": 0})
    chosen = {"chosen_by": "coins.txt", "chosen_symbols": 9, "chosen_on": "2026-01-02"}
    fetch(source, tmp_path, "BTC-USD", "ETH-USD", **chosen)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    source.clock += 5 * HOUR
    source.symbols.pop("ETH-USD")  # delisted
    lines: list[str] = []
    update(tmp_path, opened=lambda name: source, told=lines.append)
    assert lines == [
        "BTC-USD_1h_20260105T0400-20260105T0800.parquet: 5 bars of memory",
        "ETH-USD: there is no ETH-USD",
    ]
    added = [file for file in fetched_files(tmp_path) if file.path.name not in before]
    assert [(one.record.chosen_by, one.record.chosen_on) for one in added] == [("coins.txt", "2026-01-02")]
    assert all((tmp_path / name).read_bytes() == body for name, body in before.items())
    assert len(read_candles(tmp_path, symbols=["BTC-USD"])["BTC-USD"]) == 105


def test_a_gap_that_a_user_left_stays(tmp_path: Path) -> None:
    source = MemorySource(symbols={"BTC-USD": 0})
    fetch(source, tmp_path, "BTC-USD", until=BEGIN + 10 * HOUR)
    fetch(source, tmp_path, "BTC-USD", since=BEGIN + 50 * HOUR)
    (request,) = requests_of(fetched_files(tmp_path))
    assert request.begins == {"BTC-USD": BEGIN + 100 * HOUR}


def test_symbols_that_all_fail_fail_the_refresh(tmp_path: Path) -> None:
    source = MemorySource(symbols={"BTC-USD": 0})
    fetch(source, tmp_path, "BTC-USD")
    source.symbols, source.clock = {}, source.clock + HOUR
    with pytest.raises(DataError, match=r"no symbol could be fetched: BTC-USD \(there is no BTC-USD\)"):
        update(tmp_path, opened=lambda name: source)


def test_a_set_of_other_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_candles(tmp_path / "AAA_1m.parquet", [synthetic_candles("AAA", bars=10)])
    assert main(["--data", str(tmp_path)]) == DataError.exit_code
    assert "no file of the set says from which source its bars are" in capsys.readouterr().err
