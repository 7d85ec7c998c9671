"""The profiles: facts of each chip from trainer/gpu_profiles.toml, changed by the user's file, with what was measured of them.

Two files are the user's. Profiles stand in $MAYFLY_PROFILES, else ~/.config/mayfly/gpu_profiles.toml, in the same form as the
package's, and there a figure may be set too; a node, which gets them from its manifest, has them as JSON. Beside it the tuner
writes gpu_measured.json. Standard library only.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from trainer import environment
from trainer.errors import UsageError, nearest

MEASURED = "gpu_measured.json"
FIGURES = ("memory_per_model_gib", "models_per_gpu", "batch", "windows_per_second")


@dataclass(frozen=True, kw_only=True)
class GpuProfile:
    """One chip: the facts, and figures of the user's or the tuner's that win over estimates. `bf16` means natively.

    `share` is how much of the chip there is: below 1 for a slice of a divided one.
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
    measured: Mapping[str, Any] = field(default_factory=dict)
    share: float = 1.0


def profiles() -> dict[str, GpuProfile]:
    """Return every profile by name: the package's, changed and extended by the user's file, with what was measured.

    Raises UsageError where one of the two files can't be used.
    """
    found = dict(packaged())
    path = user_file()
    for name, values in user_tables().items():
        found[name] = _changed(found.get(name), name, values, path)
    for name, values in read_measured(path.with_name(MEASURED)).items():
        if name in found:
            found[name] = replace(found[name], measured=values)
    return found


def user_tables() -> dict[str, dict[str, Any]]:
    """Return what stands in the user's file, by profile, unchecked. Raises UsageError for a file that can't be read."""
    return _read_user_file(user_file())


def user_file() -> Path:
    """Return the user's file of profiles, there or not; what was measured and tuned is kept beside it."""
    return environment.profiles_file()


def write_measured(name: str, values: Mapping[str, Any], *, date: str) -> Path:
    """Keep what a tuner measured of a profile, beside the user's file; return the file. Values are those of FIGURES."""
    path = user_file().with_name(MEASURED)
    known = read_measured(path)
    known[name] = {**known.get(name, {}), **{key: values[key] for key in FIGURES if key in values}, "date": date}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    part.replace(path)
    return path


def read_measured(path: Path) -> dict[str, dict[str, Any]]:
    """Return what was measured, by profile. Raises UsageError for a file that is not the tuner's."""
    try:
        found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(
            f"measured profiles {path} can't be read", why=str(error), do="Delete the file and tune again."
        ) from error
    return found


def named_profile(name: str) -> GpuProfile:
    """Look a profile up. Raises UsageError with the nearest names."""
    known = profiles()
    if name not in known:
        raise UsageError(f"unknown GPU profile '{name}'", do=nearest(name, known) or "`mayfly profiles` lists them.")
    return known[name]


@cache
def packaged() -> dict[str, GpuProfile]:
    """Return the package's own profiles."""
    text = (files("trainer") / "gpu_profiles.toml").read_text(encoding="utf-8")
    return {name: _profile(name, values) for name, values in tomllib.loads(text).items()}


def _profile(name: str, values: Mapping[str, Any]) -> GpuProfile:
    return GpuProfile(name=name, **{**values, "devices": tuple(values.get("devices", ()))})


def _read_user_file(path: Path) -> dict[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        found: dict[str, dict[str, Any]] = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:  # TOML's and UTF-8's errors are ValueErrors
        raise UsageError(f"GPU profiles {path} can't be read", why=str(error), do="Write one [table] a profile.") from error
    for name, values in found.items():
        if not isinstance(values, dict):
            raise UsageError(f"GPU profiles {path}: {name} stands outside a profile", do=f"Write it under [{name}] or another.")
    return found


def _changed(old: GpuProfile | None, name: str, values: dict[str, Any], path: Path) -> GpuProfile:
    """Return a profile with the user's words in it: facts replaced, figures kept as the user's."""
    facts = [item.name for item in fields(GpuProfile) if item.name not in ("name", "yours", "measured", "share")]
    for key, value in values.items():
        if key not in (*facts, *FIGURES):
            raise UsageError(f"GPU profiles {path}: [{name}] has a key '{key}'", do=nearest(key, (*facts, *FIGURES)))
        _check(key, value, f"GPU profiles {path}: [{name}] {key}")
    given = {key: value for key, value in values.items() if key in facts}
    yours = {key: value for key, value in values.items() if key in FIGURES}
    if old is not None:
        changed = {**given, "devices": tuple(given.get("devices", old.devices))}
        return replace(old, **changed, yours=yours)
    if "memory_gib" not in given:
        raise UsageError(f"GPU profiles {path}: [{name}] has no memory_gib", do="Give it the GiB that nvidia-smi shows.")
    plain = {"chip": name, "compute_capability": "", "bf16": False, "multiprocessors": packaged()["t4"].multiprocessors}
    return replace(_profile(name, {**plain, **given}), yours=yours)


def _check(key: str, value: Any, where: str) -> None:
    """Raise UsageError for a value of the wrong kind."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    good = {
        "chip": isinstance(value, str),
        "compute_capability": isinstance(value, str),
        "peak_source": isinstance(value, str),
        "bf16": isinstance(value, bool),
        "devices": isinstance(value, list) and all(isinstance(item, str) and item for item in value),
        "peak_tflops": isinstance(value, dict),
        "batch": isinstance(value, dict) and all(isinstance(item, int) and item > 0 for item in value.values()),
        "models_per_gpu": number and isinstance(value, int),
        "multiprocessors": number and isinstance(value, int),
    }
    if not good.get(key, number):
        raise UsageError(f"{where} is {value!r}", do="See the keys and kinds in trainer/gpu_profiles.toml.")
