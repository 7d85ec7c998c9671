"""LSTM: stacked single-layer LSTMs; the last hidden state of a window gives the outputs.

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
    RECURRENT,
    WINDOWS,
    Activations,
    ModelCost,
    ModelSettings,
    Training,
    setting,
)

OUR_UPDATE = 8  # temporary numbers per weight of a fused pack's optimizer, counted
OUR_RESERVE = 5  # numbers per bar and hidden unit that our own recurrence (`stacked`) keeps: gates and cells
OUR_PARTS = 8  # in which a GPU computes a weight's gradient
OUR_BAR = 16  # numbers in float32 per window and hidden unit of a bar that is computed in steps
ALIGNED = 16  # numbers: rows of so many are whole units of memory, whatever their type
# Of cuDNN, per bar and hidden unit of a layer, fitted to 18 layers on an H100 (torch 2.11, 2026-11-26) within
# 4 %: numbers that it keeps; those of its workspace in the backward pass, besides two per input; what its
# persistent kernels take more, which it has in fp32 up to this hidden size (torch's `use_rnn_persist_small_h`
# in aten/src/ATen/native/cudnn/RNN.cpp: up to 128 backward, 192 forward); and bytes for cuBLAS.
CUDNN_RESERVE, CUDNN_WORKSPACE, PERSISTENT_WORKSPACE, PERSISTENT_HIDDEN = 5, 5.25, 16.0, 192
CUDNN_PRODUCTS = 8 << 20


@dataclass(frozen=True, kw_only=True)
class LstmSettings(ModelSettings):
    """An LSTM's settings."""

    name = "lstm"
    reads = WINDOWS
    shape = ("hidden", "layers", "lookback")
    has_stacked_form = True

    hidden: int = setting(64, "Hidden units of each layer.", least=1, most=16_384)
    layers: int = setting(2, "Layers.", least=1, most=64)
    dropout: float = setting(0.1, "Dropout between layers, 0 to below 1.", least=0, below=1)
    lookback: int = setting(60, "Bars of a window.", least=1, most=100_000)

    @property
    def bars_seen(self) -> int:
        return self.lookback

    @property
    def num_dropouts(self) -> int:
        return self.layers

    @property
    def words(self) -> str:
        return f"LSTMs ({self.layers} layers, hidden {self.hidden}, {self.lookback} bars)"

    def architecture(self, *, features: int, outputs: int) -> dict[str, Any]:
        return {
            "features": features,
            "hidden": self.hidden,
            "layers": self.layers,
            "dropout": self.dropout,
            "outputs": outputs,
        }

    def cost(self, *, features: int, outputs: int) -> ModelCost:
        first = 4 * self.hidden * (features + self.hidden + 2)
        others = (self.layers - 1) * 4 * self.hidden * (2 * self.hidden + 2)
        weights = first + others + outputs * (self.hidden + 1)
        return ModelCost(
            weights=weights,
            kernel=RECURRENT,
            steps=self.lookback * self.layers,
            width=self.hidden,
            activations=partial(self._activations, features=features, weights=weights),
        )

    def _activations(self, training: Training, reads: int, *, features: int, weights: int) -> Activations:
        """Return the bytes that an LSTM takes: as plain modules (sequential, streams), or as our stacked
        recurrence (fused).

        Each layer keeps its reserve and its output; dropout between layers keeps its result and its mask.
        Backward, a layer holds the gradients of four gates, of its input and of its output. With
        checkpointing each layer keeps only its input, and one layer at a time is recomputed.
        """
        half, fused = training.half, training.fused
        cells = self.lookback * reads * self.hidden
        inputs = self.lookback * reads * features
        number = HALF if half else FLOAT
        if fused:
            return self._stacked_activations(training, reads, features=features, weights=weights)
        reserve = CUDNN_RESERVE * number * cells
        between = (self.layers - 1) * cells * (number + 1 if self.dropout else 0)
        backwards = (6.0 if self.layers > 1 else 5.0) * number * cells
        if training.on_gpu:
            persistent = self.hidden <= PERSISTENT_HIDDEN and not half
            a_bar = CUDNN_WORKSPACE + (PERSISTENT_WORKSPACE if persistent else 0)
            width = self.hidden if self.layers > 1 else features
            backwards = CUDNN_PRODUCTS + number * (cells * (1 + a_bar) + 2 * self.lookback * reads * width)
        states = 4 * self.layers * number * reads * self.hidden  # first and last ones
        cast = HALF * weights if half else 0
        if training.recompute:
            last = 0 if half else cells * number
            kept = FLOAT * inputs + last + (between or (self.layers - 1) * cells * number)
            return Activations(kept=kept, workspace=backwards + reserve + (number * cells if half else 0))
        kept = number * inputs + self.layers * (reserve + number * cells) + between + states + cast
        return Activations(kept=kept, workspace=backwards, assumed=self.layers * reserve)

    def _stacked_activations(
        self, training: Training, reads: int, *, features: int, weights: int
    ) -> Activations:
        """Return the bytes that one model of a fused pack takes.

        Each layer keeps what its bars read, hidden states beside inputs, its gates and cell states; dropout
        keeps its mask. With checkpointing each layer keeps its input instead, and one is computed again.
        """
        number, bars = HALF if training.half else FLOAT, self.lookback * reads
        cells, deeper = bars * self.hidden, self.layers - 1
        scaled = FLOAT * bars * features  # windows, until the forward pass is over
        read = [bars * padded(self.hidden + columns) for columns in (features, *[self.hidden] * deeper)]
        masks, cast = deeper * cells * (self.dropout > 0), HALF * weights * training.half
        kept = number * (sum(read) + self.layers * OUR_RESERVE * cells) + masks + cast
        # Gradients of a layer's output and input; or its output, while windows are there.
        workspace = max(number * cells * min(2, self.layers), number * cells + scaled)
        if training.recompute:
            kept = scaled + number * deeper * cells + masks + cast
            workspace = number * (max(read) + (OUR_RESERVE + 2) * cells)
        if training.on_gpu:
            workspace += number * OUR_PARTS * 4 * self.hidden * (self.hidden + max(features, self.hidden))
        else:  # a GPU has a bar's numbers in registers, or few of them
            workspace += OUR_BAR * FLOAT * reads * self.hidden
        # A fused pack's AdamW is written out; activations are gone by then.
        return Activations(kept=kept, workspace=max(workspace, OUR_UPDATE * FLOAT * weights - kept))


def padded(columns: int) -> int:
    """Return the columns of a row that begins at a whole unit of memory."""
    return -(-columns // ALIGNED) * ALIGNED
