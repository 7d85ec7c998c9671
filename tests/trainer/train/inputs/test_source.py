"""Where the bars of a piece come from."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.jobs import job_of
from trainer.data.read.writing import write_candles
from trainer.train.inputs.source import origin_of, plan_and_open
from trainer.train.inputs.survey import survey


def test_a_model_names_the_files_of_its_own_series(tmp_path: Path, make_candles: Any) -> None:
    for seed, symbol in enumerate(("AAA", "BBB")):
        write_candles(tmp_path / f"{symbol}_1m.parquet", [make_candles(3000, symbol=symbol, seed=seed)])
    job = job_of(lookback=20, horizon=3, batch=64)
    data = plan_and_open(job, tmp_path, scratch=tmp_path)
    for piece in survey(job, data.plan).models:
        file = tmp_path / f"{piece.series[0]}_1m.parquet"
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        assert origin_of(piece, job, data).files == ({"file": file.name, "sha256": sha256},)
