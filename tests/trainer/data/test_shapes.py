"""Each row of the table in docs/data.md: a file of that shape is read as the table says, or refused with one
line.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from tests.pages import block_of
from tests.trainer.data.shapes import SHAPES, Shape
from trainer.base.errors import DataError
from trainer.data.read.candles import time_text
from trainer.data.read.paths import check_path
from trainer.data.read.reading import CandleFolder
from trainer.data.read.shapes import FIELDS

DOCS = Path(__file__).parents[3] / "docs" / "data.md"


def laid(shape: Shape, folder: Path) -> Path:
    """Write the files of a shape."""
    for name, content in shape.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.title)
def test_a_shape_is_read_or_refused_as_documented(shape: Shape, tmp_path: Path) -> None:
    data, scratch = laid(shape, tmp_path / "data"), tmp_path / "scratch"
    scratch.mkdir()
    if shape.error:
        with pytest.raises(DataError) as caught:
            folder = CandleFolder(data, scratch, **shape.asked)
            folder.read(folder.symbols[0])
        assert shape.error in str(caught.value) and str(caught.value).isprintable()
        return
    folder = CandleFolder(data, scratch, **shape.asked)
    candles = folder.read(shape.symbol)
    assert (folder.symbols, folder.timeframe) == ((shape.symbol,), shape.timeframe)
    assert time_text(candles.timestamp[0]) == shape.first
    assert candles.close.tolist() == list(shape.closes) and candles.volume.tolist() == list(shape.volumes)
    told = (*shape.notes, *shape.guesses)
    assert len(folder.notes) == len(told), folder.notes
    assert all(part in line for part, line in zip(told, folder.notes, strict=True)), folder.notes


def test_text_may_stand_above_a_header_of_three_lines(tmp_path: Path) -> None:
    (shape,) = (one for one in SHAPES if "three lines" in one.title)
    files = {name: f"written by a script\n{content!s}" for name, content in shape.files.items()}
    test_a_shape_is_read_or_refused_as_documented(replace(shape, files=files), tmp_path)


NESTED = [shape for shape in SHAPES if any("/" in name for name in shape.files) and not shape.error]


@pytest.mark.parametrize("shape", NESTED, ids=lambda shape: shape.title)
def test_a_flat_folder_is_read_like_the_subfolders_it_came_from(shape: Shape, tmp_path: Path) -> None:
    data, node, scratch = laid(shape, tmp_path / "data"), tmp_path / "node", tmp_path / "scratch"
    for place in (node, scratch):
        place.mkdir()
    desk = CandleFolder(data, scratch)
    read = desk.read(shape.symbol)
    for file in desk.files():
        (node / file.file).write_bytes(file.path.read_bytes())  # as a data set has it
    again = CandleFolder(
        node,
        scratch,
        symbols=[shape.symbol],
        timeframe=desk.timeframe,
        files=[file.file for file in desk.files()],
    )
    same = again.read(shape.symbol)
    assert (
        (same.timestamp == read.timestamp).all()
        and (same.close == read.close).all()
        and len(same) == len(read)
    )


def test_the_table_has_a_row_for_each_shape() -> None:
    text = DOCS.read_text(encoding="utf-8")
    table = text[text.index("| export |") :].split("\n\n")[0]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()[2:]]
    assert [(title, re.split(r"\W", outcome)[0]) for title, _, outcome in cells] == [
        (shape.title, shape.outcome) for shape in SHAPES
    ]
    for (title, names, _), shape in zip(cells, SHAPES, strict=True):
        assert next(iter(shape.files)) in names, title
    assert len(SHAPES) >= 30


def examples() -> list[tuple[str, str, str]]:
    """Return (name, lines, bar) of each example in docs/data.md."""
    text = block_of("docs/data.md", "text", "before  ")
    return re.findall(r"^before  (\S+)\n(.*?)^after   ([^\n]*)$", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("name", "lines", "bar"), examples())
def test_examples_in_the_docs_are_read_as_they_say(name: str, lines: str, bar: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(lines)
    folder = CandleFolder(tmp_path, tmp_path)
    (symbol,) = folder.symbols
    candles = folder.read(symbol)
    values = [f"{getattr(candles, field)[0]:g}" for field in FIELDS]
    assert [symbol, folder.timeframe, time_text(candles.timestamp[0]), *values] == bar.split()


def test_there_are_examples() -> None:
    assert len(examples()) >= 6


def test_the_remedy_for_ccxts_json_makes_a_file_that_is_read(tmp_path: Path) -> None:
    recorded = json.loads((Path(__file__).parents[2] / "recorded" / "ohlcv_1h.json").read_text())["BTC/USD"]
    (tmp_path / "BTC.json").write_text(json.dumps(recorded, indent=1))
    with pytest.raises(DataError) as caught:
        check_path(str(tmp_path))
    line = re.search(r"Write it as CSV: (pandas.*)\.$", caught.value.do)
    assert line is not None
    data = tmp_path / "data"
    data.mkdir()
    code = line[1].replace("FILE", repr(str(tmp_path / "BTC.json")))
    exec(code.replace("SYMBOL_TIMEFRAME", str(data / "BTC-USD_1h")), {"pandas": pandas})
    candles = CandleFolder(data, tmp_path).read("BTC-USD")
    assert len(candles) == len(recorded) and candles.close[0] == recorded[0][4]
    assert candles.timestamp[0] == recorded[0][0] * 1_000_000
