"""A refresh, the command of a prepare run: run the user's script, or `trainer.data.fetch.update`, on the
set's files, check new ones, and announce them.

    python -m trainer.node.refresh --data DIR --out DIR --events DIR --given DIR

The script is the only process with the job's secrets besides this one. New and unchecked files are described
by `trainer.bars.check` in a process of its own. Nothing is announced before all of it is checked: OUT/files
has the new files, OUT/index an index entry of each new or unchecked one.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.base import environment
from trainer.base.errors import DataError, Stopped, TrainerError, TrainingFailed, problem_of
from trainer.base.files import whole_file
from trainer.base.own_file import in_bundle
from trainer.base.symbols import file_flaw
from trainer.node.events import MOST_BYTES, EventFile
from trainer.runs.manifest import JOB_FILE
from trainer.runs.reports import MOST_ADDED_BYTES, MOST_ADDED_FILES

log = logging.getLogger("trainer.node")
INDEXED = (
    "file",
    "bytes",
    "sha256",
    "timeframe",
    "synthetic",
    "further",
    "told",
    "holds",
)
FETCH = "fetch"  # of data.refresh, as trainer.data.table has it
_DO = (
    "Read the log of the prepare run. If the job has a refresh script, correct it and publish the retrain"
    " again."
)


class ScriptFailed(Exception):
    """The refresh script failed; its output says why. `code`: its exit code, or 128 + N after signal N."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code if code > 0 else 128 - code


def main(arguments: list[str] | None = None) -> int:
    """Refresh the set; return the exit code, the script's own if that fails."""
    parser = argparse.ArgumentParser(prog="python -m trainer.node.refresh")
    for name, what in (
        ("data", "the set's files; the script adds to them"),
        ("out", "folder for files/ and index/"),
        ("events", "folder for events.jsonl"),
        ("given", "folder of job.json and unchecked.json"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=what)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _stop)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    events = EventFile(options.events / "events.jsonl", most_bytes=MOST_BYTES["events"])
    try:
        refresh(options.data, options.out, options.given, events)
    except Stopped as stopped:
        return stopped.exit_code
    except ScriptFailed as failed:
        return failed.code
    except (TrainerError, OSError) as raised:
        if (error := problem_of(raised)) is None:
            raise
        events.write({"event": "error", **error.as_dict(), "code": TrainingFailed.exit_code})
        return TrainingFailed.exit_code
    return 0


def _stop(number: int, frame: Any) -> None:
    raise Stopped("stopped while it prepared the data")


def refresh(data: Path, out: Path, given: Path, events: EventFile) -> None:
    """Run the script, check, and announce. Raises a TrainerError for files that can't be used."""
    job = json.loads((given / JOB_FILE).read_bytes())
    unchecked: list[str] = json.loads((given / "unchecked.json").read_bytes())
    secrets = job["data"]["secrets"]
    columns: list[str] = job["data"].get("columns", [])
    added: list[str] = []
    before = _as_given(data, out, given)
    if name := job["data"]["refresh"]:
        events.write({"event": "message", "message": "refreshing the data set"})
        run_script(_words(name, data), data)
        added = added_files(data, before)
    events.write({"event": "message", "message": "checking candles"})
    entries = describe(out, data, sorted(unchecked)[:MOST_ADDED_FILES] + added, added, secrets, columns)
    if added:
        refuse_disagreement(out, data, [entries[name] for name in added], secrets, columns)
    for folder in ("files", "index"):
        (out / folder).mkdir()
    for name, entry in entries.items():
        if name in added:
            os.link(data / name, out / "files" / name)
        (out / "index" / f"{entry['sha256']}.json").write_text(json.dumps(entry))
        print(f"{name}: {sum(held['bars'] for held in entry['holds'])} bars", flush=True)
        told = {key: entry[key] for key in ("file", "sha256", "bytes")}
        events.write({"event": "file", **told, "added": name in added})


def _as_given(data: Path, out: Path, given: Path) -> dict[str, Any]:
    """Return the marks of the set's files, and remove what an earlier start of this refresh, which was ended
    on the way, has left beside them: half a file would become one of the set's.
    """
    noted = given / "marks.json"
    if not noted.exists():
        marks = {path.name: _marks(path) for path in data.iterdir()}
        with whole_file(noted) as new:
            new.write_text(json.dumps(marks))
        return marks
    before: dict[str, Any] = json.loads(noted.read_bytes())
    left = [path for path in data.iterdir() if path.name not in before]
    for path in (*left, *(out / name for name in ("new", "files", "index"))):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return before


