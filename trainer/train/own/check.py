"""Check a job's own files before anything is planned: read, hashed, and tried in a child process
(`train/own/probe.py`).

The launcher runs this at the desk; training runs it if the launcher did not. Standard library only: without
torch the job stays unmeasured, and the next machine tries the files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.base.errors import ConfigError, UsageError
from trainer.base.files import whole_file
from trainer.base.own_file import OwnFile, in_bundle, read_file
from trainer.job.job import Job
from trainer.job.reading import job_from

LIMIT_SECONDS = 300.0  # once torch is loaded: a large model takes a while on a laptop
LOAD_SECONDS = 600.0  # for Python and torch to load on a busy machine
MODULE = "trainer.train.own.probe"


def checked(job: Job, *, limit_seconds: float = LIMIT_SECONDS) -> Job:
    """Return the job with hashes and measurements of its own files; the same job if it has none.

    Raises UsageError, one line, for a file or a class that can't be used; ConfigError if the trial can't be
    run.
    """
    homes = {table: _with_hash(home) for table, home in job.own_files.items()}
    job = job.with_own_files(homes)
    if all(home.is_tried for home in homes.values()) or importlib.util.find_spec("torch") is None:
        return job
    return job.with_own_files(job_from(_answer(job, limit_seconds)).own_files)


def portable(job: Job) -> Job:
    """Return the job for another machine: paths of its own files reduced to file names."""
    return job.with_own_files(
        {table: home.with_file(home.base_name) for table, home in job.own_files.items()}
    )


def copied(job: Job, folder: Path) -> Job:
    """Copy the job's own files into `folder`, named by hash; return the job with the copies, so that edits
    change no run.
    """
    homes = {}
    for table, home in job.own_files.items():
        place = folder / f"{home.sha256}.py"
        if not place.exists():
            with whole_file(place) as partial:
                partial.write_bytes(read_file(home.file, sha256=home.sha256))
        homes[table] = home.with_copy(place)
    return job.with_own_files(homes)


def contents(job: Job) -> dict[str, bytes]:
    """Return the job's own files by hash."""
    return {home.sha256: read_file(home.file, sha256=home.sha256) for home in job.own_files.values()}


def _with_hash(home: OwnFile) -> OwnFile:
    packed = in_bundle(home.sha256)
    if packed is not None:
        return home.with_copy(packed)
    content = read_file(home.file, sha256=home.sha256)
    return replace(home, sha256=hashlib.sha256(content).hexdigest())


def _answer(job: Job, limit_seconds: float) -> dict[str, Any]:
    """Try the job's files in a child process that ends with this one; return the measured job, as tables."""
    child = subprocess.Popen(
        [sys.executable, "-m", MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # what a user's code prints
        start_new_session=True,
    )
    stage = ""
    try:
        assert child.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: its exit code says more
            child.stdin.write(json.dumps(job.to_dict()).encode() + b"\n")
            child.stdin.flush()  # not closed: the child ends when stdin does
        for message in _messages(child, limit_seconds):
            if "error" in message:
                error = message["error"]
                raise UsageError(error["what"], why=error["why"], do=error["do"])
            if "job" in message:
                return dict(message["job"])
            stage = message["stage"]
    except TimeoutError as error:
        names = " and ".join(home.class_name for home in job.own_files.values())
        why = f"it was busy with {stage}" if stage else "Python and torch did not load"
        raise UsageError(
            f"{names} was not tried within {error} s", why=why, do="Look for a loop that does not end."
        ) from error
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pipe in (child.stdin, child.stdout):
            with suppress(OSError):
                pipe and pipe.close()
    why = f"its process ended with exit code {child.returncode}" + (f" during {stage}" if stage else "")
    if stage:
        raise UsageError(
            "the trial of your file ended early",
            why=why,
            do="Look for what ends Python, or takes all memory.",
        )
    raise ConfigError(
        "your file can't be tried here", why=why, do="Run make setup, or pip install 'mayfly[train]'."
    )


def _messages(child: subprocess.Popen[bytes], limit_seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the child's messages until it ends. Raises TimeoutError, whose text is the limit in seconds."""
    assert child.stdout is not None
    rest, left = b"", LOAD_SECONDS
    ends = time.monotonic() + left
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, ends - time.monotonic())):
                raise TimeoutError(f"{left:g}")
            block = os.read(child.stdout.fileno(), 1 << 16)
            if not block:
                return
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "stage" in message and left == LOAD_SECONDS:  # torch is loaded
                    left = limit_seconds
                    ends = time.monotonic() + left
                yield message
