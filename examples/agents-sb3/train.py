"""Train an agent by an algorithm of Stable-Baselines3 on Mayfly's accounts: DQN for discrete actions, SAC for
continuous ones.

    pip install 'mayfly[agents]' stable-baselines3
    python examples/agents-sb3/train.py --data candles/ --symbol BTC-USD     # at your desk, into ./out

On a machine it is a script as any other, with a copy of this package beside it: job.toml.

Costs, spans, features and scaler are those of agent.toml, as Mayfly's own training reads them. Weights are
saved as safetensors, never as a pickle. A script that is started again begins anew: so small a training is
shorter than its checkpoints would be worth.
"""

import argparse
import json
import os
from pathlib import Path

import gymnasium
from safetensors.torch import save_file
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from trainer.train.agents.environment import environment

SCALE = 1e3  # of rewards: a bar's log growth is about 1e-3
EVENT_STEPS = 1_000

here = Path(__file__).parent
parser = argparse.ArgumentParser()
parser.add_argument("--job", type=Path, default=here / "agent.toml")
parser.add_argument("--data", type=Path, default=os.environ.get("MAYFLY_DATA"))
parser.add_argument("--symbol", default="BTC-USD")
parser.add_argument("--steps", type=int, default=50_000)
parser.add_argument("--envs", type=int, default=8)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()
out = Path(os.environ.get("MAYFLY_OUT", "out"))
out.mkdir(exist_ok=True)


class Events(BaseCallback):
    """Write progress events for Mayfly."""

    def _on_step(self) -> bool:
        if "MAYFLY_EVENTS" in os.environ and self.n_calls % EVENT_STEPS == 0:
            with Path(os.environ["MAYFLY_EVENTS"]).open("a") as file:
                file.write(json.dumps({"step": self.num_timesteps, "steps": options.steps}) + "\n")
        return True


def in_training() -> gymnasium.Env:
    env = environment(options.job, options.data, options.symbol, span="train")
    return gymnasium.wrappers.TransformReward(env, lambda reward: SCALE * reward)


def growth_over(span: str, act) -> float:
    """Return the log growth of an account over all bars of a span."""
    env = environment(options.job, options.data, options.symbol, span=span, episode=10**9)
    (seen, _), total, is_over = env.reset(options={"place": 0}), 0.0, False
    while not is_over:
        seen, reward, terminated, truncated, _ = env.step(act(seen))
        total, is_over = total + reward, terminated or truncated
    return total


envs = make_vec_env(in_training, n_envs=options.envs, seed=options.seed)
is_free = isinstance(envs.action_space, gymnasium.spaces.Box)
most = envs.action_space.high if is_free else envs.action_space.n - 1
algorithm = SAC if is_free else DQN
model = algorithm(
    "MlpPolicy", envs, gamma=0.9, learning_starts=min(1_000, options.steps // 2), seed=options.seed
)
model.learn(options.steps, callback=Events())
save_file(
    {name: value.contiguous() for name, value in model.policy.state_dict().items()},
    out / "policy.safetensors",
)

scores = {
    span: {
        "growth": growth_over(span, lambda seen: model.predict(seen, deterministic=True)[0]),
        "hold": growth_over(span, lambda seen: most),
    }
    for span in ("validation", "test")
}
(out / "scores.json").write_text(json.dumps(scores, indent=1) + "\n")
print(json.dumps(scores))
