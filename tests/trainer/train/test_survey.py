"""What workers are told of a symbol before they start: which files to open, and what reading them takes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.data.settings import DataSettings
from trainer.job import job_of
from trainer.train.source import source_gib
from trainer.train.survey import survey
from trainer.train.task import source_of

SMALL = job_of(batch=64, lookback=20)


def test_a_worker_opens_the_files_of_its_symbol_and_no_other(tmp_path, write_candles):
    for symbol in ("A-USD", "B-USD"):
        write_candles(tmp_path, symbol, bars=1000)
    first, second = survey(SMALL, tmp_path).tasks
    assert (first.files, second.files) == (("A-USD_1m_2024-2024.parquet",), ("B-USD_1m_2024-2024.parquet",))
    (tmp_path / second.files[0]).write_bytes(b"spoilt meanwhile")
    assert source_of(first, SMALL, data=tmp_path).symbol == "A-USD"


def test_reading_a_symbol_out_of_a_file_of_many_counts_the_whole_file(tmp_path, write_candles):
    tables = []
    for symbol in ("A-USD", "B-USD"):
        file = write_candles(tmp_path, symbol, bars=1000)
        tables.append(pq.read_table(file).append_column("symbol", pa.array([symbol] * 1000)))
        file.unlink()
    pq.write_table(pa.concat_tables(tables), tmp_path / "all_1m.parquet")
    task = survey(SMALL, tmp_path).tasks[0]
    assert task.source_gib == source_gib(bars=1000, rows=2000, folds=1) > source_gib(bars=1000, rows=1000, folds=1)
    assert task.files == ("all_1m.parquet",)


def test_the_formula_counts_what_it_says():
    assert source_gib(bars=0, rows=0, folds=1) == pytest.approx(48 / 1024)
    columns = DataSettings(columns=("a", "b"), features="none")
    alone = source_gib(bars=1000, rows=1000, folds=1, data=columns) - 48 / 1024
    assert alone * 2**30 == pytest.approx(1000 * (2 * 64 + 2 * 2 * 4 + 2 * 64 + 32))
    million = source_gib(bars=1_000_000, rows=1_000_000, folds=2) - 48 / 1024
    assert million * 2**30 == pytest.approx(1e6 * (96 + 37 * 8 + 96 + 64), rel=0.03)
