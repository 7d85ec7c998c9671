"""The process of a command: its last lines, its log, its end."""

from __future__ import annotations

import io
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import command
from trainer.base import environment
from trainer.base.errors import TrainingFailed
from trainer.node import command as module
from trainer.node.command_process import CommandOutput, CommandProcess

PYTHON = Path("/usr/bin/python3")


def run(words: list[str], tmp_path: Path, *, grace_seconds: float = 10.0, **keys: Any) -> CommandProcess:
    variables = environment.for_script({"MARK": str(tmp_path)}, path="/usr/bin")
    keys = {"grace_seconds": grace_seconds, "mark": f"MARK={tmp_path}", **keys}
    return CommandProcess(words, folder=tmp_path, environment=variables, **keys)


def wait_for(process: CommandProcess) -> int:
    while (code := process.poll()) is None:
        time.sleep(0.01)
    return code


def test_last_lines_are_kept_and_the_log_is_bounded(caplog, monkeypatch):
    reader, writer = os.pipe()
    os.write(
        writer,
        b"10%\r50%\r100%\nline \xff\x1b[2J\n" + b"x" * 300 + b"\n" + b"".join(b"%d\n" % n for n in range(19)),
    )
    os.close(writer)
    output = CommandOutput(most_bytes=100)
    with caplog.at_level(logging.INFO):
        output.follow(os.fdopen(reader, "rb"))
    assert (
        output.last_lines[0] == "x" * 190 and len(output.last_lines) == 20 and output.last_lines[-1] == "18"
    )
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "| 100%" and "the rest is left out" in said[-1] and len(said) == 3


def test_the_logs_bound_counts_bytes_and_empty_lines(caplog, monkeypatch):
    for line in ("\n", "я" * 100 + "\n"):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            CommandOutput(most_bytes=1 << 10).follow(io.BytesIO(line.encode() * 1000))
        said = [record.getMessage() for record in caplog.records]
        assert 0 < sum(len(f"2026-11-20 12:00:00,000 {text}\n".encode()) for text in said[:-1]) <= 1 << 10


def test_a_process_is_reaped_after_its_group_is_killed(tmp_path, monkeypatch):
    """Else the group that is killed at the end may be somebody else's, who was given the same number."""
    signalled, killpg = [], os.killpg

    def watched(group: int, number: int) -> None:
        signalled.append((Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()[0], number))
        killpg(group, number)

    monkeypatch.setattr(os, "killpg", watched)
    with run(["sh", "-c", "exit 3"], tmp_path) as process:
        assert wait_for(process) == process.poll() == 3
    assert signalled == [("Z", signal.SIGKILL)]


@pytest.mark.parametrize(("lines", "waits"), [(5, 6), (0, 1)])
def test_its_last_lines_are_read_while_they_come(tmp_path, lines, waits):
    """A busy machine reads slowly; a process that left the session may keep the pipe open for ever."""
    keys = {"folder": tmp_path, "environment": {"PATH": os.defpath}, "grace_seconds": 1, "mark": "X=1"}

    class Reader:
        joined = 0

        def is_alive(self) -> bool:
            return True

        def join(self, timeout: float) -> None:
            self.joined += 1
            process.output.num_blocks += self.joined <= lines

    with CommandProcess(["true"], **keys) as process:
        process._reader.join()
        reader = process._reader = Reader()
    assert reader.joined == waits


def test_a_bar_that_is_drawn_again_is_output(tmp_path):
    """It may have no end of line for hours, and its process is not silent."""
    with run(["sh", "-c", r"printf '1 %%\r'; sleep 1000"], tmp_path) as process:
        ends = time.monotonic() + 5
        while not process.output.num_blocks and time.monotonic() < ends:
            time.sleep(0.01)
        assert process.output.num_blocks == 1 and process.output.last_lines == []
    assert process.output.last_lines == ["1 %"]


def test_variables_of_a_command_are_replaced_or_refused():
    words = ("$PYTHON", "$OUT", "${GPUS}x$DEVICE", "$$OUT")
    known = {"PYTHON": "python", "OUT": "/out", "GPUS": "8", "DEVICE": "cuda"}
    assert module.words_of(command(words=words), known) == ["python", "/out", "8xcuda", "$/out"]
    with pytest.raises(TrainingFailed, match=r"command can't be run \(there is no \$HOME"):
        module.words_of(command(words=("$PYTHON", "$HOME")), known)


def test_a_missing_program_of_a_command_is_one_line(tmp_path):
    with pytest.raises(TrainingFailed, match=r"the machine has no torchrunn \(no folder of its PATH has one"):
        run(["torchrunn", "train.py"], tmp_path)
    with pytest.raises(TrainingFailed, match=r"the machine has no ./a \(it is not a program there\)"):
        run(["./a"], tmp_path)
