"""Load models from their files. A card is checked against the homes of its model and target before anything
is built; shapes are compared on the meta device, where tensors take no memory; then the network is built and
gets its weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.base.errors import DataError, UsageError
from trainer.base.own_file import read_file
from trainer.base.settings import keys_of
from trainer.data.feature_names import (
    in_order,
    is_version_of,
    named,
    version_of,
    warmup_of_features,
)
from trainer.data.own_features import OwnFeatures
from trainer.data.read.candles import Candles
from trainer.data.side_names import features_beside
from trainer.data.table import CALENDARS, EXCHANGES, PRESENT
from trainer.models import MODELS, home_of, is_known, network_of
from trainer.store.card import Card, read_card
from trainer.store.weights import load_tensors, weights_sha256
from trainer.targets import ENVIRONMENT, OWN, TARGETS
from trainer.targets.target import TargetSettings
from trainer.train.own.bounded_build import TensorLimit, most_bytes
from trainer.train.packs.tensors import put_tensors
from trainer.train.predict.averaged import Averaged, built

_MOST_OUTPUTS = 10_000  # of a target of the user's own


@dataclass(frozen=True, kw_only=True)
class CheckedModel:
    """A model file whose card was checked; its weights are still on disk."""

    path: Path
    card: Card
    target: TargetSettings
    features: tuple[str, ...]  # the computed ones among its inputs
    build_options: Mapping[str, str]  # arguments of `network.build` that are not in the card
    own_features: OwnFeatures | None = None  # the user's among `features`, with their lookback
    twin_sha256: str = ""  # of the weights, if it is the held-out twin of the file's refit

    @property
    def name(self) -> str:
        """Return the stem of its file's name, which a card can't change."""
        return self.path.stem

    @property
    def shape(self) -> str:
        """Return a key shared by models whose networks differ only in their weights; empty for a class of the
        user's.
        """
        if home_of(self.card.family).is_any_module:
            return ""
        card = self.card
        members = [card.members, card.target, card.target_settings] if card.members > 1 else []
        return json.dumps([card.family, card.lookback, card.architecture, *members], sort_keys=True)

    def check_reads_bars(self) -> None:
        """Raise DataError for an agent in an environment of the user's."""
        if self.target.has_environment:
            why, do = "candles alone do not say what it sees", "Give it observations: docs/agents.md."
            raise DataError(f"{self.path} is an agent of your own environment", why=why, do=do)

    def warmup(self, candles: Candles) -> int:
        """Return the number of unusable rows at the head of a series: some input has no value there."""
        ours = warmup_of_features(self.features, self.card.timeframe)
        return max(ours, self.own_features.lookback if self.own_features else 0, candles.columns_begin)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return its weights. Raises DataError for a twin that is not the one that its refit's card names."""
        tensors = load_tensors(self.path, held_out=bool(self.twin_sha256))
        if self.twin_sha256 not in ("", weights_sha256(tensors)):
            raise unfit(self.path, "its held-out twin has other weights than it says")
        return tensors


def check_model(path: Path, own_files: Sequence[Path] = (), *, to_score: bool = False) -> CheckedModel:
    """Read and check the card of a model that forecasts, as `check_file` does. Raises DataError for an agent
    in an environment of the user's, too.
    """
    checked = check_file(path, own_files, to_score=to_score)
    checked.check_reads_bars()
    return checked


def check_file(path: Path, own_files: Sequence[Path], *, to_score: bool = False) -> CheckedModel:
    """Read and check a model's card. `own_files`: the Python files of a user's own model and features; a card
    alone runs no code. `to_score`: of a refit, the held-out twin that its scores are of.

    Raises DataError for a card that can't be used here, UsageError for a model file that is missing,
    superfluous or another.
    """
    card = read_card(path)
    twin = str(card.held_out["sha256"]) if to_score and card.held_out else ""
    card = card.twin if twin else card
    target = target_of(card, path)
    features = () if target.has_environment else _features_of(card, path)
    check_card(card, target, path)
    if target.has_environment and len(card.features) != card.architecture.get("features"):
        raise unfit(path, "its features are not the numbers of an observation")
    given = _given_files(card, path, own_files)
    return CheckedModel(
        path=path,
        card=card,
        target=target,
        features=features,
        build_options={"file": str(given["model"])} if "model" in given else {},
        own_features=_own_features(card, given["data"]) if "data" in given else None,
        twin_sha256=twin,
    )


