"""The steps of a training that a run computed twice: those between the last report of a machine that was lost
and the checkpoint with which the next one began. Pure.

Both numbers are a node's word. What is repeated of a piece lies between 0 and what earlier machines reported
of it, so that a node can change no more than its own run's count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from trainer.runs.reports import MOST_COUNT, Heartbeat
from trainer.runs.start_file import StartFile


def reached_steps(
    start: StartFile | None, last: Heartbeat | None, *, pieces: Collection[str]
) -> dict[str, int]:
    """Return, by piece, the most steps that an attempt or earlier ones reported.

    `start`: what the attempt began with; `last`: its last report; `pieces`: the run's, which a report can't
    add to. Finished ones are left out.
    """
    reached = dict(start.reached) if start else {}
    for piece, told in (last.progress if last else {}).items():
        if (steps := _position(told)) > 0:
            reached[piece] = max(steps, reached.get(piece, 0))
    left = set(pieces) - set(start.pieces if start else ())
    return {piece: steps for piece, steps in reached.items() if piece in left}


def steps_twice(start: StartFile | None, last: Heartbeat | None) -> int:
    """Return the steps that earlier attempts and this one computed a second time, as far as it was reported.

    A piece whose steps an attempt did not report to have begun has repeated nothing yet.
    """
    if start is None:
        return 0
    told = last.progress if last else {}
    here = (_repeated(reached, told.get(piece, {})) for piece, reached in start.reached.items())
    return min(start.steps_twice + sum(here), MOST_COUNT)


def _repeated(reached: int, told: Mapping[str, Any]) -> int:
    """Return how many of the steps that were reached before an attempt has taken again."""
    began = told.get("began")
    if began is None:
        return 0
    over = told.get("state") in ("scoring", "done")  # it may have stopped early
    return max(0, (reached if over else min(reached, _position(told))) - began)


def _position(told: Mapping[str, Any]) -> int:
    """Return the steps of a piece's training so far by its report; 0 if it names none, as a script's."""
    if "began" not in told or not told.get("steps") or not told.get("epoch"):
        return 0
    steps, epoch = told["steps"], min(told["epoch"], told.get("epochs") or told["epoch"])
    return int(min((epoch - 1) * steps + min(told.get("step", 0), steps), MOST_COUNT))
