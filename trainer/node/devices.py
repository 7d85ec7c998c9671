"""GPUs and torch of this node: listed by nvidia-smi and package metadata, compared with its instance type and
the version that this code needs, tested. Never imports torch.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trainer.aws.place import Place
from trainer.base import environment
from trainer.base.errors import ConfigError, TrainingFailed

# Minor version of the desk's torch (pyproject.toml, extra `train`; a test compares them): a model trained by
# another minor may differ in the last digits, and an older one may lack what the trainer calls.
TORCH = "2.13"
TRIED_SECONDS = 180.0  # for a smoke test in the middle of a run
KILL_SECONDS = 10.0  # for killed processes to end
GPUS = "index,name,memory.total"
OWN_TORCH = (
    "Install Mayfly with its extra `train` in an environment of its own: docs/scripts-and-machines.md."
)


class NoDriver(Exception):
    """nvidia-smi is missing, or failed, and said why."""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """GPUs that the driver shows, and the number that the instance type should have."""

    expected: int
    found: int
    kind: str  # "cuda" or "cpu"
    note: str
    out_of_service: tuple[str, ...] = ()  # devices that a script's values showed to be broken, a line each

    @property
    def names(self) -> tuple[str, ...]:
        """Return the devices to test, by torch's names."""
        return tuple(f"cuda:{index}" for index in range(self.found)) if self.kind == "cuda" else ("cpu",)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that result.json has under `devices`."""
        known = asdict(self)
        return known if self.out_of_service else {key: known[key] for key in known if key != "out_of_service"}


def nvidia_smi(fields: str, *, seconds: float = 60.0) -> list[list[str]]:
    """Return nvidia-smi's answer about each GPU as texts. Raises NoDriver if it fails."""
    query = ("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    try:
        child = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            listing, errors = child.communicate(timeout=seconds)
        finally:
            _end(child)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoDriver(str(error)) from error
    if child.returncode:
        said = (errors or listing).strip().splitlines()
        raise NoDriver(said[-1] if said else f"exit code {child.returncode}")
    rows = [[cell.strip() for cell in line.split(",")] for line in listing.splitlines()]
    return [row for row in rows if row[0].isdecimal() and len(row) == 1 + fields.count(",")]


def _end(*children: subprocess.Popen[str]) -> None:
    """Kill processes, and wait for their end, but not for ever: no signal reaches one that waits for a GPU
    that hangs, inside its driver.
    """
    for child in children:
        child.kill()
    ends = time.monotonic() + KILL_SECONDS
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(ends - time.monotonic(), 0.01))


def find_devices(*, expected: int, place: Place, cores: int = 1) -> Devices:
    """Ask nvidia-smi, unless the type has no GPU: then its devices are up to `cores` of this machine. Raises
    TrainingFailed when nvidia-smi fails or shows another number of GPUs than `expected`.
    """
    if not expected:
        here = min(cores, len(os.sched_getaffinity(0)))
        return Devices(expected=cores, found=here, kind="cpu", note="no GPU: the CPUs of this type")
    do = "Launch again, on another machine."
    try:
        models = [model for _, model, _ in nvidia_smi(GPUS)]
    except NoDriver as error:
        raise TrainingFailed("nvidia-smi shows no GPU", why=str(error), do=do) from error
    if len(models) != expected:
        raise TrainingFailed(
            f"found {len(models)} GPUs, this instance type has {expected}",
            why=", ".join(sorted(set(models))) or "nvidia-smi lists none",
            do=f"Nothing was trained. {do}",
        )
    note = "GPUs are CPU processes in a rehearsal" if place.chip else ", ".join(sorted(set(models)))
    return Devices(expected=expected, found=len(models), kind="cpu" if place.chip else "cuda", note=note)


def own_devices() -> Devices:
    """Return the GPUs of the caller's own machine by nvidia-smi, limited by CUDA_VISIBLE_DEVICES; without
    any, its CPU.
    """
    gpus = []
    with suppress(NoDriver):
        gpus = [model for _, model, _ in nvidia_smi(GPUS)]
    if (visible := environment.visible_gpus()) is not None:
        names = [name.strip() for name in visible.split(",")]
        # up to the first invalid one (CUDA programming guide)
        gpus = gpus[: len(list(itertools.takewhile(lambda name: name not in ("", "-1"), names)))]
    if not gpus:
        return Devices(expected=1, found=1, kind="cpu", note="no GPU: the CPU of this machine")
    return Devices(expected=len(gpus), found=len(gpus), kind="cuda", note=", ".join(sorted(set(gpus))))


def check_torch(installed: str | None = None, *, here: bool = False) -> str:
    """Return the version of the installed torch. Raises ConfigError if there is none or its minor version
    differs.

    `here`: on the caller's own machine, which has no image.
    """
    place, do = "the image", "Set image_line to an image with it, and `pulumi up`."
    if here:
        place, do = "this Python", OWN_TORCH
    try:
        there = installed or version("torch")
    except PackageNotFoundError as error:
        raise ConfigError(f"{place} has no torch", do=do) from error
    if there.split("+")[0].split(".")[:2] != TORCH.split("."):
        raise ConfigError(f"{place} has torch {there}", why=f"this code needs {TORCH}", do=do)
    return there


def import_torch(*, folder: Path, seconds: float) -> float:
    """Import torch once, before the smoke test; return the seconds that it took.

    A fresh volume is filled lazily from its snapshot, so that the first import may take minutes, which say
    nothing about the devices. Raises TrainingFailed after `seconds`, the rest of the boot's time.
    """
    return _tested({"import": "import"}, "the first import of torch", folder=folder, seconds=seconds)


def smoke_test(devices: Devices, *, folder: Path, seconds: float) -> float:
    """Run a few training steps on all devices at once; return the seconds that they took.

    `seconds` is the limit for all devices together. Raises TrainingFailed, naming the first device that
    fails.
    """
    tested = {name: f"device={name}" for name in devices.names}
    return _tested(tested, "the smoke test", folder=folder, seconds=seconds)


def tried(names: Sequence[str], *, folder: Path, seconds: float = TRIED_SECONDS) -> str:
    """Run the smoke test on devices in the middle of a run; return why it fails, or ''."""
    try:
        _tested({name: f"device={name}" for name in names}, "the smoke test", folder=folder, seconds=seconds)
    except TrainingFailed as error:
        return f"{error.what}{f' ({error.why})' if error.why else ''}"
    return ""


def _tested(tests: Mapping[str, str], what: str, *, folder: Path, seconds: float) -> float:
    """Run the smoke test's module once for each test, at the same time; return the seconds of all."""
    began, do = time.monotonic(), "Launch again, on another machine."
    children = {
        name: subprocess.Popen(
            [sys.executable, "-m", "trainer.train.smoke", f"--{flag}"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, flag in tests.items()
    }
    try:
        for name, child in children.items():
            output, _ = child.communicate(timeout=max(began + seconds - time.monotonic(), 0.01))
            if child.returncode != 0:
                last_line = (output.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
                on = "" if name == "import" else f" on {name}"
                raise TrainingFailed(f"{what} failed{on}", why=last_line, do=do)
        return time.monotonic() - began
    except subprocess.TimeoutExpired as error:
        raise TrainingFailed(f"{what} hangs (no answer within {seconds:.0f} s)", do=do) from error
    finally:
        _end(*children.values())
