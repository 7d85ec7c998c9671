"""The AWS calls that applied the Pulumi program, kept by the program's hash and replayed into other accounts.

Applying the program takes four core-seconds, replaying its calls in this process about 0.15 s. A replay goes
through the same rules as any request, so the account gets the same resources, with its own identifiers.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.base.errors import ConfigError
from trainer.base.files import whole_file
from trainer.rehearsal.world import AwsError

FORMAT = 3
PROGRAM_DIGITS = 32  # of a stored key: the program's hash; the rest is that of a rehearsal's settings
# Sources that determine the calls of an application, besides the program and the package that packs its
# functions.
LIBRARIES = ("boto3", "botocore", "moto", "pulumi", "pulumi-aws")
_PROGRAM_FILES = ("Pulumi.yaml", "Pulumi.*.yaml", "infra/**/*.py", "ami/*")
_PACKAGE_FILES = ("**/*.py", "**/*.sh", "**/*.toml", "**/*.csv", "**/*.json")
# subnet-0a1b..., a file system's shorter ones, a key's UUID (of which no end counts by itself), an account's
# number, the unique id of a role or an instance profile.
_ID = re.compile(
    r"\b[a-z]+-[0-9a-f]{17}\b|\bfs(?:ap|mt)?-[0-9a-f]{8,16}\b|\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"
    r"|\b\d{12}\b|\bA(?:ROA|IPA)[A-Z0-9]{17}\b"
)
Send = Callable[[str, str, dict[str, Any]], dict[str, Any]]  # (service, operation, parameters) -> answer
OWNED_ALREADY = "BucketAlreadyOwnedByYou"  # a bucket outlives the server; everything else is created again


@dataclass(frozen=True, kw_only=True)
class RecordedCall:
    """One call of an application. `identifiers` are those in its answer, in order: the answer of a replay has
    others.
    """

    service: str
    operation: str
    params: dict[str, Any]
    identifiers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AppliedProgram:
    """An application of the program to one account: its outputs, and the calls that made them."""

    account: str
    outputs: dict[str, Any]
    calls: tuple[RecordedCall, ...]


class Recorder:
    """Records the successful calls of boto3 clients, in the order of their answers."""

    def __init__(self) -> None:
        self.calls: list[RecordedCall] = []
        self._params: dict[str, dict[str, Any]] = {}  # of the call under way; callers make one at a time
        self._body: dict[str, Any] = {}  # of an object, which botocore replaces by a file

    def watch(self, client: Any) -> None:
        """Record a client's calls from now on."""
        client.meta.events.register("provide-client-params.*", self._asked)
        client.meta.events.register("after-call.*", self._answered)

    def _asked(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        self._params = {model.name: params}
        self._body = {"Body": params["Body"]} if "Body" in params else {}

    def _answered(self, http_response: Any, parsed: dict[str, Any], model: Any, **_: Any) -> None:
        if http_response.status_code < 300 or parsed.get("Error", {}).get("Code") == OWNED_ALREADY:
            service, params = model.service_model.service_name, {**self._params[model.name], **self._body}
            known = {"service": service, "operation": model.name, "params": params}
            self.calls.append(RecordedCall(**known, identifiers=identifiers(parsed)))


class ProgramStore:
    """Applied programs in a folder, by hash. Several processes may use it at once.

    Stored calls are replayed, function code included, so the folder must be this user's and writable by
    nobody else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Let one process at a time apply a program; the others then reuse it. Raises ConfigError for an
        unsafe folder.
        """
        open_folder(self.folder)
        with (self.folder / f"{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self, key: str) -> AppliedProgram | None:
        """Return a stored application, or None if there is no readable one: the program is then applied
        again.
        """
        try:
            return from_json((self.folder / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, key: str, applied: AppliedProgram) -> None:
        """Store an application and remove those of older programs, which are not applied again."""
        for older in self.folder.glob("*.json"):
            if not older.name.startswith(key[:PROGRAM_DIGITS]):
                older.unlink(missing_ok=True)
        with whole_file(self.folder / f"{key}.json") as new:
            new.write_text(to_json(applied), encoding="utf-8")


def open_folder(folder: Path) -> None:
    """Make the folder of stored applications. Raises ConfigError if that fails, or if other users may write
    there.
    """
    what = f"applied programs can't be kept in {folder}"
    do = "Set MAYFLY_PROGRAMS to a folder of your own, or run chmod go-w on this one."
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = folder.stat()
    except OSError as error:  # a home that is read-only, in a container
        raise ConfigError(what, why=str(error.strerror), do=do) from error
    if about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise ConfigError(what, why="it belongs to another user, or others may write there", do=do)


def program_hash(program: Path, package: Path, *, stack: str, config: Mapping[str, str] | None = None) -> str:
    """Return the hash of everything that determines how the program in `program` is applied to an account.

    The hash of a rehearsal's own settings follows that of the program without them.
    """
    digest = hashlib.sha256(f"{FORMAT} {stack} {sys.version}".encode())
    for name in LIBRARIES:
        digest.update(f"{name} {importlib.metadata.version(name)}\n".encode())
    for folder, patterns in ((program, _PROGRAM_FILES), (package, _PACKAGE_FILES)):
        found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
        for path in sorted(found):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(folder)} {len(content)}\n".encode())
            digest.update(content)
    own = hashlib.sha256(json.dumps(dict(config or {}), sort_keys=True).encode()).hexdigest()
    return f"{digest.hexdigest()[:PROGRAM_DIGITS]}-{own[:16]}"


def replay(applied: AppliedProgram, *, account: str, send: Send) -> dict[str, Any]:
    """Make the recorded calls in another account and return the program's outputs there.

    Raises AwsError as AWS does, and ValueError for an answer of another shape than the recorded one.
    """
    replaced = {applied.account: account}
    for call in applied.calls:
        try:
            answer = send(call.service, call.operation, with_identifiers(call.params, replaced))
        except AwsError as error:
            if error.code != OWNED_ALREADY:
                raise
            continue
        replaced.update(zip(call.identifiers, identifiers(answer), strict=True))
    outputs: dict[str, Any] = with_identifiers(applied.outputs, replaced)
    return outputs


def identifiers(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the identifiers that AWS chose in an answer, in the order of its members."""
    return tuple(_find({name: value for name, value in answer.items() if name != "ResponseMetadata"}))


def with_identifiers(value: Any, replaced: Mapping[str, str]) -> Any:
    """Return a value with identifiers replaced, in keys, in texts and in user data, which is base64."""
    if isinstance(value, str):
        return _ID.sub(lambda match: replaced.get(match[0], match[0]), value)
    if isinstance(value, dict):
        changed = {}
        for key, item in value.items():
            replace = _in_base64 if key == "UserData" else with_identifiers
            changed[with_identifiers(key, replaced)] = replace(item, replaced)
        return changed
    return [with_identifiers(item, replaced) for item in value] if isinstance(value, list) else value


def to_json(applied: AppliedProgram) -> str:
    """Return an application as JSON; bytes are base64."""

    def as_text(content: bytes) -> dict[str, str]:
        return {"base64": base64.b64encode(content).decode()}

    calls = [vars(call) for call in applied.calls]
    document = {"format": FORMAT, "account": applied.account, "outputs": applied.outputs, "calls": calls}
    return json.dumps(document, default=as_text)


def from_json(text: str) -> AppliedProgram:
    """Read the JSON of `to_json`. Raises ValueError, KeyError or TypeError for anything else."""

    def as_bytes(members: dict[str, Any]) -> Any:
        return base64.b64decode(members["base64"]) if members.keys() == {"base64"} else members

    document = json.loads(text, object_hook=as_bytes)
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']}")
    calls = tuple(
        RecordedCall(**{**call, "identifiers": tuple(call["identifiers"])}) for call in document["calls"]
    )
    return AppliedProgram(account=document["account"], outputs=document["outputs"], calls=calls)


def _find(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from _ID.findall(value)
    elif isinstance(value, dict):
        for _, item in sorted(value.items()):
            yield from _find(item)
    elif isinstance(value, list):
        for item in value:
            yield from _find(item)


def _in_base64(value: Any, replaced: Mapping[str, str]) -> Any:
    try:
        text = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, TypeError):
        return with_identifiers(value, replaced)
    return base64.b64encode(with_identifiers(text, replaced).encode()).decode()
