"""Zips of the functions: our modules, and the locked boto3 from its wheels (wheels.py), nothing else.

The Lambda runtime's own boto3 is older than ours. What a function reaches of this package follows from its
imports (trainer/base/code_files.py); the sweeper's files are listed, so that it can't grow by an unnoticed
import.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

import pulumi

import trainer
from infra import wheels
from trainer.base.code_files import code_files, path_of

_BOTOCORE_DATA = ("_retry.json", "endpoints.json", "partitions.json", "sdk-default-configuration.json")
_MODEL = re.compile(r"botocore/data/([^/]+)/([^/]+)/")


def archive(files: dict[str, Path]) -> pulumi.AssetArchive:
    """Return a zip of these files: path in the zip -> file here."""
    return pulumi.AssetArchive({name: pulumi.FileAsset(str(path)) for name, path in sorted(files.items())})


def reached_files(entry_point: str) -> list[str]:
    """Return the files of this package that a module reaches, such as `trainer/base/errors.py`."""
    return list(code_files([entry_point]))


def function_files(
    own_files: Iterable[str], services: Collection[str], *, time_zones: bool = False
) -> dict[str, Path]:
    """Return a zip's content: path in the zip -> file here. `services` are those that the function calls, by
    botocore's names.

    `time_zones`: it reads local times. Raises pulumi.RunError if a file of ours or a wheel of the lock is
    missing.
    """
    files = {name: package_file(name) for name in own_files}
    if missing := sorted(name for name, path in files.items() if not path.is_file()):
        raise pulumi.RunError(
            f"A function's zip lacks {', '.join(missing)}. Restore the checkout, or install mayfly again."
        )
    lock = wheels.LOCK.read_text(encoding="utf-8")
    for library in wheels.LIBRARIES if time_zones else wheels.BOTO3:
        files |= wheels.files_of(library, lock, lambda name: _is_needed(name, services))
    return _newest_models(files)


def _is_needed(name: str, services: Collection[str]) -> bool:
    """Return whether a file of a wheel belongs in the zip: code, botocore's certificates, and the services
    that are called.
    """
    if name.startswith("botocore/data/"):
        folder, *below = name.removeprefix("botocore/data/").split("/")
        if not below:
            return folder in _BOTOCORE_DATA
        return folder in services and not below[-1].startswith("examples-")
    if name.endswith(".py"):
        return not name.partition("/")[0].endswith((".dist-info", ".data"))
    return name.startswith("tzdata/zoneinfo/") or name == "botocore/cacert.pem"


def _newest_models(files: dict[str, Path]) -> dict[str, Path]:
    """Leave out what describes an older version of a service."""
    versions: dict[str, str] = {}
    for name in files:
        if (match := _MODEL.match(name)) is not None:
            versions[match[1]] = max(match[2], versions.get(match[1], ""))
    return {
        name: path
        for name, path in files.items()
        if (match := _MODEL.match(name)) is None or match[2] == versions[match[1]]
    }


def package_file(name: str) -> Path:
    """Return where a file such as `trainer/node/bootstrap.sh` or `ami/test.yml` lies, in the checkout or the
    installed package.
    """
    return path_of(name, Path(next(iter(trainer.__path__))))
