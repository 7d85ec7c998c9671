"""GPU profiles: facts of each chip from trainer/machines/gpu_profiles.toml, overridden by the user's file.

The user's file is $MAYFLY_PROFILES, else ~/.config/mayfly/gpu_profiles.toml. It has the format of the
package's file and may also set figures; on a node it is the part in the manifest, written as JSON. Standard
library only.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from trainer.base import environment
from trainer.base.errors import UsageError, nearest
from trainer.base.files import read_plain
from trainer.base.settings import MOST_TOML_BYTES, read_toml
from trainer.job.job import Job

REFERENCE = Job()  # its model is the reference of figures
LEAST, MOST = 1e-6, 1e12  # of a number in the user's file
FIGURES = ("memory_per_model_gib", "models_per_gpu", "batch", "windows_per_second")


@dataclass(frozen=True, kw_only=True)
class GpuProfile:
    """One chip: facts, and the user's own figures. `bf16`: native support.

    `share` is the available part of the chip: below 1 for a slice (MIG, vGPU).
    """

    name: str
    chip: str
    memory_gib: float
    compute_capability: str
    bf16: bool
    multiprocessors: int
    devices: tuple[str, ...] = ()
    windows_per_second: float | None = None
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    peak_source: str = ""
    yours: Mapping[str, Any] = field(default_factory=dict)
    share: float = 1.0

    @property
    def key(self) -> str:
        """Return the name, or a derived key for a slice or an unknown chip: settings of one are not those of
        another.
        """
        if self.share < 1:
            return f"{self.name}_1of{round(1 / self.share)}"
        if self.name == "unknown":
            plain = "".join(letter if letter.isalnum() else "_" for letter in self.chip.lower())
            return f"unknown_{plain[:60]}"
        return self.name


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and LEAST <= value <= MOST


def _is_whole(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


KINDS: dict[str, Callable[[Any], bool]] = {  # of each key of a profile's table
    "chip": _is_text,
    "memory_gib": _is_number,
    "compute_capability": _is_text,
    "bf16": lambda value: isinstance(value, bool),
    "multiprocessors": _is_whole,
    "devices": lambda value: (
        isinstance(value, list) and all(isinstance(item, str) and item for item in value)
    ),
    "windows_per_second": _is_number,
    "peak_tflops": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "peak_source": _is_text,
    "memory_per_model_gib": _is_number,
    "models_per_gpu": _is_whole,
    "batch": lambda value: isinstance(value, dict) and all(map(_is_whole, value.values())),
}


def profiles() -> dict[str, GpuProfile]:
    """Return every profile by name. Raises UsageError if the user's file can't be used."""
    known = dict(packaged())
    for name, values in user_tables().items():
        known[name] = _changed(known.get(name), name, values, f"GPU profiles {user_file()}: [{name}]")
    return known


def named_profile(name: str) -> GpuProfile:
    """Return the profile of this name. Raises UsageError with the nearest names."""
    known = profiles()
    if name not in known:
        raise UsageError(
            f"unknown GPU profile '{name}'", do=nearest(name, known) or "`mayfly profiles` lists them."
        )
    return known[name]


@cache
def packaged() -> dict[str, GpuProfile]:
    """Return the package's own profiles."""
    text = (files("trainer.machines") / "gpu_profiles.toml").read_text(encoding="utf-8")
    return {name: _profile(name, values) for name, values in tomllib.loads(text).items()}


def user_file() -> Path:
    """Return the user's file of profiles, which may not exist."""
    return environment.profiles_file()


def user_tables() -> dict[str, dict[str, Any]]:
    """Return the user's file as unchecked values by profile. Raises UsageError if it can't be read."""
    path = user_file()
    try:
        text = read_plain(path, most_bytes=MOST_TOML_BYTES).decode("utf-8-sig")
        read = json.loads if path.suffix == ".json" else read_toml
        tables: dict[str, dict[str, Any]] = read(text)
        if not isinstance(tables, dict):
            raise ValueError("it is not a table")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:  # TOML's and UTF-8's errors are ValueErrors
        raise UsageError(
            f"GPU profiles {path} can't be read", why=str(error), do="Write one [table] per profile."
        ) from error
    for name, values in tables.items():
        if not isinstance(values, dict):
            raise UsageError(
                f"GPU profiles {path}: {name} is outside a profile", do=f"Write it under [{name}] or another."
            )
    return tables


def _profile(name: str, values: Mapping[str, Any]) -> GpuProfile:
    return GpuProfile(name=name, **{**values, "devices": tuple(values.get("devices", ()))})


def _changed(old: GpuProfile | None, name: str, values: dict[str, Any], where: str) -> GpuProfile:
    """Return a profile with the user's facts and figures instead of the package's. Raises UsageError for a
    bad table.
    """
    for key, value in values.items():
        if key not in KINDS:
            raise UsageError(f"{where} has a key '{key}'", do=nearest(key, KINDS))
        if not KINDS[key](value):
            raise UsageError(
                f"{where} {key} is {value!r}",
                do="See the keys and kinds in trainer/machines/gpu_profiles.toml.",
            )
    facts = {key: value for key, value in values.items() if key not in FIGURES or key == "windows_per_second"}
    yours = {key: value for key, value in values.items() if key in FIGURES}
    if old is not None:
        return replace(old, **{**facts, "devices": tuple(facts.get("devices", old.devices))}, yours=yours)
    if "memory_gib" not in facts:
        raise UsageError(f"{where} has no memory_gib", do="Give it the GiB that nvidia-smi shows.")
    plain = {
        "chip": name,
        "compute_capability": "",
        "bf16": False,
        "multiprocessors": packaged()["t4"].multiprocessors,
    }
    return replace(_profile(name, {**plain, **facts}), yours=yours)
