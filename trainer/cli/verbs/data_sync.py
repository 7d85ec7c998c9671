"""`mayfly data push PATH`, `mayfly data pull [SET]` and `mayfly data ls [SET]`: candles between this machine
and a data set of the bucket. Only what changed moves, and what was broken off goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from trainer.aws.access import Access
from trainer.aws.objects import Objects, open_objects
from trainer.aws.parts import Moved
from trainer.aws.stack import read_stack
from trainer.aws.transfer import several_at_once
from trainer.base import environment
from trainer.base.arguments import check_folder
from trainer.base.errors import DataError, TrainerError, UsageError, problem_of
from trainer.base.files import open_plain
from trainer.base.instants import iso
from trainer.cli.connect import connected, named_run
from trainer.cli.output import counted, say, say_json, warn
from trainer.cli.sources.check_child import INDEXED, CheckChild
from trainer.cli.terminal import Console, show
from trainer.cli.views.transfer import TransferProgress
from trainer.data.read.paths import check_path
from trainer.data.table import DataSettings
from trainer.launch.data_sets import (
    SetFile,
    fetch_version,
    files_at,
    files_of_run,
    list_sets,
    set_of,
    with_details,
)
from trainer.launch.inputs import Input, hash_of, list_inputs
from trainer.launch.uploads import DeskFile, upload_candles

_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")


def run(arguments: argparse.Namespace) -> int:
    """Push, pull or list. Returns 0, or 2 if files were left out, or left alone because they differ."""
    if arguments.set:
        DataSettings(set=arguments.set)  # raises UsageError for a name that no set has
    push = arguments.action == "push"  # which, as a launch does, makes what a rehearsal needs
    console = Console(plain=arguments.json)
    with ExitStack() as ends:
        ends.callback(console.close)
        if push:
            check_path(arguments.path)
        if push and arguments.rehearse:
            console.update("starting the embedded AWS ...")
        reached = connected(rehearse=arguments.rehearse, program=push, local=arguments.local)
        access = ends.enter_context(reached)
        bucket = read_stack(access, stack=arguments.stack).bucket
        objects = open_objects(access, bucket)
        if push:
            return _push(arguments, access, objects, bucket, console)
        if arguments.action == "pull":
            return _pull(arguments, access, objects, bucket)
        return _list(arguments, objects)


# --- push


def _push(
    arguments: argparse.Namespace, access: Access, objects: Objects, bucket: str, console: Console
) -> int:
    """Check the candles at a path, and upload the files that the set does not have as they are."""
    data_set = arguments.set or DataSettings().set
    with ExitStack() as ends:
        if not arguments.json:
            console.update(f"checking {arguments.path} ...")
        check = CheckChild(arguments.path)
        ends.callback(check.close)
        report = check.report()
        files = [_desk_file(entry) for entry in report["files"]]
        failed = {name: str(_error(error)) for name, error in report["errors"].items()}
        listed = list_inputs(objects, data_set, only={file.path for file in files})
        there = {item.key.rpartition("/")[2]: item for item in listed}
        new = [file for file in files if not _is_there(file, there.get(file.path))]
        replaced = [file.path for file in new if _differs(file, there.get(file.path))]
        size = sum(file.bytes for file in new)
        moved = _progress(console, "pushing", size, quiet=arguments.json)
        upload_candles(new, access, bucket=bucket, data_set=data_set, there=there, moved=moved)
    pushed, same = [file.path for file in new], len(files) - len(new)
    if arguments.json:
        done = {"set": data_set, "pushed": pushed, "unchanged": same, "replaced": replaced}
        say_json({**done, "failed": failed, "moved_bytes": size})
        return 2 if failed else 0
    say(*pushed)
    for name in replaced:
        warn(f"replaced: {name} had other bytes; its earlier version stays (mayfly data pull --at)")
    for name, why in failed.items():
        warn(f"left out: {name} ({why})")
    warn(f"{counted(len(pushed), 'file')} pushed to {data_set} ({size / 1e6:.1f} MB), {same:,} unchanged")
    return 2 if failed else 0


def _desk_file(entry: dict[str, Any]) -> DeskFile:
    summary = {name: entry[name] for name in INDEXED}
    place, path = Path(entry["path"]), entry["file"]
    return DeskFile(place=place, path=path, sha256=entry["sha256"], bytes=entry["bytes"], summary=summary)


def _error(told: dict[str, Any]) -> DataError:
    return DataError(told["what"], why=told.get("why", ""), do=told.get("do", ""))


def _is_there(file: DeskFile, there: Any) -> bool:
    """Return whether the set has a file's bytes and their index entry."""
    return there is not None and there.sha256 == file.sha256 and bool(there.summary)


