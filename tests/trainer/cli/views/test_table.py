"""Tables that fit the terminal."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from trainer.cli.views.drawing import drawn
from trainer.cli.views.table import GOOD, Cell, FittedTable, styled


def test_rows_that_fit_are_not_laid_out_cell_by_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[object]()
    laid_out = Console.render_lines

    def counting(self: Console, *given: Any, **more: Any) -> Any:
        calls.append(given)
        return laid_out(self, *given, **more)

    monkeypatch.setattr(Console, "render_lines", counting)
    rows = [{"run": f"run-{number}", "state": "done", "made": str(number)} for number in range(200)]
    shown = drawn(FittedTable(rows, right=("made",))).splitlines()
    assert (shown[0], shown[1], shown[-1]) == (
        "run      state  made",
        "run-0    done      0",
        "run-199  done    199",
    )
    assert len(calls) < 10


def test_wide_letters_and_styles_keep_the_columns_straight() -> None:
    rows: list[dict[str, Cell]] = [
        {"a": "日本", "b": styled("up", GOOD), "c": "1"},
        {"a": "x", "b": Text("down"), "c": "22"},
    ]
    assert drawn(FittedTable(rows, right=("b",))) == "a        b  c\n日本    up  1\nx     down  22\n"


def test_columns_leave_in_order_until_the_rest_fits() -> None:
    rows = [{"run": "r" * 12, "zone": "us-east-1a", "state": "done"}]
    shown = drawn(FittedTable(rows, leaving=("zone", "state")), width=20)
    assert shown == f"run           state\n{'r' * 12}  done\n"
