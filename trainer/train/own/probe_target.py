"""Label bars with a user's own target, measure how far its labels reach, and check that none reads bars after
its end.

The bars are a seeded random walk. Shapes: T bars, K label columns, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from trainer.base.errors import UsageError
from trainer.base.own_file import OwnFile, as_usage_error, instance_of
from trainer.data.calendar import session_clock
from trainer.data.read.candles import Candles
from trainer.data.read.shapes import FIELDS
from trainer.data.synthetic import synthetic_candles
from trainer.job.job import Job
from trainer.targets.bars import Labels

BARS = 6000
TRIED = 12  # labels that are computed again with other bars around them
DO = "See docs/models.md."


def measure_target(job: Job, say: Callable[[str], None]) -> OwnFile:
    """Return the job's target with its measurements. Raises UsageError, one line, for anything wrong
    with it.
    """
    target: Any = job.own_files["target"]
    say(f"loading {target.base_name} and building {target.class_name}")
    own = instance_of(target)
    for method in ("label", "loss"):
        if not callable(getattr(own, method, None)):
            raise UsageError(f"{target.class_name} has no method {method}", do=DO)
    reach = _number(target, own, "reach", 0, least=0)
    say(f"{target.class_name}.label")
    candles = synthetic_candles("AAA", bars=BARS, timeframe=job.data.timeframe or "1m", seed=0)
    labels = _labels(target, candles)
    known = np.flatnonzero(np.isfinite(labels.values_TK).all(axis=1) & (np.arange(BARS) >= reach))
    if not len(known):
        raise UsageError(
            f"{target.class_name}.label labels none of {BARS:,} bars", why="of a random walk", do=DO
        )
    _check_reach(target, candles, labels, known, reach)
    ahead = labels.ends_T[known] - known
    columns = labels.values_TK.shape[1]
    measured = target.measured_as(
        of=target.code,
        label_columns=columns,
        outputs=_number(target, own, "outputs", columns, least=1),
        reach=reach,
        ahead_least=int(ahead.min()),
        ahead_most=int(ahead.max()),
    )
    tried: OwnFile = replace(target, measured=measured)
    say(f"{target.class_name}.loss")
    _check_loss(tried, labels.values_TK[known[:: max(1, len(known) // 6)][:6]])
    return tried


def _number(target: OwnFile, own: Any, name: str, default: int, *, least: int) -> int:
    value = getattr(own, name, default)
    if type(value) is not int or value < least:
        raise UsageError(
            f"{target.class_name}.{name} is {value!r}",
            why=f"it must be a whole number of at least {least}",
            do=DO,
        )
    return value


def _labels(target: Any, candles: Candles) -> Labels:
    clock = session_clock(candles.timestamp, candles.timeframe, "24x7")
    labels: Labels = target.label(candles, clock)
    return labels


def _check_reach(target: OwnFile, candles: Candles, labels: Labels, known: np.ndarray, reach: int) -> None:
    """Check that a label stays the same when the bars after its end, or those before its reach, change."""
    for number, bar in enumerate(known[np.linspace(0, len(known) - 1, TRIED).astype(int)]):
        end, value = int(labels.ends_T[bar]), labels.values_TK[bar]
        later = _labels(target, _moved(candles, slice(end + 1, None), seed=number))
        if not np.array_equal(later.values_TK[bar], value) or later.ends_T[bar] != end:
            why = f"the label of bar {bar} changes with bars after {end}, its end"
            raise UsageError(
                f"{target.class_name}.label reads bars after its end",
                why=why,
                do="Return the last bar that it reads.",
            )
        earlier = _labels(target, _moved(candles, slice(0, max(0, bar - reach)), seed=number))
        if not np.allclose(earlier.values_TK[bar], value, rtol=1e-5, atol=1e-8, equal_nan=True):
            why = f"the label of bar {bar} changes with bars before {bar - reach}; reach is {reach}"
            do = "Set `reach` to the bars before its own that a label reads."
            raise UsageError(f"{target.class_name}.label reads further back than its reach", why=why, do=do)


def _moved(candles: Candles, part: slice, *, seed: int) -> Candles:
    """Return the candles with the fields of each bar in `part` multiplied by a large random factor."""
    factor = np.ones(len(candles))
    changed = factor[part]
    factor[part] = np.exp(np.random.default_rng(seed).normal(0, 0.2, len(changed)))
    return replace(candles, **{name: getattr(candles, name) * factor for name in FIELDS})


def _check_loss(target: Any, labels_NK: np.ndarray) -> None:
    """Check that the loss is finite, one number per label, and independent of the batch's other labels."""
    name, labels = f"{target.class_name}.loss", torch.from_numpy(labels_NK)
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(len(labels), target.outputs, generator=generator).requires_grad_()
    with as_usage_error(
        f"{name} fails on outputs {tuple(outputs.shape)} and labels {tuple(labels.shape)}", DO
    ):
        each = target.loss(outputs, labels)
        shape = tuple(each.shape)
    if shape != (len(labels),):
        raise UsageError(
            f"{name} returns shape {shape}",
            why=f"for {len(labels)} labels it must be ({len(labels)},)",
            do=DO,
        )
    with as_usage_error(f"{name} fails on the outputs of chunks", DO):
        chunk = target.loss(outputs[None], labels[None])
        part = target.loss(outputs[1:], labels[1:])
        each.sum().backward()
        double = target.loss(outputs.detach().double(), labels.double())
    same = chunk.shape == (1, len(labels)) and torch.allclose(chunk[0], each)
    if not same or not torch.allclose(part, each[1:]):
        do = "Return one loss per label, not reduced."
        raise UsageError(f"{name} of a label depends on the batch", why="packs weigh and slice it", do=do)
    grad = outputs.grad
    if grad is None or not bool(torch.isfinite(double).all() and torch.isfinite(grad).all()):
        raise UsageError(f"{name} is not finite", why="of outputs drawn from noise", do=DO)
