"""Every verb of the command line; its flags are in `flags/`. argparse alone: `--help` must answer at once.

A verb is implemented in `trainer/cli/<verb>.py`, imported after its arguments are parsed; an action may set
another `verb`.
"""

from __future__ import annotations

import argparse

from trainer import __version__
from trainer.base.arguments import Parser
from trainer.cli.flags.data import data_flags
from trainer.cli.flags.runs import (
    attach_flags,
    backup_flags,
    doctor_flags,
    down_flags,
    logs_flags,
    models_flags,
    pull_flags,
    receipts_flags,
    rehearse_flags,
    retrains_flags,
    status_flags,
    stop_flags,
)
from trainer.cli.flags.work import agent_flags, launch_flags, plan_flags, predict_flags, profiles_flags

TYPE_CHECKING = False  # typing's own constant, without its import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def build_parser(prog: str = "mayfly") -> Parser:
    """Return the parser of `mayfly`; with another prog, that of `python -m trainer.launch`, where the module
    is the verb.
    """
    if prog != "mayfly":
        description = "Train models on an ephemeral GPU machine."
        parser = Parser(prog=prog, description=description, flags=launch_flags)
        parser.set_defaults(verb="launch")
        return parser
    parser = Parser(prog=prog, description="Train models on AWS GPUs that exist only for the run.")
    parser.add_argument("--version", action="version", version=f"mayfly {__version__}")
    parser.add_argument(
        "--print-completion",
        action=PrintCompletion,
        choices=("bash", "zsh", "fish"),
        metavar="SHELL",
        help="print what completes commands in bash, zsh or fish: docs/quick-start.md",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for verb, (words, flags) in VERBS.items():
        verbs.add_parser(verb, help=words, flags=flags, add_help=flags is not None)
    return parser


class PrintCompletion(argparse.Action):
    """Print the script of a shell, and exit."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Load shtab and the tables here: no other command needs them."""
        from trainer.cli.completion import script
        from trainer.cli.output import say_text

        say_text(f"{script(parser, values)}\n")
        parser.exit()


VERBS: dict[str, tuple[str, Callable[[Parser], None] | None]] = {  # help and flags, in the order of `--help`
    "launch": ("train models on an ephemeral GPU machine", launch_flags),
    "data": ("candles before a training: fetch, check, push, pull, list", data_flags),
    "plan": ("time and price of a job on every kind of machine, without an account", plan_flags),
    "agent": (
        "run a job on this machine instead of an EC2 instance: docs/scripts-and-machines.md",
        agent_flags,
    ),
    "status": ("list open and recent runs, or show one; closes runs whose launcher is gone", status_flags),
    "logs": ("print a run's log, from S3", logs_flags),
    "attach": ("open a shell, run a command or forward a port on a running machine", attach_flags),
    "stop": ("end a run: upload finished models, then terminate its machine", stop_flags),
    "receipts": ("list receipts, or print one", receipts_flags),
    "pull": ("download a run's models, receipt and log", pull_flags),
    "backup": ("back the local folder up to the bucket, or restore it", backup_flags),
    "doctor": ("check everything that a run depends on, and print what to do", doctor_flags),
    "down": ("remove the stack except its bucket; refuses while a run is open", down_flags),
    "models": ("list models in the bucket, or download one", models_flags),
    "retrains": ("scheduled runs: publish a job, list, preview, run now, pause", retrains_flags),
    "predict": ("predict a file or folder of candles with one or many models, as one CSV", predict_flags),
    # Its flags are those of trainer/train/__main__.py, which main.py calls.
    "train": ("train every model of a job on this machine, without any cloud", None),
    "profiles": (
        "list GPU profiles, or measure this machine's fastest settings and its price",
        profiles_flags,
    ),
    "rehearse": ("point this shell at the embedded AWS, or end it", rehearse_flags),
}
