"""TCN: a temporal convolutional network that streams over chunks of bars and gives outputs for each of them.

Settings, memory and cost, standard library only. `network` is the module.

Letters: B chunks of a slice, F features, C channels, X bars read, T bars of output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainer.base.settings import (
    CHUNKS,
    CONVOLUTION,
    FLOAT,
    HALF,
    Activations,
    ModelCost,
    Training,
    bad_value,
    setting,
)
from trainer.models.pretrained import PretrainedSettings

KERNEL = 3  # of the convolutions
CONVOLUTIONS = 2  # of each block


@dataclass(frozen=True, kw_only=True)
class TcnSettings(PretrainedSettings):
    """A TCN's settings."""

    name = "tcn"
    reads = CHUNKS
    default_batch = 4
    shape = ("width", "blocks", "dilation_cap", "chunk")
    shorter = "model.blocks or model.dilation_cap"
    small = {"blocks": 4, "width": 32, "chunk": 256}

    width: int = setting(512, "Channels of each convolution.", least=1, most=16_384)
    blocks: int = setting(12, "Residual blocks of two dilated causal convolutions.", least=1, most=64)
    dilation_cap: int = setting(
        32, "Largest dilation; dilations double from block to block: 1, 2, 4, ...", least=1, most=1_048_576
    )
    dropout: float = setting(0.1, "Dropout between layers, 0 to below 1.", least=0, below=1)
    chunk: int = setting(
        1024,
        "Output bars of a chunk; the bars before them that the first output sees are read too.",
        least=1,
        most=1_048_576,
    )

    @property
    def dilations(self) -> tuple[int, ...]:
        """Return the dilation of each block."""
        return tuple(min(2**block, self.dilation_cap) for block in range(self.blocks))

    @property
    def bars_seen(self) -> int:
        return 1 + CONVOLUTIONS * (KERNEL - 1) * sum(self.dilations)

    @property
    def bars_out(self) -> int:
        return self.chunk

    @property
    def num_dropouts(self) -> int:
        return CONVOLUTIONS * self.blocks

    @property
    def words(self) -> str:
        return f"TCN {self.blocks} x {self.width}"

    def architecture(self, *, features: int, outputs: int) -> dict[str, Any]:
        return {
            "features": features,
            "width": self.width,
            "dilations": list(self.dilations),
            "dropout": self.dropout,
            "outputs": outputs,
        }

    @classmethod
    def keys_of_architecture(cls, architecture: Mapping[str, Any]) -> dict[str, Any]:
        dilations = architecture.get("dilations")
        if not isinstance(dilations, list) or {type(item) for item in dilations} != {int}:
            raise bad_value("model.dilations", dilations, "a list of whole numbers")
        return {**architecture, "blocks": len(dilations), "dilation_cap": max(dilations)}

    def cost(self, *, features: int, outputs: int) -> ModelCost:
        return ModelCost(
            weights=self._weights(features, outputs),
            frozen=self._weights(features, 0) if self.trains_head_alone else 0,
            blocks=self.blocks,
            block_weights=self._convolution(self.width) + 4 * self.width,
            counts_gradients=True,
            recompute_pays=True,
            kernel=CONVOLUTION,
            width=self.width,
            mflop=self._mflop,
            flops=1e6 * self._mflop * self.chunk,
            layer_bytes=FLOAT * self.width * (self.chunk + self.bars_seen - 1),
            activations=partial(self._activations, features=features, outputs=outputs),
        )

    def _weights(self, features: int, outputs: int) -> int:
        straight = self.width * (features + 1) if features != self.width else 0
        convolutions = sum(self._convolution(inputs) + 4 * self.width for inputs in self._inputs(features))
        return straight + convolutions + outputs * (self.width + 1)

    @property
    def _mflop(self) -> float:
        """Return the MFLOP, forward and backward, of one bar of a chunk.

        A block computes the chunk and the bars that later blocks look back on; 2 FLOPs per weight forward,
        and 4 backward unless it is frozen.
        """
        reaches = [4 * dilation for dilation in self.dilations]
        bars = sum(1 + sum(reaches[block + 1 :]) / self.chunk for block in range(self.blocks))
        return bars * 2 * (1 if self.trains_head_alone else 3) * self.width**2 * 6 / 1e6

    def _activations(self, training: Training, reads: int, *, features: int, outputs: int) -> Activations:
        """Return the bytes that a TCN takes. Backward, kept tensors are freed block by block while gradients
        are added.

        If a batch has several slices, all gradients exist from the second slice on.
        """
        again, read, half = training.recompute, self.chunk + self.bars_seen - 1, training.half
        if training.frozen:
            # Forward only: a convolution's input (twice, in the library's layout), its output, and the
            # residual.
            number = 5 * HALF if half else 4 * FLOAT
            scored = outputs * FLOAT + FLOAT + 1
            head = float(reads * self.chunk * (FLOAT * self.width + scored))
            peak = reads * read * (number * self.width + FLOAT * features)
            return Activations(kept=head, workspace=max(0.0, peak - head))
        output = 0.0
        gradients = FLOAT * self._weights(features, outputs)
        kept = FLOAT * reads * features * read if again or not half else 0.0
        largest = later = float(gradients)  # of the blocks behind this one, and of the head
        for inputs, dilation in zip(self._inputs(features), self.dilations, strict=True):
            block = _Block(self, chunks=reads, inputs=inputs, read=read, dilation=dilation, half=half)
            later -= FLOAT * self._convolution(inputs)
            held = gradients if training.accumulates else later
            largest = max(
                largest, held + (kept + block.again if again else kept + block.kept + block.backwards)
            )
            kept += block.output if again else block.kept
            read, output = block.written, block.output
        if half:  # the head's copy in full precision
            kept += FLOAT * reads * self.width * read - (output if again else 0.0)
        kept += reads * read * (outputs * FLOAT + FLOAT + 1)  # outputs, losses, and the mask of labels
        return Activations(kept=kept, workspace=max(0.0, largest - kept))

    def _inputs(self, features: int) -> list[int]:
        """Return the number of input channels of each block."""
        return [features] + [self.width] * (self.blocks - 1)

    def _convolution(self, inputs: int) -> int:
        """Return the number of weights of a block's two kernels, without biases."""
        return KERNEL * self.width * (inputs + self.width)


