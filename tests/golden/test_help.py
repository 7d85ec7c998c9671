"""`--help` of every command."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator

import pytest

from trainer.base.arguments import Parser
from trainer.cli.main import main
from trainer.cli.parser import build_parser


def commands(parser: Parser, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Parser]]:
    """Yield a parser and every one below it, with their words."""
    yield words, parser.filled()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from commands(below, (*words, name))


def aligned(text: str) -> str:
    """Return help with the column beside its subcommands as wide as Python 3.13 makes it."""
    row = re.compile(r"^( {4}\w+|  -\w, --\w+)\s+(?=\w)", re.MULTILINE)
    names = [match[1] for match in row.finditer(text)]
    if not any(name.startswith(" " * 4) for name in names):
        return text
    return row.sub(lambda match: match[1].ljust(max(map(len, names)) + 2), text)


COMMANDS = dict(commands(build_parser()))


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: "-".join(words) or "mayfly")
def test_help(
    words: tuple[str, ...], golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--help"]) == 0
    golden(f"help-{'-'.join(words) or 'mayfly'}", aligned(capsys.readouterr().out))


def test_there_are_19_verbs_and_at_most_22_flags_a_command() -> None:
    assert len([words for words in COMMANDS if len(words) == 1]) == 19
    for words, parser in COMMANDS.items():
        flags = [action for action in parser._actions if action.option_strings and action.dest != "help"]
        assert len(flags) <= 22, words  # launch has two of the life of a run: --interrupt and --resume


def test_help_of_the_launcher_as_a_module(
    golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "--help"], prog="python -m trainer.launch") == 0
    golden("help-trainer.launch", capsys.readouterr().out)
