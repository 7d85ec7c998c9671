from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainer.cli.main import main
from trainer.config import Job
from trainer.train import tune as tuning

TINY = ["--device", "cpu", "--seconds", "0.2", "--set", "hidden=4", "--set", "lookback=6", "--set", "batch=32"]


@pytest.fixture(autouse=True)
def profiles_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAYFLY_PROFILES", str(tmp_path / "gpu_profiles.toml"))
    monkeypatch.setattr(tuning, "ROWS", 500)


def test_it_prints_the_candidates_and_the_next_run_takes_the_first(capsys, tmp_path):
    assert main(["tune", *TINY]) == 0
    said = capsys.readouterr().out
    assert "windows/s" in said and "mislead" in said and str(tmp_path / "tuned.json") in said
    assert tuning.tuned(Job(hidden=4, lookback=6, batch=32), "cpu").micro_batch == 32


def test_json_holds_every_timing(capsys):
    assert main(["tune", "--json", *TINY]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["profile"] == "cpu"
    assert found["timings"][0]["candidate"] == {"strategy": "lanes", "pack": 1, "micro_batch": 32}


def test_nothing_is_kept_where_nothing_fits(capsys, tmp_path, monkeypatch):
    def form(members, job):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(tuning, "form_pack", form)
    assert main(["tune", *TINY]) == 2
    assert "out of memory" in capsys.readouterr().err
    assert not (tmp_path / "tuned.json").exists()


def test_bad_input_is_one_line(capsys):
    assert main(["tune", "--set", "model=tcn"]) == 2
    assert main(["tune", "--seconds", "0"]) == 2
    assert [line[:7] for line in capsys.readouterr().err.splitlines()] == ["error: ", "error: "]


def test_a_wrong_setting_waits_for_no_torch():
    code = "import sys; from trainer.cli.main import main; main(['tune', '--set', 'hiden=4']); sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and "unknown job key 'hiden'" in done.stderr