def _differs(file: DeskFile, there: Any) -> bool:
    return there is not None and there.sha256 != file.sha256


def _progress(console: Console, verb: str, total: int, *, quiet: bool) -> Moved:
    return (lambda count: None) if quiet else TransferProgress(console, verb, total)


# --- pull


@dataclass(kw_only=True)
class SetPull:
    """Result of a pull, by name of file."""

    moved: dict[str, int] = field(default_factory=dict)  # bytes
    unchanged: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    failed: dict[str, TrainerError] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """Return the first failure's, or 2 if files were left alone."""
        return next((error.exit_code for error in self.failed.values()), 2 if self.differing else 0)


def _pull(arguments: argparse.Namespace, access: Access, objects: Objects, bucket: str) -> int:
    """Download the files of a set that are not there yet, each with its hash checked."""
    if arguments.out:
        check_folder(Path(arguments.out))
    data_set, files = _files(arguments, objects)
    folder = Path(arguments.out) if arguments.out else _folder_of_set(data_set)
    check_folder(folder)
    pulled, console = SetPull(), Console(plain=arguments.json)
    total = sum(file.input.bytes for file in files)
    fetch = partial(fetch_version, access, objects, bucket)
    one = partial(_pull_one, objects, folder, fetch, overwrite=arguments.overwrite, pulled=pulled)
    try:
        several_at_once(
            [partial(one, file) for file in files],
            moved=_progress(console, "pulling", total, quiet=arguments.json),
        )
    finally:
        console.close()
    moved, size = sorted(pulled.moved), sum(pulled.moved.values())
    if arguments.json:
        failed = [{"file": name, **error.as_dict()} for name, error in sorted(pulled.failed.items())]
        known = {"set": data_set, "folder": str(folder), "pulled": moved, "moved_bytes": size}
        known |= {"unchanged": len(pulled.unchanged), "differing": sorted(pulled.differing)}
        say_json({**known, "failed": failed})
        return pulled.exit_code
    say(*(str(folder / name) for name in moved))
    for name in sorted(pulled.differing):
        warn(f"left alone: {folder / name} differs; --overwrite replaces it")
    for name, error in sorted(pulled.failed.items()):
        warn(f"error: {name}: {error}")
    done = f"{counted(len(moved), 'file')} of {data_set} pulled ({size / 1e6:.1f} MB)"
    warn(f"{done}, {len(pulled.unchanged):,} unchanged")
    return pulled.exit_code


def _pull_one(
    objects: Objects,
    folder: Path,
    fetch: Callable[[Input, Path, Moved], None],
    file: SetFile,
    moved: Moved,
    *,
    overwrite: bool,
    pulled: SetPull,
) -> None:
    """Download one file unless it lies there; note what became of it."""
    item, path = file.input, folder / file.name
    try:
        there = _hash_of(path)
        stored = objects.head(key=item.key, version_id=item.version_id) if there and not item.sha256 else None
        sha256 = hash_of(stored, objects) if stored else item.sha256
        if there and (there == sha256 or not overwrite):
            (pulled.unchanged if there == sha256 else pulled.differing).append(file.name)
            moved(item.bytes)
            return
        fetch(item, path, moved)
        pulled.moved[file.name] = item.bytes
    except (TrainerError, OSError) as error:
        if (problem := problem_of(error)) is None:
            raise
        pulled.failed[file.name] = problem


