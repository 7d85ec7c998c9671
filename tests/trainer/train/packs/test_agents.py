"""Agents as a pack: equal to plain loops, alike in every pack, resumed to the bit, and safe from NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.train.agents.plain_ppo import PlainAgent
from trainer.job.job import Job
from trainer.job.reading import job_from
from trainer.train.packs.agents import Agents
from trainer.train.packs.pack import Member
from trainer.train.piece import episodes_of
from trainer.train.seeds import episode_order

BARS, SEEN, FEATURES = 160, 3, 2
SMALL = {"lanes": 4, "episode": 7, "minibatches": 2, "updates": 2}
HOLE = range(60, 64)  # windows that are missing
OWN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, *, features: int, outputs: int, lookback: int) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(features), nn.Dropout(0.5)
        self.head = nn.Linear(features * lookback, outputs)

    def forward(self, x):
        return self.head(self.drop(self.norm(x.transpose(1, 2)).flatten(1)))
"""


def job_for(*, model: str = "mlp", agent: dict[str, Any] | None = None, **tables: Any) -> Job:
    sizes = {"mlp": {"hidden": 4, "layers": 1}, "lstm": {"hidden": 3, "layers": 1}}[model]
    return job_from(
        {
            "model": {"name": model, "lookback": SEEN, **sizes},
            "target": {"name": "position", **tables.get("target", {})},
            "agent": {**SMALL, **(agent or {})},
            "train": {"batch": 20, "learning_rate": 1e-2, "clip_norm": 0.5, **tables.get("train", {})},
            "expert": tables.get("expert", {}),
        }
    )


JOB = job_for()


def member_of(number: int, *, dtype: torch.dtype = torch.float64) -> Member:
    """Return a member of its own seed, whose returns ruin a short account now and then."""
    generator = torch.Generator().manual_seed(number)
    rows = torch.randn(BARS, FEATURES, generator=generator, dtype=torch.float64) * (number + 1)
    returns = 2e-2 * torch.randn(BARS, generator=generator, dtype=torch.float64)
    returns[::23] = 0.75  # a price that doubles
    labels = torch.stack((returns, torch.arange(BARS).double(), torch.arange(1, BARS + 1).double()), dim=1)
    parts = [part.to(dtype) for part in (rows, labels, rows.mean(0), rows.std(0))]
    named: dict[str, Any] = dict(zip(("rows_TF", "labels_TK", "mean_F", "std_F"), parts, strict=True))
    return Member(name=f"agent {number}", seed=number, **named)


def windows_of(member: Member, job: Job, step: int) -> torch.Tensor:
    """Return the windows of a step; an epoch has three."""
    reads = torch.tensor([first for first in range(BARS - SEEN - 1) if first not in HOLE])
    episodes, bars = episodes_of(job), job.reads_of_step
    assert episodes is not None
    epoch, place = divmod(step, 3)
    order = episode_order(
        len(reads), episodes, most=3 * bars, seed=member.seed, model=member.draws_as, epoch=epoch
    )
    return reads[order][place * bars : (place + 1) * bars]


def taken(pack: Agents, members: list[Member], job: Job, steps: range, **stops: int) -> torch.Tensor:
    """Take steps; a member stops before the step that is given by its number, m1=3."""
    losses = []
    for step in steps:
        active = [step < stops.get(f"m{number}", steps.stop) for number in range(len(members))]
        losses.append(pack.step(active, [windows_of(member, job, step) for member in members]))
    return torch.stack(losses)


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        job_for(target={"actions": "continuous"}, agent={"entropy": 0.05}),
        job_for(target={"short": False, "levels": 2}, agent={"lanes": 40, "episode": 100}),  # a bar a rollout
    ],
    ids=["discrete", "continuous", "long or flat"],
)
def test_an_agent_learns_as_plain_loops_do(job: Job) -> None:
    member = member_of(1)
    pack, plain = Agents([member], job), PlainAgent(member, job)
    for step in range(2):
        windows = windows_of(member, job, step)
        loss, expected = float(pack.step([True], [windows])[0]), plain.step(windows)
        assert loss == pytest.approx(expected, rel=1e-9)
    for name, weight in plain.model.named_parameters():
        torch.testing.assert_close(pack.snapshot(0).weights[name], weight.detach(), rtol=0, atol=1e-9)
    assert pack.snapshot(0).updates == 2 * 4


@pytest.mark.parametrize("model", ["mlp", "lstm"])
def test_an_agent_does_not_depend_on_its_pack(model: str) -> None:
    job = job_for(model=model)
    members = [member_of(number) for number in range(3)]
    together, alone = Agents(members, job), Agents(members[1:2], job)
    losses = taken(together, members, job, range(4), m0=2)
    expected = taken(alone, members[1:2], job, range(4))
    torch.testing.assert_close(losses[:, 1], expected[:, 0], rtol=1e-12, atol=0)
    assert losses[2:, 0].isnan().all() and losses[:, 2].isfinite().all()
    for name, weight in alone.snapshot(0).weights.items():
        torch.testing.assert_close(together.snapshot(1).weights[name], weight, rtol=0, atol=1e-12)


