"""The publication of a retrain, its job and code: retrains/<name>.json, which the desk swaps and control only
reads.

Job and code lie under their hashes, code/<sha256>.json and code/<sha256>.whl; control verifies both before it
runs them. The same holds for a script's list of files and pinned data.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainer.aws.objects import Objects
from trainer.base.errors import ConfigError
from trainer.base.strict_json import MOST_TEXT, Fields, Unsound, read_object
from trainer.base.symbols import path_flaw
from trainer.job.job import Job
from trainer.job.reading import job_from
from trainer.retrains.schedule import PUBLISHED_FORMAT
from trainer.runs.record_json import read_value, to_json
from trainer.runs.reports import MOST_FILE_SIZE, MOST_FILES, SHA256

MOST_BYTES = 64 * 1024
MOST_SCRIPT_BYTES = 32 * 2**20  # 20,000 files of data take 12 MB
PREFIX = "retrains/"


@dataclass(frozen=True, kw_only=True)
class PublishedRetrain:
    """One publication. `format` comes first: a reader stops at an unknown one."""

    format: int = PUBLISHED_FORMAT
    name: str
    job_key: str
    job_sha256: str
    code_key: str
    code_sha256: str
    lock_sha256: str  # of the node's packages, which the code holds
    image_line: str
    image_id: str  # used until it is deleted, then the newest of its line
    commit: str  # of the checkout it was published from; '' if there was none
    published_at: datetime
    paused: bool = False
    script_key: str = ""  # of a script's files and data; '' if models are trained
    script_sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class PublishedScript:
    """Files of a published script, which are in its code, and its data."""

    files: Mapping[str, str]  # by path: sha256
    # entries of a manifest, with paths; () if the data is listed at each time
    inputs: tuple[Mapping[str, Any], ...]
    sha256: str  # of settings, files and data, by which earlier durations are looked up

    def to_json(self) -> bytes:
        """Write it as JSON."""
        value = {
            "files": dict(self.files),
            "inputs": [dict(entry) for entry in self.inputs],
            "sha256": self.sha256,
        }
        return json.dumps(value, indent=1, sort_keys=True).encode()


class UnreadablePublication(ConfigError):
    """A publication that this version can't read: another format, or damaged."""


def other_image(retrain: PublishedRetrain, image_id: str) -> list[str]:
    """Return a note if a run has another image than the published one."""
    if image_id == retrain.image_id:
        return []
    return [f"the image {retrain.image_id} is gone: this run has {image_id}, the newest of its line"]


def published_key(name: str) -> str:
    """Return the key of a retrain's publication."""
    return f"{PREFIX}{name}.json"


def read_published(objects: Objects, name: str) -> tuple[PublishedRetrain, str] | None:
    """Return a publication and its ETag, None if there is none. Raises UnreadablePublication."""
    stored = objects.get(key=published_key(name))
    if stored is None:
        return None
    try:
        retrain = read_value(
            stored.body,
            PublishedRetrain,
            name=f"the retrain {name}",
            most_bytes=MOST_BYTES,
        )
        _check_keys(retrain, name)
    except Unsound as error:
        do = f"Publish it again: mayfly retrains publish {name}."
        raise UnreadablePublication(
            f"cannot read what was published for retrain {name}", why=str(error), do=do
        ) from error
    return retrain, stored.etag


def _check_keys(retrain: PublishedRetrain, name: str) -> None:
    """Raise Unsound if it is another retrain's, or names keys that no publication has."""
    keys = (f"code/{retrain.job_sha256}.json", f"code/{retrain.code_sha256}.whl")
    hashes = re.fullmatch(f"{SHA256} {SHA256}", f"{retrain.job_sha256} {retrain.code_sha256}")
    script = f"code/{retrain.script_sha256}.json" if re.fullmatch(SHA256, retrain.script_sha256) else ""
    if retrain.script_key != script:
        raise Unsound(f"it names {retrain.script_key[:80]!r}")
    if retrain.name != name or not hashes or (retrain.job_key, retrain.code_key) != keys:
        raise Unsound(
            f"it names retrain {retrain.name[:80]!r}, {retrain.job_key[:80]!r} and {retrain.code_key[:80]!r}"
        )


def write_published(objects: Objects, retrain: PublishedRetrain, *, replaces: str = "") -> None:
    """Write a publication, replacing the one with the ETag `replaces`. Raises Conflict if another writer was
    faster.
    """
    body = to_json(retrain)
    if replaces:
        objects.put(key=published_key(retrain.name), body=body, if_match=replaces)
    else:
        objects.put(key=published_key(retrain.name), body=body, create=True)


def verified_job(objects: Objects, retrain: PublishedRetrain) -> Job:
    """Return the published job. Raises ConfigError if job or code are missing or have another hash, or if a
    script is published without its files.
    """
    _verified(objects, retrain, "code", retrain.code_key, retrain.code_sha256)
    body = _verified(objects, retrain, "job", retrain.job_key, retrain.job_sha256)
    try:
        job = job_from(dict(read_object(body, most_bytes=MOST_SCRIPT_BYTES, name="the published job").values))
        if bool(job.script.command) != bool(retrain.script_key):
            raise Unsound(
                f"it names {'a script, and no' if job.script.command else 'no script, but'} files of one"
            )
    except Unsound as error:
        raise _unreadable("job", retrain, error) from error
    return job


def verified_script(objects: Objects, retrain: PublishedRetrain) -> PublishedScript:
    """Return the files and data of a published script. Raises ConfigError as `verified_job` does."""
    body = _verified(objects, retrain, "script", retrain.script_key, retrain.script_sha256)
    try:
        return _read_script(read_object(body, most_bytes=MOST_SCRIPT_BYTES, name="the published script"))
    except Unsound as error:
        raise _unreadable("script", retrain, error) from error


def _unreadable(what: str, retrain: PublishedRetrain, error: Unsound) -> ConfigError:
    do = f"Publish it again: mayfly retrains publish {retrain.name}."
    return ConfigError(f"cannot read the {what} of retrain {retrain.name}", why=str(error), do=do)


def _read_script(fields: Fields) -> PublishedScript:
    """Read a published script. Raises Unsound."""
    files = {path: value.sha256() for path, value in fields.table("files", most=MOST_FILES).entries().items()}
    inputs = tuple(
        {
            "path": item.text("path", most=MOST_TEXT),
            "key": item.text("key", most=1024),
            "version_id": item.text("version_id", most=1024),
            "sha256": item.value("sha256").sha256(),
            "bytes": item.whole("bytes", most=MOST_FILE_SIZE),
        }
        for item in fields.rows("inputs", most=MOST_FILES)
    )
    if why := next(filter(None, map(path_flaw, (*files, *(str(entry["path"]) for entry in inputs)))), ""):
        raise Unsound(f"one of its files has a name that a node refuses: {why}")
    return PublishedScript(files=files, inputs=inputs, sha256=fields.value("sha256").sha256())


def _verified(objects: Objects, retrain: PublishedRetrain, what: str, key: str, sha256: str) -> bytes:
    """Return the object of a hash. Raises ConfigError if it is missing or has another hash."""
    stored = objects.get(key=key)
    actual = hashlib.sha256(stored.body).hexdigest() if stored else ""
    if stored is None or actual != sha256:
        why = (
            f"its sha256 is {actual[:12]}..., {sha256[:12]}... was published"
            if stored
            else f"there is no {key}"
        )
        do = f"Publish it again: mayfly retrains publish {retrain.name}."
        raise ConfigError(f"the {what} of retrain {retrain.name} is not what was published", why=why, do=do)
    return stored.body
