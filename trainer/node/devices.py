"""GPUs of this node: listed by nvidia-smi, compared with its instance type, tested. Never imports torch."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.aws.place import Place
from trainer.base import environment
from trainer.base.errors import TrainingFailed

QUERY = ("nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits")


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
        fields = asdict(self)
        return (
            fields
            if self.out_of_service
            else {key: value for key, value in fields.items() if key != "out_of_service"}
        )


def find_devices(*, expected: int, place: Place) -> Devices:
    """Ask nvidia-smi. Raises TrainingFailed when it fails or shows another number of GPUs than `expected`."""
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise TrainingFailed(
            "nvidia-smi shows no GPU", why=said[-1] if said else "", do="Launch again, on another machine."
        ) from error
    return compare(answer.stdout, expected=expected, place=place)


def own_devices(run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run) -> Devices:
    """Return the GPUs of the caller's own machine by nvidia-smi, limited by CUDA_VISIBLE_DEVICES; without
    any, its CPU.
    """
    try:
        listing = run(QUERY, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        listing = ""
    gpus = [line.split(",")[1].strip() for line in listing.splitlines() if line.count(",") >= 2]
    if (
        visible := environment.visible_gpus()
    ) is not None:  # up to the first invalid one (CUDA programming guide)
        seen = list(
            itertools.takewhile(
                lambda name: name not in ("", "-1"), (one.strip() for one in visible.split(","))
            )
        )
        gpus = gpus[: len(seen)]
    if not gpus:
        return Devices(expected=1, found=1, kind="cpu", note="no GPU: the CPU of this machine")
    return Devices(expected=len(gpus), found=len(gpus), kind="cuda", note=", ".join(sorted(set(gpus))))


def compare(listing: str, *, expected: int, place: Place) -> Devices:
    """Read nvidia-smi's CSV and compare. Raises TrainingFailed if the number of GPUs differs from the
    type's.
    """
    models = [line.split(",")[1].strip() for line in listing.splitlines() if line.count(",") >= 2]
    if len(models) != expected:
        raise TrainingFailed(
            f"found {len(models)} GPUs, this instance type has {expected}",
            why=", ".join(sorted(set(models))) or "nvidia-smi lists none",
            do="Nothing was trained. Launch again, on another machine.",
        )
    note = "GPUs are CPU processes in a rehearsal" if place.chip else ", ".join(sorted(set(models)))
    return Devices(expected=expected, found=len(models), kind="cpu" if place.chip else "cuda", note=note)


def smoke_test(devices: Devices, *, folder: Path, seconds: float) -> float:
    """Run a few training steps on all devices at once; return the seconds of the slowest import of torch.

    `seconds` is the limit for all devices together: the first import of torch on a fresh volume is slow, and
    so are many GPUs. Raises TrainingFailed, naming the first device that fails.
    """
    ends = time.monotonic() + seconds
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
                raise TrainingFailed(
                    f"the smoke test failed on {name}", why=last_line, do="Launch again, on another machine."
                )
            imports.append(_import_seconds(output))
        return max(imports)
    except subprocess.TimeoutExpired as error:
        raise TrainingFailed(
            f"the smoke test hangs (no answer within {seconds:.0f} s)", do="Launch again, on another machine."
        ) from error
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
