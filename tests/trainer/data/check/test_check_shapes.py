"""The check and the repair of every shape of candle file that docs/data.md lists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.data.shapes import SHAPES, Shape
from tests.trainer.data.test_shapes import laid
from trainer.base.errors import DataError
from trainer.data.check.folder import check_folder
from trainer.data.check.repair import Repair
from trainer.data.read.reading import read_candles
from trainer.data.table import DataSettings

READ = [shape for shape in SHAPES if not shape.error and not shape.asked]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.title)
def test_a_check_refuses_what_a_training_refuses(shape: Shape, tmp_path: Path) -> None:
    data = laid(shape, tmp_path / "data")
    try:
        refused = check_folder(data, DataSettings(timeframe=shape.asked.get("timeframe", ""))).is_refused
    except DataError:  # nothing there can be read
        refused = True
    assert refused is bool(shape.error)


@pytest.mark.nightly
@pytest.mark.parametrize("shape", READ, ids=lambda shape: shape.title)
def test_a_repair_writes_the_rows_that_are_left_of_any_shape(shape: Shape, tmp_path: Path) -> None:
    data = laid(shape, tmp_path / "data")
    candles = read_candles(data)[shape.symbol]
    repair = Repair(path=data, out=tmp_path / "fixed", data=DataSettings())
    made = check_folder(data, DataSettings())
    for one in made.symbols:
        if one.symbol == shape.symbol:  # as if its first bar were bad
            repair.add(replace(one, refused_times=candles.timestamp[:1]))
    repair.write(made)
    left = read_candles(tmp_path / "fixed")[shape.symbol]
    for name in ("timestamp", "open", "high", "low", "close", "volume"):
        assert np.array_equal(getattr(left, name), getattr(candles, name)[1:])
