"""The question of Ctrl-C, at a real terminal without a shell behind it."""

from __future__ import annotations

import io
import os
import pty
import sys
from collections.abc import Iterator

import pytest

from tests.trainer.cli.conftest import Terminal
from trainer.cli.question import WORDS, TerminalQuestion, question
from trainer.cli.terminal import Console
from trainer.control.stop import Wish


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal on stdin; what is written here is typed."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield ours
    os.close(ours)


@pytest.mark.parametrize(
    ("typed", "wish"),
    [
        ("e\n", Wish.END),
        ("L\n", Wish.LEAVE),
        (" go on\n", Wish.GO_ON),
        ("\n", Wish.GO_ON),
        ("\x04", Wish.GO_ON),
    ],
)
def test_an_answer_is_a_letter_and_a_line(keyboard, typed, wish):
    stream = Terminal()
    asked = TerminalQuestion(Console(stream))
    asked.open()
    assert asked.answer() is None and WORDS in stream.getvalue()
    os.write(keyboard, typed.encode())
    assert asked.answer() is wish


def test_what_was_typed_before_is_no_answer_and_nonsense_is_asked_again(keyboard):
    stream = Terminal()
    asked = TerminalQuestion(Console(stream))
    os.write(keyboard, b"l\n")
    asked.open()
    assert asked.answer() is None
    os.write(keyboard, b"what?\n")
    assert asked.answer() is None and stream.getvalue().endswith("e, l or g: ")


def test_while_it_is_open_nothing_is_drawn_over_it(keyboard, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    console = Console(stream)
    console.update("before")
    asked = TerminalQuestion(console)
    asked.open()
    console.update("meanwhile")
    console.line("waits")
    console.show("waits, too")
    assert stream.getvalue().endswith(WORDS)
    asked.close()
    assert stream.getvalue().endswith("waits\nwaits, too\n")
    console.update("after")
    console.close()
    assert "meanwhile" not in stream.getvalue() and "after" in stream.getvalue()


def test_nobody_is_asked_without_a_terminal(keyboard, monkeypatch):
    assert question(Console(io.StringIO())) is None
    assert question(Console(Terminal())) is not None
    monkeypatch.setattr(sys, "stdin", io.StringIO("e\n"))
    assert question(Console(Terminal())) is None
