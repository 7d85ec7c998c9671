"""A model of the user's own, from the example's folder to the numbers of its card: one command, killed workers,
a receipt.
"""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.desk import ROOT
from tests.end_to_end.test_run import kill_worker, only_json
from tests.predictions import accuracy
from trainer.store.card import read_card

EXAMPLE = ROOT / "examples" / "own-model"


@pytest.fixture
def bars(tmp_path: Path) -> Path:
    """Return a folder of seeded minutes of three symbols."""
    words = ["--out", str(tmp_path / "bars"), "--symbols", "BTC-USD,ETH-USD,SOL-USD", "--bars", "7000"]
    command = [sys.executable, "-m", "trainer.data.synthetic", *words, "--timeframe", "1m", "--seed", "0"]
    subprocess.run(command, check=True, capture_output=True)
    return tmp_path / "bars"


@pytest.mark.nightly
@pytest.mark.slow
def test_own_model_trains_and_predicts_the_numbers_of_its_card(desk, bars, eventually):
    small = ("--set", "data.bars=6000", "--epochs", "2", "--symbols", "BTC-USD,ETH-USD,SOL-USD")
    job = ("--job", str(EXAMPLE / "job.toml"), "--data", str(bars))
    run = desk.start("launch", "--rehearse", "--json", *job, *small)
    kill_worker(desk, "ETH-USD", 1, eventually)
    kill_worker(desk, "SOL-USD", 2, eventually)  # retried once
    out, err = run.communicate(timeout=500)
    assert run.returncode == 100, err
    receipt = only_json(out)
    assert (receipt["state"], receipt["retries"]) == ("failed", 2)
    assert [item["piece"] for item in receipt["failed"]] == ["SOL-USD"]
    assert sorted(model["piece"] for model in receipt["models"]) == ["BTC-USD", "ETH-USD"]
    assert receipt["data"]["synthetic"] is True and receipt["data"]["bars"] == 18_000
    assert only_json(desk.run("receipts", receipt["run_id"], "--rehearse", "--json").stdout) == receipt

    hint = shlex.split(
        err.splitlines()[-1].partition("mayfly predict ")[2]
    )  # the last line below the receipt
    predicted = desk.run("predict", *hint)
    assert predicted.returncode == 0 and predicted.stdout.count("\n") == 1 + 2 * 5, predicted.stderr

    pulled = desk.run("pull", receipt["run_id"], "--rehearse", "--out", "pulled")
    assert pulled.returncode == 0, pulled.stderr
    model = next((desk.folder / "pulled").rglob("own-direction_BTC-USD_1m.safetensors"))
    card = read_card(model)
    own = card.own_files["model"]
    assert own["text"] == (EXAMPLE / "my_net.py").read_text() and card.architecture["class"] == "MyNet"
    (manifest,) = [
        json.loads(path.read_bytes())
        for path in desk.home.rglob("*")
        if path.is_file()
        and path.stat().st_size < 100_000
        and b'"own_files": {\n  "model"' in path.read_bytes()
    ]
    assert manifest["own_files"]["model"] == {key: own[key] for key in ("file", "class", "sha256")}
    assert str(EXAMPLE) not in json.dumps(manifest)

    file = next(bars.glob("BTC-USD_1m*"))
    words = ("predict", str(model), "--data", str(file), "--last", "1000")
    refused = desk.run(*words)
    assert refused.returncode == 2 and "Give it with --model-file my_net.py" in refused.stderr
    said = desk.run(*words, "--model-file", str(EXAMPLE / "my_net.py"))
    assert said.returncode == 0, said.stderr
    chances = {row["bar"]: float(row["probability"]) for row in csv.DictReader(said.stdout.splitlines())}
    test = card.metrics["test"]
    assert accuracy(chances, file, card) == (test["n"], test["accuracy"])
