"""A rollout as a program of tensors: step by step what the Gymnasium environment does, with its windows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.jobs import job_of
from trainer.data.synthetic import synthetic_candles
from trainer.job.job import Job
from trainer.train.agents.rollout import act, advantages, bars_of, flat_of, grown
from trainer.train.inputs.rows import prepare
from trainer.train.packs.agents import Agents
from trainer.train.packs.pack import Member

KEYS = {"model": "mlp", "target": "position", "lookback": 4, "hidden": 4, "test_fraction": 0.3}
JOB = job_of(**KEYS, levels=5)
FREE = job_of(**KEYS, actions="continuous", short=False)
LANES, BARS, EPISODE = 3, 60, 40


@pytest.mark.parametrize("job", [JOB, FREE], ids=["discrete", "continuous"])
def test_a_rollout_is_what_the_environment_does_step_by_step(job: Job) -> None:
    pytest.importorskip("gymnasium", reason="an extra: pip install 'mayfly[agents]'")
    from trainer.train.agents.environment import environment_of

    candles = synthetic_candles("AAA", bars=900, timeframe="1h", seed=3)
    kept = np.r_[0:380, 385 : len(candles)]  # a hole
    names = ("timestamp", "open", "high", "low", "close", "volume")
    data = prepare(replace(candles, **{name: getattr(candles, name)[kept] for name in names}), job)
    env = environment_of(data, job, episode=EPISODE)
    places = len(env.market.bars)
    env.market.labels[10::17, 0] = math.log(2.2)  # which ruins who is short
    generator = torch.Generator().manual_seed(0)
    hole = int(np.flatnonzero(np.diff(env.market.bars) > 1)[0])
    first = torch.tensor([[0, 5, hole - 20]]).unsqueeze(-1)  # of the first of two episodes in each lane
    second = torch.randint(places - EPISODE, (1, LANES, 1), generator=generator)
    place_MLS = torch.cat([first + torch.arange(EPISODE), second + torch.arange(BARS - EPISODE)], dim=2)
    bars, labels = torch.from_numpy(env.market.bars), torch.from_numpy(env.market.labels)
    starts_MLS, next_MLS = (bars[place] - data.bars_seen + 1 for place in (place_MLS, place_MLS + 1))
    outputs = torch.randn(1, LANES, BARS, job.target.outputs, generator=generator, dtype=torch.float64)
    draws = torch.rand(1, LANES, BARS, generator=generator, dtype=torch.float64)
    rollout = bars_of(labels[place_MLS][..., 0], starts_MLS, next_MLS)
    flat = torch.full((1, LANES), flat_of(job.target))
    acted = act(job.target, outputs, draws, flat, rollout)
    growth_MLS = grown(job.target, acted, rollout)
    member = Member(
        name="a", rows_TF=data.rows_TF, labels_TK=data.train_labels_TK, mean_F=data.mean_F, std_F=data.std_F
    )
    windows = Agents([member], job)._windows(starts_MLS.flatten(1)).view(LANES, BARS, -1)
    ruins = 0
    for lane in range(LANES):
        for bar in range(BARS):
            if bar in (0, EPISODE):
                seen, _ = env.reset(seed=0, options={"place": int(place_MLS[0, lane, bar])})
            assert np.array_equal(seen[:-1], windows[lane, bar].numpy())
            action = acted.action_MLS[0, lane, bar].numpy()
            seen, reward, terminated, truncated, _ = env.step(action)
            assert abs(reward - float(growth_MLS[0, lane, bar])) < 1e-9
            assert terminated == bool(acted.ruined_MLS[0, lane, bar])
            assert truncated == (bar == EPISODE - 1 and not terminated)
            ruins += terminated
    assert rollout.closes_MLS.sum() == 1 and (ruins > 0 or job is FREE)


def test_advantages_are_those_of_the_definition() -> None:
    generator = torch.Generator().manual_seed(1)
    reward, value, following = torch.randn(3, 2, 2, 9, generator=generator, dtype=torch.float64)
    ruined, ends = (torch.rand(2, 2, 2, 9, generator=generator) < 0.2).unbind()
    found = advantages(reward, value, following, ruined_MLS=ruined, ends_MLS=ends, discount=0.9, trace=0.8)
    error = reward + 0.9 * following * ~ruined - value
    for agent in range(2):
        for lane in range(2):
            for bar in range(9):
                total, weight = 0.0, 1.0
                for later in range(bar, 9):
                    total += weight * float(error[agent, lane, later])
                    weight *= 0.9 * 0.8
                    if ruined[agent, lane, later] or ends[agent, lane, later]:
                        break
                assert float(found[agent, lane, bar]) == pytest.approx(total, rel=1e-12)
