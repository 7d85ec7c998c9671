"""`mayfly logs RUN`: a run's log, from the parts that its node uploads to S3; `--metrics`: its learning
curves.
"""

from __future__ import annotations

import argparse
import time

from trainer.aws.stack import read_stack
from trainer.base.errors import PermissionDenied, UsageError
from trainer.cli.connect import connected
from trainer.cli.output import counted, say, say_json, say_text, warn
from trainer.cli.parts import PartReader
from trainer.cli.terminal import show
from trainer.cli.views.curves import SHOWN_EPOCHS, curves_view, read_events
from trainer.control.cloud import AwsCloud, Cloud
from trainer.control.observe import bootstrap_log
from trainer.control.settle import settle_run
from trainer.runs.keys import NodeKeys
from trainer.runs.store import read_record

LOSSES = ("train_loss", "validation_loss")


def run(arguments: argparse.Namespace) -> int:
    """Print the log of the attempt that the run's record names; with --follow, until the run has ended."""
    if arguments.tail < 0:
        raise UsageError(
            f"--tail {arguments.tail}", do="Give 1 or more; without it the whole log is printed."
        )
    if arguments.follow and arguments.json:
        raise UsageError(
            "--follow and --json don't go together", why="--json prints one document", do="Leave one out."
        )
    if arguments.follow and arguments.metrics:
        raise UsageError(
            "--follow and --metrics don't go together",
            do="Leave one out; an attached launch draws its losses.",
        )
    with connected(rehearse=arguments.rehearse, program=False, local=arguments.local) as access:
        cloud = AwsCloud(access, read_stack(access, stack=arguments.stack))
        if arguments.metrics:
            return _metrics(cloud, arguments)
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
            time.sleep(access.place.poll_seconds)
    return 0


def _metrics(cloud: Cloud, arguments: argparse.Namespace) -> int:
    """Print the last epochs of each model; with --json all of them."""
    events = read_events(cloud, arguments.run)
    epochs = events.epochs
    if events.unsound:
        warn(f"warning: left out {counted(events.unsound, 'line')} of the metrics that can't be read")
    if arguments.json:
        curves = {
            piece: [
                {"epoch": number, **{key: values[key] for key in LOSSES}}
                for number, values in sorted(of.items())
            ]
            for piece, of in epochs.items()
        }
        say_json({"run_id": arguments.run, "models": curves})
    elif epochs:
        work = "script" if any(event["event"] == "script" for event in events.events) else "train"
        show(curves_view(epochs, last=arguments.tail or SHOWN_EPOCHS, work=work))
    else:
        say("no epoch has ended yet")
    return 0


class LogReader:
    """Reads the log of one run, each part once, in order.

    If a node has sent no part, because its agent never started, it reads bootstrap.log, else the console
    output.
    """

    def __init__(self, cloud: Cloud, run_id: str) -> None:
        self._cloud, self._objects, self._run_id = cloud, cloud.objects, run_id
        self._parts = PartReader(cloud.objects)
        self._booted: dict[
            str, str
        ] = {}  # bootstrap.log's key, or the console's instance -> the text that was read

    def read_new(self) -> str:
        """Return the text of the parts that came since the last call. Raises UsageError if there is no such
        run.
        """
        record, _ = read_record(self._objects, self._run_id)
        return "".join(
            self._parts.read_new(keys.log).decode(errors="replace") or self._read_boot(keys)
            for keys in record.nodes
        )

    def _read_boot(self, keys: NodeKeys) -> str:
        if self._parts.has_read(keys.log) or not keys.instance_id:  # without an instance there is no boot
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


def _tail(text: str, lines: int) -> str:
    return "".join(text.splitlines(keepends=True)[-lines:]) if lines else text