class Networks:
    """A cache of networks. Models of one shape share a network, which gets the weights of each in turn."""

    def __init__(self) -> None:
        # With the file of its present weights, and the twin's hash.
        self._by_shape: dict[str, tuple[tuple[Path, str], nn.Module]] = {}

    def of(self, model: CheckedModel) -> nn.Module:
        """Return a model's network, ready to run; valid until the next call. Raises DataError as
        `network_from` does.
        """
        shape, wanted = model.shape or str(model.path), (model.path, model.twin_sha256)
        present, network = self._by_shape.get(shape, (None, None))
        if network is None or present != wanted:
            tensors = model.tensors()
            if network is None:
                network = network_from(model.card, tensors, model.path, **model.build_options).eval()
            else:
                _compare(network, model.card, tensors, model.path)
                put_tensors(network, tensors)
            self._by_shape[shape] = (wanted, network)
        return network


def target_of(card: Card, model_path: Path) -> TargetSettings:
    """Return a model's target with the settings in its card. Raises DataError for a model or target that is
    unknown here.
    """
    homes: dict[str, type[TargetSettings]] = {**TARGETS, OWN.name: OWN, ENVIRONMENT.name: ENVIRONMENT}
    if not is_known(card.family) or card.target not in homes:
        raise DataError(
            f"{model_path} is a {card.family} model of {card.target}",
            why=f"this Mayfly knows models {', '.join(MODELS)} and targets {', '.join(TARGETS)}",
            do="Predict with the Mayfly that made it.",
        )
    home = homes[card.target]
    if not home.takes_any_key and card.target_settings.keys() != keys_of(home).keys():
        raise unfit(model_path, f"its target_settings are not those of {card.target}")
    try:
        return home.from_keys(card.target_settings)  # of the user's own, none of the code runs
    except UsageError as error:
        raise unfit(model_path, f"{error.what}: {error.why}") from error


def _given_files(card: Card, model_path: Path, given: Sequence[Path]) -> dict[str, Path]:
    """Return the user's files of model and features by table, {} for a model without any. Raises UsageError
    for one that is missing, superfluous or another.
    """
    needed = {table: card.own_files[table] for table in ("model", "data") if table in card.own_files}
    if not needed and given:
        raise UsageError(f"{model_path} was not made from a Python file", do="Leave --model-file out.")
    by_hash = {own["sha256"]: path for own in needed.values() for path in given if _has(path, own["sha256"])}
    found: dict[str, Path] = {}
    for table, own in needed.items():
        if own["sha256"] in by_hash:
            found[table] = by_hash[own["sha256"]]
            continue
        others = [path for path in given if path not in by_hash.values()]
        if others:
            read_file(others[0], sha256=own["sha256"])  # says how it differs
        made_by = f"{own['class']} of {own['file']}, sha256 {own['sha256'][:12]}..."
        why = f"it was made by {made_by}, and a card runs no code"
        do = f"Give it with --model-file {own['file']}."
        raise UsageError(f"{model_path} needs its Python file", why=why, do=do)
    return found


def _has(path: Path, sha256: str) -> bool:
    return hashlib.sha256(read_file(path)).hexdigest() == sha256


def _own_features(card: Card, file: Path) -> OwnFeatures:
    """Return the user's features of a card, with the lookback that their file says."""
    own = card.own_files["data"]
    return OwnFeatures(file=str(file), class_name=own["class"], sha256=own["sha256"]).loaded()


def _features_of(card: Card, model_path: Path) -> tuple[str, ...]:
    """Return the computed features that the model reads. Raises DataError for those of another version."""
    # A panel's presence first.
    features = tuple(card.features[1 if card.panel else 0 : len(card.features) - len(card.columns)])
    own = card.own_files.get("data", {"class": "", "sha256": ""})
    theirs = tuple(own["class"].split(", ")) if own["class"] else ()
    ours = features[: len(features) - len(theirs)]
    known = all(map(named, ours)) and in_order(ours) + theirs == features
    all_of = (*features, *features_beside(card.columns))
    if all_of and not (known and is_version_of(card.features_version, all_of, own["sha256"])):
        raise DataError(
            f"{model_path} was trained on features of version {card.features_version}",
            why=f"this Mayfly computes version {version_of(all_of, own['sha256'])}",
            do=f"Predict with Mayfly {card.mayfly}, or train again.",
        )
    return features


