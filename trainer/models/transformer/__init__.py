"""Transformer: a pre-norm encoder over patches of a window, with embeddings of the window's series and
calendar.

Settings, weights, FLOPs, memory and cost, standard library only. `network` is the module.

Letters: B windows of a slice, F features, D width, N tokens (patches) of a window, E width of the context's
embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainer.base.settings import (
    ATTENTION,
    CONTEXT,
    FLOAT,
    HALF,
    WINDOWS,
    Activations,
    ModelCost,
    Training,
    bad_value,
    setting,
)
from trainer.models.pretrained import PretrainedSettings

PRESETS = {  # blocks, width, heads; without embeddings and head a block has 12 x width^2 weights
    "tiny": (2, 32, 2),
    "small": (3, 64, 4),
    "medium": (6, 256, 8),
    "base": (12, 512, 8),
    "large": (12, 1024, 16),
}
EXPANSION = 4  # width of a block's inner layer, in widths
CONTEXT_WIDTH = 64  # most numbers of a context embedding, before it is projected to the network's width


@dataclass(frozen=True, kw_only=True)
class TransformerSettings(PretrainedSettings):
    """A transformer's settings."""

    name = "transformer"
    reads = WINDOWS
    default_batch = 256
    shape = ("preset", "blocks", "width", "heads", "lookback", "patch")
    reads_context = True
    own_of_a_head = (*PretrainedSettings.own_of_a_head, "series", "hide_series")

    preset: str = setting("small", "Size: blocks x width, with the heads of each block.", choices=PRESETS)
    blocks: int = setting(0, "Blocks of attention and inner layer; 0: the preset's.", least=0, most=256)
    width: int = setting(0, "Numbers of a token; 0: the preset's.", least=0, most=16_384)
    heads: int = setting(0, "Attention heads, a divisor of width; 0: the preset's.", least=0, most=256)
    lookback: int = setting(64, "Bars of a window, a multiple of patch.", least=1, most=100_000)
    patch: int = setting(4, "Bars of a token.", least=1, most=10_000)
    dropout: float = setting(0.1, "Dropout of what each layer adds, 0 to below 1.", least=0, below=1)
    instance_norm: bool = setting(
        True, "Normalize each window by its own mean and deviation, which the network reads, too."
    )
    series: int = setting(
        512, "Series with an embedding of their own; all others share one.", least=0, most=30_000
    )
    hide_series: float = setting(
        0.1,
        "Share of training windows whose series is hidden, to train the shared embedding.",
        least=0,
        below=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lookback % self.patch:
            raise bad_value(
                "model.lookback", self.lookback, f"a multiple of model.patch, which is {self.patch}"
            )
        blocks, width, heads = self.size
        if width % heads:
            raise bad_value("model.width", width, f"a multiple of the {heads} heads")

    @property
    def size(self) -> tuple[int, int, int]:
        """Return blocks, width and heads."""
        blocks, width, heads = PRESETS[self.preset]
        return self.blocks or blocks, self.width or width, self.heads or heads

    @property
    def tokens(self) -> int:
        """Return the tokens of a window."""
        return self.lookback // self.patch

    @property
    def bars_seen(self) -> int:
        return self.lookback

    @property
    def num_dropouts(self) -> int:
        return 1 + 2 * self.size[0]  # one hides series

    @property
    def words(self) -> str:
        blocks, width, _ = self.size
        return f"transformers ({blocks} x {width}, {self.lookback} bars in {self.tokens} tokens)"

    def architecture(self, *, features: int, outputs: int) -> dict[str, Any]:
        blocks, width, heads = self.size
        return {
            "features": features,
            "blocks": blocks,
            "width": width,
            "heads": heads,
            "tokens": self.tokens,
            "patch": self.patch,
            "dropout": self.dropout,
            "instance_norm": self.instance_norm,
            "series": self.series,
            "hide_series": self.hide_series,
            "outputs": outputs,
        }

    @classmethod
    def keys_of_architecture(cls, architecture: Mapping[str, Any]) -> dict[str, Any]:
        for name in ("blocks", "width", "heads", "tokens", "patch"):
            if type(architecture.get(name)) is not int or not 1 <= architecture[name] <= 1_000_000:
                raise bad_value(f"model.{name}", architecture.get(name), "a whole number from 1 on")
        return {**architecture, "lookback": architecture["tokens"] * architecture["patch"]}

    def cost(self, *, features: int, outputs: int) -> ModelCost:
        blocks, width, _ = self.size
        return ModelCost(
            weights=self._weights(features, outputs),
            frozen=self._weights(features, 0) if self.trains_head_alone else 0,
            blocks=blocks,
            block_weights=(4 + 2 * EXPANSION) * width**2 + 2 * width,
            flops=self._flops(features, outputs),
            counts_gradients=True,
            recompute_pays=True,
            kernel=ATTENTION,
            width=width,
            mflop=self._flops(50, 1) / 2 / 1e6,  # a multiplication and an addition are one in its rates
            layer_bytes=FLOAT * width * self.tokens,
            activations=partial(self._activations, features=features, outputs=outputs),
        )

    def _weights(self, features: int, outputs: int) -> int:
        blocks, width, _ = self.size
        embedded = min(width, CONTEXT_WIDTH)
        context = sum(most + 1 for most in (self.series, *_CALENDAR)) * embedded + embedded * width
        level = 2 * features * width if self.instance_norm else 0
        into = (self.patch * features + 1) * width + self.tokens * width + level + context
        return into + blocks * ((4 + 2 * EXPANSION) * width**2 + 2 * width) + width + outputs * (width + 1)

    def _flops(self, features: int, outputs: int) -> float:
        blocks, width, _ = self.size
        tokens = self.tokens
        level = 2 * features * width if self.instance_norm else 0
        into = tokens * self.patch * features * width + level  # inputs need no gradient
        context = min(width, CONTEXT_WIDTH) * width
        products = tokens * (4 + 2 * EXPANSION) * width**2
        attention = 2 * tokens**2 * width
        if self.trains_head_alone:
            return 2.0 * (into + context + blocks * (products + attention) + 2 * outputs * width)
        return 2.0 * (2 * into + 3 * (context + blocks * (products + attention) + outputs * width))

    def _activations(self, training: Training, reads: int, *, features: int, outputs: int) -> Activations:
        """Return the bytes that a transformer takes. Backward, kept tensors are freed block by block while
        gradients are added.

        If a batch has several slices, all gradients exist from the second slice on. Counted on a CPU;
        attention keeps no matrix of scores (flash attention).
        """
        blocks, width, heads = self.size
        number = HALF if training.half else FLOAT
        a = reads * self.tokens * width  # numbers that a layer makes
        inner = EXPANSION * width**2
        if training.frozen:
            # Forward only, with the peak in an inner layer: windows, a block's tokens before and after
            # attention, the inner layer before and after its activation; or where windows are normalized.
            windows, statistics = FLOAT * reads * features * self.lookback, 4 * FLOAT * reads * features
            cast = HALF * inner if training.half else 0
            layer = windows + 2 * FLOAT * a + 2 * number * EXPANSION * a + cast
            peak = statistics + max(layer, 3 * windows + FLOAT * a)
            return Activations(kept=float(FLOAT * reads * width), workspace=float(peak))
        # Two inputs of norms, in full precision, and the norms' statistics; queries, keys, values and two
        # outputs of norms; the output of attention; the inner layer before and after its activation.
        block = 2 * FLOAT * (a + 2 * reads * self.tokens) + number * (6 + 2 * EXPANSION) * a
        block += FLOAT * reads * self.tokens * heads
        block += 2 * a if self.dropout else 0  # masks
        block += HALF * (4 + 2 * EXPANSION) * width**2 if training.half else 0  # weights, cast
        into = number * reads * (self.lookback * features + 2 * features + width + CONTEXT_WIDTH)
        into += HALF * CONTEXT_WIDTH * width if training.half else 0  # a weight, cast
        first = FLOAT * (a if training.recompute else 0)
        kept_each = first or block
        kept = blocks * kept_each + FLOAT * a + into
        # Backward, a block peaks in the inner layer: its gradients, and those of the weights in both
        # precisions.
        working = number * (EXPANSION + (2 if self.dropout else 1)) * a
        working += (FLOAT + (HALF if training.half else 0)) * inner
        gradients = FLOAT * self._weights(features, outputs)
        a_block = FLOAT * ((4 + 2 * EXPANSION) * width**2 + 2 * width)
        held = gradients if training.accumulates else FLOAT * (width + outputs * (width + 1))
        largest, remaining = float(gradients + into + FLOAT * a), kept - FLOAT * a
        for _ in range(blocks):
            largest = max(largest, held + remaining + block - kept_each + working)
            remaining -= kept_each
            held += 0 if training.accumulates else a_block
        return Activations(kept=float(kept), workspace=max(0.0, largest - kept))


_CALENDAR = tuple(most for name, most in CONTEXT.items() if name != "series")