class _Block:
    """The bytes of one block: `kept` for backward, its `output`, temporaries of `backwards`, and `again`, if
    recomputed.
    """

    def __init__(
        self, tcn: TcnSettings, *, chunks: int, inputs: int, read: int, dilation: int, half: bool
    ) -> None:
        number, reach = (HALF if half else FLOAT), (KERNEL - 1) * dilation
        middle, self.written = read - reach, read - 2 * reach
        a_bar = chunks * tcn.width
        first, second = a_bar * middle, a_bar * self.written  # numbers that each convolution makes
        into = a_bar * read
        weights = number * KERNEL * tcn.width * (inputs + tcn.width)
        self.output = number * second
        made = number * (first + second) + self.output + (number * first if tcn.dropout else 0)
        if half and inputs != tcn.width:
            made += number * chunks * inputs * read  # the input, cast
            made += number * chunks * inputs * self.written  # for the residual's convolution
        self.kept = made + weights
        # Backward: the residual's gradient, and both operands of the second convolution once more, in the
        # library's layout.
        one_weight = FLOAT * KERNEL * tcn.width**2
        backwards = number * (2 * first + into)
        self.backwards = backwards + one_weight
        # Recomputed: everything that forward makes exists at once, beside the waiting gradient.
        waiting = number * (3 if tcn.dropout else 2) * second
        self.again = made + max(waiting, backwards) + 3 * one_weight
