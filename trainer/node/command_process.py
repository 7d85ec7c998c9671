"""A command's process: log its output line by line, stop it by SIGTERM and then SIGKILL, kill all that it
forked.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from trainer.base.errors import TrainingFailed
from trainer.base.process_state import ABORT_SECONDS, abort
from trainer.node.own_user import OwnUser, agents_user
from trainer.node.redaction import RedactedStream, Redaction
from trainer.runs.reports import LAST_LINES, MOST_LINE

log = logging.getLogger("trainer.node")
MOST_LOG_BYTES = 64 * 2**20  # of one start's output; the pieces of a run share it
LEAST_LOG_BYTES = 1 << 20
STAMP_BYTES = 25  # of a line's time and end in the log
READER_SECONDS = 1.0  # for a further line; a process that left the session may hold the pipe open
MOST_READER_SECONDS = 30.0  # for all of them
_BLOCK = 8 * 1024  # most bytes of a line that are read at once


class CommandProcess:
    """One start of a command, in a session of its own. Leaving the `with` kills whatever is left of it."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        own_user: OwnUser | None = None,
        grace_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        name: str = "",
        share: float = 1.0,
        mark: str = "",
        redaction: Redaction | None = None,
    ) -> None:
        """Start it. Raises TrainingFailed if its first word is not a program of this machine.

        `mark` is a variable (NAME=value) of its environment, which distinguishes the processes that it forked
        from others of their user; without one all of its own user's are its own. If others run beside it:
        `name` begins each line of its log, and `share` is its part of the log's bound.
        """
        assert own_user or mark, "else every process of the agent's user would be its own"
        self._owner, self._marks = own_user or agents_user(), (mark,) if mark else ()
        self._grace, self._clock = grace_seconds, clock
        self._kill_at: float | None = None
        self.output = CommandOutput(name=name, most_bytes=max(LEAST_LOG_BYTES, int(MOST_LOG_BYTES * share)))
        user = {"user": own_user.uid, "group": own_user.gid, "extra_groups": []} if own_user else {}
        program = _program(words[0], folder, environment["PATH"])
        try:
            self._child: subprocess.Popen[bytes] = subprocess.Popen(
                [program, *words[1:]],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
                umask=0o022,
                **user,  # type: ignore[call-overload]  # a mapping of three types
            )
        except OSError as error:
            do = "Name another program in script.command, such as python."
            raise TrainingFailed(f"the machine can't run {words[0]}", why=str(error), do=do) from error
        assert self._child.stdout is not None
        pipe = io.BufferedReader(_Pipe(self._child.stdout, self.output))
        redacted = RedactedStream(pipe, redaction or Redaction({}))
        self._reader = threading.Thread(
            target=self.output.follow, args=(redacted,), name="output", daemon=True
        )
        self._reader.start()

    def __enter__(self) -> CommandProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGKILL)
        if not self._owner.kill_all(*self._marks):
            log.warning("it forks faster than it can be killed: its machine ends all the same")
        self._child.wait()
        self._await_last_lines()

    def _await_last_lines(self) -> None:
        """Wait until its output is read, while lines come: the last ones say why it ended."""
        ends, read = time.monotonic() + MOST_READER_SECONDS, -1
        while self._reader.is_alive() and read != self.output.num_blocks and time.monotonic() < ends:
            read = self.output.num_blocks
            self._reader.join(timeout=READER_SECONDS)

    @property
    def pid(self) -> int:
        """Return its process id, which is its session's and its group's, too."""
        return self._child.pid

    def poll(self) -> int | None:
        """Return the exit code once it has ended, -N for signal N; kill it when it was asked to stop and did
        not in time.
        """
        if self._kill_at is not None and self._clock() > self._kill_at:
            self._signal(signal.SIGKILL)
            self._owner.kill_all(*self._marks)
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is None:
            return None
        return int(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)

    @property
    def processes(self) -> list[int]:
        """Return the ids of its processes: its own, then those that it forked."""
        forked = set(self._owner.processes(*self._marks)) - {self.pid}
        return [self.pid, *sorted(forked)]

    def abort(self) -> None:
        """End it at once, or after ABORT_SECONDS if one of its processes writes its stacks at SIGABRT, as
        Python's faulthandler does.
        """
        writes = [abort(pid) for pid in self.processes]
        self._kill_at = self._clock() + (ABORT_SECONDS if any(writes) else 0.0)
        if not any(writes):
            self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end; the second call changes nothing."""
        if self._kill_at is None:
            self._kill_at = self._clock() + self._grace
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class CommandOutput:
    """The output of a command: writes each line to the log, up to a bound, and keeps the last lines."""

    def __init__(self, *, name: str = "", most_bytes: int = MOST_LOG_BYTES) -> None:
        self._begins, self._most_bytes = f"{name} | " if name else "| ", most_bytes
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._logged = 0
        # Read so far, and lines in them: a bar that is drawn again and again has no end of line for hours.
        self.num_blocks = 0

    @property
    def last_lines(self) -> list[str]:
        """Return the last lines, each as long as a receipt keeps it."""
        return list(self._last)

    def follow(self, stream: IO[bytes] | RedactedStream) -> None:
        """Read a stream to its end."""
        with stream:
            while block := stream.readline(_BLOCK):
                self.num_blocks += 1
                # A progress bar redraws itself after each carriage return: keep what it drew last.
                text = block.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]
                if text.strip():
                    self._last.append(text[:MOST_LINE])
                self._log(text)

    def _log(self, text: str) -> None:
        if self._logged > self._most_bytes:
            return
        line = f"{self._begins}{text}"
        self._logged += STAMP_BYTES + len(line.encode())  # empty lines fill a disk, too
        if self._logged > self._most_bytes:
            most = self._most_bytes >> 20
            log.warning("%sits lines take more than %d MiB: the rest is left out", self._begins, most)
        else:
            log.info("%s", line)


class _Pipe(io.RawIOBase):
    """The pipe of a command's output; counts what is read of it."""

    def __init__(self, pipe: IO[bytes], output: CommandOutput) -> None:
        self._pipe, self._output = cast(io.FileIO, pipe), output

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._pipe.readinto(buffer)
        self._output.num_blocks += bool(count)
        return count

    def close(self) -> None:
        self._pipe.close()
        super().close()


def _program(word: str, folder: Path, path: str) -> str:
    """Return the file of a command's first word. Raises TrainingFailed if there is none that can be run."""
    folders = os.pathsep.join(filter(None, path.split(os.pathsep)))  # an empty one would be the agent's own
    if program := shutil.which(str(folder / word) if "/" in word else word, path=folders):
        return program
    why = "it is not a program there" if "/" in word else f"no folder of its PATH has one: {path}"
    do = "Name one in script.command, such as python or torchrun, or have script.requirements install it."
    raise TrainingFailed(f"the machine has no {word}", why=why, do=do)
