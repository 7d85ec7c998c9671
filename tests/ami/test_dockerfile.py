"""The Dockerfile: linted by rules of ours; built where docker or buildah has its base image at hand."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainer.machines.rates import TORCH

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "ami" / "Dockerfile"
KNOWN = {"ARG", "FROM", "COPY", "RUN", "USER", "WORKDIR", "ENV", "ENTRYPOINT"}


def instructions() -> list[tuple[str, str]]:
    """Return the file's instructions, with continued lines joined."""
    written = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    lines = re.sub(r"\\\n", " ", "\n".join(written)).splitlines()
    parts = (line.partition(" ") for line in lines if line.strip())
    return [(name, rest.strip()) for name, _, rest in parts]


def all_of(name: str) -> list[str]:
    return [rest for known, rest in instructions() if known == name]


def test_it_has_known_instructions_and_one_base_with_our_torch() -> None:
    assert {name for name, _ in instructions()} <= KNOWN  # no ADD, which fetches from anywhere
    assert [name for name, _ in instructions()][:2] == ["ARG", "FROM"] and all_of("FROM") == ["${BASE}"]
    (base,) = [rest.removeprefix("BASE=") for rest in all_of("ARG")]
    assert re.fullmatch(rf"[a-z/]+:{re.escape(TORCH)}\.\d+-cuda13\.\d-[\w-]+(@sha256:[0-9a-f]{{64}})?", base)


def test_it_installs_from_the_lock_and_fetches_nothing_else() -> None:
    (command,) = all_of("RUN")
    assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0
    assert "/opt/mayfly/ami/install.sh" in command
    assert "--lock /opt/mayfly/code/trainer/node/requirements.lock" in command
    assert not re.search(r"\b(curl|wget|apt-get|pip|sudo|chmod 777)\b", command)


def test_it_copies_what_exists_and_runs_as_nobody_special() -> None:
    copied = dict(rest.split() for rest in all_of("COPY"))
    assert copied == {"ami": "/opt/mayfly/ami", "trainer": "/opt/mayfly/code/trainer"}
    ignored = (FILE.with_name("Dockerfile.dockerignore")).read_text().split()
    assert ignored[0] == "*" and {f"!{name}" for name in copied} <= set(ignored)
    names = [name for name, _ in instructions()]
    assert all_of("USER") == ["10001"] and names.index("USER") > names.index("RUN")
    entry = json.loads(all_of("ENTRYPOINT")[0])
    assert entry == ["/opt/mayfly/environment/bin/python", "-m", "trainer.train"]


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_hadolint_finds_no_error() -> None:
    subprocess.run(["hadolint", "--failure-threshold", "error", str(FILE)], check=True)


def has_base(command: Sequence[str]) -> bool:
    """Return whether a builder works here and holds the base image."""
    base = all_of("ARG")[0].removeprefix("BASE=")
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run([*command, base], capture_output=True, check=False, timeout=60).returncode == 0


@pytest.mark.slow
def test_it_builds_where_a_builder_has_the_base_image() -> None:
    builds = {("docker", "image", "inspect"): ["docker", "build", "--pull=false"],
              ("buildah", "inspect", "--type", "image"): ["buildah", "build", "--pull=never"]}  # fmt: skip
    command = next((build for look, build in builds.items() if has_base(look)), None)
    if command is None:
        pytest.skip("no docker and no buildah with the base image")
    subprocess.run([*command, "-f", str(FILE), str(ROOT)], check=True, timeout=550)
