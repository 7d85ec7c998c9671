from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.jobs import job_of, sets
from trainer.base.errors import UsageError
from trainer.cli.main import main
from trainer.machines.measurements import known_here
from trainer.train.tuning import timing as timing_of

pytestmark = pytest.mark.slow

TINY = ["--device", "cpu", "--seconds", "0.2", *sets("model.hidden=4", "model.lookback=6", "train.batch=32")]


@pytest.fixture(autouse=True)
def profiles_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAYFLY_PROFILES", str(tmp_path / "gpu_profiles.toml"))
    monkeypatch.setattr(timing_of, "ROWS", 500)


def test_it_prints_the_candidates_and_the_next_run_takes_the_first(capsys, tmp_path):
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


def test_it_takes_twenty_seconds_or_what_was_asked_for_and_a_minute_at_most(monkeypatch, capsys, candles):
    took: list[float] = []

    def tune_here(job, *, device, seconds, say, batch_limit):
        took.append(seconds)
        raise UsageError("enough")

    monkeypatch.setattr("trainer.train.tuning.tune.tune_here", tune_here)
    for words in ([], ["--seconds", "5"], ["--seconds", "900", "--data", str(candles)]):
        assert main(["profiles", "tune", "--device", "cpu", *words]) == 2
    assert took == [20.0, 5.0, 60.0]
    assert "--seconds; for a run of about" in capsys.readouterr().err


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


def test_a_wrong_setting_waits_for_no_torch():
    code = (
        "import sys; from trainer.cli.main import main; main(['profiles', 'tune', '--set', 'hiden=4']); sys.exit('torch'"
        " in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0 and "unknown job key 'hiden'" in done.stderr
