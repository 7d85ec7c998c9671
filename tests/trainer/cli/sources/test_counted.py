"""Bars counted for a plan: by name where names say their timeframe, else by the first file's times."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from trainer.cli.sources.counted import count_bars


def write(path: Path, *, hours: int) -> None:
    """Write 48 bars so many hours apart."""
    begin = datetime(2024, 1, 1)
    rows = [f"{begin + timedelta(hours=hours * row)},1,2,0.5,1,3" for row in range(48)]
    path.write_text("time,open,high,low,close,volume\n" + "\n".join(rows) + "\n")


def test_a_name_without_a_timeframe_leaves_it_to_the_times(tmp_path: Path):
    write(tmp_path / "AAA.csv", hours=1)
    write(tmp_path / "BBB.csv", hours=1)
    counted = count_bars(str(tmp_path))
    assert (counted.timeframe, counted.bars) == ("1h", {"AAA": 48, "BBB": 48})
    made = count_bars(str(tmp_path), timeframe="1d")
    assert (made.timeframe, made.bars) == ("1d", {"AAA": 2, "BBB": 2})
