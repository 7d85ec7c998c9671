"""Data files that `scripts/fuzz` found. Each is read or refused; the first two ended the process, inside pyarrow."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.data.reading import read_candles
from trainer.errors import DataError

FOUND = sorted((Path(__file__).parent / "found").iterdir())


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_a_file_that_was_found_is_read_or_refused(path: Path) -> None:
    try:
        read_candles(path)
    except DataError as error:
        assert "\n" not in str(error)


def test_there_is_something_that_was_found() -> None:
    assert len(FOUND) >= 2
