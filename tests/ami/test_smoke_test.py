"""The image's smoke test, run here on CPU processes over gloo; and that it fails where something does not
work.
"""

from __future__ import annotations

import json
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "ami" / "smoke_test.py"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=own, capture_output=True, text=True, check=False)


# Run a script as its process would.
RUN = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.mark.nightly
@pytest.mark.slow
def test_two_processes_multiply_reduce_and_train(
    tmp_path: Path, python: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    forks = tmp_path / "python"  # with torch loaded, which takes a fresh process four core-seconds
    forks.write_text(f'#!/bin/sh\nexec {shlex.join([*python, "-c", RUN])} "$@"\n')
    forks.chmod(0o755)
    main = runpy.run_path(str(SCRIPT), run_name="smoke_test")["main"]
    monkeypatch.setattr(sys, "executable", str(forks))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert main(["--cpu", "2"]) == 0
    out, err = capfd.readouterr()
    report = json.loads(out)
    assert report["ok"] and report["devices"] == ["cpu", "cpu"]
    for stage in ("matrix product", "all-reduce over 2", "training"):
        assert err.count(stage) == 2


def test_a_machine_without_a_driver_or_without_gpus_fails(tmp_path: Path) -> None:
    done = run(PATH=str(tmp_path))
    assert done.returncode == 1 and "nvidia-smi" in json.loads(done.stdout)["error"]
    stub = tmp_path / "nvidia-smi"
    stub.write_text("#!/bin/sh\nexit 0\n")
    stub.chmod(0o755)
    done = run(PATH=str(tmp_path))
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"ok": False, "error": "RuntimeError: the driver shows no GPU"}


def test_one_process_that_fails_fails_the_test(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(SCRIPT), run_name="smoke_test")["main"]
    # In the place of an interpreter whose device does not work
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert main(["--cpu", "2"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"] and report["error"].startswith("RuntimeError: process")
