"""Questions to S3 about the many models, files or parts of one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from trainer.base.errors import ConnectionFailed
from trainer.control import reported
from trainer.control.reported import at_once
from trainer.runs.reports import MOST_MODELS


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Answer:
    """An answer that comes so many seconds after the one before."""

    def __init__(self, call: Callable[[], Any], clock: Clock, seconds: float) -> None:
        self._call, self._clock, self._seconds = call, clock, seconds

    def result(self, timeout: float) -> Any:
        if timeout < self._seconds:
            raise TimeoutError
        self._clock.now += self._seconds
        return self._call()

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize("seconds", [0.0, 20.0])
def test_as_many_models_as_a_run_may_have_are_asked_for(monkeypatch: pytest.MonkeyPatch, seconds: float):
    """At 80 ms each, ten at a time: else a run of 20,000 models could never be closed from a desk."""
    clock = Clock()

    def begun(calls: Sequence[Callable[[], Any]], **_: Any) -> list[Answer]:
        return [Answer(call, clock, 0.008) for call in calls]

    monkeypatch.setattr(reported, "time", clock)
    monkeypatch.setattr(reported, "begin_calls", begun)
    assert at_once(range(MOST_MODELS), lambda one: one, "models", seconds=seconds)[-1] == MOST_MODELS - 1
    assert clock.now == pytest.approx(160)


def test_an_answer_that_does_not_come_ends_the_look(monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    monkeypatch.setattr(reported, "time", clock)
    monkeypatch.setattr(
        reported, "begin_calls", lambda calls, **_: [Answer(one, clock, 130) for one in calls]
    )
    with pytest.raises(ConnectionFailed, match="S3 did not describe the 3 models within 120 s"):
        at_once(range(3), lambda one: one, "models")
