from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.data.read.reading import read_candles
from trainer.data.read.writing import write_candles


def test_candles_come_back_to_the_last_bit(tmp_path: Path, make_candles) -> None:
    candles = [make_candles(300, symbol="BBB"), make_candles(200, symbol="AAA", seed=4)]
    write_candles(tmp_path / "ALL_1m.parquet", candles)
    read = read_candles(tmp_path)
    for item in candles:
        for name in ("timestamp", "open", "high", "low", "close", "volume"):
            assert np.array_equal(getattr(item, name), getattr(read[item.symbol], name))


def test_candles_are_written_compressed_and_narrow_without_loss(tmp_path: Path, make_candles) -> None:
    write_candles(tmp_path / "AAA_1m.parquet", [make_candles(300, close=np.arange(1.0, 301.0))])
    file = pq.ParquetFile(tmp_path / "AAA_1m.parquet")
    assert (
        file.schema_arrow.field("close").type == pa.float32()
        and file.schema_arrow.field("volume").type == pa.float64()
    )
    for index in range(file.metadata.num_columns):
        column = file.metadata.row_group(0).column(index)
        assert column.compression == "ZSTD"
        expected = "DELTA_BINARY_PACKED" if column.path_in_schema == "timestamp" else "BYTE_STREAM_SPLIT"
        assert expected in column.encodings
    assert [item.name for item in tmp_path.iterdir()] == ["AAA_1m.parquet"]
