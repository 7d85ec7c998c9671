"""Prepare run: fetch a data set, run the user's refresh script on it, check new files, upload them.

The script runs in its own process, the only one with the secrets; they are removed from its output. New and
unchecked files are described by `trainer.bars.check` in a child process. No training happens here.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from trainer.aws.access import aws_error
from trainer.base import environment
from trainer.base.errors import DataError, Stopped, TrainingFailed
from trainer.base.own_file import in_bundle
from trainer.base.symbols import file_flaw
from trainer.node.redaction import Redaction
from trainer.node.shared import Node
from trainer.node.stack_secrets import read_secrets
from trainer.node.stage import fetch_inputs, read_patiently
from trainer.node.uplink import AWS_ERRORS
from trainer.runs.reports import MOST_ADDED_BYTES, MOST_ADDED_FILES

log = logging.getLogger("trainer.node")
SCRIPT_SECONDS, CHECK_SECONDS = 1200.0, 900.0  # within the run's half hour
POLL_SECONDS = 0.05
INDEXED = (
    "file",
    "bytes",
    "sha256",
    "timeframe",
    "synthetic",
    "further",
    "holds",
)  # fields of an index entry
_DO = "Correct the refresh script, and publish the retrain again."


def prepare_data(node: Node, manifest: dict[str, Any]) -> int:
    """Refresh, check and send; return 0. Raises a TrainerError for a script that fails and for files that
    can't be used.
    """
    node.enter("stage")
    data, inputs = node.work / "data", manifest["inputs"]
    fetch_inputs(
        node.uplink.s3, bucket=node.uplink.bucket, inputs=inputs, folder=data, stopped=node.is_stopping
    )
    known = {PurePosixPath(entry["key"]).name: entry for entry in inputs}
    added: list[str] = []
    if refresh := manifest["job"]["data"]["refresh"]:
        node.status.message = "refreshing the data set"
        before = {path.name: _marks(path) for path in data.iterdir()}
        run_script(node, _script(refresh), data, read_secrets(node, manifest["secrets"]))
        added = added_files(data, before)
    node.status.message = "checking candles"
    new = [name for name in sorted(known) if not known[name]["indexed"]][:MOST_ADDED_FILES] + added
    entries = describe(node, data, new, added)
    if added:
        refuse_disagreement(node, data, [entries[name] for name in added])
    node.enter("upload")
    for name, entry in entries.items():
        _send(node, data / name, entry, added=name in added)
    return 0


def _script(name: str) -> Path:
    packed = in_bundle(name.removesuffix(".py"))
    if packed is None:
        raise TrainingFailed(
            "the refresh script did not come with the bundle", do="Publish the retrain again."
        )
    return packed


def run_script(node: Node, script: Path, data: Path, secrets: Mapping[str, str]) -> None:
    """Run the refresh script in the data folder, and log its output. Raises DataError if it fails or takes
    too long.
    """
    redaction = Redaction(secrets)
    child = subprocess.Popen(
        [sys.executable, "-I", "-u", str(script), str(data)],
        cwd=data,
        env=environment.for_refresh(secrets),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert child.stdout is not None
    with redaction.follow(child.stdout, log):
        code = _ended(node, child, SCRIPT_SECONDS)
    if code is None:
        raise DataError(f"the refresh script did not end within {SCRIPT_SECONDS / 60:.0f} minutes", do=_DO)
    if code:
        raise DataError(
            "the refresh script failed", why=redaction.last_line or f"it ended with exit code {code}", do=_DO
        )


def added_files(data: Path, before: Mapping[str, Any]) -> list[str]:
    """Return the names of the files that the script added. Raises DataError for files that a data set can't
    have.

    Folders, and names that begin with a dot or an underscore, are ignored.
    """
    added, size = [], 0
    if gone := sorted(before.keys() - {path.name for path in data.iterdir()}):
        why, do = "a data set keeps each file as it is", "Have it leave the set's files alone."
        raise DataError(f"the refresh script removed {gone[0]}", why=why, do=do)
    for path in sorted(data.iterdir()):
        name, status = path.name, path.lstat()
        if name in before:
            if _marks(path) != before[name]:
                why = "a data set keeps each file as it is"
                do = "Have it write new bars to a new file, such as one with a date in its name."
                raise DataError(f"the refresh script changed {name}", why=why, do=do)
            continue
        if stat.S_ISDIR(status.st_mode) or name[0] in "._":
            continue
        why = "it is not a plain file" if not stat.S_ISREG(status.st_mode) else file_flaw(name)
        if why or not status.st_size:
            raise DataError(f"the refresh script added {name!r}", why=why or "it is empty", do=_DO)
        added.append(name)
        size += status.st_size
    if len(added) > MOST_ADDED_FILES or size > MOST_ADDED_BYTES:
        why = f"{MOST_ADDED_FILES:,} files and {MOST_ADDED_BYTES / 2**30:.0f} GiB are the most"
        raise DataError(
            f"the refresh script added {len(added):,} files, {size / 2**30:.1f} GiB", why=why, do=_DO
        )
    return added


def describe(node: Node, data: Path, names: list[str], added: list[str]) -> dict[str, dict[str, Any]]:
    """Return the index entries of these files, by name. Raises DataError for an added one that is no candle
    file.
    """
    if not names:
        return {}
    folder = node.work / "new"
    folder.mkdir()
    for name in names:
        os.link(data / name, folder / name)
    report = _check(node, folder, "--describe")
    entries = {entry["file"]: {key: entry[key] for key in INDEXED} for entry in report.get("files", ())}
    for name in names:
        if name in entries:
            continue
        error = report.get("errors", {}).get(name) or {"what": f"{name} is not a table of candles"}
        why = f"{error['what']}{': ' if error.get('why') else ''}{error.get('why', '')}".replace(
            f"{folder}/", ""
        )
        if name in added:
            raise DataError(f"the refresh script added {name}", why=why, do=_DO)
        log.warning("left out: %s (%s)", name, why)
    return entries


def refuse_disagreement(node: Node, data: Path, entries: list[dict[str, Any]]) -> None:
    """Raise DataError if an added file disagrees with the set's files about a bar of a symbol."""
    errors = _check(node, data, "--joined").get("errors", {})
    for entry in entries:
        for symbol in (str(held["symbol"]) for held in entry["holds"]):
            if symbol in errors:
                why = f"{errors[symbol]['what']}: {errors[symbol]['why']}".replace(f"{data}/", "")
                raise DataError(
                    f"the refresh script added {entry['file']}, which disagrees with the set", why=why, do=_DO
                )


