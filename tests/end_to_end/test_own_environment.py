"""An agent in an environment of the user's own, from the example's folder to its policy: one command, a killed
worker, a receipt.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.desk import ROOT
from tests.jobs import sets
from trainer.data.synthetic import main as write_synthetic
from trainer.data.synthetic import synthetic_candles
from trainer.store.card import read_card

pytest.importorskip("gymnasium", reason="an extra: pip install 'mayfly[agents]'")

EXAMPLE = ROOT / "examples" / "own-environment"


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_example_trains_and_its_policy_acts(
    desk: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    words = ["--symbols", "BTC-USD,ETH-USD", "--bars", "7000", "--timeframe", "1m"]
    assert write_synthetic(["--out", str(tmp_path / "bars"), *words]) == 0
    long = ("--epochs", "12", *sets("data.bars=6000", "train.patience=12", "train.checkpoint_seconds=1"))
    run = desk.start(
        *("launch", "--rehearse", "--json", "--instance", "m7i.xlarge", "--job", str(EXAMPLE / "job.toml")),
        *("--data", str(tmp_path / "bars"), *long),
    )
    saved = eventually(lambda: desk.events("checkpoint"))[0]
    os.kill(saved["pid"], signal.SIGKILL)
    out, err = run.communicate(timeout=600)
    assert run.returncode == 0, err[-2_500:]
    receipt = json.loads(out)
    assert (receipt["state"], receipt["failed"]) == ("done", []) and receipt["retries"] >= 1
    assert sorted(model["piece"] for model in receipt["models"]) == ["BTC-USD", "ETH-USD"]
    assert saved["piece"] in [event["piece"] for event in desk.events("resumed")]
    assert "mayfly predict" not in err, "it would be refused"

    pulled = desk.run("pull", receipt["run_id"], "--rehearse", "--out", "pulled")
    assert pulled.returncode == 0, pulled.stderr
    model = next((desk.folder / "pulled").rglob("mlp-environment_BTC-USD_1m.safetensors"))
    card = read_card(model)
    assert card.own_files["target"]["text"] == (EXAMPLE / "my_env.py").read_text()
    test = card.metrics["test"]
    assert test["baselines"]["idle"]["reward"] == 0 and test["baselines"]["random"]["reward"] < -1
    assert {"entropy", "rollout_return"} <= card.training["history"][0].keys()
    exported = desk.run("models", "export", str(model), "--out", "agent.onnx")
    assert exported.returncode == 0 and "observations of the environment" in exported.stderr, exported.stderr
    refused = desk.run("predict", str(model), "--data", str(tmp_path / "bars"))
    assert refused.returncode == 2 and "candles alone do not say what it sees" in refused.stderr

    from trainer.train.agents.policies import policy

    spec = importlib.util.spec_from_file_location("my_env", EXAMPLE / "my_env.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    env = module.MyEnv(synthetic_candles("A", bars=200, seed=1))
    act, (seen, _), steps, is_over = policy(model, env), env.reset(seed=0), 0, False
    while not is_over:
        seen, _, terminated, truncated, _ = env.step(act(seen))
        steps, is_over = steps + 1, terminated or truncated
    assert steps == 200 - 2 - 29
