from __future__ import annotations

from pathlib import Path

import pytest

from trainer.cli.connect import folder_of_run, local_candles
from trainer.job.reading import job_from


def test_the_local_folder_has_candles_by_set_and_models_by_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (candles := tmp_path / "candles" / "main").mkdir(parents=True)
    job = job_from({})
    assert local_candles(job) is None and folder_of_run("r") == Path("r")
    assert local_candles(job, tmp_path) == candles  # the folder of --local
    monkeypatch.setenv("MAYFLY_LOCAL", str(tmp_path))
    assert local_candles(job) == candles and folder_of_run("r") == tmp_path / "models" / "r"
    assert local_candles(job, tmp_path / "another") is None
    assert local_candles(job_from({"data": {"set": "other"}})) is None
    assert local_candles(job_from({"data": {"path": "mine"}})) is None
