"""A script's packages: real venvs over this Python's own packages, from a folder of wheels."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.processes import await_end_of
from tests.wheels import write_wheel
from trainer.base import environment
from trainer.base.errors import Stopped, TrainingFailed
from trainer.node import script_packages as module
from trainer.node.script_packages import install, make_venv


@pytest.fixture
def node(tmp_path: Path) -> Any:
    (tmp_path / "work").mkdir()
    return SimpleNamespace(
        work=tmp_path / "work",
        is_stopping=lambda: False,
        moved=lambda: None,
        status=SimpleNamespace(message=""),
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_wheels_are_installed_by_hash_over_the_images_packages(node, tmp_path):
    text = "def main():\n    import torch, tiny\n    print('tiny', tiny.__file__, torch.__name__)\n"
    # No dependency is installed by itself.
    sha256 = write_wheel(
        tmp_path / "files", requires=("torch>=99",), text=text, program="run-tiny = tiny:main"
    )
    other = write_wheel(tmp_path / "files", "aged", tag="cp38-cp38-manylinux2014_x86_64")
    requirements = tmp_path / "files" / "requirements.txt"
    bare = environment.for_script({}, path="/usr/bin")
    programs = make_venv(node, python=sys.executable, folder=tmp_path / "venv", environment=bare)
    given = {
        "python": sys.executable,
        "venv": tmp_path / "venv",
        "wheels": tmp_path / "files",
        "environment": bare,
    }

    requirements.write_text(f"tiny==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(
        TrainingFailed, match="can't install the script's requirements .ERROR: THESE PACKAGES DO NOT MATCH"
    ):
        install(node, requirements=requirements, **given)
    requirements.write_text(f"aged==1.0 --hash=sha256:{other}\n")
    with pytest.raises(
        TrainingFailed, match=r"can't install .*no matching|No matching|Could not find a version"
    ):
        install(node, requirements=requirements, **given)
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    for made_for in ("3.8", ours):
        requirements.write_text(
            f"# Packages of a script for Python {made_for} on x86_64 Linux\ntiny==1.0"
            f" --hash=sha256:{sha256}\n"
        )
        if made_for != ours:
            with pytest.raises(
                TrainingFailed,
                match=rf"packages are for Python 3.8 \(the image has {ours}\). Set script.python",
            ):
                install(node, requirements=requirements, **given)
    install(node, requirements=requirements, **given)

    (tmp_path / "torch.py").write_text("")  # in the place of torch itself, which takes seconds to load
    said = subprocess.run(
        [programs / "run-tiny"],
        env={**bare, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == ["tiny", str(next((tmp_path / "venv").rglob("tiny.py"))), "torch"]
    # A program of the image's, torchrun for one, runs with the venv's Python: it sees what was installed.
    ours, theirs = programs / "torchrun", Path(sys.executable).parent / "torchrun"
    assert (
        theirs.read_text().startswith(f"#!{theirs.parent}")
        and f'exec\' "{programs / "python"}"' in ours.read_text()
    )
    look = "import importlib.util as u; print(u.find_spec('torch').origin)"
    origin = subprocess.run(
        [programs / "python", "-I", "-c", look], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert not Path(origin).is_relative_to(tmp_path), "torch is the image's own"

    node.is_stopping = lambda: True
    with pytest.raises(Stopped, match="stopped before the script began"):
        install(node, requirements=requirements, **given)


def test_only_pip_s_refusal_is_the_requirements_fault(node, tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no module named venv\nexit 1\n")
    broken.chmod(0o755)
    bare = environment.for_script({}, path="/usr/bin")
    with pytest.raises(TrainingFailed, match="can't make the script's environment .no module") as failed:
        make_venv(node, python=str(broken), folder=tmp_path / "venv", environment=bare)
    assert failed.value.do == "Read `mayfly logs`, and launch again."
    requirements = tmp_path / "requirements.txt"
    given = {"venv": tmp_path, "wheels": tmp_path, "requirements": requirements, "environment": bare}
    requirements.write_text("tiny==1.0\n")
    with pytest.raises(TrainingFailed, match=r"Correct script\.requirements"):
        install(node, str(broken), **given)
    requirements.write_text("# Packages of a script for Python 3.12\n")
    monkeypatch.setattr(module, "INSTALL_SECONDS", 0.0)
    with pytest.raises(TrainingFailed, match="can't ask the image for its Python") as failed:
        install(node, str(broken), **given)
    assert failed.value.do == "Read `mayfly logs`, and launch again."


def test_a_stop_ends_pip_and_the_pip_that_it_started(node, tmp_path):
    pip = tmp_path / "python"
    pip.write_text("#!/bin/sh\nsleep 1000 &\necho $! > pid.new; mv pid.new pid; wait\n")
    pip.chmod(0o755)
    node.is_stopping = (tmp_path / "pid").exists
    with pytest.raises(Stopped), contextlib.chdir(tmp_path):
        make_venv(
            node,
            python=str(pip),
            folder=tmp_path / "venv",
            environment=environment.for_script({}, path="/usr/bin"),
        )
    await_end_of({int((tmp_path / "pid").read_text())})


@pytest.mark.parametrize(
    ("install", "title", "pin"),
    [(module.install_ray, "Ray", "ray==2.60.0"), (module.install_optuna, "optuna", "optuna==4.")],
)
def test_what_some_runs_need_is_installed_by_a_lock_of_its_own(monkeypatch, install, title, pin):
    ran: list[list[str]] = []
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(module, "_run", lambda node, what, words, environment, do: ran.append([what, *words]))
    install(SimpleNamespace(status=SimpleNamespace(message="")))
    ((what, *words),) = ran
    lock = Path(words[-1].removeprefix("--requirement="))
    assert what == f"install {title}" and pin in lock.read_text() and "--require-hashes" in words
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: object())
    install(SimpleNamespace())
    assert len(ran) == 1
