"""Arguments of `mayfly retrains`. argparse and nothing else."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from trainer.arguments import Parser


def add_retrains_verb(verbs: Any, where_flags: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the verb with its actions; `where_flags` adds those of every verb that needs a stack."""
    retrains = verbs.add_parser("retrains", help="runs on a schedule: publish what they run, look, run, pause")
    actions = retrains.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    publish = actions.add_parser("publish", help="check a job as a launch would, and publish it with this code")
    publish.add_argument("name", metavar="NAME", help="a retrain of the stack's setting `retrains`")
    publish.add_argument("--job", required=True, metavar="FILE", help="job file (TOML)")
    publish.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="any other key of the job"
    )
    listing = actions.add_parser(
        "list", help="every retrain of the stack: its next times, what it runs, how the last one ended"
    )
    preview = actions.add_parser("preview", help="the next three times and the plan, by the data that is there now")
    run = actions.add_parser("run", help="have control run it now")
    pause = actions.add_parser("pause", help="leave scheduled times out until it goes on")
    pause.add_argument("--off", action="store_true", help="go on")
    history = actions.add_parser("history", help="what became of each scheduled time")
    for parser in (preview, run, pause, history):
        parser.add_argument("name", metavar="NAME", help="a retrain")
    for parser in (publish, listing, preview, run, pause, history):
        where_flags(parser)
