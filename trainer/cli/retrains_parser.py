"""Arguments of `mayfly retrains`. argparse and nothing else."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from trainer.base.arguments import Parser


def add_retrains_verb(verbs: Any, where_flags: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the verb with its actions; `where_flags` adds those of every verb that needs a stack."""
    retrains = verbs.add_parser(
        "retrains", help="scheduled runs: publish a job, list, preview, run now, pause"
    )
    actions = retrains.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    publish = actions.add_parser(
        "publish", help="check a job as a launch would, and publish it with this code"
    )
    publish.add_argument("name", metavar="NAME", help="a retrain of the stack's setting `retrains`")
    publish.add_argument("--job", required=True, metavar="FILE", help="job file (TOML)")
    publish.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other key of the job",
    )
    listing = actions.add_parser(
        "list", help="list the stack's retrains: their next times, their jobs, their last results"
    )
    preview = actions.add_parser(
        "preview", help="show the next three times and the plan with the current data"
    )
    run = actions.add_parser("run", help="run it now, by the control function")
    pause = actions.add_parser("pause", help="skip scheduled times until it is resumed")
    pause.add_argument("--off", action="store_true", help="resume")
    history = actions.add_parser("history", help="list the result of each scheduled time")
    for parser in (preview, run, pause, history):
        parser.add_argument("name", metavar="NAME", help="name of a retrain")
    for parser in (publish, listing, preview, run, pause, history):
        where_flags(parser)
