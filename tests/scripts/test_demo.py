"""The command of `make demo`: its own data set, so that it works whatever somebody has uploaded before."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "scripts" / "demo"


@pytest.mark.parametrize(
    ("data", "beside", "words"),
    [
        ("", False, "--set data.set=demo"),
        ("", True, "--set data.set=demo --data ../shared/data/raw"),
        ("/mine", True, "--data /mine --set data.symbols= --set data.timeframe= --set data.bars=20000"),
    ],
)
def test_the_demo_trains_in_a_set_of_its_own_or_on_what_is_named(data, beside, words, tmp_path):
    checkout = tmp_path / "mayfly"
    for path, text in (("scripts/setup", "true"), (".venv/bin/python", 'echo "$@"')):
        (checkout / path).parent.mkdir(parents=True)
        (checkout / path).write_text(f"#!/bin/sh\n{text}\n")
        (checkout / path).chmod(0o755)
    shutil.copy(DEMO, checkout / "scripts")
    if beside:
        (tmp_path / "shared" / "data" / "raw").mkdir(parents=True)
    printed = subprocess.run(
        [checkout / "scripts" / "demo"],
        cwd=tmp_path,
        env=os.environ | {"DATA": data},
        capture_output=True,
        text=True,
        check=True,
    )
    job = "-m trainer.launch --job examples/crypto-lstm.toml --rehearse --instance p3.8xlarge"
    assert printed.stdout == f"{job} {words}\n"
