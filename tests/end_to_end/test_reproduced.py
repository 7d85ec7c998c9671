"""Models and a script that were made here, made again from code and data of then: equal to the bit; and what
refuses it.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.desk import ROOT, Desk
from tests.jobs import sets
from trainer.store.lineage import LOCK

TINY = sets("data.symbols=AAA,BBB", "train.epochs=2", "expert.tune=never", "train.seed=3")
MODELS = {
    "lstm": sets("model.hidden=8", "model.lookback=20", "train.batch=64", "train.refit=true"),
    "tcn": sets(
        "model.name=tcn",
        "target.name=direction",
        "model.width=16",
        "model.blocks=3",
        "model.chunk=64",
        "train.batch=1",
    ),
    "transformer": sets("model.name=transformer", "model.lookback=32", "train.batch=64", "data.bars=1200"),
    "own": ["--job", str(ROOT / "examples" / "own-model" / "job.toml"), *sets("data.bars=1500")],
}
SCRIPT = """
import os
from pathlib import Path

bars = sorted(Path(os.environ["MAYFLY_DATA"]).rglob("*.csv"))
(Path(os.environ["MAYFLY_OUT"]) / "sum.txt").write_text(str(sum(len(bar.read_text()) for bar in bars)))
(Path(os.environ["MAYFLY_OUT"]) / "other.txt").write_text(os.environ.get("NOISE", "same"))
"""


def made(desk: Desk, *words: str) -> dict[str, Any]:
    """Make what is to be reproduced, and return its receipt."""
    run = desk.run("agent", "--here", "--local", "store", "--json", *words)
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(run.stdout)


def reproduced(desk: Desk, *words: str) -> tuple[int, dict[str, Any]]:
    run = desk.run("models", "reproduce", *words, "--local", "store", "--json")
    assert run.stdout, run.stderr
    return run.returncode, json.loads(run.stdout)


def refusal(desk: Desk, *words: str) -> str:
    code, told = reproduced(desk, *words)
    assert code and "error" in told, told
    return f"{told['error']['what']} ({told['error']['why']})"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_made_again_to_the_bit(desk, candles, model):
    receipt = made(desk, "--data", str(candles), *TINY, *MODELS[model])
    before = {path: path.stat().st_mtime_ns for path in (desk.folder / "store").rglob("*") if path.is_file()}
    code, told = reproduced(desk, receipt["run_id"])
    assert code == 0, told
    assert [one["verdict"] for one in told["models"]] == ["equal to the bit"] * 2
    assert not any(one["inexact"] for one in told["models"])
    losses = told["models"][0]["losses"]
    assert {one["name"] for one in losses} == {"train_loss", "validation_loss"}
    assert sum(one["unit"] == "step" for one in losses) >= 4
    assert {one["fit"] for one in losses} == ({1, 2} if model == "lstm" else {0})

    name = (
        f"{receipt['run_id']}/{receipt['models'][1]['key'].rpartition('/')[2].removesuffix('.safetensors')}"
    )
    code, told = reproduced(desk, name, "--steps", "3")
    assert code == 0 and [one["number"] for one in told["models"][0]["losses"]] == [1, 2, 3]
    after = {path: path.stat().st_mtime_ns for path in (desk.folder / "store").rglob("*") if path.is_file()}
    assert after == before, "the bucket is read alone"
    assert not list(desk.home.glob("here/*/bucket"))
    shown = json.loads(desk.run("models", "show", name, "--local", "store", "--json").stdout)
    assert (
        shown["lock"]["is_here"] and shown["trained"]["chip"] and shown["run"]["run_id"] == receipt["run_id"]
    )


@pytest.mark.nightly
def test_a_script_is_run_again_and_its_files_compared(desk):
    (desk.folder / "points").mkdir()
    (desk.folder / "points" / "a.csv").write_text("1,2\n3,4\n")
    (desk.folder / "add.py").write_text(SCRIPT)
    receipt = made(desk, "--script", "add.py", "--data", "points")
    (desk.folder / "points" / "a.csv").write_text("9,9\n9,9\n8,8\n")
    code, told = reproduced(desk, receipt["run_id"])
    assert code == 0, told
    assert [(one["file"], one["verdict"]) for one in told["files"]] == [
        ("other.txt", "equal to the bit"),
        ("sum.txt", "equal to the bit"),
    ]
    assert "has no steps" in refusal(desk, receipt["run_id"], "--steps", "3")


@pytest.mark.nightly
@pytest.mark.slow
def test_what_is_not_there_any_more_is_refused_in_a_line(desk, candles):
    receipt = made(desk, "--data", str(candles), *TINY, *MODELS["lstm"])
    run_id, store = receipt["run_id"], desk.folder / "store"
    file = store / "runs" / run_id / "manifest.json"
    manifest = json.loads(file.read_text())

    def stored(document: dict[str, Any]) -> None:
        file.write_text(json.dumps(document))

    (store / "raw/main").rename(store / "raw/gone")
    assert "2 versions that the run read are deleted (raw/main/AAA" in refusal(desk, run_id)
    (store / "raw/gone").rename(store / "raw/main")

    lock = (ROOT / LOCK).read_text().replace("pandas==", "pandas==1.")
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(LOCK, lock)
    sha256 = hashlib.sha256(wheel.getvalue()).hexdigest()
    key = f"code/{sha256}.whl"
    (store / key).write_bytes(wheel.getvalue())
    stored({**manifest, "code": {"key": key, "sha256": sha256}})
    assert "was made with other packages (pandas 1." in refusal(desk, run_id)
    stored({**manifest, "code": {"key": key, "sha256": "0" * 64}})
    assert "is damaged" in refusal(desk, run_id)
    stored({**manifest, "code": {"key": "code/none.whl", "sha256": sha256}})
    assert "the code of run" in refusal(desk, run_id)
    stored(manifest)
    (store / receipt["models"][0]["key"]).unlink()
    assert "is gone" in refusal(desk, run_id)
    file.unlink()
    assert "the manifest of run" in refusal(desk, run_id)
    assert "no model 'nothing'" in refusal(desk, "nothing")
    assert "--steps is 0" in refusal(desk, run_id, "--steps", "0")
    assert Path(store / "runs" / run_id / "run.json").exists()
