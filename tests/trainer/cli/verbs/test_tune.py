from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.jobs import sets
from trainer.base.errors import UsageError
from trainer.cli.main import main
from trainer.machines.chips import named_profile
from trainer.machines.choice import Choice
from trainer.train.tuning import timing as timing_of

pytestmark = pytest.mark.slow

TINY = ["--device", "cpu", "--seconds", "0.2", *sets("model.hidden=4", "model.lookback=6", "train.batch=32")]


@pytest.fixture(autouse=True)
def profiles_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAYFLY_PROFILES", str(tmp_path / "gpu_profiles.toml"))
    monkeypatch.setattr(timing_of, "ROWS", 500)


def test_tune_prints_candidates_the_fastest_first(capsys):
    assert main(["profiles", "tune", *TINY]) == 0
    said = capsys.readouterr()
    assert "windows/s" in said.out and "mislead" in said.out
    assert all(strategy in said.out for strategy in ("sequential", "streams", "fused"))
    assert "comparing strategies for 0 s: --seconds" in said.err


def test_json_holds_every_timing_and_the_time_that_it_might_take(capsys):
    assert main(["profiles", "tune", "--json", *TINY, "--set", "expert.strategy=sequential"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["profile"] == "cpu" and found["seconds"] == {"most": 0.2, "why": "--seconds"}
    (only,) = found["timings"]
    assert (only["strategy"], only["pack"], only["micro_batch"]) == ("sequential", 1, 32)


def test_with_candles_the_batch_may_be_auto(capsys, candles):
    auto = ["--data", str(candles), *sets("train.batch=auto", "expert.strategy=sequential")]
    assert main(["profiles", "tune", "--json", *TINY, *auto]) == 0
    found = json.loads(capsys.readouterr().out)
    # A hundred steps in an epoch of some 2,000 windows.
    assert found["timings"][0]["batch"] == 16


def test_with_candles_a_gpu_is_timed_with_as_many_models(monkeypatch, candles, capsys):
    asked: list[tuple[int, float]] = []

    def compare_here(job, *, seconds, **how):
        asked.append((job.expert.pack, seconds))
        raise UsageError("enough")

    h200 = Choice(profile=named_profile("h200"), why="", memory_gib=140.0)
    monkeypatch.setattr("trainer.train.workers.devices.choose_device", lambda job, device: ("cuda", h200))
    monkeypatch.setattr("trainer.train.workers.devices.default_workers", lambda kind: 1)
    monkeypatch.setattr("trainer.train.tuning.trial.compare_here", compare_here)
    for words in ([], ["--seconds", "5"], ["--seconds", "900", "--data", str(candles)]):
        assert main(["profiles", "tune", *words]) == 2
    models = len(list(candles.iterdir()))
    assert asked == [(0, 9.0), (0, 5.0), (models, 60.0)]
    assert f"--seconds; for {models} models" in capsys.readouterr().err


def test_out_of_memory_is_one_line(capsys, monkeypatch):
    def form(members, job):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(timing_of, "form_pack", form)
    monkeypatch.setattr("trainer.train.tuning.trial.warm_up", lambda device: None)
    assert main(["profiles", "tune", *TINY]) == 2
    assert "no strategy can train this job here (out of memory)" in capsys.readouterr().err


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
