"""Two ranks train what one process trains: the same losses, validation and end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.jobs import job_of
from tests.trainer.train.ranks.ranks import TwoRanks
from tests.trainer.train.rosters import Roster
from trainer.base.errors import UsageError
from trainer.job.job import Job
from trainer.train.evaluate.epoch_scores import Validated, Validation
from trainer.train.loop import train
from trainer.train.packs.layout import ONE, Layout
from trainer.train.packs.pack import Member
from trainer.train.packs.strategy import form_pack
from trainer.train.packs.tensors import buffers_of
from trainer.train.predict.readers import Evaluate, Inputs, Reader, outputs_of, reader_of
from trainer.train.ranks.group import AgreedClock, Ranks
from trainer.train.ranks.layout import DataParallel
from trainer.train.ranks.validation import shared_outputs
from trainer.train.run import Run

STEPS = 15
SHAPES: dict[str, dict[str, Any]] = {
    "lstm": {"hidden": 4, "layers": 2, "lookback": 6, "dropout": 0.2},
    "tcn": {"width": 4, "blocks": 2, "dilation_cap": 2, "chunk": 8, "dropout": 0.2},
    "transformer": {"preset": "tiny", "lookback": 8, "patch": 4, "dropout": 0.2},
}


def job_for(name: str, **keys: Any) -> Job:
    """Return a job of a tiny model with dropout."""
    return job_of(
        model=name, target="direction", batch=8, learning_rate=3e-4, ema=0.9, **SHAPES[name], **keys
    )


def member_of(dtype: torch.dtype) -> Member:
    """Return rows of noise whose next bar shows in the present one; some bars have no label."""
    draw = torch.Generator().manual_seed(1)
    rows_TF = torch.randn(400, 3, generator=draw, dtype=torch.float64).to(dtype)
    labels_TK = (rows_TF[:, 1:2] > 0).to(dtype)
    labels_TK[torch.arange(0, 400, 7)] = torch.nan
    one = torch.ones(3, dtype=dtype)
    return Member(name="m", rows_TF=rows_TF, labels_TK=labels_TK, mean_F=one * 0, std_F=one, seed=3)


def reads_of(job: Job, member: Member) -> torch.Tensor:
    """Return the first row of each window that ends at a label."""
    labelled = torch.isfinite(member.labels_TK[:, 0]).nonzero()[:, 0]
    return labelled[(labelled >= job.model.bars_seen) & (labelled < 380)] - job.model.bars_seen + 1


def batches_of(job: Job, member: Member) -> list[torch.Tensor]:
    """Return the starts of each step: most of them a whole batch, some that two ranks don't divide, some of
    one sample.
    """
    firsts = reads_of(job, member)
    draw = torch.Generator().manual_seed(2)
    sizes = [(8, 8, 5, 8, 1)[step % 5] for step in range(STEPS)]
    return [firsts[torch.randint(len(firsts), (size,), generator=draw)] for size in sizes]


def losses_of(
    job: Job, dtype: torch.dtype, layout: Layout, total: Callable[[torch.Tensor], torch.Tensor]
) -> list[float]:
    """Return the loss of each of the steps, then the sum of the weights and that of their average."""
    member = member_of(dtype)
    pack = form_pack([member], job, layout)
    losses = [float(total(pack.step([True], [starts]))[0]) for starts in batches_of(job, member)]
    state = pack.snapshot(0)
    parts = (state.weights, state.average)
    return [*losses, *(sum(float(one.double().sum()) for one in part.values()) for part in parts)]


def losses_on_rank(ranks: Ranks, job: Job, dtype: torch.dtype) -> list[float]:
    """Return `losses_of` as one of several ranks has them."""
    return losses_of(job, dtype, DataParallel(ranks, job), ranks.sum_)


# A transformer on two ranks, by DDP and by FSDP: test_encoder_on_ranks.py.
@pytest.mark.parametrize(
    "name", [name if name == "lstm" else pytest.param(name, marks=pytest.mark.nightly) for name in SHAPES]
)
def test_two_ranks_have_the_losses_of_one_process(two_ranks: TwoRanks, name: str):
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        alone = losses_of(job_for(name), dtype, ONE, lambda losses: losses)
        assert all(np.isfinite(alone)) and len({round(loss, 6) for loss in alone[:STEPS]}) > STEPS // 2
        for slices in ({}, {"micro_batch": 2}):  # of rows: a rank's four are one slice, or two
            first, second = two_ranks(losses_on_rank, job_for(name, **slices), dtype)
            assert first == second, "ranks have drifted apart"
            np.testing.assert_allclose(first, alone, rtol=tolerance)


def parts_of(member: Member, job: Job) -> list[tuple[np.ndarray, Reader]]:
    """Return bars of validation of three series, which neither batches nor ranks divide, with their
    readers.
    """
    inputs = Inputs(rows_TF=member.rows_TF, mean_F=member.mean_F, std_F=member.std_F)
    seen = job.model.bars_seen
    readers = reader_of(job.model.reads, inputs, bars_seen=seen, first_bar=seen - 1, batch=16)
    return [(np.arange(first, last), readers) for first, last in ((20, 83), (90, 91), (100, 190))]


def run_of_noise(job: Job, evaluate: Evaluate, outputs: list[np.ndarray]) -> Run:
    """Return a run whose validation is on noise, so that it stops early; its outputs are kept."""
    member = member_of(torch.float32)
    parts = parts_of(member, job)

    def judged(outputs_NO: np.ndarray) -> Validated:
        outputs.append(outputs_NO)
        return Validated(loss=float((outputs_NO**2).mean()))

    validation = Validation(outputs=lambda network: torch.from_numpy(evaluate(network, parts)), judged=judged)
    reads = reads_of(job, member)[:150]
    return Run(
        member=member, title="S", reads=reads, validation=validation, learning_rate=job.train.learning_rate
    )


def train_on_rank(ranks: Ranks, job: Job) -> tuple[Any, ...]:
    """Train a run as one of several ranks, by a clock that runs otherwise on each."""
    ticks, outputs, events = iter(range(10_000)), list[np.ndarray](), list[dict[str, Any]]()
    run = run_of_noise(job, shared_outputs(ranks, 1), outputs)
    clock = AgreedClock(ranks, clock=lambda: next(ticks) * (1.0 - 0.7 * ranks.rank))
    roster = Roster(run)
    form = partial(form_pack, job=job, layout=DataParallel(ranks, job))
    train(roster, form, job, events.append, clock=clock, total=ranks.sum_)
    told = [(event["event"], event.get("step"), event.get("rate")) for event in events]
    return run.history, run.best_epoch, roster.checkpoints, told, outputs


@pytest.mark.nightly
def test_ranks_whose_clocks_differ_decide_the_same(two_ranks: TwoRanks):
    job = job_for("lstm", epochs=12, patience=2, checkpoint_seconds=2)
    outputs: list[np.ndarray] = []
    alone = run_of_noise(job, outputs_of, outputs)
    train(Roster(alone), lambda members: form_pack(members, job), job, lambda event: None)
    first, second = two_ranks(train_on_rank, job)
    for one, other in zip(first[:4], second[:4], strict=True):
        assert one == other
    history, best_epoch, checkpoints, told, shared = first
    assert checkpoints and any(name == "progress" for name, _, _ in told)
    assert 3 <= len(history) == alone.epoch < 12 and best_epoch == alone.best_epoch
    for here, there in zip(alone.history, history, strict=True):
        assert there == pytest.approx(here, rel=1e-5)
    assert [len(one) for one in shared] == [154] * alone.epoch
    np.testing.assert_allclose(shared[0], outputs[0], rtol=1e-4, atol=1e-6)


def exchanges_on_rank(ranks: Ranks, job: Job) -> tuple[int, int, int]:
    """Return the steps and epochs of a training on two ranks, and how many collectives it began after its
    first epoch.
    """
    group, begun = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")), list[int]()

    def count(event: dict[str, Any]) -> None:
        if event["event"] == "epoch":
            begun.append(group._get_sequence_number_for_group())

    run = run_of_noise(job, shared_outputs(ranks, 1), [])
    clock = AgreedClock(ranks, clock=lambda: 0.0)  # it stands still: nothing is due
    form = partial(form_pack, job=job, layout=DataParallel(ranks, job))
    train(Roster(run), form, job, count, clock=clock, total=ranks.sum_)
    steps = -(-run.num_windows // job.train.batch) * (run.epoch - 1)
    return steps, run.epoch - 1, begun[-1] - begun[0]


def test_a_step_exchanges_gradients_and_nothing_else(two_ranks: TwoRanks):
    job = job_for("lstm", epochs=4, patience=4, micro_batch=2)
    (steps, epochs, exchanges), second = two_ranks(exchanges_on_rank, job)
    assert (steps, epochs, exchanges) == second and steps == 19 * 3
    # The model is one bucket. An epoch exchanges its losses and its outputs of validation; the clock twice,
    # ever later.
    assert exchanges == steps + 2 * epochs + 2


def step_over_a_hole(ranks: Ranks, job: Job) -> tuple[list[float], float]:
    """Return a rank's losses of three steps, of which the second reads a broken row on the last rank, and the
    weights' sum.
    """
    member = member_of(torch.float64)
    starts = reads_of(job, member)[:8]
    last_row = int(starts[-1]) + job.model.bars_seen - 1
    pack, whole = form_pack([member], job, DataParallel(ranks, job)), member.rows_TF[last_row].clone()
    losses = []
    for row_F in (whole, whole * torch.nan, whole):
        member.rows_TF[last_row] = row_F
        losses.append(float(pack.step([True], [starts])[0]))
    return losses, sum(float(weight.sum()) for weight in pack.snapshot(0).weights.values())


def test_all_ranks_skip_a_step_that_is_broken_on_one(two_ranks: TwoRanks):
    (first, weights), (second, others) = two_ranks(step_over_a_hole, job_for("lstm"))
    assert (
        [np.isfinite(loss) for loss in first] == [np.isfinite(loss) for loss in second] == [True, False, True]
    )
    assert weights == others and np.isfinite(weights)


def evaluate_on_rank(ranks: Ranks, job: Job) -> np.ndarray:
    """Return the outputs of an untrained network, which ranks evaluate together."""
    member = member_of(torch.float32)
    return shared_outputs(ranks, 1)(form_pack([member], job).model(0), parts_of(member, job))


@pytest.mark.parametrize("name", ["lstm", "tcn"])
def test_ranks_evaluate_exactly_what_one_process_does(two_ranks: TwoRanks, name: str):
    job, member = job_for(name), member_of(torch.float32)
    alone = outputs_of(form_pack([member], job).model(0), parts_of(member, job))
    for found in two_ranks(evaluate_on_rank, job):
        assert np.array_equal(found, alone)  # bit by bit


def refuse_batch_norm(ranks: Ranks) -> str:
    """Return the error for a module with batch norm on CPU ranks."""
    try:
        DataParallel(ranks, job_for("lstm")).wrap(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), slices=1)
    except UsageError as error:
        return str(error)
    return ""


def test_batch_norm_is_refused_on_cpu_ranks(two_ranks: TwoRanks):
    first, second = two_ranks(refuse_batch_norm)
    assert first == second and first.startswith("batch norm on several CPU ranks")


LEVEL = """
import torch
from torch import nn


