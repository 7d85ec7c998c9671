"""Files and texts that `scripts/fuzz` found. Each is read or refused; the first two data files ended the process, inside
pyarrow.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz.properties import ENTRY, NOON
from tests.trainer.control.conftest import MemoryCloud
from trainer.base.errors import DataError
from trainer.data.read.reading import read_candles
from trainer.retrains.entries import entry_key, read_entry
from trainer.retrains.summary import scheduled_summary
from trainer.runs.record_json import to_json

FOUND = sorted((Path(__file__).parent / "found").iterdir())


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_a_recorded_file_is_read_or_refused(path: Path) -> None:
    try:
        read_candles(path)
    except DataError as error:
        assert "\n" not in str(error)


def test_there_are_recorded_findings() -> None:
    assert len(FOUND) >= 2


HEADER, LEVELS = "time;open;high;low;close;volume", "Price,Open,High,Low,Close"
TEXTS = (  # file, content, what is said of it
    ("two_levels_end.csv", f"{LEVELS}\n\nx\n", "is not|no column|no bars|can't be read|that is not a number"),
    ("ticker_1d.csv", f"{LEVELS}\nTicker,A,A,A,A\n\n", "no bars|is not CSV|can't be read"),
    ("comma_1m.txt", f"{HEADER}\n631152000000;1,101;1,102;1,098;1,099;308\n", "1,101 may be 1101 or 1.101"),
    (
        "bars_above_1d.csv",
        "2021-01-04,1,2,0.5,1.5,3\ndate,open,high,low,close,volume\n2021-01-05,1,2,0.5,1.5,3\n",
        "bars above its header",
    ),
)


@pytest.mark.parametrize(("name", "text", "said"), TEXTS, ids=[name for name, _, _ in TEXTS])
def test_a_recorded_text_is_one_line(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=said):
        read_candles(tmp_path)


def test_decimal_commas_of_the_adjusted_close_alone_are_read(tmp_path: Path) -> None:
    bars = "".join(f"2021-01-0{day};1;2;1;1;3;0,5\n" for day in (4, 5))
    (tmp_path / "A_1d.csv").write_text(f"{HEADER};Adj Close\n{bars}")
    assert read_candles(tmp_path)["A"].close.tolist() == [0.5, 0.5]


def test_ten_digit_epochs_are_not_read_as_hours_of_the_1800s(tmp_path: Path) -> None:
    """They read as 1827-11-07 00h, 1827-11-16 00h and 1827-11-25 00h."""
    times = (1_827_110_700, 1_827_111_600, 1_827_112_500)
    bars = "".join(f"{at},1,2,1,1,3\n" for at in times)
    (tmp_path / "A.csv").write_text(f"time,open,high,low,close,volume\n{bars}")
    assert read_candles(tmp_path)["A"].timestamp.tolist() == [at * 10**9 for at in times]


def test_an_entry_with_an_incomplete_error_is_reported() -> None:
    body = json.dumps({**json.loads(to_json(ENTRY)), "error": {"code": 100, "why": "y", "do": "d"}}).encode()
    objects, key = MemoryCloud(NOON).objects, entry_key("weekly", NOON)
    objects.write(key, body)
    assert scheduled_summary(read_entry(objects, key)[0], None, None, None, 0.0).text
