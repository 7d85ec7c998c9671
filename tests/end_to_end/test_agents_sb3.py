"""examples/agents-sb3: an algorithm of Stable-Baselines3 on our accounts, and its weights as safetensors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.desk import ROOT
from trainer.data.synthetic import main as write_synthetic

pytest.importorskip("stable_baselines3", reason="a library of other learners: pip install stable-baselines3")

EXAMPLE = ROOT / "examples" / "agents-sb3"


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("actions", ["discrete", "continuous"])
def test_the_script_trains_and_scores(tmp_path: Path, actions: str) -> None:
    words = ["--symbols", "BTC-USD", "--bars", "1500", "--timeframe", "1m"]
    assert write_synthetic(["--out", str(tmp_path / "bars"), *words]) == 0
    job = tmp_path / "agent.toml"
    job.write_text((EXAMPLE / "agent.toml").read_text().replace('"discrete"', f'"{actions}"'))
    (tmp_path / "out").mkdir()
    ours = {"MAYFLY_DATA": str(tmp_path / "bars"), "MAYFLY_OUT": str(tmp_path / "out")}
    words = ["--job", str(job), "--steps", "200", "--envs", "2"]
    command = [sys.executable, str(EXAMPLE / "train.py"), *words]
    subprocess.run(
        command, check=True, cwd=ROOT, env={**os.environ, **ours}, capture_output=True, timeout=800
    )
    weights = load_file(tmp_path / "out" / "policy.safetensors")
    assert weights and all(bool(tensor.isfinite().all()) for tensor in weights.values())
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert scores.keys() == {"validation", "test"} and all("growth" in one for one in scores.values())
