"""Agents of a pack, each on the same batches as skrl's PPO: the same weights after two rollouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.trainer.train.packs.test_agents import SEEN, job_for, member_of, windows_of
from trainer.job.job import Job
from trainer.models.layers import numbers_of
from trainer.train.agents.rollout import ends_of, grown, held_after
from trainer.train.packs.agents import Agents
from trainer.train.packs.pack import Member, new_model
from trainer.train.predict.readers import INPUT_LIMIT
from trainer.train.seeds import dropout_keys

AGENTS, ROLLOUTS = 3, 2
JOB = job_for(agent={"minibatches": 2, "updates": 3}, train={"weight_decay": 0.0})


class Watched(Agents):
    """Keeps what its agents did."""

    def _acted(self, outputs_MAO: Any, keys_M2: Any, bars: Any, ends_MLE: Any, first_MLS: Any) -> Any:
        acted, made = super()._acted(outputs_MAO, keys_M2, bars, ends_MLE, first_MLS)
        self.bars, self.acted = bars, acted
        self.rewards_MLS = grown(self._target, acted, bars) / self._units_M[:, None, None]
        return acted, made


def skrl_agent(member: Member, job: Job) -> Any:
    """Return skrl's PPO of a member, an observation of which is a window's first row and the position held."""
    import gymnasium
    from skrl.agents.torch.ppo import PPO
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model

    places, agent = len(job.target.positions), job.agent
    spaces = {
        "observation_space": gymnasium.spaces.Box(-1e9, 1e9, (2,)),
        "state_space": None,
        "action_space": gymnasium.spaces.Discrete(places),
    }

    class Both(CategoricalMixin, DeterministicMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, **spaces, device="cpu")
            CategoricalMixin.__init__(self, unnormalized_log_prob=True, role="policy")
            DeterministicMixin.__init__(self, role="value")
            self.network = new_model(member, job)

        def act(self, inputs: Any, *, role: str = "") -> Any:
            mixin = CategoricalMixin if role == "policy" else DeterministicMixin
            return mixin.act(self, inputs, role=role)

        def compute(self, inputs: Any, role: str = "") -> Any:
            first, held = inputs["observations"].long().unbind(1)
            x = member.rows_TF[first + torch.arange(SEEN)[:, None]]
            outputs = self.network(((x - member.mean_F) / member.std_F).clamp(-INPUT_LIMIT, INPUT_LIMIT))
            row = torch.arange(len(held))
            if role == "policy":
                return outputs[:, : places * places].view(-1, places, places)[row, held], {}
            return outputs[row, places * places + held][:, None], {}

    both = Both()
    made = PPO(
        models={"policy": both, "value": both},
        memory=RandomMemory(memory_size=job.reads_of_step // agent.lanes, num_envs=agent.lanes, device="cpu"),
        cfg={
            "rollouts": job.reads_of_step // agent.lanes,
            "learning_epochs": agent.updates,
            "mini_batches": agent.minibatches,
            "discount_factor": agent.discount,
            "gae_lambda": agent.trace,
            "learning_rate": job.train.learning_rate,
            "grad_norm_clip": job.train.clip_norm,
            "ratio_clip": agent.clip,
            "value_clip": 0.0,
            "entropy_loss_scale": agent.entropy,
            "value_loss_scale": agent.value_weight,
            "time_limit_bootstrap": True,
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
        },
        **spaces,
        device="cpu",
    )
    made.init()
    made.enable_training_mode(True)
    return made


def learn(agent: Any, pack: Watched, number: int, windows_N2: torch.Tensor, step: int) -> None:
    """Have skrl record and learn from what an agent of the pack did."""
    job, acted, bars = pack._job, pack.acted, pack.bars
    lanes = job.agent.lanes
    first_LS, next_LS = windows_N2.view(lanes, -1, 2).unbind(-1)
    every = torch.arange(first_LS.shape[1]).expand(1, lanes, -1)
    after_LS = held_after(pack._target, acted, bars, every.expand(AGENTS, -1, -1))[number]
    seeds = {"seed": pack._members[number].seed, "model": pack._members[number].draws_as}
    keys = dropout_keys(**seeds, steps=[step], layers=1 + job.agent.updates, purpose="agent")[0]
    orders = iter([numbers_of(key[None], job.reads_of_step)[0].argsort(stable=True) for key in keys[1:]])

    def sample_in_order(names: Any, *, batch_size: int, mini_batches: int, **rest: Any) -> Any:
        order = next(orders)
        lane, bar = order // first_LS.shape[1], order % first_LS.shape[1]
        return agent.memory.sample_by_index(
            names=names, indexes=bar * lanes + lane, mini_batches=mini_batches
        )

    agent.memory.sample = sample_in_order
    for bar in range(first_LS.shape[1]):
        held = acted.held_MLS[number, :, bar]
        observations = torch.stack((first_LS[:, bar], held), dim=1).float()
        action = acted.action_MLS[number, :, bar, None]
        with torch.no_grad():
            taken = {"observations": observations, "states": None, "taken_actions": action}
            _, said = agent.policy.act(taken, role="policy")
            agent._current_log_prob = said["log_prob"]
            agent._current_values, _ = agent.value.act(taken, role="value")
        is_last = bar + 1 == first_LS.shape[1]
        ruined = acted.ruined_MLS[number, :, bar]
        agent.record_transition(
            observations=observations,
            states=None,
            actions=action,
            rewards=pack.rewards_MLS[number, :, bar, None].float(),
            next_observations=torch.stack((next_LS[:, bar], after_LS[:, bar]), dim=1).float(),
            next_states=None,
            terminated=ruined[:, None],
            truncated=(bars.ends_MLS[number, :, bar] & ~ruined)[:, None] & (not is_last),
            infos={},
            timestep=bar,
            timesteps=first_LS.shape[1],
        )
    agent.update(timestep=1, timesteps=2)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_each_agent_of_a_pack_learns_as_skrls_does_alone() -> None:
    pytest.importorskip("skrl.agents.torch.ppo", reason="pip install skrl==2.1.1")
    members = [member_of(number, dtype=torch.float32) for number in range(AGENTS)]
    pack, others = Watched(members, JOB), [skrl_agent(member, JOB) for member in members]
    begun = [{**pack.snapshot(number).weights} for number in range(AGENTS)]
    for step in range(ROLLOUTS):
        windows = [windows_of(member, JOB, step) for member in members]
        pack.step([True] * AGENTS, windows)
        assert ends_of(pack.bars, 1).shape[-1] == 2
        for number, agent in enumerate(others):
            learn(agent, pack, number, windows[number], step)
    for number, agent in enumerate(others):
        found = pack.snapshot(number).weights
        for name, weight in agent.policy.network.named_parameters():
            torch.testing.assert_close(found[name], weight.detach(), rtol=0, atol=1e-5)
            assert (found[name] - begun[number][name]).abs().max() > 1e-3
