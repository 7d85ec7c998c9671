"""The two streams: plain lines and drawings, and nothing that a terminal obeys but what rich itself says."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace
from typing import TextIO, cast

import pytest

from tests.disks import refused
from tests.trainer.cli.conftest import Terminal
from trainer.cli.output import warn
from trainer.cli.terminal import Console, show
from trainer.cli.views.drawing import drawn
from trainer.cli.views.table import Blocks, FittedTable, Inline, lines, styled

EVIL = "\x1b]0;owned\x07\x1b[2K\r\u202e\x9b31m"


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_without_a_terminal_updates_are_lines_and_rare():
    stream, seconds = io.StringIO(), [0.0]
    console = Console(stream, clock=lambda: seconds[0])
    console.line("training")
    for now in (1, 9, 10, 11, 19, 21):
        seconds[0] = now
        console.update(f"at {now}")
    assert stream.getvalue() == "training\nat 10\nat 21\n"


def test_lines_stay_above_the_live_region_which_is_removed(colours):
    stream = Terminal()
    console = Console(stream)
    console.update("one")
    console.line("stays")
    console.update("two")
    console.close()
    shown = screen(stream.getvalue())
    assert shown == ["stays"]


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_no_colours_gets_plain_lines(colours, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    stream = Terminal()
    console = Console(stream)
    console.line("a line", "red")
    console.draw(lambda: "a picture")
    show(FittedTable([{"a": styled("b", "bold")}]), stream)
    assert stream.getvalue() == "a line\na\nb\n"
    assert not Console(Terminal(), plain=True).live


def test_what_cant_be_shown_ends_no_command(monkeypatch):
    gone = SimpleNamespace(write=refused, flush=refused, isatty=lambda: False)
    console = Console(cast("TextIO", gone))
    console.line("preflight")
    console.show("a table")
    console.update("10 %")
    console.close()
    monkeypatch.setattr(sys, "stderr", gone)
    warn("a note")


def test_a_table_aligns_columns_and_drops_empty_ones():
    rows = [{"a": "long", "n": "1", "none": ""}, {"a": "b", "n": "20", "none": "-"}]
    assert drawn(FittedTable(rows, right="n")) == "a      n\nlong   1\nb     20\n"


def test_columns_leave_one_after_the_other_as_it_gets_narrow():
    table = FittedTable([{"stays": "x", "second": "y", "first": "z"}], leaving=("first", "second"))
    heads = {width: drawn(table, width=width).splitlines()[0].split() for width in (20, 19, 13, 12, 5)}
    assert heads == {
        20: ["stays", "second", "first"],
        19: ["stays", "second"],
        13: ["stays", "second"],
        12: ["stays"],
        5: ["stays"],
    }


def test_what_does_not_fit_wraps_and_is_never_lost():
    text = drawn(FittedTable([{"id": "i-0123456789", "why": "words " * 20}], wraps=("why",)), width=40)
    assert text.count("words") == 20 and "i-0123456789" in text
    assert all(len(line) <= 40 for line in text.splitlines())
    folded = drawn(FittedTable([{"id": "0123456789"}]), width=4)
    assert "".join(folded.split()) == "id0123456789"


def test_parts_stay_whole_and_labels_stand_beside_their_blocks():
    view = Blocks([("time", Inline(["one two", "three", "", "four five"])), ("", "more")])
    assert drawn(view, width=26) == "  time  one two · three\n        four five\n        more\n"


def test_names_are_no_markup_and_terminal_codes_are_escaped(colours):
    stream = Terminal()
    console = Console(stream)
    names = ["[red]AAA[/red]", "[/]", ":smile:", EVIL]
    view = lines(
        FittedTable([{EVIL: name} for name in names]),
        Inline(names),
        Blocks([(EVIL, EVIL)]),
        EVIL,
    )
    console.line(f"{EVIL} [bold]")
    console.draw(lambda: view)
    console.show(view)
    console.close()
    show(view, stream)
    for text in (stream.getvalue(), drawn(view)):
        left = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")  # rich's own commands
        assert not [letter for letter in left if letter != "\n" and not letter.isprintable()]
        assert (
            "[red]AAA[/red]" in left
            and ":smile:" in left
            and "[/]" in left
            and r"\x1b]0;owned\x07\x1b[2K\x0d\u202e" in left
        )
        assert "\x1b[31m" not in text and "\x1b[2K\\x0d" not in text


def screen(written: str) -> list[str]:
    """Return the lines that a terminal shows in the end, by the commands that rich writes: up, clear line,
    return.
    """
    rows, row = [""], 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", written):
        if token == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif match := re.fullmatch(r"\x1b\[(\d*)A", token):
            row = max(0, row - int(match[1] or 1))
        elif token == "\x1b[2K":
            rows[row] = ""
        elif not token.startswith(("\x1b", "\r")):
            rows[row] += token
    return [line.rstrip() for line in rows if line.strip()]