def _hash_of(path: Path) -> str:
    """Return the hash of a file that is there, '' if there is none. Raises UsageError for anything else."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError(f"{path} is not a plain file", do="Choose another --out.")
    if not path.exists():
        return ""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _folder_of_set(data_set: str) -> Path:
    """Return the folder for a set's candles: in the local folder, or below the current one without it."""
    root = environment.local_folder()
    return root / "candles" / data_set if root else Path(data_set)


def _files(arguments: argparse.Namespace, objects: Objects) -> tuple[str, tuple[SetFile, ...]]:
    """Return the set that a command means, and its files: now, then, or as a run read them."""
    data_set, at = arguments.set, _instant(arguments.at)
    if arguments.at and at is None:
        files = files_of_run(objects, named_run(objects, arguments.at), data_set)
        return set_of(files), files
    data_set = data_set or DataSettings().set
    return data_set, files_at(objects, data_set, at)


def _instant(text: str) -> datetime | None:
    """Return the instant that --at names, UTC where it has no zone; None for a run. Raises UsageError."""
    if not _TIME.fullmatch(text):
        return None
    try:
        named = datetime.fromisoformat(text)
        return named.replace(tzinfo=named.tzinfo or timezone.utc).astimezone(timezone.utc)
    except (ValueError, OverflowError) as error:
        do = "Write it as 2026-11-20 or 2026-11-20T14:30Z, or name a run."
        raise UsageError(f"--at {text} is not a time", do=do) from error


# --- ls


def _list(arguments: argparse.Namespace, objects: Objects) -> int:
    """List the data sets, or the files of one."""
    if not (arguments.set or arguments.at):
        sets = list_sets(objects)
        rows = [
            {"set": one.name, "files": one.files, "bytes": one.bytes, "newest": iso(one.stored_at)}
            for one in sets
        ]
        _show(arguments, {"sets": rows}, rows, none="no data sets yet: mayfly data push PATH")
        return 0
    data_set, listed = _files(arguments, objects)
    files = with_details(objects, listed)
    rows = [_row(file) for file in files]
    _show(arguments, {"set": data_set, "files": rows}, rows, none="")
    if not arguments.json:
        bars, size = sum(file.bars for file in files), sum(file.input.bytes for file in files)
        warn(f"{counted(len(files), 'file')} of {data_set}, {bars:,} bars, {size / 1e6:,.1f} MB")
    return 0


def _row(file: SetFile) -> dict[str, Any]:
    summary, item = file.input.summary, file.input
    holds: Sequence[dict[str, Any]] = summary.get("holds", ())
    names = [str(held["symbol"]) for held in holds]
    return {
        "file": file.name,
        "symbols": ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else ""),
        "timeframe": str(summary.get("timeframe", "")),
        "bars": file.bars,
        "first": min((str(held["first"]) for held in holds), default=""),
        "last": max((str(held["last"]) for held in holds), default=""),
        "bytes": item.bytes,
        "versions": file.versions,
        "sha256": item.sha256,
        "version_id": item.version_id,
    }


def _show(
    arguments: argparse.Namespace, document: dict[str, Any], rows: Sequence[dict[str, Any]], *, none: str
) -> None:
    if arguments.json:
        say_json(document)
        return
    if not rows:
        say(none)
        return
    from trainer.cli.views.table import FittedTable  # late, like rich itself

    left_out = ("sha256", "version_id")
    cells = [{name: _cell(row[name]) for name in row if name not in left_out} for row in rows]
    right = ("files", "bars", "bytes", "versions")
    show(FittedTable(cells, right=right, leaving=("versions", "first", "bytes"), wraps=("symbols",)))


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
