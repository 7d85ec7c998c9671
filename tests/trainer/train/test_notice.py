"""A notice that the machine is taken away: checkpoints at once, an end that loses no step, and what it
saves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.jobs import job_of
from tests.nightly import others_nightly
from tests.trainer.train.rosters import Roster, Strategy, WorkerKilled, heard_at, run_of_noise
from trainer.job.job import Job
from trainer.train.notice import CHECKPOINT, STOP, Notice
from trainer.train.packs.chunks import Chunks
from trainer.train.packs.pack import Member
from trainer.train.packs.sequential import SequentialPack
from trainer.train.packs.stacked import Fused, Streams
from trainer.train.run import Run

SHORT = {"batch": 10, "epochs": 4, "patience": 4, "learning_rate": 1e-2, "dropout": 0.2}
LSTM = job_of(hidden=6, lookback=8, checkpoint_seconds=60, **SHORT)
SMALL = {**SHORT, "batch": 4}
TCN = job_of(model="tcn", target="direction", width=4, blocks=2, chunk=8, checkpoint_seconds=60, **SMALL)
WINDOWS = (120, 180)


def chunks(members: Sequence[Member], job: Job) -> Chunks:
    return Chunks(members, job, micro_batch=4)


class Counted:
    """Runs of noise trained by one strategy, with a count of the steps that were taken."""

    def __init__(self, job: Job, form: Strategy, *, places: int = 1) -> None:
        self._job, self._form, self._places = job, form, places
        self.steps = 0
        self.done: dict[str, Run] = {}  # of all attempts

    def train(self, heard: Callable[[], str] = lambda: "", **keys: Any) -> Roster:
        """Train what is not done yet, to the end or until something stops it."""
        runs = [run_of_noise(number, self._job, windows=windows) for number, windows in enumerate(WINDOWS)]
        roster = Roster(*(run for run in runs if run.member.name not in self.done), **keys)
        roster.done = self.done
        return roster.train(self._counted, self._job, places=self._places, heard=heard)

    def _counted(self, members: Sequence[Member], job: Job) -> Any:
        pack = self._form(members, job)
        step = pack.step

        def counted(active: Sequence[bool], starts: Sequence[torch.Tensor]) -> torch.Tensor:
            self.steps += sum(active)
            return step(active, starts)

        pack.step = counted  # type: ignore[method-assign]
        return pack


def _notice(path: Path) -> tuple[Notice, list[float]]:
    now = [0.0]
    return Notice(path, clock=lambda: now[0]), now


def test_a_notice_is_heard_within_a_second_and_once(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    notice, now = _notice(path)
    assert notice() == "" and not notice.stops
    path.write_text("checkpoint\n")
    assert notice() == ""  # it looked less than a second ago
    now[0] = 1.0
    assert not notice.stops  # which hands nothing on
    assert [notice(), notice()] == [CHECKPOINT, ""]
    now[0] = 2.0
    assert notice() == ""
    path.write_text("stop\n")
    now[0] = 3.0
    assert [notice(), notice()] == [STOP, STOP] and notice.stops
    path.unlink()
    now[0] = 9.0
    assert notice() == STOP


@pytest.mark.parametrize("content", ["", "\n", "hibernate\n", "\xff\xfe", "stop" * 2000])
def test_a_notice_of_another_word_is_not_heard(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notice"
    path.write_text(content, encoding="latin-1")
    notice, _ = _notice(path)
    assert notice() == "" and not notice.stops
    assert Notice(None)() == "" and Notice(tmp_path)() == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "job", "places"),
    others_nightly(
        [(SequentialPack, LSTM, 2), (Fused, LSTM, 2), (Streams, LSTM, 2), (chunks, TCN, 1)],
        lambda case: case[0] is Fused,
    ),
)
def test_each_model_of_a_pack_is_saved_at_once(form: Strategy, job: Job, places: int) -> None:
    on = Counted(job, form, places=places).train(heard_at(7, word=CHECKPOINT))
    assert on.checkpoints[:places] == [7] * places and len(on.done) == 2 and not on.left
    ended = Counted(job, form, places=places).train(heard_at(7))
    assert ended.checkpoints == [7] * places and not ended.done
    assert ended.left == ["m0", "m1"][:places]


@pytest.mark.slow
def test_a_job_without_checkpoints_only_ends() -> None:
    job = job_of(hidden=6, lookback=8, checkpoint_seconds=0, **SHORT)
    ended = Counted(job, SequentialPack, places=2).train(heard_at(7))
    assert not ended.checkpoints and ended.left == ["m0", "m1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "job", "places", "tolerance"),
    [
        pytest.param(SequentialPack, LSTM, 1, 0.0, marks=pytest.mark.nightly),
        pytest.param(chunks, TCN, 1, 0.0, marks=pytest.mark.nightly),
        (SequentialPack, LSTM, 2, 0.0),
        pytest.param(Fused, LSTM, 2, 1e-5, marks=pytest.mark.nightly),
        pytest.param(Streams, LSTM, 2, 1e-5, marks=pytest.mark.nightly),
    ],
)
def test_three_notices_change_no_weight_and_cost_no_step(
    tmp_path: Path, form: Strategy, job: Job, places: int, tolerance: float
) -> None:
    whole, told, untold = (Counted(job, form, places=places) for _ in range(3))
    whole.train()
    for after in (9, 17, 13):
        assert told.train(heard_at(after), folder=tmp_path / "told", saves=True).left
    told.train(folder=tmp_path / "told", saves=True)
    assert told.done.keys() == whole.done.keys()
    for name, run in whole.done.items():
        best = told.done[name].best_weights
        assert told.done[name].best_epoch == run.best_epoch
        for part, weight in run.best_weights.items():
            torch.testing.assert_close(best[part], weight, rtol=0, atol=tolerance)
    for after in (9, 17, 13):  # the same three machines, gone without a word
        with pytest.raises(WorkerKilled):
            untold.train(_kill_at(after), folder=tmp_path / "untold", saves=True)
    untold.train(folder=tmp_path / "untold", saves=True)
    twice = told.steps - whole.steps
    assert untold.steps - whole.steps >= 30 * places and twice <= 0.05 * (untold.steps - whole.steps)


def _kill_at(step: int) -> Callable[[], str]:
    count = itertools.count(1)

    def heard() -> str:
        if next(count) == step:
            raise WorkerKilled
        return ""

    return heard
