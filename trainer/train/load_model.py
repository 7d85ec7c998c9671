"""A network from a model's file: the card is checked against the model's home, shapes are compared on the meta device, where
tensors take no memory, and only then is it built and its weights put in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.artifacts.card import Card, CardSeries
from trainer.data.settings import CALENDARS, EXCHANGES
from trainer.errors import DataError, UsageError
from trainer.models import home_of, network_of
from trainer.settings import TargetSettings
from trainer.targets import OWN
from trainer.train.packs.tensors import put_tensors

_MOST_OUTPUTS = 10_000  # of a target of the user's own


def check_card(card: Card, target: TargetSettings, path: Path) -> None:
    """Raise DataError for a card whose parts no training of ours puts together. Builds nothing."""
    outputs = card.architecture.get("outputs", 1)
    if type(outputs) is not int or not 1 <= outputs <= _MOST_OUTPUTS:
        raise unfit(path, f"it has {str(outputs)[:40]} outputs")
    if target.name != OWN.name and outputs != target.outputs:
        raise unfit(path, f"it has {outputs} outputs, and {target.name} has {target.outputs}")
    for series in card.series:
        if series.calendar not in (*CALENDARS[1:], *EXCHANGES):
            raise unfit(path, f"the calendar of {series.symbol} is {series.calendar!r}")
        if not series.scaler:
            raise unfit(path, f"{series.symbol} has no scaler")
        if missing := [name for name in target.needs_fitted if name not in fitted_of(series)]:
            raise unfit(path, f"{series.symbol} has no {missing[0]}, which {target.name} needs")
    try:
        home_of(card.family).check_architecture(
            card.architecture, features=len(card.features), outputs=outputs, bars_seen=card.lookback
        )
    except UsageError as error:
        raise unfit(path, f"{error.what}: {error.why}") from error


def fitted_of(series: CardSeries) -> dict[str, float]:
    """Return the numbers that were fitted for the target on a series: beside its scaler, before there were targets."""
    return {name: value for name, value in (series.fitted or series.scaler).items() if type(value) in (int, float)}


def network_from(card: Card, tensors: Mapping[str, torch.Tensor], path: Path, **place: Any) -> nn.Module:
    """Return the network of a checked card with its weights. `place` as `network.build` takes it.

    Raises DataError where the tensors are not those of the network, UsageError for a file of the user's that can't be used. A
    class of the user's that can't be built on the meta device is built at once.
    """
    build = network_of(card.family).build
    try:
        with torch.device("meta"):
            shell = build(card.architecture, **place)
    except UsageError:
        if not home_of(card.family).is_any_module:
            raise
        shell = build(card.architecture, **place)
    _compare(shell, card, tensors, path)
    network: nn.Module = build(card.architecture, **place)
    try:
        put_tensors(network, tensors)
    except (ValueError, AttributeError, RuntimeError) as error:
        raise unfit(path, str(error).split("\n")[0][:200]) from error
    return network


def _compare(shell: nn.Module, card: Card, tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    weights = dict(shell.named_parameters())
    for name, weight in weights.items():
        tensor = tensors.get(name)
        if tensor is None or (tensor.shape, tensor.dtype) != (weight.shape, weight.dtype):
            there = "missing" if tensor is None else f"{_form(tensor)}"
            raise unfit(path, f"weight {name} is {there}, and its card makes it {_form(weight)}")
    others = sorted(tensors.keys() - weights.keys())
    if others and not home_of(card.family).is_any_module:
        raise unfit(path, f"a {card.family} has no tensor {others[0][:80]}")
    seen = getattr(getattr(shell, "net", shell), "receptive_field", card.lookback)
    if seen != card.lookback and card.architecture.get("reads") != "windows":
        raise unfit(path, f"the network sees {seen} bars, and its card says {card.lookback}")


def _form(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def unfit(path: Path, why: str) -> DataError:
    """Return the error for a model whose card no training of ours writes."""
    return DataError(f"{path} has a card that can't be used", why=why, do="Fetch the model again.")
