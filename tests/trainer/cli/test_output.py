from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from tests.trainer.cli.conftest import Terminal
from trainer.base.text import printable
from trainer.cli.main import main
from trainer.cli.output import counted, duration, folded, money, one_line
from trainer.train.observing.events import Story

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.4, "59s"), (60, "1m"), (125, "2m05s"), (4080, "1h08m"), (7200, "2h")]
)
def test_durations_are_for_people(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("dollars", "text"),
    [(0, "$0.00"), (0.0023, "$0.0023"), (0.0123, "$0.01"), (0.204, "$0.20"), (1012.24, "$1,012.24")],
)
def test_small_money_keeps_its_digits(dollars, text):
    assert money(dollars) == text


def test_numbers_come_with_their_nouns():
    assert [counted(number, "model") for number in (0, 1, 2, 2000)] == [
        "0 models",
        "1 model",
        "2 models",
        "2,000 models",
    ]
    assert counted(2, "entry", "entries") == "2 entries"


def test_terminal_codes_are_escaped_and_nothing_else():
    assert (
        printable("Gr\u00fc\u00dfe \u8d35\u5dde \u2013 \U0001f600\ttab\nline")
        == "Gr\u00fc\u00dfe \u8d35\u5dde \u2013 \U0001f600\ttab\nline"
    )
    assert (
        printable("\x1b[31m\r\x00\x7f\x9b\u202e\u2028\ud800") == r"\x1b[31m\x0d\x00\x7f\x9b\u202e\u2028\ud800"
    )
    assert one_line("a\nb") == "a b"


def test_a_long_line_is_broken_between_words_at_a_terminal_only(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    line = (
        "error: "
        + "/a/path/that-is-longer-than-the-terminal/" * 2
        + " is not a folder of candles, and is not taken for one"
    )
    lines = folded(line, Terminal()).splitlines()
    assert " ".join(lines) == line and all(len(one) <= 60 or " " not in one for one in lines)
    assert folded(line, io.StringIO()) == line


def test_a_training_at_a_desk_escapes_what_files_say_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)  # they stay this process's own
    (tmp_path / "A_1m.csv").write_text("a\x1b[31mred,b\n1,2\n")
    assert main(["train", "--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert r"its columns are a\x1b[31mred, b" in capsys.readouterr().err
    stream = io.StringIO()
    Story(stream)({"event": "model_failed", "piece": "A", "reason": "\x1b[31m"})
    assert stream.getvalue() == "A  failed: \\x1b[31m\n"


def test_only_the_modules_that_escape_print():
    """`rehearse` prints variables for a shell to evaluate, which quotes them itself; the child of trackers
    answers its parent in JSON.
    """
    files = {path.name: path.read_text() for path in (ROOT / "trainer/cli").rglob("*.py")}
    prints = re.compile(r"^ *print\(|sys\.std(out|err)\.write\(", re.MULTILINE)
    consoles = re.compile(r"^from rich import|rich\.console import .*\bConsole\b", re.MULTILINE)
    printing = {name for name, text in files.items() if prints.search(text)}
    drawing = {name for name, text in files.items() if consoles.search(text) and "Console(" in text}
    assert printing == {"child.py", "output.py", "rehearse.py"}
    assert drawing == {"drawing.py"}, "its console escapes what is drawn"