class Level(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.head = nn.Linear(features, outputs)
        self.register_buffer("level", torch.zeros(features))

    def forward(self, x_NLF):
        last_NF = x_NLF[:, -1]
        if self.training:
            self.level.mul_(0.9).add_(last_NF.detach().mean(0), alpha=0.1)
        return self.head(last_NF - self.level)
"""


def buffers_on_rank(ranks: Ranks, job: Job) -> list[list[float]]:
    """Return a buffer that follows the rows of a rank: of the network that is scored, then of checkpoints."""
    member = member_of(torch.float32)
    pack = form_pack([member], job, DataParallel(ranks, job))
    pack.step([True], [reads_of(job, member)[:8]])
    scored = dict(buffers_of(pack.model(0)))
    pack.step([True], [reads_of(job, member)[8:16]])
    state = pack.snapshot(0)
    kept = (scored, state.buffers, state.average)
    return [tensor.tolist() for named in kept for name, tensor in named.items() if name.endswith("level")]


def test_all_ranks_score_and_keep_the_buffers_of_the_first(two_ranks: TwoRanks, tmp_path: Path):
    (tmp_path / "level.py").write_text(LEVEL)
    job = job_of(model=f"{tmp_path / 'level.py'}:Level", lookback=6, batch=8, ema=0.9)
    first, second = two_ranks(buffers_on_rank, job)
    assert len(first) == 3 and first == second
