"""Models with untrained weights, for tests of what reads them: no training is needed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainer.base.settings import WINDOWS
from trainer.data.features import FEATURES, FEATURES_VERSION
from trainer.models import MODELS, network_of
from trainer.store.card import Card, CardSeries
from trainer.store.weights import save
from trainer.targets import TARGETS
from trainer.targets.losses import Losses
from trainer.train.evaluate.evaluation import Compared
from trainer.train.packs.tensors import tensors_of

LOOKBACK = 20
SETTINGS: dict[str, dict[str, Any]] = {
    "lstm": {"hidden": 4, "layers": 2, "lookback": LOOKBACK},
    "transformer": {"preset": "tiny", "width": 8, "lookback": LOOKBACK, "series": 4},
    "tcn": {"width": 4, "blocks": 2, "dilation_cap": 2, "chunk": 64},
    "mlp": {"hidden": 4, "layers": 2, "lookback": LOOKBACK},
}
HORIZONS: dict[str, dict[str, Any]] = {"volatility": {"horizon_sessions": 1}, "position": {}}
FITTED = {"label_mean": 0.0, "label_std": 1.0}


def make_model(
    path: Path, family: str = "lstm", target: str = "direction", *, seed: int = 0, **keys: Any
) -> Card:
    """Write a model with untrained weights; `keys` are those of `card_of`."""
    torch.manual_seed(seed)
    card = card_of(family, target, **keys)
    save(path, tensors_of(network_of(family).build(card.architecture)), card)
    return card


def make_own_model(path: Path, file: Path, code: str, *, reads: str = WINDOWS) -> None:
    """Write a model of the class `Net` in `code`, and the code to `file`; its weights are untrained."""
    file.write_text(code)
    card = card_of("lstm", "direction", symbols=("AAA",))
    entry = {"file": file.name, "class": "Net", "sha256": hashlib.sha256(code.encode()).hexdigest()}
    sizes = {"features": len(card.features), "outputs": 1, "lookback": LOOKBACK, "settings": {}}
    architecture = {**entry, **sizes, "reads": reads}
    own_files = {"model": {**entry, "text": code}}
    torch.manual_seed(1)
    tensors = tensors_of(network_of("own").build(architecture, file=str(file)))
    save(path, tensors, replace(card, family="own", architecture=architecture, own_files=own_files))


def card_of(
    family: str,
    target: str,
    *,
    symbols: Sequence[str] = ("SIG-USD",),
    features: Sequence[str] = FEATURES,
    settings: dict[str, Any] | None = None,
    **keys: Any,
) -> Card:
    """Return a card for inputs scaled by each symbol's own numbers; `keys` are others of it, `settings` of
    them changes those of the target.
    """
    network = MODELS[family](**SETTINGS[family])
    home = TARGETS[target](**HORIZONS.get(target, {"horizon": 5}), **(settings or {}))
    card = Card(
        model=f"{family}-{target}_{symbols[0]}_1m",
        family=family,
        piece=symbols[0],
        kind="symbol",
        series=[
            CardSeries(
                symbol=symbol,
                calendar="24x7",
                horizon=5,
                scaler={"mean": [0.0] * len(features), "std": [1.0] * len(features), "limit": 10.0},
                splits={},
                fitted={} if target == "direction" else FITTED,
            )
            for symbol in symbols
        ],
        timeframe="1m",
        architecture=network.architecture(features=len(features), outputs=home.outputs),
        features=list(features),
        features_version=FEATURES_VERSION,
        lookback=network.bars_seen,
        metrics={},
        training={},
        data={},
        code_sha256="",
        seed=0,
        created_at="2026-11-22T00:00:00+00:00",
        mayfly="0",
        target=target,
        target_settings=home.card_keys(),
    )
    return replace(card, **keys)


def losses_of(tested: Compared) -> Losses:
    """Return the losses by cell that a card would have."""
    values = tested.losses
    return Losses(begins=tuple(values["begins"]), bars=tuple(values["bars"]), sums=values["sums"])
