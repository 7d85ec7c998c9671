"""The script of `--print-completion`, which completes `mayfly` in a shell: verbs, flags, files, and names of
the packaged tables.

shtab makes it from the parser, once: no Tab starts Python. What only a bucket knows (runs, data sets) is left
out, because a Tab must not wait for AWS.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import shtab

from trainer.base.arguments import Parser
from trainer.cli.flags.shared import RUN
from trainer.machines.chips import packaged
from trainer.machines.instances import catalogue
from trainer.models import MODELS
from trainer.targets import TARGETS
from trainer.train.__main__ import parser as train_parser

FILES = ("FILE", "FILE.py", "PATH", "MODEL")  # by metavar; a model is a file or a name
FOLDERS = ("DIR", "FOLDER", "OUT")


def script(parser: Parser, shell: str) -> str:
    """Return the script of `mayfly`'s parser, which is changed and can't parse any more."""
    names = {
        "--model": list(MODELS),
        "--target": list(TARGETS),
        "--instance": [name for name, one in catalogue().items() if one.launchable],
        "--gpu-profile": list(packaged()),
    }
    for action in _actions(parser):
        flag = action.option_strings[-1] if action.option_strings else ""
        if flag in names:
            action.choices = names[flag]
        elif RUN in (action.help or ""):
            action.choices = ["last"]
        elif action.metavar in FILES or action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))


def _actions(parser: Parser) -> Iterator[argparse.Action]:
    """Yield every argument of a parser and of those below it, each filled with its flags."""
    for action in parser.filled()._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            if "train" in action.choices:  # whose flags are not in flags/
                action.choices["train"] = train_parser("mayfly train")
            for below in action.choices.values():
                yield from _actions(below)
