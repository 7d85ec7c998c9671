"""A script's Python: a venv on top of the image's packages, with the script's requirements, checked by hash.

The image's torch stays: the desk refuses requirements that name it, and no dependency is installed that they
do not name. Wheels among the script's files replace the package index, and the network is not used.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.base.environment import for_script, image_python
from trainer.base.errors import Stopped, TrainingFailed
from trainer.node.shared import Node

log = logging.getLogger("trainer.node")
INSTALL_SECONDS = 1200.0
INSTALL_OPTIONS = (
    *("--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-compile"),
    *("--only-binary=:all:", "--require-hashes", "--no-deps"),
)
POLL_SECONDS = 0.1
AGAIN = "Read `mayfly logs`, and launch again."
CORRECT = (
    "Correct script.requirements: every package with its dependencies, as wheels for the image's Python, with"
    " hashes."
)
_FIRST_BYTES = 256  # a console script's first line is shorter
# pip writes this if Python's path is too long for `#!`: a shell runs the first half, Python skips it as a
# string.
_LAUNCHER = "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
# trainer/cli/sources/script_packages.py writes this line.
_MADE_FOR = re.compile(r"# Packages of a script for Python (3\.\d{1,2})\b")
# One .pth line a folder of the image's, as bootstrap.sh does for the agent: the venv's own packages come
# first.
_BESIDE = """import pathlib, site, sys, sysconfig
folder = sysconfig.get_path("purelib", "venv", {"base": sys.argv[1]})
pathlib.Path(folder, "beside.pth").write_text("\\n".join(site.getsitepackages()) + "\\n")"""


def make_venv(node: Node, *, python: str, folder: Path, environment: Mapping[str, str]) -> Path:
    """Make the script's venv on top of the packages of `python`, with its console scripts; return its bin
    folder.

    Raises Stopped and TrainingFailed.
    """
    for what, words in {
        "make the script's environment": [python, "-I", "-m", "venv", "--without-pip", str(folder)],
        "add the image's packages": [python, "-I", "-c", _BESIDE, str(folder)],
    }.items():
        _run(node, what, words, environment, do=AGAIN)
    _copy_programs(Path(python).parent, folder / "bin")
    return folder / "bin"


def install(
    node: Node, python: str, *, venv: Path, requirements: Path, wheels: Path, environment: Mapping[str, str]
) -> None:
    """Install the requirements into the venv. Raises TrainingFailed with pip's error, or if they are for
    another Python.
    """
    _refuse_other_python(node, python, requirements, environment)
    folders = sorted({str(wheel.parent) for wheel in wheels.rglob("*.whl")})
    source = ["--no-index", *(f"--find-links={folder}" for folder in folders)] if folders else []
    pip = [python, "-I", "-m", "pip", "--isolated", f"--python={venv / 'bin' / 'python'}", "install"]
    words = [*pip, *INSTALL_OPTIONS, *source, f"--requirement={requirements}"]
    node.status.message = "installing the script's requirements"
    _run(
        node, "install the script's requirements", words, environment, do=CORRECT, slow="Name fewer packages."
    )


def install_ray(node: Node) -> None:
    """Install Ray, through which nodes of several share their pieces. A wheel of 70 MB, some ten seconds.
    Raises Stopped and TrainingFailed.
    """
    _install_locked(node, "Ray", "cluster", do="nodes of several need PyPI, or an image that has Ray")


def install_optuna(node: Node) -> None:
    """Install optuna, which proposes the trials of a search by TPE and prunes; 6 MB. Raises Stopped and
    TrainingFailed.
    """
    do = "a search by tpe or with pruning needs PyPI, or an image that has optuna"
    _install_locked(node, "optuna", "search", do=do)


def _install_locked(node: Node, title: str, name: str, *, do: str) -> None:
    """Install the packages of a lock beside this file for the agent's own Python, unless it has the first, as
    a rehearsal's desk does.
    """
    if importlib.util.find_spec(title.lower()) is not None:
        return
    lock = Path(__file__).with_name(f"{name}.lock")
    pip = [image_python(), "-I", "-m", "pip", "--isolated", f"--python={sys.executable}", "install"]
    node.status.message = f"installing {title}"
    words = [*pip, *INSTALL_OPTIONS, f"--requirement={lock}"]
    _run(node, f"install {title}", words, for_script({}, path=os.defpath), do=f"Launch again; {do}.")
    importlib.invalidate_caches()  # this process may import it
    node.status.message = ""


def _refuse_other_python(node: Node, python: str, requirements: Path, environment: Mapping[str, str]) -> None:
    """Raise TrainingFailed if the desk resolved the requirements for another Python than this machine's."""
    with requirements.open(encoding="utf-8", errors="replace") as file:
        made = _MADE_FOR.match(file.readline(200))
    if made:
        shown = "import sys; print('%d.%d' % sys.version_info[:2])"
        (there,) = _run(
            node, "ask the image for its Python", [python, "-I", "-c", shown], environment, do=AGAIN
        )
        if there != made[1]:
            what, why = f"the script's packages are for Python {made[1]}", f"the image has {there}"
            raise TrainingFailed(what, why=why, do=f'Set script.python = "{there}", and launch again.')


def _copy_programs(theirs: Path, ours: Path) -> None:
    """Copy the image's console scripts, such as torchrun, so that they run with the venv's Python and see its
    packages.
    """
    for place in sorted(theirs.iterdir()):
        target = ours / place.name
        if target.exists() or not place.is_file() or place.is_symlink() or place.stat().st_size > 1 << 16:
            continue
        first, newline, rest = place.read_bytes().partition(b"\n")
        if newline and len(first) < _FIRST_BYTES and first.startswith(b"#!") and b"python" in first:
            target.write_bytes(_LAUNCHER.format(python=ours / "python").encode() + rest)
            target.chmod(0o755)


def _run(
    node: Node, what: str, words: Sequence[str], environment: Mapping[str, str], *, do: str, slow: str = ""
) -> list[str]:
    """Run a program, log its output and return its lines. Raises Stopped, and TrainingFailed with `do`, or
    with `slow` if it takes too long.
    """
    output = node.work / "packages.log"
    with output.open("wb") as printed:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        ends = time.monotonic() + INSTALL_SECONDS
        while (code := child.poll()) is None and not node.is_stopping() and time.monotonic() < ends:
            time.sleep(POLL_SECONDS)
        if code is None:
            os.killpg(child.pid, signal.SIGKILL)  # pip --python is a process that waits for another pip
            child.wait()
    if node.is_stopping():
        raise Stopped("stopped before the script began")
    node.moved()
    lines = output.read_text(errors="replace").strip().splitlines()
    for line in lines:
        log.info("packages: %s", line)
    if code is None:
        why = f"not within {INSTALL_SECONDS / 60:.0f} minutes"
        raise TrainingFailed(f"can't {what}", why=why, do=slow or do)
    if code:
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        why = errors[0][:300] if errors else f"exit code {code}"
        raise TrainingFailed(f"can't {what}", why=why, do=do)
    return lines
