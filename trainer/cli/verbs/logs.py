"""`mayfly logs RUN`: a run's log, from the parts that its node uploads to S3; `--metrics`: its learning
curves.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

from trainer.aws.stack import read_stack
from trainer.base.errors import UsageError
from trainer.base.text import lines_of
from trainer.cli.connect import connected, look_again, named_run
from trainer.cli.output import counted, say, say_json, say_text, warn
from trainer.cli.parts import LogReader, read_events
from trainer.cli.terminal import show
from trainer.cli.views.curves import SHOWN_EPOCHS, curves_view
from trainer.control.cloud import AwsCloud, Cloud
from trainer.control.settle import settle_run

NOT_NUMBERS = ("event", "time", "model", "piece", "epoch")  # of an epoch


def run(arguments: argparse.Namespace) -> int:
    """Print the log of the attempt that the run's record names; with --follow, until the run has ended."""
    if arguments.tail < 0:
        do = "Give 1 or more; without it the whole log is printed."
        raise UsageError(f"--tail is {arguments.tail}", do=do)
    for other in ("json", "metrics"):
        if arguments.follow and getattr(arguments, other):
            raise UsageError(f"--follow and --{other} don't go together", do="Leave one out.")
    with connected(rehearse=arguments.rehearse, program=False, local=arguments.local) as access:
        cloud = AwsCloud(access, read_stack(access, stack=arguments.stack))
        arguments.run = named_run(cloud.objects, arguments.run)
        if arguments.metrics:
            return _metrics(cloud, arguments)
        reader = LogReader(cloud, arguments.run)
        text = reader.read_last(arguments.tail) if arguments.tail else reader.read_new()
        if arguments.json:
            say_json({"run_id": arguments.run, "lines": [line.rstrip("\r\n") for line in lines_of(text)]})
            return 0
        say_text(text)
        wait = partial(time.sleep, access.place.poll_seconds)
        while arguments.follow:
            ended = look_again(partial(settle_run, cloud, arguments.run), wait).receipt is not None
            say_text(look_again(reader.read_new, wait))
            if ended:
                break
            wait()
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
                {"epoch": number, **{key: of for key, of in values.items() if key not in NOT_NUMBERS}}
                for number, values in sorted(its.items())
            ]
            for piece, its in epochs.items()
        }
        say_json({"run_id": arguments.run, "models": curves})
    elif epochs:
        work = "script" if any(event["event"] == "script" for event in events.events) else "train"
        show(curves_view(epochs, last=arguments.tail or SHOWN_EPOCHS, work=work))
    else:
        say("no epoch has ended yet")
    return 0
