"""Contenders of benchmarks.packs train on the same numbers as ours."""

from __future__ import annotations

from itertools import islice
from multiprocessing.connection import Connection

import pytest
import torch

from benchmarks import contenders, packs
from benchmarks.contenders import Draws, PlainNet, PlainWindows, Share, Team, batches, in_order
from tests.jobs import job_of
from trainer.data.features import WARMUP
from trainer.job.job import Job
from trainer.train.packs.pack import new_model
from trainer.train.predict.readers import gather

JOB = job_of(hidden=8, batch=16, lookback=10, dropout=0.0)
ROWS = [torch.randn(WARMUP + 300, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


def test_a_data_loader_gives_the_batches_of_our_step():
    member = Share(rows=ROWS[:1], first=0).members()[0]
    draws = iter(Draws(member, JOB))
    steps_T1 = torch.arange(JOB.model.lookback)[:, None]
    for step in range(3):
        (starts,) = batches([member], JOB, step)
        assert list(islice(draws, JOB.train.batch)) == starts.tolist()
        x_BTF, labels_B = torch.utils.data.default_collate(
            [PlainWindows(member, JOB)[int(start)] for start in starts]
        )
        assert torch.equal(
            x_BTF.transpose(0, 1), gather(member.rows_TF, starts, steps_T1, member.mean_F, member.std_F)
        )
        assert torch.equal(labels_B, member.labels_TK[starts + JOB.model.lookback - 1])


def _with_a_loaders_worker(pipe: Connection, job: Job, share: Share) -> None:
    loader = torch.utils.data.DataLoader(share.rows[0][:, 0], batch_size=1, num_workers=1)
    pipe.send([float(next(iter(loader)))])


def test_a_contender_may_have_a_data_loader_with_workers(forked_children):
    team = Team(_with_a_loaders_worker, JOB, in_order(ROWS[:1], 1))
    try:
        assert team.losses() == [float(ROWS[0][0, 0])]
    finally:
        team.close()


def test_the_plain_model_starts_and_computes_as_ours():
    member = Share(rows=ROWS[:1], first=0).members()[0]
    x_TBF = torch.randn(JOB.model.lookback, 4, 5, generator=torch.Generator().manual_seed(9))
    expected = new_model(member, JOB)(x_TBF)
    torch.testing.assert_close(PlainNet(member, JOB)(x_TBF), expected)


@pytest.mark.parametrize(("layers", "dropped"), [(1, 0), (2, 0.25)])
def test_the_plain_model_has_the_jobs_dropout_between_layers(layers, dropped):
    """As ours: a run beside one that draws no masks would not be the same work."""
    job = job_of(hidden=8, layers=layers, batch=16, lookback=10, dropout=0.25)
    net = PlainNet(Share(rows=ROWS[:1], first=0).members()[0], job)
    assert net.lstm.dropout == dropped


def test_a_model_draws_the_same_windows_in_any_process():
    together = batches(Share(rows=ROWS, first=0).members(), JOB, 4)
    apart = [batches(share.members(), JOB, 4)[0] for share in in_order(ROWS, 3)]
    assert all(torch.equal(one, other) for one, other in zip(together, apart, strict=True))


class OnePipe:
    """A pipe that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, value: object) -> None:
        self.sent.append(value)

    def recv(self) -> object:
        if not self.sent:
            raise EOFError
        return self.sent.pop(0)


def test_after_a_contender_without_memory_the_next_is_timed(capsys, monkeypatch):
    started: list[str] = []

    class Alone:
        """A team of one process, which runs here."""

        def __init__(self, name: str, losses: list[float]) -> None:
            started.append(name)
            self.pipe, self.losses_ = OnePipe(), losses

        def losses(self) -> list[float]:
            def work(pipe: OnePipe) -> None:
                if not self.losses_:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
                pipe.send(self.losses_)

            contenders._guarded(work, self.pipe)  # type: ignore[arg-type]
            return list(contenders._received(self.pipe))  # type: ignore[arg-type]

        def rate(self, seconds: float) -> float:
            return 100.0 * len(started)

        def close(self) -> None:
            started.append("closed")

    forms = {
        "plain": lambda: Alone("plain", [0.7, 0.6]),
        "large": lambda: Alone("large", []),
        "ours": lambda: Alone("ours", [0.7, 0.63]),
    }
    monkeypatch.setattr(packs, "_contenders", lambda *given, **how: forms)
    asked = packs.Rounds(quick=True, only=(), seconds=0.0, rounds=3)
    found = packs._table(ROWS, 2, 8, 16, asked)["variants"]
    assert started == ["plain", "closed", "large", "closed", "ours", "closed", "plain", "closed"]
    assert found["large"]["failed"] == "out of memory"
    assert (found["ours"]["ratio"], found["ours"]["first_losses_differ_by"]) == (5.0, 5e-2)
    assert "out of memory" in capsys.readouterr().out
    with pytest.raises(contenders.Failed, match="its process ended"):
        contenders._received(OnePipe())  # type: ignore[arg-type]


@pytest.mark.nightly
def test_steps_are_traced_by_strategy_and_precision(monkeypatch):
    monkeypatch.setattr(packs, "TRACED_STEPS", 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    names = [
        f"ours, {strategy}, {precision}"
        for precision in ("fp32", "fp16")
        for strategy in ("sequential", "streams", "fused")
    ]
    assert list(packs.gpu_variants(JOB)) == names  # a T4 refuses bf16
    fused = packs.gpu_variants(JOB)["ours, fused, fp32"]
    assert packs.trace_steps(fused, ROWS[:2])["steps"] == 1
