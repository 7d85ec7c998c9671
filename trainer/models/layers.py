"""Parts of a forward pass that networks share: dropout by key, recomputation, a head in full precision.

A dropout mask is a pure function of (key, position): no generator, no state, the same on every device. The
model decides where to apply it, `trainer.train.seeds` makes the keys. Such a mask depends neither on the
other models of a pack nor on how a batch is sliced: element (row, t, h) of a step's batch always has the same
number.

Shapes: M models, T time steps, B batch, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

# lowbias32, an integer hash with full avalanche: https://nullprogram.com/blog/2018/07/31/ (read 2026-11-20).
_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B - (1 << 32)  # as a signed 32-bit number; products wrap
_LANES = 2  # 16-bit numbers per 32-bit hash: the probability is exact to 1/65536


def run(layer: Callable[..., torch.Tensor], *inputs: object, recompute: bool) -> torch.Tensor:
    """Return a layer's output; with `recompute`, its activations are computed again in the backward pass.

    Nothing in a layer may be random: dropout is a function of its key.
    """
    if recompute and torch.is_grad_enabled():
        made: torch.Tensor = checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=False)
        return made
    return layer(*inputs)


def in_full_precision(head: nn.Linear | nn.Conv1d, hidden: torch.Tensor) -> torch.Tensor:
    """Return a head's outputs in full precision, under autocast too: half precision's three digits are too
    few for a loss.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        outputs: torch.Tensor = head(hidden.to(head.weight.dtype))
    return outputs


def keep_mask(
    keys_M2: torch.Tensor, *, first_row: int, shape_TBH: tuple[int, int, int], probability: float
) -> torch.Tensor:
    """Return boolean masks (M, T, B, H), True with `probability`, for rows first_row to first_row + B of each
    model's batch.

    `keys_M2` has two int32 numbers per model; the masks are on its device.
    """
    steps, rows, hidden = shape_TBH
    width = hidden + hidden % _LANES
    device = keys_M2.device
    count = steps * width // _LANES  # of a row, wherever its batch is cut
    row_B1 = _numbers(first_row, first_row + rows, device)[:, None] * count
    cell = _numbers(0, count, device).view(steps, 1, width // _LANES)
    keys_M2111 = keys_M2[..., None, None, None]
    hashed = _mix(cell + row_B1, keys_M2111[:, 0], keys_M2111[:, 1])
    numbers = hashed.view(torch.int16).view(len(keys_M2), steps, rows, width)
    return numbers[..., :hidden] < round(probability * 65536) - 32768


def numbers_of(keys_M2: torch.Tensor, count: int) -> torch.Tensor:
    """Return random int32 numbers (M, count), a pure function of two int32 numbers per model."""
    key_1, key_2 = keys_M2[:, :1], keys_M2[:, 1:]
    place_1N = _numbers(0, count, keys_M2.device)[None, :]
    return _mix(_mix(place_1N, key_2, key_1), key_1, key_2)


def _numbers(first: int, stop: int, device: torch.device) -> torch.Tensor:
    """Return first to stop, int32; outside of compiled code those of the step before."""
    if torch.compiler.is_compiling():
        return torch.arange(first, stop, device=device, dtype=torch.int32)
    return _kept_numbers(first, stop, device)


@cache  # a recorded graph has their addresses: none may be freed
def _kept_numbers(first: int, stop: int, device: torch.device) -> torch.Tensor:
    return torch.arange(first, stop, device=device, dtype=torch.int32)


def _mix(number: torch.Tensor, key_1: torch.Tensor, key_2: torch.Tensor) -> torch.Tensor:
    """Return int32 numbers hashed under a 64-bit key; the arguments are not changed."""
    number = (number ^ ((number >> 16) & 0xFFFF)) + key_1
    number.mul_(_MULTIPLIER_1)
    number.bitwise_xor_((number >> 15).bitwise_and_(0x1FFFF))
    number.bitwise_xor_(key_2).mul_(_MULTIPLIER_2)
    number.bitwise_xor_((number >> 16).bitwise_and_(0xFFFF))
    return number
