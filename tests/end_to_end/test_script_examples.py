"""Lightning and Hugging Face's Trainer by their job files, with wheels that set-up fetched in the place of a
package index.

Each at its smallest: their imports alone take seconds of a core.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tests.desk import ROOT, Desk
from tests.jobs import sets

WHEELS = ROOT / ".venv" / "example-wheels"
EXAMPLES = ROOT / "examples" / "scripts"
MADE = {
    "lightning": {"autoencoder.ckpt"},
    "huggingface": {"model/model.safetensors", "model/config.json", "scores.json"},
}


def laid_out(desk: Desk, name: str) -> Path:
    """Copy an example into the desk's folder, with the wheels that it names beside it; return its job
    file.
    """
    folder = desk.folder / "scripts"
    for part in (name, "plain-torch"):
        shutil.copytree(EXAMPLES / part, folder / part, dirs_exist_ok=True)
    named = (folder / name / "requirements.txt").read_text()
    (folder / name / "wheels").mkdir()
    for wheel in WHEELS.glob("*.whl"):
        if f"\n{wheel.name.split('-')[0].replace('_', '-')}==" in f"\n{named}":
            os.link(wheel, folder / name / "wheels" / wheel.name)
    return folder / name / "job.toml"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(
    not list(WHEELS.glob("transformers-*.whl")),
    reason="set-up could not fetch the examples' wheels (scripts/setup.py)",
)
def test_each_example_runs_and_its_files_are_pulled(desk):
    smallest = sets('script.files=["train.py", "wheels"]', "script.command=python train.py --epochs 1")
    for name, least in MADE.items():
        run = desk.run("launch", "--rehearse", "--json", "--job", str(laid_out(desk, name)), *smallest)
        assert run.returncode == 0, run.stdout + run.stderr
        receipt = json.loads(run.stdout)
        made = {file["file"]: file["sha256"] for file in receipt["files"]}
        assert receipt["state"] == "done" and made.keys() >= least
        assert receipt["python_packages"].endswith("requirements.txt")
        pulled = desk.run("pull", receipt["run_id"], "--rehearse", "--out", f"pulled-{name}")
        assert pulled.returncode == 0, pulled.stderr
        for file, sha256 in made.items():
            assert (
                hashlib.sha256((desk.folder / f"pulled-{name}/out" / file).read_bytes()).hexdigest() == sha256
            )


AGAIN = """
import os, runpy, sys
script, data, *attempts = sys.argv[1:]
for attempt in attempts:
    out, checkpoints, epochs, *before = attempt.split(":")
    if before:
        os.rename(*before, checkpoints)
    os.environ |= {"MAYFLY_DATA": data, "MAYFLY_OUT": out, "MAYFLY_CHECKPOINTS": checkpoints}
    os.environ |= {"MAYFLY_NOTICE": f"{out}/notice"}
    sys.argv = [script, "--epochs", epochs]
    runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(
    not list(WHEELS.glob("pytorch_lightning-*.whl")),
    reason="set-up could not fetch the examples' wheels (scripts/setup.py)",
)
def test_lightnings_example_goes_on_from_its_checkpoints(tmp_path):
    needed = (EXAMPLES / "lightning" / "requirements.txt").read_text()
    for wheel in WHEELS.glob("*.whl"):
        if f"\n{wheel.name.split('-')[0].replace('_', '-')}==" in f"\n{needed}":
            zipfile.ZipFile(wheel).extractall(tmp_path / "packages")
    # Three epochs; then one on each of three machines, whose folders have other names.
    taken = ("whole:{0}/a:3", "first:{0}/b:1", "second:{0}/c:2:{0}/b", "third:{0}/d:3:{0}/c")
    attempts = [f"{tmp_path}/{name}" for name in taken]
    words = [str(EXAMPLES / "lightning" / "train.py"), str(EXAMPLES / "plain-torch" / "points")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "packages"), "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, "-c", AGAIN, *words, *(one.format(tmp_path) for one in attempts)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    epochs = [line.split()[1] for line in ended.stdout.splitlines() if line.startswith("epoch ")]
    assert epochs == list("123123") and ended.stdout.count("resumes from last.ckpt") == 2
    weights = [torch.load(tmp_path / name / "autoencoder.ckpt")["state_dict"] for name in ("whole", "third")]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