def _words(name: str, data: Path) -> list[str]:
    """Return the command line of a refresh: ours, or that of the script of this name."""
    if name == FETCH:
        return [sys.executable, "-P", "-u", "-m", "trainer.data.fetch.update", "--data", str(data)]
    packed = in_bundle(name.removesuffix(".py"))
    if packed is None:
        what = "the refresh script did not come with the bundle"
        raise TrainingFailed(what, do="Publish the retrain again.")
    return [sys.executable, "-I", "-u", str(packed), str(data)]


def run_script(words: list[str], data: Path) -> None:
    """Run a refresh in the data folder, and kill what is left of its group. Raises ScriptFailed.

    It is reaped last: until then its process id is not reused, and its group can be signalled.
    """
    child = subprocess.Popen(words, cwd=data, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    finally:  # also at a stop, and when its time is over
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
    if code:
        raise ScriptFailed(code)


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
            raise DataError(f"the refresh added {name!r}", why=why or "it is empty", do=_DO)
        added.append(name)
        size += status.st_size
    if len(added) > MOST_ADDED_FILES or size > MOST_ADDED_BYTES:
        what = f"the refresh added {len(added):,} files, {size / 2**30:.1f} GiB"
        why = f"{MOST_ADDED_FILES:,} files and {MOST_ADDED_BYTES / 2**30:.0f} GiB are the most"
        raise DataError(what, why=why, do=_DO)
    return added


def describe(
    out: Path,
    data: Path,
    names: list[str],
    added: list[str],
    secrets: list[str],
    columns: Sequence[str],
) -> dict[str, dict[str, Any]]:
    """Return the index entries of these files, by name; `columns` are those of the job. Raises DataError for
    an added one that is no candle file.
    """
    if not names:
        return {}
    folder = out / "new"
    folder.mkdir()
    for name in names:
        os.link(data / name, folder / name)
    report = _check(out, folder, "--describe", secrets, columns)
    entries = {entry["file"]: {key: entry[key] for key in INDEXED} for entry in report.get("files", ())}
    for name in names:
        if name in entries:
            continue
        error = report.get("errors", {}).get(name) or {"what": f"{name} is not a table of candles"}
        why = ": ".join(filter(None, (error["what"], error.get("why")))).replace(f"{folder}/", "")
        if name in added:
            raise DataError(f"the refresh added {name}", why=why, do=_DO)
        log.warning("left out: %s (%s)", name, why)
    return entries


def refuse_disagreement(
    out: Path,
    data: Path,
    entries: list[dict[str, Any]],
    secrets: list[str],
    columns: Sequence[str],
) -> None:
    """Raise DataError if an added file disagrees with the set's files about a bar of a symbol, or a value of
    a side series.
    """
    report = _check(out, data, "--joined", secrets, columns)
    if error := report.get("error"):  # the set can't be read as a whole
        log.warning("new files were not compared with the set's: %s", error["what"])
    errors = report.get("errors", {})
    for entry in entries:
        of = [entry["file"], *(held["symbol"] for held in entry["holds"])]
        for error in (errors[name] for name in of if name in errors):
            what = f"the refresh added {entry['file']}, which disagrees with the set"
            why = f"{error['what']}: {error['why']}".replace(f"{data}/", "")
            raise DataError(what, why=why, do=_DO)


def _check(
    out: Path, folder: Path, question: str, secrets: list[str], columns: Sequence[str]
) -> dict[str, Any]:
    """Run the data check on a folder in a process of its own, since its files are untrusted; it gets no
    secret.
    """
    words = [
        sys.executable,
        "-m",
        "trainer.bars.check",
        question,
        "--data",
        str(folder),
        "--scratch",
        str(out),
        *(f"--columns={entry}" for entry in columns),
    ]
    without = environment.without(secrets)
    asked = subprocess.run(words, env=without, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    try:
        report: dict[str, Any] = json.loads(asked.stdout)
        return report
    except ValueError as error:
        lines = asked.stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1][:300] if lines else f"it ended with exit code {asked.returncode}"
        raise DataError("the candles can't be checked", why=why, do=_DO) from error


def _marks(path: Path) -> list[int]:
    status = path.lstat()
    return [status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns]


if __name__ == "__main__":
    sys.exit(main())
