"""A run in Weights & Biases that broke off is completed, and said to be; by a stand-in for its library."""

from __future__ import annotations

import importlib
import sys
from collections import UserDict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.cli.tracking.runs import tracked


@pytest.mark.parametrize(
    ("step", "rows", "was_there"), [(0, [2, 10], False), (5, [10], False), (11, [], True)]
)
def test_a_run_that_broke_off_was_not_there(
    monkeypatch: pytest.MonkeyPatch, step: int, rows: list[int], was_there: bool
) -> None:
    logged: list[int] = []
    begun = SimpleNamespace(
        url="https://wandb.ai/run",
        step=step,
        config=SimpleNamespace(update=lambda values, **more: None),
        summary=UserDict[str, Any](),
        log=lambda numbers, step: logged.append(step),
        finish=lambda exit_code: None,
    )
    library = SimpleNamespace(
        Settings=lambda **values: None,
        init=lambda **values: begun,
        setup=lambda: SimpleNamespace(settings=SimpleNamespace(mode="online", project="p")),
    )
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.delitem(sys.modules, "trainer.cli.tracking.to_wandb", raising=False)
    writer = importlib.import_module("trainer.cli.tracking.to_wandb")
    monkeypatch.delitem(sys.modules, "trainer.cli.tracking.to_wandb")  # it has the stand-in
    points = [("a/loss", 10, 0.5, 0.0), ("b/loss", 2, 0.5, 0.0)]
    assert writer.write(replace(tracked(), points=points)) == ("https://wandb.ai/run", was_there)
    assert logged == rows
