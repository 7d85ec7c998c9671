"""The training process of a node: start the manifest's program, read its events, and end it with all of its
workers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.base import environment
from trainer.base.errors import TrainingFailed
from trainer.job.script import replaced, variables_in

MOST_WORDS = 64
STOP_SECONDS = 20.0  # between SIGTERM and SIGKILL


@dataclass(frozen=True, kw_only=True)
class TrainerFiles:
    """Files for the trainer: job, data plan (if a desk made one), expected machine, GPU profiles
    (measurements beside them).
    """

    job: Path
    plan: Path | None
    machine: Path
    profiles: Path


class TrainerProcess:
    """The manifest's program, in its own process group, with its output appended to the node's log."""

    def __init__(
        self, program: Sequence[str], *, work: Path, files: TrainerFiles, workers: int, device: str
    ) -> None:
        """Prepare the command. Raises TrainingFailed for a program with an unknown variable."""
        self._events = work / "events" / "events.jsonl"
        self._events.parent.mkdir(parents=True, exist_ok=True)
        self._offset = 0
        self._kill_at: float | None = None
        variables = {
            "PYTHON": sys.executable,
            "JOB": str(files.job),
            "DATA": str(work / "data"),
            "OUT": str(work / "models"),
            "EVENTS": str(self._events.parent),
            "WORKERS": str(workers),
            "DEVICE": device,
            "MACHINE": str(files.machine),
            **({"PLAN": str(files.plan)} if files.plan else {}),
        }
        self._command = command_of(program, variables)
        self._work = work
        self._environment = environment.for_training(profiles=files.profiles)

    def __enter__(self) -> TrainerProcess:
        with (self._work / "node.log").open("ab") as output:
            self._child = subprocess.Popen(
                self._command,
                cwd=self._work,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGKILL)  # the rest of the trainer's group
        self._child.wait()

    @property
    def pid(self) -> int:
        """Return its process id, which is also its group's."""
        return self._child.pid

    def poll(self) -> int | None:
        """Return the exit code once the trainer has ended; kill it when it was asked to stop and did not in
        time.
        """
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            self._signal(signal.SIGKILL)
        return self._end(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        code = self._end(0)
        assert code is not None
        return code

    def stop(self) -> None:
        """Ask the trainer and its workers to end; the second call changes nothing."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + STOP_SECONDS
            self._signal(signal.SIGTERM)

    def new_events(self) -> list[dict[str, Any]]:
        """Return the events written since the last call, whole lines only."""
        if not self._events.exists():
            return []
        with self._events.open("rb") as file:
            file.seek(self._offset)
            block = file.read()
        lines = block[: block.rfind(b"\n") + 1]
        self._offset += len(lines)
        return [json.loads(line) for line in lines.splitlines() if line.strip()]

    def _end(self, flags: int) -> int | None:
        """Return the exit code of the ended trainer, as Popen does, without reaping it.

        Until it is reaped, its process id is not reused, and its group can be signalled.
        """
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | flags)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def command_of(program: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Return the words of a manifest's program, its variables replaced. Raises TrainingFailed for a malformed
    one.
    """
    sound = (
        isinstance(program, list)
        and 0 < len(program) <= MOST_WORDS
        and all(isinstance(word, str) for word in program)
    )
    unknown = (
        sorted({name for word in program for name in variables_in(word)} - variables.keys()) if sound else []
    )
    if not sound or unknown:
        why = f"there is no ${unknown[0]}" if unknown else "it is not a list of words"
        raise TrainingFailed(
            "the manifest's program can't be run", why=why, do="Launch again, with one version of Mayfly."
        )
    return [replaced(word, variables) for word in program]
