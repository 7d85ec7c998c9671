"""LSTM: stacked single-layer LSTMs; the last hidden state of a window gives the outputs.

Settings, memory and cost, standard library only. `network` is the module, `stacked` many modules as one
batched program.

Letters: B windows of a slice, F features, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.base.settings import FLOAT, HALF, WINDOWS, Activations, ModelSettings, Training, setting

# Numbers per bar and hidden unit that cuDNN keeps of each LSTM layer: four gates, the cell, its tanh. An
# assumption of 2026-11-21: NVIDIA publishes no formula, and it was not measured on a GPU. Our own recurrence
# (`stacked`) keeps five, counted.
RESERVE = 6
OUR_RESERVE = 5
REFERENCE_STEPS = 60 * 2  # bars x layers of the default model, for which the profiles' rates are
REFERENCE_HIDDEN = 64
# Hidden size from which a second thread pays if a core is idle. AMD EPYC, 2 cores, torch 2.13, two layers,
# batch 256, windows/s with one thread and two, 2026-11-21: hidden 8: 25,000 and 3,600; 16: 23,000 and 23,500;
# 32: 12,000 and 16,000; 64: 5,460 and 8,730; 128: 2,100 and 3,230. Beside two busy processes one thread was
# as fast from 64 on.
THREADED_HIDDEN = 64
# With the allocator's thresholds (train/cpu.py) slices of 256 windows are 2 to 5 % faster than 128 at hidden
# 64, and as fast at hidden 128; 512 gain as much again at a batch of 1,024 (benchmarks.tuner, AMD EPYC, 1 MiB
# of L2, 2026-11-21).
CPU_SLICE = 256


@dataclass(frozen=True, kw_only=True)
class LstmSettings(ModelSettings):
    """An LSTM's settings."""

    name = "lstm"
    reads = WINDOWS
    shape = ("hidden", "layers", "lookback")
    has_stacked_form = True
    is_recurrent = True

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

    @property
    def gains_from_threads(self) -> bool:
        return self.hidden >= THREADED_HIDDEN

    @property
    def costs(self) -> tuple[float, float]:
        # A GPU is bound by the number of dependent steps until the matrices are large; a CPU by the
        # multiplications.
        steps = self.lookback * self.layers / REFERENCE_STEPS
        width = self.hidden / REFERENCE_HIDDEN
        return steps * width**1.5, steps * max(1.0, width / 4)

    @property
    def cpu_slice(self) -> int:
        return CPU_SLICE

    def architecture(self, *, features: int, outputs: int) -> dict[str, Any]:
        return {
            "features": features,
            "hidden": self.hidden,
            "layers": self.layers,
            "dropout": self.dropout,
            "outputs": outputs,
        }

    def num_weights(self, *, features: int, outputs: int) -> int:
        first = 4 * self.hidden * (features + self.hidden + 2)
        return (
            first + (self.layers - 1) * 4 * self.hidden * (2 * self.hidden + 2) + outputs * (self.hidden + 1)
        )

    def activations(self, training: Training, *, features: int, outputs: int, reads: int) -> Activations:
        """Return the bytes that an LSTM takes: as plain modules (sequential, streams), or as our stacked
        recurrence (fused).

        Each layer keeps its reserve and its output; dropout between layers keeps its result and its mask.
        Backward, a layer holds the gradients of four gates, of its input and of its output. With
        checkpointing each layer keeps only its input, and one layer at a time is recomputed.
        """
        half, fused = training.half, training.fused
        cells = self.lookback * reads * self.hidden
        inputs = self.lookback * reads * features
        number = (
            FLOAT if fused or not half else HALF
        )  # our recurrence keeps gates and cells in full precision
        reserve = (OUR_RESERVE if fused else RESERVE) * number * cells
        between = (self.layers - 1) * cells * (number + 1 if self.dropout else 0)
        backwards = (6.0 if self.layers > 1 else 5.0) * number * cells
        if fused:  # gradients of single bars, and in half precision the operands cast for products
            backwards += 2.5 * number * cells if half else 9 * number * cells / self.lookback
        # Plain modules also keep first and last states, and in half precision the cast weights.
        states = 0 if fused else 4 * self.layers * number * reads * self.hidden
        cast = HALF * self.num_weights(features=features, outputs=outputs) if half and not fused else 0
        if training.recompute:
            last = cells * number if fused or not half else 0
            kept = FLOAT * inputs + last + (between or (self.layers - 1) * cells * number)
            return Activations(
                kept=kept, workspace=backwards + reserve + (0 if fused or not half else number * cells)
            )
        kept = number * inputs + self.layers * (reserve + number * cells) + between + states + cast
        return Activations(kept=kept, workspace=backwards, assumed=0 if fused else self.layers * reserve)
