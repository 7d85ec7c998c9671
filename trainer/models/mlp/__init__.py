"""MLP: all bars of a window side by side through fully connected layers; the usual network of a policy.

Settings, memory and cost, standard library only. `network` is the module, `stacked` many modules as one
batched program.

Letters: B windows of a slice, F features, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from trainer.base.settings import (
    FLOAT,
    HALF,
    UNKNOWN,
    WINDOWS,
    Activations,
    ModelCost,
    ModelSettings,
    Training,
    setting,
)

UPDATE = 8  # temporary numbers per weight of a fused pack's optimizer, as for other stacked forms


@dataclass(frozen=True, kw_only=True)
class MlpSettings(ModelSettings):
    """An MLP's settings."""

    name = "mlp"
    reads = WINDOWS
    shape = ("hidden", "layers", "lookback")
    has_stacked_form = True
    takes_observations = True
    small = {"lookback": 20}

    hidden: int = setting(64, "Units of each hidden layer.", least=1, most=16_384)
    layers: int = setting(2, "Hidden layers, each followed by tanh.", least=1, most=64)
    lookback: int = setting(60, "Bars of a window.", least=1, most=100_000)

    @property
    def bars_seen(self) -> int:
        return self.lookback

    @property
    def words(self) -> str:
        return f"MLPs ({self.layers} layers, hidden {self.hidden}, {self.lookback} bars)"

    def architecture(self, *, features: int, outputs: int) -> dict[str, Any]:
        return {
            "features": features,
            "lookback": self.lookback,
            "hidden": self.hidden,
            "layers": self.layers,
            "outputs": outputs,
        }

    def cost(self, *, features: int, outputs: int) -> ModelCost:
        inputs = self.lookback * features
        products = self.hidden * (inputs + (self.layers - 1) * self.hidden + outputs)
        weights = products + self.layers * self.hidden + outputs
        # Forward and backward; the first layer's backward pass has no gradient of its inputs.
        mflop = (6 * products - 2 * self.hidden * inputs) / 1e6
        return ModelCost(
            weights=weights,
            kernel=UNKNOWN,
            width=self.hidden,
            mflop=mflop,
            layer_bytes=FLOAT * max(inputs, self.hidden),
            activations=partial(self._activations, inputs=inputs, weights=weights),
        )

    def _activations(self, training: Training, reads: int, *, inputs: int, weights: int) -> Activations:
        """Return the bytes that an MLP takes: each layer keeps its result; backward, two layers' gradients.

        Windows lie in memory twice, as gathered and as the first layer reads them.
        """
        number = HALF if training.half else FLOAT
        cast = HALF * (weights + reads * inputs) if training.half else 0
        kept = FLOAT * 2 * reads * inputs + self.layers * number * reads * self.hidden + cast
        update = UPDATE * FLOAT * weights if training.fused else 0
        return Activations(
            kept=kept, workspace=max(2 * FLOAT * reads * self.hidden + FLOAT * weights, update - kept)
        )
