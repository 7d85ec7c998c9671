from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest

from trainer.cli.output import Console, duration, money, one_line, printable, table

ROOT = Path(__file__).resolve().parents[3]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_updates_are_lines_and_rare():
    stream, seconds = io.StringIO(), [0.0]
    console = Console(stream, clock=lambda: seconds[0])
    console.line("training")
    for now in (1, 9, 10, 11, 19, 21):
        seconds[0] = now
        console.update(f"at {now}")
    assert stream.getvalue() == "training\nat 10\nat 21\n"


def test_on_a_terminal_updates_share_one_line_that_ends_with_the_story(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    console = Console(stream)
    console.update("one")
    console.update("two")
    console.line("stays")
    console.update("three")
    console.close()
    assert stream.getvalue() == "one\r\033[Ktwo\r\033[Kstays\nthree\r\033[K"


def test_colour_only_on_a_terminal_and_never_against_no_color(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Console(Terminal()).styled("x", "1") == "\033[1mx\033[0m"
    assert Console(io.StringIO()).styled("x", "1") == "x"
    monkeypatch.setenv("NO_COLOR", "")
    assert Console(Terminal()).styled("x", "1") == "x"


def test_a_table_aligns_its_columns():
    assert table([["a", "n"], ["long", "1"]], right=(1,)) == ["a     n", "long  1"]
    assert table([]) == []


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (60, "1m00s"), (125, "2m05s"), (4080, "1h08m")])
def test_durations_are_for_people(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("dollars", "text"), [(0, "$0.00"), (0.0123, "$0.0123"), (0.204, "$0.20"), (12.24, "$12.24")])
def test_small_money_keeps_its_digits(dollars, text):
    assert money(dollars) == text


def test_what_a_terminal_obeys_is_escaped_and_everything_else_stays():
    assert (
        printable("Gr\u00fc\u00dfe \u8d35\u5dde \u2013 \U0001f600\ttab\nline")
        == "Gr\u00fc\u00dfe \u8d35\u5dde \u2013 \U0001f600\ttab\nline"
    )
    assert printable("\x1b[31m\r\x00\x7f\x9b\u202e\u2028\ud800") == r"\x1b[31m\x0d\x00\x7f\x9b\u202e\u2028\ud800"
    assert one_line("a\nb") == "a b"


def test_every_word_on_a_terminal_goes_through_the_one_place_that_escapes():
    """`rehearse` prints variables for a shell to evaluate, which quotes them itself."""
    printing = set()
    for path in sorted((ROOT / "trainer/cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                printing.add(path.name)
            if (
                isinstance(node, ast.Attribute)
                and node.attr == "write"
                and ast.unparse(node.value) in ("sys.stdout", "sys.stderr")
            ):
                printing.add(path.name)
    assert printing == {"output.py", "rehearse.py"}
