"""`mayfly logs RUN`: a run's log, from the parts that its node puts into S3 every few seconds."""

from __future__ import annotations

import argparse
import functools
import time

from trainer.cli.connect import connected
from trainer.cli.output import say_json, say_text
from trainer.control.boot_log import bootstrap_log
from trainer.control.cloud import AwsCloud, Cloud
from trainer.control.drive import pace
from trainer.control.settle import settle_run
from trainer.errors import PermissionDenied, UsageError
from trainer.runs.keys import NodeKeys
from trainer.runs.store import PART_BYTES, given, read_record
from trainer.stack import read_stack

MOST_LOG_BYTES = 256 * 1024 * 1024  # of a log, in all its parts; what is beyond is not shown


def run(arguments: argparse.Namespace) -> int:
    """Print the log of the attempt that the run's record names; with --follow, until the run has ended."""
    if arguments.tail < 0:
        raise UsageError(f"--tail {arguments.tail}", do="Give 1 or more; without it the whole log is printed.")
    if arguments.follow and arguments.json:
        raise UsageError("--follow and --json don't go together", why="--json prints one document", do="Leave one out.")
    with connected(rehearse=arguments.rehearse, program=False) as access:
        cloud = AwsCloud(access, read_stack(access, stack=arguments.stack))
        reader = LogReader(cloud, arguments.run)
        text = _tail(reader.read_new(), arguments.tail)
        if arguments.json:
            say_json({"run_id": arguments.run, "lines": text.splitlines()})
            return 0
        say_text(text)
        while arguments.follow:
            ended = settle_run(cloud, arguments.run).receipt is not None
            say_text(reader.read_new())
            if ended:
                break
            time.sleep(pace(access))
    return 0


class LogReader:
    """Reads the log parts of one run, each once, in order; of each, and of all together, no more than a node of ours sends.

    Of a node that has sent no part (its agent never spoke) it reads what the boot left: bootstrap.log, else the console.
    """

    def __init__(self, cloud: Cloud, run_id: str) -> None:
        self._cloud, self._objects, self._run_id = cloud, cloud.objects, run_id
        self._last: dict[str, str] = {}  # prefix -> its last part that was read
        self._booted: dict[str, str] = {}  # bootstrap.log's key, or the console's instance -> the text that was read
        self._bytes = 0

    def read_new(self) -> str:
        """Return the text of the parts that came since the last call. Raises UsageError where there is no such run."""
        record, _ = read_record(self._objects, self._run_id)
        return "".join(self._read(keys.log) or self._read_boot(keys) for keys in record.nodes)

    def _read_boot(self, keys: NodeKeys) -> str:
        if keys.log in self._last:
            return ""
        text, source = bootstrap_log(self._objects, keys), keys.bootstrap_log
        if not text:
            source = keys.instance_id
            try:
                text = self._cloud.console_output(instance_id=keys.instance_id)
            except PermissionDenied as error:  # the log may still come
                text = f"{error}\n"
        before = self._booted.get(source, "")
        if not text.startswith(before):  # its beginning was cut off
            return ""
        self._booted[source] = text
        return text[len(before) :]

    def _read(self, prefix: str) -> str:
        text = ""
        for listed in self._objects.list(prefix=prefix):
            if listed.key > self._last.get(prefix, "") and self._bytes < MOST_LOG_BYTES:
                stored = given(functools.partial(self._objects.get, key=listed.key, first_bytes=PART_BYTES))
                text += stored.body.decode(errors="replace") if stored else ""
                self._bytes += len(stored.body) if stored else 0
                self._last[prefix] = listed.key
        return text


def _tail(text: str, lines: int) -> str:
    return "".join(text.splitlines(keepends=True)[-lines:]) if lines else text
