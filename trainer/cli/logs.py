"""`mayfly logs RUN`: a run's log, from the parts that its node puts into S3 every few seconds."""

from __future__ import annotations

import argparse
import json
import sys
import time

from trainer.cli.connect import connected
from trainer.control.cloud import AwsCloud
from trainer.control.drive import pace
from trainer.control.settle import settle_run
from trainer.errors import UsageError
from trainer.runs.store import Objects, log_prefix, read_record
from trainer.stack import read_stack


def run(arguments: argparse.Namespace) -> int:
    """Print the log of the attempt that the run's record names; with --follow, until the run has ended."""
    if arguments.tail < 0:
        raise UsageError(f"--tail {arguments.tail}", do="Give 1 or more; without it the whole log is printed.")
    if arguments.follow and arguments.json:
        raise UsageError("--follow and --json don't go together", why="--json prints one document", do="Leave one out.")
    with connected(rehearse=arguments.rehearse, program=False) as access:
        cloud = AwsCloud(access, read_stack(access, stack=arguments.stack))
        reader = LogReader(cloud.objects, arguments.run)
        text = _tail(reader.read_new(), arguments.tail)
        if arguments.json:
            print(json.dumps({"run_id": arguments.run, "lines": text.splitlines()}, indent=2))
            return 0
        _print(text)
        while arguments.follow:
            ended = settle_run(cloud, arguments.run).receipt is not None
            _print(reader.read_new())
            if ended:
                break
            time.sleep(pace(access))
    return 0


class LogReader:
    """Reads the log parts of one run, each once, in order."""

    def __init__(self, objects: Objects, run_id: str) -> None:
        self._objects, self._run_id = objects, run_id
        self._last = ""

    def read_new(self) -> str:
        """Return the text of the parts that came since the last call. Raises UsageError where there is no such run."""
        record, _ = read_record(self._objects, self._run_id)
        if record.attempt is None:
            return ""
        text = ""
        for listed in self._objects.list(prefix=log_prefix(self._run_id, record.attempt.number)):
            if listed.key > self._last:
                stored = self._objects.get(key=listed.key)
                text += stored.body.decode(errors="replace") if stored else ""
                self._last = listed.key
        return text


def _tail(text: str, lines: int) -> str:
    return "".join(text.splitlines(keepends=True)[-lines:]) if lines else text


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
