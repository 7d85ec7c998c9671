"""Shell commands of a task: split into packages to install, lines that Mayfly can't run, and a script of the
rest.

A line that is left out becomes `:` with the line behind it, so that an `if` around it stays one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from trainer.base.settings import brief
from trainer.importing.imported import ImportedTask

_PIP = re.compile(r"(?:python3? -m )?(?:uv )?pip3? install (.+)")
_NEEDS_ROOT = re.compile(r"(?:sudo|apt|apt-get|yum|dnf|snap|modprobe|nvidia-smi -pm)\b")
_CONDA = re.compile(
    r"(?:conda|mamba|source activate|\. activate|uv venv|python3? -m venv|source \S*activate)\b"
)
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@%+ -]+")
_SPEC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9,._-]+\])?(?:[=<>!~]=?[A-Za-z0-9.,<>=!~*+]+)?")
_QUIET = ("-q", "-qq", "--quiet", "-U", "--upgrade", "--no-cache-dir", "--user", "--system", "-y")


def take_commands(
    task: ImportedTask, setup: str, run: str, *, strict: bool, renamed: Mapping[str, str], folder: bool
) -> None:
    """Take what prepares the machine, then what trains: into the command where it needs no shell, else into a
    script.

    `strict` ends the script at the first command that fails. `renamed` has the other tool's variables, and
    what they are here. `folder`: the task's folder goes along, so that the command may name files of it.
    """
    kept = [*_kept(task, "setup", setup), *_kept(task, "run", run)]
    doing = [line for line in kept if line.strip() and not line.lstrip().startswith(("#", ":"))]
    if not doing:
        return
    used = {name: value for name, value in renamed.items() if re.search(rf"\b{name}\b", "\n".join(kept))}
    if folder and len(doing) == 1 and _PLAIN.fullmatch(doing[0]) and not used and _is_program(doing[0]):
        task.script["command"] = " ".join(doing[0].split())
        return
    head = ["#!/usr/bin/env bash", *(["set -e"] if strict else [])]
    task.run = "\n".join([*head, *(f"export {name}={value}" for name, value in used.items()), *kept]) + "\n"


def _is_program(line: str) -> bool:
    first = line.split()[0]
    return "=" not in first and first not in ("cd", "export", "source", "exec", "eval", "set", ".")


def _kept(task: ImportedTask, key: str, text: str) -> Iterator[str]:
    """Yield the lines that go into the script."""
    for line in _logical(text):
        plain = line.strip()
        if (match := _PIP.fullmatch(" ".join(plain.split()))) and not re.search(
            r"[;&|<>`$]", match[1].replace(">=", "")
        ):
            _take_packages(task, key, match[1])
        elif _NEEDS_ROOT.match(plain):
            task.note(
                f"{key}: {brief(plain)[1:-1]}",
                "a script is not root: the image has what PyTorch needs; ask what else it is for",
            )
        elif _CONDA.match(plain):
            task.note(
                f"{key}: {brief(plain)[1:-1]}", "a script has one environment, made for it: leave it out"
            )
        else:
            yield line
            continue
        yield f"{line[: len(line) - len(line.lstrip())]}:  # {' '.join(plain.split())}"


def _logical(text: str) -> Iterator[str]:
    """Yield lines with their continuations; of one that has none, as it stands."""
    held = ""
    for line in text.splitlines():
        held = f"{held}\n{line}" if held else line
        if not line.rstrip().endswith("\\"):
            yield _joined(held)
            held = ""
    if held:
        yield _joined(held)


def _joined(lines: str) -> str:
    plain = re.sub(r"\\\n\s*", "", lines)
    return plain if _PIP.fullmatch(" ".join(plain.split())) or _PLAIN.fullmatch(plain) else lines


def _take_packages(task: ImportedTask, key: str, text: str) -> None:
    """Take the arguments of `pip install`: a requirements file, or packages of the index."""
    try:
        words = iter(shlex.split(text))
    except ValueError:
        task.note(f"{key}: pip install {brief(text)[1:-1]}", "write its packages into script.requirements")
        return
    for word in words:
        if word in _QUIET:
            continue
        if word in ("-r", "--requirement"):
            file = next(words, "")
            path = PurePosixPath(file)
            if "requirements" in task.script or path.is_absolute() or ".." in path.parts or not file:
                task.note(
                    f"{key}: pip install -r {file}",
                    "a script has one requirements file: put both into script.requirements",
                )
            else:
                task.script["requirements"] = path.as_posix()
        elif _SPEC.fullmatch(word):
            task.requirements.append(word)
        else:
            why = (
                "only packages of the index are installed: put wheels into script.files, or code beside the"
                " script"
            )
            task.note(f"{key}: pip install {brief(word)[1:-1]}", why)
