from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from trainer.data.read.reading import CandleFolder, read_candles
from trainer.data.synthetic import main, synthetic_candles
from trainer.job.job import Job
from trainer.train.inputs.rows import prepare


def test_files_are_written_seeded_and_labelled_synthetic(tmp_path: Path, capsys) -> None:
    for folder in ("one", "two"):
        assert (
            main(["--out", str(tmp_path / folder), "--symbols", "AAA,BBB", "--bars", "500", "--seed", "7"])
            == 0
        )
    written = json.loads(capsys.readouterr().out.splitlines()[0])
    assert written["synthetic"] is True and len(written["files"]) == 2
    one, two = read_candles(tmp_path / "one"), read_candles(tmp_path / "two")
    assert (
        CandleFolder(tmp_path / "one", tmp_path).synthetic
        and list(one) == ["AAA", "BBB"]
        and one["AAA"].timeframe == "1m"
    )
    for symbol in one:
        assert np.array_equal(one[symbol].close, two[symbol].close)
    assert not np.array_equal(one["AAA"].close, one["BBB"].close)


@pytest.mark.parametrize(
    "words", [["--bars", "9" * 30], ["--bars", "0"], ["--seed", "-1"], ["--seed", "9" * 30]], ids=" ".join
)
def test_a_number_beyond_its_bound_is_refused(words: list[str], tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path / "out"), *words])
    assert f"{words[0]} takes " in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_synthetic_candles_are_read_as_made(tmp_path: Path) -> None:
    main(["--out", str(tmp_path), "--symbols", "AAA", "--bars", "300", "--timeframe", "60m"])
    made, read = synthetic_candles("AAA", bars=300, timeframe="1h"), read_candles(tmp_path)["AAA"]
    assert read.timeframe == "1h"
    for name in ("timestamp", "open", "high", "low", "close", "volume"):
        assert np.array_equal(getattr(made, name), getattr(read, name)), name


def test_bars_are_possible_and_volatility_clusters() -> None:
    candles = synthetic_candles("AAA", bars=20_000)
    assert (candles.low <= np.minimum(candles.open, candles.close)).all()
    assert (candles.high >= np.maximum(candles.open, candles.close)).all()
    size = np.abs(np.diff(np.log(candles.close)))
    assert np.corrcoef(size[:-1], size[1:])[0, 1] > 0.1
    returns = np.diff(np.log(candles.close))
    assert abs(np.corrcoef(returns[:-1], returns[1:])[0, 1]) < 0.03


def test_synthetic_candles_can_be_trained_on() -> None:
    data = prepare(synthetic_candles("AAA", bars=2000), Job())
    assert data.calendar == "24x7" and len(data.starts["test"]) > 200
