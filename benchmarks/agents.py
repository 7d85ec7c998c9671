"""Time agents beside Gymnasium, skrl and Stable-Baselines3: the accounts alone, and learning.

    pip install gymnasium==1.4.0 skrl==2.1.1 stable-baselines3==2.9.2
    python -m benchmarks.agents            # ten minutes on two cores
    python -m benchmarks.agents --quick    # one round of fewer bars, a minute

The same PPO for all: rollouts of 64 bars in 512 lanes, four passes in four minibatches, two hidden layers of
64 with tanh under policy and value, eight features. Observations are the last bar or windows of 60. For skrl
an observation is the number of a bar and the position, so that its memory holds no windows; that of
Stable-Baselines3 does. Both step an environment of tensors, which costs them next to nothing. Writes
benchmarks/results/agents.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from benchmarks.rounds import interleave, machine, median, ratio, write
from trainer.data.synthetic import synthetic_candles
from trainer.job.job import Job
from trainer.job.reading import job_from
from trainer.targets.position_account import growth
from trainer.train.agents.environment import CandleEnvironment, environment_of
from trainer.train.agents.rollout import Bars, flat_of, follow, grown
from trainer.train.cpu import keep_freed_memory
from trainer.train.inputs.rows import prepare
from trainer.train.packs.pack import Member
from trainer.train.packs.strategy import form_pack
from trainer.train.piece import episodes_of
from trainer.train.seeds import episode_order

LANES, BARS, PASSES, MINIBATCHES, EPISODE = 512, 64, 4, 4, 512
FEATURES, HIDDEN, ROWS, MANY = 8, 64, 20_000, 16
COST = 0.0015
DISCRETE = gymnasium.spaces.Discrete(3)


class Accounts:
    """Lanes on series of their agents; an observation is the bar's number and the position held."""

    def __init__(self, agents: int, window: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows_CTF = torch.randn(agents, ROWS, FEATURES, generator=generator)
        self.returns_CT = 1e-3 * torch.randn(agents, ROWS, generator=generator)
        self.agent_N, self.window = torch.arange(LANES) * agents // LANES, window
        self.back = torch.arange(-window + 1, 1)

    def reset(self) -> torch.Tensor:
        self.bar_N = torch.randint(self.window, ROWS - EPISODE - 2, (LANES,))
        self.left_N, self.held_N = torch.full((LANES,), EPISODE), torch.zeros(LANES)
        return self.seen()

    def seen(self) -> torch.Tensor:
        return torch.stack([self.agent_N.float(), self.bar_N.float(), self.held_N], 1)

    def step(self, action_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        share_N = action_N.float() - 1
        log_return_N = self.returns_CT[self.agent_N, self.bar_N + 1]
        reward_N = growth(self.held_N, share_N, log_return_N, COST)
        self.held_N, self.bar_N, self.left_N = share_N, self.bar_N + 1, self.left_N - 1
        over_N = self.left_N == 0
        if over_N.any():
            count = int(over_N.sum())
            self.bar_N[over_N] = torch.randint(self.window, ROWS - EPISODE - 2, (count,))
            self.left_N[over_N], self.held_N[over_N] = EPISODE, 0.0
        return self.seen(), reward_N, over_N

    def windows(self, seen: torch.Tensor) -> torch.Tensor:
        """Return what the network reads: all bars of the window, and the position."""
        agent, bar = seen[:, 0].long(), seen[:, 1].long()
        x = self.rows_CTF[agent[:, None], bar[:, None] + self.back].flatten(1)
        return torch.cat([x, seen[:, 2:]], 1)


def layers(inputs: int) -> nn.Sequential:
    """Return the two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh())


def skrl_rate(agents: int, window: int, rollouts: int) -> float:
    """Return skrl's bars per second, of so many agents that share the lanes in scopes."""
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.envs.wrappers.torch import Wrapper
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
    from skrl.trainers.torch import SequentialTrainer

    accounts = Accounts(agents, window)
    spaces: dict[str, Any] = {
        "observation_space": gymnasium.spaces.Box(-np.inf, np.inf, (3,)),
        "state_space": None,
        "action_space": DISCRETE,
    }

    class Env(Wrapper):
        num_envs, num_agents, device = LANES, 1, torch.device("cpu")
        state_space = None
        observation_space, action_space = spaces["observation_space"], DISCRETE

        def __init__(self) -> None:
            self._env = None

        def reset(self) -> Any:
            return accounts.reset(), {}

        def step(self, actions: torch.Tensor) -> Any:
            seen, reward_N, over_N = accounts.step(actions.flatten())
            return seen, reward_N[:, None], torch.zeros_like(over_N)[:, None], over_N[:, None], {}

        def state(self) -> None:
            return None

        def render(self, *args: Any, **named: Any) -> None:
            pass

        def close(self) -> None:
            pass

    class Both(CategoricalMixin, DeterministicMixin, Model):
        """Policy and value on the same layers, which run once for both, as skrl's documentation shows."""

        def __init__(self) -> None:
            Model.__init__(self, **spaces, device="cpu")
            CategoricalMixin.__init__(self, unnormalized_log_prob=True, role="policy")
            DeterministicMixin.__init__(self, role="value")
            self.body, self.kept = layers(window * FEATURES + 1), None
            self.policy, self.value = nn.Linear(HIDDEN, 3), nn.Linear(HIDDEN, 1)

        def act(self, inputs: Any, *, role: str = "") -> Any:
            mixin = CategoricalMixin if role == "policy" else DeterministicMixin
            return mixin.act(self, inputs, role=role)

        def compute(self, inputs: Any, role: str = "") -> Any:
            if role == "policy":
                self.kept = self.body(accounts.windows(inputs["observations"]))
                return self.policy(self.kept), {}
            hidden = self.body(accounts.windows(inputs["observations"])) if self.kept is None else self.kept
            self.kept = None
            return self.value(hidden), {}

    made = []
    for _ in range(agents):
        both, memory = Both(), RandomMemory(memory_size=BARS, num_envs=LANES // agents, device="cpu")
        settings = PPO_CFG(
            rollouts=BARS,
            learning_epochs=PASSES,
            mini_batches=MINIBATCHES,
            time_limit_bootstrap=True,
            experiment={"write_interval": 0, "checkpoint_interval": 0},
        )
        made.append(
            PPO(models={"policy": both, "value": both}, memory=memory, cfg=settings, **spaces, device="cpu")
        )
    scopes = {} if agents == 1 else {"scopes": [LANES // agents] * agents}
    steps = rollouts * BARS
    trainer = SequentialTrainer(
        env=Env(),
        agents=made if agents > 1 else made[0],
        cfg={"timesteps": steps, "disable_progressbar": True},
        **scopes,
    )
    began = time.perf_counter()
    trainer.train()
    return LANES * steps / (time.perf_counter() - began)


def sb3_rate(window: int, rollouts: int) -> float:
    """Return Stable-Baselines3's bars per second, of one agent."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import VecEnv

    accounts, width = Accounts(1, window), window * FEATURES + 1

    class Body(BaseFeaturesExtractor):
        def __init__(self, space: gymnasium.Space) -> None:
            super().__init__(space, HIDDEN)
            self.body = layers(width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)

    class Lanes(VecEnv):
        def __init__(self) -> None:
            super().__init__(LANES, gymnasium.spaces.Box(-np.inf, np.inf, (width,)), DISCRETE)

        def reset(self) -> np.ndarray:
            return accounts.windows(accounts.reset()).numpy()

        def step_async(self, actions: np.ndarray) -> None:
            self.actions = torch.from_numpy(actions)

        def step_wait(self) -> Any:
            seen, reward_N, over_N = accounts.step(self.actions)
            x, overs = accounts.windows(seen).numpy(), over_N.tolist()
            infos = [
                {"TimeLimit.truncated": True, "terminal_observation": x[lane]} if over else {}
                for lane, over in enumerate(overs)
            ]
            return x, reward_N.numpy(), over_N.numpy(), infos

        def close(self) -> None:
            pass

        def get_attr(self, *args: Any, **named: Any) -> list[None]:
            return [None] * LANES

        def set_attr(self, *args: Any, **named: Any) -> None:
            pass

        def env_method(self, *args: Any, **named: Any) -> list[None]:
            return [None] * LANES

        def env_is_wrapped(self, *args: Any, **named: Any) -> list[bool]:
            return [False] * LANES

    model = PPO(
        "MlpPolicy",
        Lanes(),
        n_steps=BARS,
        batch_size=LANES * BARS // MINIBATCHES,
        n_epochs=PASSES,
        policy_kwargs={"net_arch": [], "features_extractor_class": Body},
        device="cpu",
    )
    began = time.perf_counter()
    model.learn(LANES * BARS * rollouts)
    return LANES * BARS * rollouts / (time.perf_counter() - began)


def job_of(agents: int, window: int) -> Job:
    """Return the job of our agents."""
    lanes = LANES // agents
    return job_from(
        {
            "model": {"name": "mlp", "lookback": window, "hidden": HIDDEN},
            "target": {"name": "position"},
            "agent": {"lanes": lanes, "episode": EPISODE, "minibatches": MINIBATCHES, "updates": PASSES},
            "train": {"batch": lanes * BARS // MINIBATCHES},
        }
    )


def our_rate(agents: int, window: int, rollouts: int) -> float:
    """Return our bars per second, with the orders of the epochs."""
    accounts, job = Accounts(agents, window), job_of(agents, window)
    zero, one, begins = torch.zeros(FEATURES), torch.ones(FEATURES), torch.arange(ROWS).float()
    members = [
        Member(
            name=f"agent {number}",
            rows_TF=accounts.rows_CTF[number],
            labels_TK=torch.stack((accounts.returns_CT[number], begins, begins + 1), dim=1),
            mean_F=zero,
            std_F=one,
            seed=number,
        )
        for number in range(agents)
    ]
    pack, episodes = form_pack(members, job), episodes_of(job)
    assert episodes is not None
    size = job.reads_of_step

    def learn(epoch: int, steps: int) -> None:
        orders = [
            episode_order(
                ROWS - window - 2, episodes, most=steps * size, seed=one.seed, model=one.name, epoch=epoch
            )
            for one in members
        ]
        for step in range(steps):
            pack.step([True] * agents, [order[step * size : (step + 1) * size] for order in orders])

    learn(0, 1)
    began = time.perf_counter()
    learn(1, rollouts)
    return agents * size * rollouts / (time.perf_counter() - began)


def our_accounts(rollouts: int) -> float:
    """Return the bars per second of our accounts alone, with random actions."""
    target, shape = job_of(1, 1).target, (1, LANES, BARS)
    held = torch.full((1, LANES), flat_of(target))
    never = torch.zeros(shape, dtype=torch.bool)
    bars = Bars(
        log_return_MLS=1e-3 * torch.randn(shape, dtype=torch.float64), closes_MLS=never, ends_MLS=never
    )
    began = time.perf_counter()
    for _ in range(rollouts):
        actions = torch.randint(3, shape)[..., None].expand(*shape, 3)  # whatever is held
        acted = follow(target, actions, held, bars)
        grown(target, acted, bars)
        held = acted.last_ML
    return LANES * BARS * rollouts / (time.perf_counter() - began)


def gymnasium_accounts(steps: int) -> float:
    """Return the bars per second of a plain loop over Gymnasium's environments, with random actions."""
    job = job_of(1, 1)
    first = environment_of(prepare(synthetic_candles("AAA", bars=4_000, timeframe="1h", seed=0), job), job)
    lanes = [CandleEnvironment(first.market, episode=EPISODE) for _ in range(LANES)]
    for number, lane in enumerate(lanes):
        lane.reset(seed=number)
    actions = np.random.default_rng(0).integers(0, 3, (steps, LANES)).tolist()
    began = time.perf_counter()
    for each in actions:
        for lane, action in zip(lanes, each, strict=True):
            _, _, terminated, truncated, _ = lane.step(action)
            if terminated or truncated:
                lane.reset()
    return LANES * steps / (time.perf_counter() - began)


def main() -> None:
    """Time all contenders in interleaved rounds; print and write their medians."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    rounds, rollouts = (1, 1) if options.quick else (options.rounds, 3)
    rows = []
    for name, contenders in cases(rollouts).items():
        rates = interleave(contenders, rounds=rounds)
        ours, *others = contenders
        row = {
            "name": name,
            "per_second": {one: round(median(rates, one)) for one in contenders},
            "times": {other: round(ratio(rates, ours, other), 2) for other in others},
        }
        rows.append(row)
        print(row, flush=True)
    result = {"machine": machine(), "threads": options.threads, "rounds": rounds, "rows": rows}
    print("wrote", write("agents", result, options.out))


def cases(rollouts: int) -> dict[str, dict[str, Callable[[], float]]]:
    """Return the contenders of each case, ours first, and of the others those that are installed."""
    there = {
        name: find_spec(module) is not None
        for name, module in (("skrl", "skrl"), ("sb3", "stable_baselines3"))
    }
    made: dict[str, dict[str, Callable[[], float]]] = {
        "accounts alone": {
            "ours": partial(our_accounts, 40 * rollouts),
            "gymnasium": partial(gymnasium_accounts, 8 * rollouts),
        }
    }
    for window in (1, 60):
        seen = "last bar" if window == 1 else f"windows of {window}"
        made[f"1 agent, {LANES} lanes, {seen}"] = {
            "ours": partial(our_rate, 1, window, rollouts),
            "skrl": partial(skrl_rate, 1, window, rollouts),
            "sb3": partial(sb3_rate, window, rollouts),
        }
        made[f"{MANY} agents, {LANES // MANY} lanes each, {seen}"] = {
            "ours": partial(our_rate, MANY, window, rollouts),
            "skrl": partial(skrl_rate, MANY, window, rollouts),
        }
    return {
        case: {name: run for name, run in contenders.items() if there.get(name, True)}
        for case, contenders in made.items()
    }


if __name__ == "__main__":
    main()
