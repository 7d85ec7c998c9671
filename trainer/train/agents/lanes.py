"""Lanes of environments of the user's own: episodes side by side, stepped here or in processes on the cores.

An episode is a part of the training candles. Where it begins, and its seed, follow from its lane's seed and
its number alone, so that a lane is known by the number and the actions of its present episode: a resumed
agent takes them again, and goes on where it was.

No torch: a process is there in a second. Shapes: N lanes, D numbers of an observation, A numbers of an
action.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from trainer.base.errors import TrainerError, TrainingFailed
from trainer.base.own_file import as_usage_error
from trainer.base.process_state import die_with_the_parent
from trainer.data.read.candles import Candles
from trainer.targets.environment import EnvironmentTarget
from trainer.targets.environment_steps import DO, EnvironmentStep, Steps

MOST_SEED = 1 << 31  # of an episode: Gymnasium takes any whole number, and NumPy's older ones 32 bits


@dataclass(frozen=True, kw_only=True)
class LanePlace:
    """A lane: the candles of training that its episodes are parts of, their bars, and its seed."""

    candles: Candles
    bars: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """Results of a step of all lanes (N, ...); a lane that took none keeps its observation."""

    seen: np.ndarray  # (N, D) float32: to act on next, of a new episode where one ended
    after: np.ndarray  # (N, D) float32: what followed the action, in the same episode
    reward: np.ndarray  # (N,) float64
    terminated: np.ndarray  # (N,) bool
    truncated: np.ndarray  # (N,) bool


class Lanes(Protocol):
    """Lanes, numbered in the given order."""

    def begin(self, lanes: Sequence[int], numbers: Sequence[int], actions: Sequence[Any]) -> None:
        """Put lanes into their episodes with these numbers, and take the actions of each. Raises
        UsageError.
        """

    def seen(self) -> np.ndarray:
        """Return what each lane sees (N, D) float32."""

    def step(self, actions: np.ndarray, active: np.ndarray) -> Stepped:
        """Take a step in the lanes that are `active` (N,) bool. Raises UsageError."""


class EpisodeLane:
    """One lane: an episode after another."""

    def __init__(self, target: EnvironmentTarget, place: LanePlace) -> None:
        self._target, self._place = target, place
        self.begin(0, ())

    def begin(self, number: int, actions: Any) -> None:
        """Begin the episode with this number, and take these actions."""
        place = self._place
        random = np.random.default_rng([place.seed, number])
        start = int(random.integers(max(1, len(place.candles) - place.bars + 1)))
        self._number = number
        self._steps = Steps(self._target, place.candles.rows(start, start + place.bars))
        self.seen, _ = self._steps.reset(int(random.integers(MOST_SEED)))
        for action in actions:
            self.seen = self._steps.step(action).seen

    def step(self, action: Any) -> EnvironmentStep:
        """Take an action; begin the next episode if it ends this one."""
        made = self._steps.step(action)
        self.seen = made.seen
        if made.terminated or made.truncated:
            self.begin(self._number + 1, ())
        return made


class HereLanes:
    """Lanes that this process steps, one after another."""

    def __init__(self, target: EnvironmentTarget, places: Sequence[LanePlace]) -> None:
        self._lanes = [EpisodeLane(target, place) for place in places]

    def begin(self, lanes: Sequence[int], numbers: Sequence[int], actions: Sequence[Any]) -> None:
        """See `Lanes.begin`."""
        for lane, number, taken in zip(lanes, numbers, actions, strict=True):
            self._lanes[lane].begin(number, taken)

    def seen(self) -> np.ndarray:
        """See `Lanes.seen`."""
        return np.stack([lane.seen for lane in self._lanes])

    def step(self, actions: np.ndarray, active: np.ndarray) -> Stepped:
        """See `Lanes.step`."""
        after, lanes = self.seen(), len(self._lanes)
        reward, ends = np.zeros(lanes), np.zeros((2, lanes), dtype=bool)
        for lane in np.flatnonzero(active):
            made = self._lanes[lane].step(actions[lane])
            after[lane], reward[lane] = made.seen, made.reward
            ends[:, lane] = made.terminated, made.truncated
        return Stepped(seen=self.seen(), after=after, reward=reward, terminated=ends[0], truncated=ends[1])


class Processes:
    """Lanes in processes, each with a part of them. They end with this object, and with this process."""

    def __init__(self, target: EnvironmentTarget, places: Sequence[LanePlace], *, processes: int) -> None:
        self._name = target.class_name
        self._parts = np.array_split(np.arange(len(places)), processes)
        self._lines: list[Connection] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self._end = weakref.finalize(self, _end, self._lines, self._started)
        for part in self._parts:
            line, process = _started()
            self._lines.append(line)
            self._started.append(process)
            line.send((target, [places[lane] for lane in part]))

    def begin(self, lanes: Sequence[int], numbers: Sequence[int], actions: Sequence[Any]) -> None:
        """See `Lanes.begin`."""
        given = dict(zip(lanes, zip(numbers, actions, strict=True), strict=True))
        asked = []
        for part in self._parts:
            own = {place: given[lane] for place, lane in enumerate(part.tolist()) if lane in given}
            asked.append(("begin", list(own), *([one[field] for one in own.values()] for field in (0, 1))))
        self._answers(asked)

    def seen(self) -> np.ndarray:
        """See `Lanes.seen`."""
        return np.concatenate(self._answers([("seen",)] * len(self._parts)))

    def step(self, actions: np.ndarray, active: np.ndarray) -> Stepped:
        """See `Lanes.step`."""
        made = self._answers([("step", actions[part], active[part]) for part in self._parts])
        names = [item.name for item in fields(Stepped)]
        return Stepped(**{name: np.concatenate([getattr(one, name) for one in made]) for name in names})

    def close(self) -> None:
        """End the processes."""
        self._end()

    def _answers(self, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Ask all processes, then wait for all of their answers. Raises what one of them raised."""
        try:
            for line, question in zip(self._lines, asked, strict=True):
                line.send(question)
            made = [line.recv() for line in self._lines]
        except (EOFError, OSError) as error:
            do = "Look for what ends Python, or takes all memory."
            raise TrainingFailed(f"a process that steps {self._name} has ended", do=do) from error
        for one in made:
            if isinstance(one, TrainerError):
                raise one
        return made


def _started() -> tuple[Connection, subprocess.Popen[bytes]]:
    ours, theirs = Pipe()
    command = [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
    theirs.close()
    return ours, process


def _end(lines: list[Connection], started: list[subprocess.Popen[bytes]]) -> None:
    for line in lines:
        line.close()
    for process in started:
        process.kill()
        process.wait()


def serve(descriptor: int) -> None:
    """Step lanes for the parent, in a process of their own, until it closes its end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_the_parent()
    line = Connection(descriptor)
    with suppress(EOFError, OSError):
        lanes: Any = None
        given = line.recv()
        while True:
            method, *arguments = line.recv()
            try:
                with as_usage_error("an environment can't be stepped", DO):
                    lanes = lanes or HereLanes(*given)  # their first episodes may fail, too
                    answer: Any = getattr(lanes, method)(*arguments)
            except TrainerError as error:
                answer = error
            line.send(answer)
    os._exit(0)  # whatever threads the user's code has
