"""`--help` of every command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import pytest

from trainer.cli.main import main
from trainer.cli.parser import build_parser


def commands(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of a parser and of every one below it."""
    yield words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from commands(below, (*words, name))


@pytest.mark.parametrize(
    "words", list(commands(build_parser())), ids=lambda words: "-".join(words) or "mayfly"
)
def test_help(
    words: tuple[str, ...], golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--help"]) == 0
    golden(f"help-{'-'.join(words) or 'mayfly'}", capsys.readouterr().out)


def test_help_of_the_launcher_as_a_module(
    golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "--help"], prog="python -m trainer.launch") == 0
    golden("help-trainer.launch", capsys.readouterr().out)
