"""The compatibility matrix: whether a type's GPU, an image line's driver and torch's build work together. No
network.

Its table is compatibility.toml, which docs/reference.md shows. `launch.machines` checks it
before anything is created.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

from trainer.machines.rates import TORCH

X86_64 = "x86_64"  # of every image line


@dataclass(frozen=True, kw_only=True)
class Chip:
    """The GPU of some families of instance types."""

    families: tuple[str, ...]
    gpu: str
    system: str  # the CPU's architecture: x86_64 or arm64
    capability: str  # compute capability
    last_driver: int  # the last driver branch that knows it; 0: none has dropped it
    source: str


@dataclass(frozen=True, kw_only=True)
class Image:
    """Lines of Deep Learning images."""

    line: str  # pattern of their names
    index: str  # of PyTorch's wheels, as their torch was built
    driver: int
    families: tuple[str, ...]  # types that they are known to support
    source: str


@dataclass(frozen=True, kw_only=True)
class Build:
    """A build of torch."""

    torch: str
    index: str
    capabilities: tuple[str, ...]
    first_driver: int
    source: str

    def has_code_for(self, chip: Chip) -> bool:
        """Return whether it runs on a chip: by its own code, an earlier minor's of the same major, or PTX (a
        +).
        """
        wanted = _numbers(chip.capability)
        for text in self.capabilities:
            known = _numbers(text.removesuffix("+"))
            if known <= wanted and (known[0] == wanted[0] or text.endswith("+")):
                return True
        return False


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The whole table."""

    chips: tuple[Chip, ...]
    images: tuple[Image, ...]
    builds: tuple[Build, ...]


@dataclass(frozen=True, kw_only=True)
class Compatibility:
    """A verdict on a type and an image line: `why` it can't work and what to `do`, or `unproven` without a
    source.
    """

    why: str = ""
    do: str = ""
    unproven: bool = False

    @property
    def works(self) -> bool:
        """Return whether no known reason is against it."""
        return not self.why


@cache
def matrix() -> Matrix:
    """Read the table."""
    table = tomllib.loads((files("trainer.machines") / "compatibility.toml").read_text(encoding="utf-8"))
    return Matrix(
        chips=tuple(Chip(**_row(row)) for row in table["chip"]),
        images=tuple(Image(**_row(row)) for row in table["image"]),
        builds=tuple(Build(**_row(row)) for row in table["build"]),
    )


def chip_of(instance_type: str) -> Chip | None:
    """Return the GPU of a type by its family; None for a family that the table lacks."""
    family = instance_type.split(".")[0]
    return next((chip for chip in matrix().chips if family in chip.families), None)


def torch_of(line: str) -> str:
    """Return the minor version of torch that an image line names, such as 2.13; '' if it names none."""
    named = re.search(r"pytorch-(\d+\.\d+)", line)
    return named[1] if named else ""


def judge(instance_type: str, line: str) -> Compatibility:
    """Decide whether a type runs on an image line, with the torch that this code needs."""
    chip = chip_of(instance_type)
    if chip is None:
        return Compatibility(unproven=True)
    if chip.system != X86_64:
        why = f"its CPU is {chip.system}, and image lines are for {X86_64}"
        return Compatibility(why=why, do="Choose a type with such a CPU, such as g6.xlarge.")
    torch = torch_of(line)
    if torch and torch != TORCH:
        return Compatibility(
            why=f"{line} has torch {torch}, and this code needs {TORCH}",
            do=f"Set a line of PyTorch {TORCH}, and pulumi up.",
        )
    image = next((one for one in matrix().images if fnmatchcase(line, one.line)), None)
    if image is None:
        return Compatibility(unproven=True)
    if chip.last_driver and image.driver > chip.last_driver:
        why = f"driver {chip.last_driver} is the last for its {chip.gpu}, and {line} has {image.driver}"
        return Compatibility(why=why, do="Choose a type with a newer GPU.")
    built = next((one for one in matrix().builds if (one.torch, one.index) == (TORCH, image.index)), None)
    if built is not None and not built.has_code_for(chip):
        built_as = f"torch {TORCH} as built for {image.index}"
        why = f"{built_as} has no code for the {chip.capability} of its {chip.gpu}"
        return Compatibility(why=why, do="Choose a type with a newer GPU.")
    return Compatibility(unproven=instance_type.split(".")[0] not in image.families)


def _numbers(capability: str) -> tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
