"""GPUs and torch of this node: listed by nvidia-smi and package metadata, compared with its instance type and
the version that this code needs, tested. Never imports torch.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
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
        answer = subprocess.run(query, capture_output=True, text=True, timeout=seconds, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", "") or getattr(error, "stdout", "") or error).strip().splitlines()
        raise NoDriver(said[-1] if said else type(error).__name__) from error
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]
    return [row for row in rows if row[0].isdecimal() and len(row) == 1 + fields.count(",")]


def find_devices(*, expected: int, place: Place) -> Devices:
    """Ask nvidia-smi. Raises TrainingFailed when it fails or shows another number of GPUs than `expected`."""
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


def smoke_test(devices: Devices, *, folder: Path, seconds: float) -> float:
    """Run a few training steps on all devices at once; return the seconds of the slowest import of torch.

    `seconds` is the limit for all devices together: the first import of torch on a fresh volume is slow, and
    so are many GPUs. Raises TrainingFailed, naming the first device that fails.
    """
    ends, do = time.monotonic() + seconds, "Launch again, on another machine."
    children = {
        name: subprocess.Popen(
            [sys.executable, "-m", "trainer.train.smoke", "--device", name],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in devices.names
    }
    imports = [0.0]
    try:
        for name, child in children.items():
            output, _ = child.communicate(timeout=max(ends - time.monotonic(), 0.01))
            if child.returncode != 0:
                last_line = (output.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
                raise TrainingFailed(f"the smoke test failed on {name}", why=last_line, do=do)
            imports.append(_import_seconds(output))
        return max(imports)
    except subprocess.TimeoutExpired as error:
        what = f"the smoke test hangs (no answer within {seconds:.0f} s)"
        raise TrainingFailed(what, do=do) from error
    finally:
        for child in children.values():
            child.kill()
            child.wait()


def _import_seconds(output: str) -> float:
    """Return the seconds of a smoke test's import of torch, 0 if it does not report them."""
    try:
        return float(json.loads(output.strip().splitlines()[-1])["import_seconds"])
    except (ValueError, KeyError, IndexError, TypeError):
        return 0.0
