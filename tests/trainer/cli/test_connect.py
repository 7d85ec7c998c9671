from __future__ import annotations

from pathlib import Path

import pytest

from trainer.base.errors import UsageError
from trainer.cli.connect import folder_of_run, local_candles
from trainer.cli.main import main
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


@pytest.mark.parametrize("verb", ["status", "receipts", "models list", "data ls", "logs last"])
def test_a_folder_of_others_is_refused_and_stays_as_it_is(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").touch()
    assert main([*verb.split(), "--local", str(tmp_path)]) == UsageError.exit_code
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} holds nothing of Mayfly's")
    assert [path.name for path in tmp_path.rglob("*")] == ["thesis.tex"]


def test_reading_verbs_leave_nothing_in_a_folder_without_runs(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    assert main(["status", "--local", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.rglob("*")] == ["models"]
