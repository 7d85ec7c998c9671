"""`mayfly data fetch`: what it takes, prints and leaves; from the rehearsal's exchange, without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.base.errors import UsageError
from trainer.base.files import held_alone
from trainer.cli.main import main
from trainer.cli.verbs.data_fetch import _symbols_in
from trainer.data.read.reading import read_candles

DAYS = ("--since", "2026-01-01", "--until", "2026-02-01")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ("BTC-USD", *DAYS),
            "no --source was named. Add --source with one of coinbase, binance, kraken, yahoo",
        ),
        (("BTC-USD", "--source", "coinbse", *DAYS), "unknown source 'coinbse'.*Did you mean coinbase"),
        (("--source", "kraken", *DAYS), "0 symbols to fetch"),
        (("../x", "--source", "kraken", *DAYS), "'../x' is not a symbol"),
        (("BTC-USD", "--source", "kraken", "--since", "soon"), "--since is 'soon'"),
        (("BTC-USD", "--source", "kraken", "--since", "2924-01-01"), "it is outside the years 1800 to 2199"),
        (("BTC-USD", "--source", "kraken", "--since", "2026-02-01", "--until", "2026-01-01"), "is not after"),
        (("BTC-USD", "--source", "kraken", "--timeframe", "1x", *DAYS), "'1x' is not a timeframe"),
        (("BTC-USD", "--source", "kraken", "--since", "2199-01-01"), "--since 2199-01-01 has not come yet"),
        (("--file", "none.txt", "--source", "yahoo", *DAYS), "cannot read none.txt"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(
    words: tuple[str, ...], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "fetch", *words, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    pytest.raises(UsageError, lambda: _raise(line)).match(why)
    assert not (tmp_path / "out").exists()


def _raise(line: str) -> None:
    raise UsageError(line)


def test_a_rehearsal_fetches_marked_bars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ccxt", reason="the extra fetch is not installed")
    out = tmp_path / "candles"
    command = ["data", "fetch", "BTC-USD", "NOPE-USD", *DAYS, "--rehearse", "--out", str(out)]
    assert main(command) == 2  # a symbol failed
    told = capsys.readouterr()
    assert "BTC-USD 1d: 31 SYNTHETIC bars, 2026-01-01T00:00:00Z to 2026-02-01T00:00:00Z" in told.out
    assert "1 symbol failed: NOPE-USD (Binance has no market NOPE/USD)" in told.out
    assert "SYNTHETIC bars from a generator, no market data" in told.err
    assert len(read_candles(out)["BTC-USD"]) == 31
    assert main([*command[:3], *command[4:], "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["added"], document["synthetic"], document["failures"]) == ([], True, {})
    assert document["symbols"]["BTC-USD 1d"]["bars"] == 31
    stored = json.loads((out / "metadata.json").read_text())
    assert stored == {key: document[key] for key in stored}


def test_a_refused_fetch_leaves_the_metadata_alone(tmp_path: Path) -> None:
    pytest.importorskip("ccxt", reason="the extra fetch is not installed")
    command = ["data", "fetch", "BTC-USD", *DAYS, "--rehearse", "--out", str(tmp_path)]
    assert main(command) == 0
    (tmp_path / "metadata.json").unlink()
    with held_alone(tmp_path):
        assert main(command) == 2
    assert not (tmp_path / "metadata.json").exists()


def test_only_what_was_asked_for_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ccxt", reason="the extra fetch is not installed")
    words = ["--since", "2026-01-01", "--until", "2026-01-02", "--rehearse", "--out", str(tmp_path)]
    assert main(["data", "fetch", "BTC-USD", "ETH-USD", *words]) == 0
    capsys.readouterr()
    assert main(["data", "fetch", "ETH-USD", "--timeframe", "1h", *words]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "ETH-USD 1h: 24 SYNTHETIC bars, 2026-01-01T00:00:00Z to 2026-01-02T00:00:00Z",
        f"1 new file in {tmp_path}, 3 files in all",
    ]
    assert main(["data", "fetch", "ETH-USD", *words]) == 0  # one day, which is there
    assert capsys.readouterr().out.splitlines()[0].endswith(", nothing new")


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("")
    words = ["data", "fetch", "BTC-USD", "--source", "kraken", *DAYS, "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "out is a file" in capsys.readouterr().err


def test_a_file_of_tickers_may_be_a_table(tmp_path: Path) -> None:
    path = tmp_path / "sp500.csv"
    path.write_text('Symbol,Name\n"AAPL",Apple\nBRK-B , Berkshire\n\n# MSFT\nGOOG # both\n')
    assert _symbols_in(path) == ["AAPL", "BRK-B", "GOOG"]
