"""The table of targets, one home per target. To add one, see docs/models.md.

A home's `__init__.py` holds its settings and metrics (standard library only), `labels.py` its labels (numpy),
`loss.py` the loss (torch), `scores.py` forecasts from outputs, their scores and the baselines.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from trainer.base.settings import TargetSettings
from trainer.targets import barrier, direction, own, quantiles, return_, volatility

TARGETS: dict[str, type[TargetSettings]] = {
    home.name: home
    for home in (
        direction.Direction,
        volatility.Volatility,
        return_.Return,
        quantiles.Quantiles,
        barrier.Barrier,
    )
}
DEFAULT = "direction"
OWN = own.OwnTarget  # chosen by a file instead of a name
DEFAULT_OF = {"tcn": "volatility"}  # by model, if not DEFAULT


def default_of(model: str) -> str:
    """Return the name of a model's default target."""
    return DEFAULT_OF.get(model, DEFAULT)


def labels_of(target: TargetSettings) -> Any:
    """Return the `labels` module of a target's home. Loads numpy."""
    return import_module(f"{type(target).__module__}.labels")


def loss_of(target: TargetSettings) -> Any:
    """Return the `loss` module of a target's home. Loads torch."""
    return import_module(f"{type(target).__module__}.loss")


def scores_of(target: TargetSettings) -> Any:
    """Return the `scores` module of a target's home. Loads torch if a baseline needs it."""
    return import_module(f"{type(target).__module__}.scores")