def check_card(card: Card, target: TargetSettings, path: Path) -> None:
    """Raise DataError for a card whose parts do not fit together. Builds nothing."""
    outputs = card.architecture.get("outputs")
    if type(outputs) is not int or not 1 <= outputs <= _MOST_OUTPUTS:
        raise unfit(path, f"it has {str(outputs)[:40]} outputs")
    if target.name != OWN.name and outputs != target.outputs:
        raise unfit(path, f"it has {outputs} outputs, and {target.name} has {target.outputs}")
    if card.panel and card.features[:1] != [PRESENT]:
        raise unfit(path, f"a panel's first input is not {PRESENT}")
    for series in (*card.series, *([card.panel.unknown("the panel")] if card.panel else [])):
        if series.calendar not in (*CALENDARS[1:], *EXCHANGES):
            raise unfit(path, f"the calendar of {series.symbol} is {series.calendar!r}")
        if missing := [name for name in target.needs_fitted if name not in series.fitted]:
            raise unfit(path, f"{series.symbol} has no {missing[0]}, which {target.name} needs")
    try:
        home_of(card.family).check_architecture(
            card.architecture,
            features=target.features(len(card.features)),
            outputs=outputs,
            bars_seen=card.lookback,
        )
    except UsageError as error:
        raise unfit(path, f"{error.what}: {error.why}") from error


def network_from(card: Card, tensors: Mapping[str, torch.Tensor], path: Path, **options: Any) -> nn.Module:
    """Return the network of a checked card with its weights. `options` are further arguments of
    `network.build`.

    Raises DataError if the tensors are not those of the network, UsageError for a file of the user's that
    can't be used. A class of the user's that can't be built on the meta device is built in memory right away,
    limited by the tensors' size.
    """
    one = partial(network_of(card.family).build, card.architecture, **options)
    build = partial(built, one, card.members, target_of(card, path))
    is_users = home_of(card.family).is_any_module
    try:
        with torch.device("meta"):
            shell = build()
    except UsageError:
        if not is_users:
            raise
        shell = _limited(build, tensors, path)
    _compare(shell, card, tensors, path)
    network: nn.Module = _limited(build, tensors, path) if is_users else build()
    try:
        put_tensors(network, tensors)
    except (ValueError, AttributeError, RuntimeError) as error:
        raise unfit(path, str(error).split("\n")[0][:200]) from error
    return network


def _limited(build: Callable[[], nn.Module], tensors: Mapping[str, torch.Tensor], path: Path) -> nn.Module:
    """Build a network in at most a multiple of its tensors' memory. Raises DataError if it would take
    more.
    """
    with TensorLimit(most_bytes(tensors)) as limit:
        try:
            return build()
        except UsageError as error:
            if not limit.is_exceeded:
                raise
            raise unfit(path, f"building its network takes more than {limit.most:,} bytes") from error


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
    one = shell.members[0] if isinstance(shell, Averaged) else shell
    seen = getattr(getattr(one, "net", one), "receptive_field", card.lookback)
    if seen != card.lookback and card.architecture.get("reads") != "windows":
        raise unfit(path, f"the network sees {seen} bars, and its card says {card.lookback}")


def _form(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def without_unit(model: CheckedModel, candles: Candles) -> DataError:
    """Return the error for bars at none of which the unit of a model's forecast is known."""
    return DataError(
        f"no bar of {candles.symbol} has a unit for the forecast of {model.target.name}",
        why=(
            f"that is the volatility of the last {model.target.unit_bars} bars, in which the close never"
            " moves"
        ),
        do="Give more bars, or leave the symbol out with --symbols.",
    )


def unfit(path: Path, why: str) -> DataError:
    """Return the error for a model whose card is invalid."""
    return DataError(f"{path} has a card that can't be used", why=why, do="Fetch the model again.")