def test_networks_learn_alike_stacked_and_one_after_another() -> None:
    members = [member_of(number) for number in range(2)]
    one, other = (job_for(model="lstm", expert={"strategy": name}) for name in ("sequential", "fused"))
    plain, fused = Agents(members, one), Agents(members, other)
    torch.testing.assert_close(
        taken(fused, members, other, range(3)), taken(plain, members, one, range(3)), rtol=1e-9, atol=0
    )


def test_a_module_of_the_users_own_learns_in_evaluation_mode(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(OWN)
    acting = {**JOB.to_dict(), "model": {"file": str(file), "class": "Net", "lookback": SEEN}}
    job = job_from(acting)
    member = member_of(0, dtype=torch.float32)
    pack = Agents([member], job)
    buffers = {name: buffer.clone() for name, buffer in pack.model(0).named_buffers()}
    losses = [float(pack.step([True], [windows_of(member, job, step)])[0]) for step in range(2)]
    again = Agents([member], job)
    torch.rand(3)  # nothing is drawn from a generator of the process
    assert losses == [float(again.step([True], [windows_of(member, job, step)])[0]) for step in range(2)]
    assert pack.snapshot(0).updates == 8 and not pack.model(0).training
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in pack.model(0).named_buffers())


def test_slices_of_a_minibatch_change_nothing() -> None:
    members = [member_of(0)]
    whole, sliced = Agents(members, JOB), Agents(members, JOB, micro_batch=7)
    torch.testing.assert_close(
        taken(sliced, members, JOB, range(3)), taken(whole, members, JOB, range(3)), rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("actions", ["discrete", "continuous"])
def test_a_resumed_agent_goes_on_to_the_bit(actions: str) -> None:
    job = job_for(target={"actions": actions})
    members = [member_of(number, dtype=torch.float32) for number in range(2)]
    whole, begun, resumed = (Agents(members, job) for _ in range(3))
    expected = taken(whole, members, job, range(5))
    taken(begun, members, job, range(2))  # its accounts are in the middle of an episode
    for number in range(2):
        resumed.restore(number, begun.snapshot(number))
    assert torch.equal(taken(resumed, members, job, range(2, 5)), expected[2:])
    for name, weight in whole.snapshot(1).weights.items():
        assert torch.equal(resumed.snapshot(1).weights[name], weight)


def test_a_state_without_accounts_begins_flat() -> None:
    members = [member_of(0)]
    pack = Agents(members, JOB)
    taken(pack, members, JOB, range(2))
    state = pack.snapshot(0)
    assert set(state.buffers) == {"agent.held", "agent.next"}
    pack.restore(0, type(state)(**{**vars(state), "buffers": {}}))
    assert pack.snapshot(0).buffers["agent.next"].tolist() == [-1] * 4


def test_a_broken_agent_stays_as_it_is_and_breaks_no_other() -> None:
    members = [member_of(number) for number in range(2)]
    pack, alone = Agents(members, JOB), Agents(members[1:], JOB)
    before = pack.snapshot(0)
    pack._rows_RF[:BARS] = torch.nan
    losses = taken(pack, members, JOB, range(2))
    assert losses[:, 0].isnan().all()
    torch.testing.assert_close(
        losses[:, 1], taken(alone, members[1:], JOB, range(2))[:, 0], rtol=1e-12, atol=0
    )
    after = pack.snapshot(0)
    assert all(torch.equal(after.weights[name], weight) for name, weight in before.weights.items())
    assert after.updates == 0 and after.batches == 2


def test_an_epoch_is_told_what_agents_did() -> None:
    members = [member_of(0)]
    pack, plain = Agents(members, JOB), PlainAgent(members[0], JOB)
    windows = windows_of(members[0], JOB, 0)
    pack.step([True], [windows])
    plain.step(windows)
    told = pack.told(0)
    lanes = torch.tensor(plain.rewards, dtype=torch.float64)
    assert told["rollout_return"] == pytest.approx(float(lanes.sum(1).mean()), rel=1e-9)
    worth = torch.nn.functional.pad(lanes.cumsum(1), (1, 0)).exp()
    fall = 1 - (worth / worth.cummax(1).values).min(1).values
    assert told["rollout_drawdown"] == pytest.approx(float(fall.mean()), rel=1e-9)
    assert 0 < told["entropy"] <= torch.log(torch.tensor(3.0)).item()
