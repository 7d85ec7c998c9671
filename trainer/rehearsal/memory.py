"""Memory of an account over a restart of its server: settings of buckets and parameters, and last states of
instances, for the hour that AWS would show them. One JSON file for each setting and instance.

An instance without an end, because the server was killed, is read back as terminated: `instance.reap` has
ended its processes by then.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from trainer.base.files import whole_file
from trainer.base.instants import from_iso, iso
from trainer.rehearsal.home import reading
from trainer.rehearsal.world import Instance, World

_ID = re.compile(r"i-[0-9a-f]{17}")
_AS_LAUNCHED = ("description", "user_data")  # which never change


class StoredSettings:
    """Folder of the requests that made an account's settings; a later session replays them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, service: str, operation: str, about: str, params: dict[str, Any]) -> None:
        """Store a request about a bucket or a parameter, in place of an earlier one."""
        rank = 0 if operation == "CreateBucket" else 1
        name = hashlib.sha256(f"{operation} {about}".encode()).hexdigest()[:24]
        saved = {"service": service, "operation": operation, "params": params}
        with whole_file(self._folder / f"{rank}-{name}.json") as new:
            new.write_text(json.dumps(saved), encoding="utf-8")

    def read(self) -> Iterable[tuple[Path, str, str, dict[str, Any]]]:
        """Yield the stored requests, those that create a bucket first: (file, service, operation,
        parameters). Raises ConfigError for a file that can't be read.
        """
        for path in sorted(self._folder.glob("*.json")):
            with reading(path):
                saved = json.loads(path.read_text(encoding="utf-8"))
                service, operation, params = saved["service"], saved["operation"], dict(saved["params"])
            yield path, service, operation, params


class InstanceLog:
    """Folder of one account's instances."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, dict[str, Any]] = {}  # what may change of each, as it was written
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, instance: Instance) -> None:
        """Write an instance, if it changed since the last time. It is called for each, ten times a second."""
        changing = {name: value for name, value in vars(instance).items() if name not in _AS_LAUNCHED}
        if self._written.get(instance.id) == changing:
            return
        with whole_file(self._folder / f"{instance.id}.json") as new:
            new.write_text(_to_json(instance), encoding="utf-8")
        self._written[instance.id] = changing

    def forget(self, instance_id: str) -> None:
        """Drop an instance that AWS would no longer show."""
        self._written.pop(instance_id, None)
        (self._folder / f"{instance_id}.json").unlink(missing_ok=True)

    def restore(self, world: World, now: datetime) -> list[str]:
        """Restore the stored instances, all ended. Returns the ids of those that are too old to show.

        Raises ConfigError for a file that can't be read.
        """
        for path in sorted(self._folder.glob("*.json")):
            with reading(path):
                instance = _from_json(path.read_text(encoding="utf-8"))
                if instance.id != path.stem or not _ID.fullmatch(
                    instance.id
                ):  # its folder is removed by this name
                    raise ValueError(f"it tells of an instance {instance.id!r}")
                world.instances[instance.id] = instance
                world.lost(instance.id, now)
        forgotten = world.forget(now)
        for instance_id in forgotten:
            self.forget(instance_id)
        return forgotten


def _to_json(instance: Instance) -> str:
    return json.dumps(vars(instance), default=_mark)


def _from_json(text: str) -> Instance:
    values: dict[str, Any] = json.loads(text, object_hook=_unmark)
    return Instance(**{**values, "reason": tuple(values["reason"])})


def _mark(value: Any) -> dict[str, str]:
    """Encode instants and user data so that they can be read back."""
    if isinstance(value, datetime):
        return {"$instant": iso(value)}
    assert isinstance(value, bytes), value
    return {"$base64": base64.b64encode(value).decode()}


def _unmark(value: dict[str, Any]) -> Any:
    if value.keys() == {"$base64"}:
        return base64.b64decode(value["$base64"])
    return from_iso(value["$instant"]) if value.keys() == {"$instant"} else value
