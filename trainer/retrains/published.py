"""The publication of a retrain, its job and code: retrains/<name>.json, which the desk swaps and control only reads.

Job and code lie under their hashes, code/<sha256>.json and code/<sha256>.whl; control verifies both before it runs them.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime

from trainer.errors import ConfigError
from trainer.job import Job, job_from_json
from trainer.reading import Unsound
from trainer.retrains.schedule import PUBLISHED_FORMAT
from trainer.runs.record_json import read_value, to_json
from trainer.runs.reports import SHA256
from trainer.runs.store import Objects

MOST_BYTES = 64 * 1024
PREFIX = "retrains/"


@dataclass(frozen=True, kw_only=True)
class PublishedRetrain:
    """One publication. `format` comes first: who reads another one reads no further."""

    format: int = PUBLISHED_FORMAT
    name: str
    job_key: str
    job_sha256: str
    code_key: str
    code_sha256: str
    lock_sha256: str  # of the node's packages, which the code holds
    image_line: str
    image_id: str  # serves until it is gone, then the newest of its line
    commit: str  # of the checkout it was published from; '' where there was none
    published_at: datetime
    paused: bool = False


class UnreadablePublication(ConfigError):
    """A publication that this version can't read: another format, or damaged."""


def published_key(name: str) -> str:
    """Return the key of a retrain's publication."""
    return f"{PREFIX}{name}.json"


def read_published(objects: Objects, name: str) -> tuple[PublishedRetrain, str] | None:
    """Return a publication and its ETag, None where there is none. Raises UnreadablePublication."""
    stored = objects.get(key=published_key(name))
    if stored is None:
        return None
    try:
        retrain = read_value(
            stored.body, PublishedRetrain, name=f"the retrain {name}", most_bytes=MOST_BYTES, formats=(PUBLISHED_FORMAT,)
        )
        _check_keys(retrain, name)
    except Unsound as error:
        do = f"Publish it again: mayfly retrains publish {name}."
        raise UnreadablePublication(f"cannot read what was published for retrain {name}", why=str(error), do=do) from error
    return retrain, stored.etag


def _check_keys(retrain: PublishedRetrain, name: str) -> None:
    """Raise Unsound where it is another retrain's, or leads to objects that no publication of ours has."""
    keys = (f"code/{retrain.job_sha256}.json", f"code/{retrain.code_sha256}.whl")
    hashes = re.fullmatch(f"{SHA256} {SHA256}", f"{retrain.job_sha256} {retrain.code_sha256}")
    if retrain.name != name or not hashes or (retrain.job_key, retrain.code_key) != keys:
        raise Unsound(f"it names retrain {retrain.name[:80]!r}, {retrain.job_key[:80]!r} and {retrain.code_key[:80]!r}")


def write_published(objects: Objects, retrain: PublishedRetrain, *, replaces: str = "") -> None:
    """Write a publication, in the place of the one with the ETag `replaces`. Raises Conflict where another was faster."""
    body = to_json(retrain).encode()
    if replaces:
        objects.put(key=published_key(retrain.name), body=body, if_match=replaces)
    else:
        objects.put(key=published_key(retrain.name), body=body, create=True)


def verified_job(objects: Objects, retrain: PublishedRetrain) -> Job:
    """Return the published job. Raises ConfigError where job or code are not there, or not what was published."""
    job = b""
    for what, key, sha256 in (
        ("code", retrain.code_key, retrain.code_sha256),
        ("job", retrain.job_key, retrain.job_sha256),
    ):
        stored = objects.get(key=key)
        actual = hashlib.sha256(stored.body).hexdigest() if stored else ""
        if stored is None or actual != sha256:
            why = f"its sha256 is {actual[:12]}..., {sha256[:12]}... was published" if stored else f"there is no {key}"
            do = f"Publish it again: mayfly retrains publish {retrain.name}."
            raise ConfigError(f"the {what} of retrain {retrain.name} is not what was published", why=why, do=do)
        job = stored.body
    return job_from_json(job.decode())
