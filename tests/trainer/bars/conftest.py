"""Planned candles for the tests of trainer/bars."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.bars.document import DataPlan
from trainer.bars.job_plan import folder_of, plan_data
from trainer.data.read.candles import Candles
from trainer.data.read.reading import CandleFolder
from trainer.data.read.writing import write_candles
from trainer.job.job import Job

Planned = Callable[..., tuple[DataPlan, CandleFolder]]


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    """Plan the files of `tmp_path`, and candles that are written there first, each to a file of its own."""

    def plan(job: Job, *candles: Candles) -> tuple[DataPlan, CandleFolder]:
        for one in candles:
            write_candles(tmp_path / f"{one.symbol}_{one.timeframe}.parquet", [one])
        (tmp_path / "scratch").mkdir(exist_ok=True)
        folder = folder_of(job, tmp_path, scratch=tmp_path / "scratch")
        return plan_data(job, folder), folder

    return plan
