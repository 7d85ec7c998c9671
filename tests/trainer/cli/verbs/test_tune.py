from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.jobs import job_of, sets
from trainer.base.errors import UsageError
from trainer.cli.main import main
from trainer.cli.verbs.tune import _models
from trainer.job.job import Job
from trainer.machines.chips import named_profile
from trainer.machines.choice import Choice, choose
from trainer.machines.measurements import known_here
from trainer.train.tuning import timing as timing_of

pytestmark = pytest.mark.slow

TINY = ["--device", "cpu", "--seconds", "0.2", *sets("model.hidden=4", "model.lookback=6", "train.batch=32")]


@pytest.fixture(autouse=True)
def profiles_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAYFLY_PROFILES", str(tmp_path / "gpu_profiles.toml"))
    monkeypatch.setattr(timing_of, "ROWS", 500)


def test_tune_prints_candidates_and_stores_the_first(capsys, tmp_path):
    assert main(["profiles", "tune", *TINY]) == 0
    said = capsys.readouterr()
    assert (
        "windows/s" in said.out and "mislead" in said.out and str(tmp_path / "measurements.json") in said.out
    )
    assert "tuning for 0 s at most: --seconds" in said.err
    entry = known_here("cpu", job_of(hidden=4, lookback=6, batch=32), torch=torch.__version__)
    assert entry is not None and entry["micro_batch"] == 32


def test_json_holds_every_timing_and_the_time_that_it_might_take(capsys):
    assert main(["profiles", "tune", "--json", *TINY]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["profile"] == "cpu" and found["seconds"] == {"most": 0.2, "why": "--seconds"}
    chosen = found["timings"][0]["candidate"]
    assert (chosen["strategy"], chosen["pack"], chosen["micro_batch"]) == ("sequential", 1, 32)


def test_with_candles_the_batch_may_be_auto(capsys, candles):
    auto = ["--data", str(candles), "--set", "train.batch=auto"]
    assert main(["profiles", "tune", "--json", *TINY, *auto]) == 0
    found = json.loads(capsys.readouterr().out)
    # A hundred steps in an epoch of some 2,000 windows.
    assert found["timings"][0]["candidate"]["batch"] == 16


def test_tune_takes_20_seconds_or_as_asked_60_at_most(monkeypatch, capsys, candles):
    took: list[float] = []

    def tune_here(job, *, device, seconds, say, batch_limit):
        took.append(seconds)
        raise UsageError("enough")

    monkeypatch.setattr("trainer.train.tuning.tune.tune_here", tune_here)
    for words in ([], ["--seconds", "5"], ["--seconds", "900", "--data", str(candles)]):
        assert main(["profiles", "tune", "--device", "cpu", *words]) == 2
    assert took == [20.0, 5.0, 60.0]
    assert "--seconds; for a run of about" in capsys.readouterr().err


def test_with_candles_a_gpu_is_tuned_for_as_many_models(monkeypatch, candles, capsys):
    tuned: list[Job] = []

    def tune_here(job, **how):
        tuned.append(job)
        raise UsageError("enough")

    h200 = Choice(profile=named_profile("h200"), why="", memory_gib=140.0)
    monkeypatch.setattr("trainer.train.workers.devices.choose_device", lambda job, device: ("cuda", h200))
    monkeypatch.setattr("trainer.train.workers.devices.default_workers", lambda kind: 1)
    monkeypatch.setattr("trainer.train.tuning.tune.tune_here", tune_here)
    for words in ([], ["--data", str(candles)]):
        assert main(["profiles", "tune", *words]) == 2
    models = len(list(candles.iterdir()))
    assert [job.expert.pack for job in tuned] == [0, models]
    said = [_models(job, h200) for job in tuned]
    assert said == [" with 32 or more models on a GPU", f" with {models} models on a GPU"]
    assert _models(Job(), choose("cpu", None)) == ""


def test_nothing_is_kept_where_nothing_fits(capsys, tmp_path, monkeypatch):
    def form(members, job):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(timing_of, "form_pack", form)
    assert main(["profiles", "tune", *TINY]) == 2
    assert "out of memory" in capsys.readouterr().err
    assert not (tmp_path / "measurements.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "train.batch=auto"], "batch = auto, but no candles"),
        (["--gpu-profile", "h20"], "unknown GPU profile 'h20'. Did you mean h200"),
        (["--gpu-profile", "h200"], "GPU profile h200 is for a GPU"),
        (["--data", "nowhere"], "nowhere does not exist"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, said):
    assert main(["profiles", "tune", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and said in line
