"""Environment: an agent that acts in a Gymnasium environment of the user's own. Docs: docs/agents.md.

    [agent]
    environment = "my_env.py:MyEnv"     # beside the job file
    [target]
    window = 30                         # any other key goes to the class: MyEnv(candles, window=30)

The class is built with the candles of one episode, oldest first, and runs over them once, a step a bar. In
training they are `agent.episode` bars of the training span, which seed and episode draw; validation and test
are an episode each, over all bars of the span. So no observation can be of another span. A policy is scored
by the rewards of its bars; a bar before the first step, or after the episode was terminated, has none.

Outputs: of discrete actions a logit each; else a mean and a log deviation for each number of an action. Then
a value. Labels are a placeholder, 0 wherever a bar's reward can be known: actions decide what a bar brings.

Shapes: T bars of a series, N bars to score, A numbers of an action, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from trainer.base.own_file import OwnFile, digest_of
from trainer.targets.target import Column, Metric, TargetSettings, column

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import torch

    from trainer.data.read.candles import Candles
    from trainer.targets.bars import Labels
    from trainer.targets.scoring import PerBar, Rows

# Bars after its own on which a bar's reward may depend: filled at the next open, held to the one after.
AHEAD = 2
MOST_SEEN = 10_000  # numbers of an observation: as many inputs as a card names


@dataclass(frozen=True, kw_only=True)
class MeasuredEnvironment:
    """Measurements of a user's environment."""

    of: str  # digest of the measured class, file and settings
    seen: int  # numbers of an observation
    choices: int  # of discrete actions; 0: an action is of numbers
    numbers: int  # of an action; 0: it is discrete


@dataclass(frozen=True, kw_only=True)
class EnvironmentTarget(OwnFile, TargetSettings):
    """The target `environment`."""

    name = "environment"
    part = "target"
    measured_as = MeasuredEnvironment
    acts = True
    has_environment = True
    metrics = (Metric(name="reward", title="reward", unit="a bar"),)
    proper = ("reward",)
    table = (
        column("reward", "reward", baseline="idle"),
        Column(title="random", value=("baselines", "random", "reward")),
    )
    farther = "setting of your environment"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_names()

    @property
    def trial(self) -> MeasuredEnvironment | None:
        """Return the measurements if they are of the current file and settings, else None."""
        return _trial(self)

    @property
    def code(self) -> str:
        return digest_of(self.sha256, self.class_name, self.given)

    @property
    def words(self) -> str:
        return f"an agent acts in {self.class_name} of {self.base_name}; times leave out its own steps"

    @property
    def choices(self) -> int:
        """Return the number of discrete actions; 0: an action is of numbers."""
        return self.trial.choices if self.trial else 2

    @property
    def numbers(self) -> int:
        """Return how many numbers an action has; 0: it is discrete."""
        return self.trial.numbers if self.trial else 0

    @property
    def outputs(self) -> int:
        return 1 + (self.choices or 2 * self.numbers)

    @property
    def bars_ahead(self) -> int:
        return AHEAD

    def features(self, inputs: int) -> int:
        """Return the numbers of an observation: the network reads nothing else."""
        return self.trial.seen if self.trial else inputs

    def names_of_features(self, inputs: Sequence[str]) -> list[str]:
        """Return a name for each number of an observation."""
        return [f"observation_{number}" for number in range(self.features(len(inputs)))]

    @property
    def outputs_are(self) -> str:
        if self.choices:
            return f"a logit of each of {self.choices} actions, of which the largest is taken, then a value"
        return (
            f"{self.numbers} means, whose tanh -1 and 1 are the ends of the action space, as many log"
            " deviations, then a value"
        )

    def label(self, candles: Candles, clock: np.ndarray) -> Labels:
        """Return 0 for each bar whose reward can be known."""
        import numpy as np

        from trainer.targets.bars import Labels, ends_after

        values_TK = np.zeros((len(candles), 1), dtype=np.float32)
        values_TK[max(0, len(candles) - AHEAD) :] = np.nan
        return Labels(values_TK=values_TK, ends_T=ends_after(len(candles), AHEAD))

    def loss_of_span(self, outputs_NO: np.ndarray, labels_NK: np.ndarray) -> float:
        """Return minus the mean reward: outputs of a span are the rewards of its bars (N, 1)."""
        return 0.0 - float(outputs_NO.mean())

    def combined(self, outputs_MNO: torch.Tensor) -> torch.Tensor:
        """Return the outputs (..., O) of the mean chances, or means, and of the mean values."""
        from trainer.targets.environment_policy import combined

        return combined(self, outputs_MNO)

    def cells(self, rows: Rows) -> tuple[np.ndarray, str]:
        from trainer.targets.scoring import day_cells

        return day_cells(rows, AHEAD)

    def baselines(self, *series: Rows) -> dict[str, np.ndarray]:
        """Return the rewards (N, 1) of two policies that learn nothing: `idle` always takes the first action,
        or the middle of each number; `random` any, by a fixed seed.
        """
        import numpy as np

        from trainer.targets.environment_steps import idle, random_policy, rewards_of

        made: dict[str, list[np.ndarray]] = {"idle": [], "random": []}
        for rows in series:
            made["idle"].append(rewards_of(self, rows.candles, rows.scored, idle(self)))
            made["random"].append(rewards_of(self, rows.candles, rows.scored, random_policy(self)))
        return {name: np.concatenate(parts)[:, None] for name, parts in made.items()}

    def per_bar(self, forecast_N: np.ndarray, labels_NK: np.ndarray) -> PerBar:
        """Return the reward."""
        return {"reward": forecast_N[:, 0]}


@cache
def _trial(target: EnvironmentTarget) -> MeasuredEnvironment | None:
    """Return the measurements that hold; at each step the digest would take longer than the step."""
    measured: MeasuredEnvironment | None = target.measured
    return measured if target.is_tried else None
