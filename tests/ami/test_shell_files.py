"""Every shell file parses; where shellcheck is installed, it finds no error in any."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".ci", "ami", "examples", "infra", "scripts", "tests", "trainer")
SHELLS = (b"#!/bin/bash", b"#!/usr/bin/env bash", b"#!/bin/sh")
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.is_file()
    and (path.suffix == ".sh" or not path.suffix and path.read_bytes()[:24].startswith(SHELLS))
)


def test_bash_reads_every_shell_file() -> None:
    assert {"install.sh", "bootstrap.sh", "systemctl", "check"} <= {path.name for path in FILES}
    for path in FILES:
        done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.slow
def test_shellcheck_finds_no_error() -> None:
    command = ["shellcheck", "--severity=error", "--shell=bash", *map(str, FILES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