def _check(node: Node, folder: Path, question: str) -> dict[str, Any]:
    """Run the data check on a folder in a child process, since its files are untrusted."""
    with (node.work / "check.json").open("wb") as answer, (node.work / "check.log").open("wb") as said:
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "trainer.bars.check",
                question,
                "--data",
                str(folder),
                "--scratch",
                str(node.work),
            ],
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=said,
            start_new_session=True,
        )
        code = _ended(node, child, CHECK_SECONDS)
    if code is None:
        why, do = (
            f"it took longer than {CHECK_SECONDS / 60:.0f} minutes",
            "Have the refresh script add fewer bars at a time.",
        )
        raise DataError("the candles can't be checked", why=why, do=do)
    try:
        report: dict[str, Any] = json.loads((node.work / "check.json").read_bytes())
        return report
    except ValueError as error:
        lines = (node.work / "check.log").read_text(errors="replace").strip().splitlines()
        why = lines[-1][:300] if lines else f"it ended with exit code {code}"
        raise DataError("the candles can't be checked", why=why, do=_DO) from error


def _ended(node: Node, child: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait for a child, kill the rest of its group, and return its exit code; None if it took longer than
    `seconds`.

    The child is reaped last: until then its process id is not reused, and its group can be signalled.
    """
    ends = time.monotonic() + seconds
    over = False
    try:
        while not _has_ended(child) and not (over := time.monotonic() >= ends):
            if node.is_stopping():
                raise Stopped("stopped while it prepared the data")
            time.sleep(POLL_SECONDS)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
    return None if over else code


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _send(node: Node, path: Path, entry: dict[str, Any], *, added: bool) -> None:
    """Upload a file, if it was added, and its index entry, and report it. Raises a TrainerError if S3 does
    not accept them.
    """
    keys, uplink = node.status.identity.keys, node.uplink
    try:
        if added:
            read_patiently(
                lambda: uplink.send_file(path, f"{keys.files}{path.name}", entry["sha256"]),
                path.name,
                stopped=node.is_stopping,
            )
    except AWS_ERRORS as error:
        raise aws_error(error, f"{path.name} can't be sent") from error
    uplink.send_json(f"{keys.index}{entry['sha256']}.json", entry, patience_seconds=node.patience_seconds)
    log.info("%s: %d bars", path.name, sum(held["bars"] for held in entry["holds"]))
    node.status.files.append(
        {"file": path.name, "sha256": entry["sha256"], "bytes": entry["bytes"], "added": added}
    )


def _marks(path: Path) -> tuple[int, int, int, int]:
    status = path.lstat()
    return status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns
