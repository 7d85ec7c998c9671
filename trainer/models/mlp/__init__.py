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
        """Return the bytes that an MLP takes: each layer keeps its input for the backward pass.

        Until the outputs are there, or in a fused pack the gradients, windows lie in memory as they were
        gathered, too, and in half precision as the first layer gets them before the cast.
        """
        number = HALF if training.half else FLOAT
        windows, hidden = FLOAT * reads * inputs, FLOAT * reads * self.hidden
        kept = number * reads * (inputs + self.layers * self.hidden)
        workspace = max(windows + hidden, 2.0 * hidden) + (FLOAT * weights if training.fused else 0)
        if training.half:  # the head keeps its input in full, and products the cast weights before them
            kept += hidden + HALF * (self.layers - 1) * self.hidden**2
            at_the_cast = 2 * windows + HALF * (reads * inputs + weights)
            workspace = max(at_the_cast - kept, 2.0 * hidden)
        update = UPDATE * FLOAT * weights if training.fused else 0
        return Activations(kept=kept, workspace=max(workspace, update - kept))
