"""Properties of any card and any header of a model's file: it is read, and predicts or is refused, with
one error.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.drawn import bodies, changed, is_shown
from tests.models import card_of
from tests.predictions import predict_file
from trainer.base.errors import DataError, UsageError
from trainer.data.features import FEATURES
from trainer.data.read.candles import Candles
from trainer.data.read.writing import write_candles
from trainer.data.table import PRESENT
from trainer.models import network_of
from trainer.store.card import METADATA_KEY, Card, CardPanel, read_card
from trainer.store.weights import save
from trainer.targets.described import headline_title, shown
from trainer.targets.direction import Direction
from trainer.train.packs.tensors import tensors_of

BARS = 200
TARGETS = {"lstm": "direction", "tcn": "volatility"}
PARENT = {"model": "tcn_ticks_1m", "sha256": "0" * 64, "until": "", "training": "frozen", "created_at": ""}


def good_card(family: str) -> Card:
    """Return a good card."""
    metrics = {"about": Direction().about(), "test": {"accuracy": 0.5}}
    keys = {"data": {"bars": BARS, "synthetic": False}, "training": {"epochs": 1}, "parent": PARENT}
    card = card_of(family, TARGETS[family], symbols=["A"], metrics=metrics, **keys)
    return replace(card, series=[replace(card.series[0], splits={"train": {"bars": 10}})])


def card_of_a_panel() -> Card:
    """Return a good card of a panel."""
    card, inputs = good_card("lstm"), 1 + len(FEATURES)
    scaler = {"mean": [0.0] * inputs, "std": [1.0] * inputs, "limit": 10.0}
    return replace(
        card,
        kind="panel",
        architecture={**card.architecture, "features": inputs},
        features=[PRESENT, *FEATURES],
        series=[replace(card.series[0], scaler=scaler, number=1)],
        panel=CardPanel(scaler_of="rank", scaler=scaler, fitted={}, calendar="24x7", horizon=5),
    )


GOOD = {**{family: good_card(family) for family in TARGETS}, "panel": card_of_a_panel()}
CARDS = {name: asdict(card) for name, card in GOOD.items()}


def header_of(card: Any, tensors: dict[str, Any]) -> bytes:
    """Return the first bytes of a model's file: length and header."""
    return with_length(json.dumps({**tensors, "__metadata__": {METADATA_KEY: json.dumps(card)}}).encode())


def with_length(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


@given(
    st.one_of(
        changed(CARDS["lstm"]).map(lambda card: header_of(card, {})),
        changed(CARDS["panel"]).map(lambda card: header_of(card, {})),
        bodies({"__metadata__": {METADATA_KEY: "{}"}}).map(with_length),
        st.binary(max_size=40),
    )
)
def header_is_listed_or_refused(start: bytes) -> None:
    try:
        card = read_card(start)
    except DataError as error:
        assert is_shown(str(error))
        return
    for line in (headline_title(card.metrics), *shown(card.metrics), card.piece, *card.symbols, card.family):
        assert is_shown(line)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    # Kept by the cache, removed at the end of the process
    return tempfile.TemporaryDirectory(prefix="mayfly-fuzz-")


@cache
def _place() -> tuple[Path, dict[str, bytes], dict[str, dict[str, Any]]]:
    """Return a folder with candles, and by card the bytes of its tensors and their entries of a header."""
    folder = Path(_folder().name)
    random = np.random.default_rng(0)
    close = 100 * np.exp(np.cumsum(1e-3 * random.standard_normal(BARS)))
    times = np.arange(BARS, dtype=np.int64) * 60_000_000_000 + 1_700_000_000_000_000_000
    prices = {
        "open": close,
        "high": close * 1.001,
        "low": close * 0.999,
        "close": close,
        "volume": np.ones(BARS),
    }
    write_candles(folder / "A_1m.parquet", [Candles(symbol="A", timeframe="1m", timestamp=times, **prices)])
    contents, entries = {}, {}
    for name, card in GOOD.items():
        torch.manual_seed(0)
        save(folder / "good.safetensors", tensors_of(network_of(card.family).build(card.architecture)), card)
        whole = (folder / "good.safetensors").read_bytes()
        length = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8 : 8 + length])
        contents[name] = whole[8 + length :]
        entries[name] = {key: value for key, value in header.items() if key != "__metadata__"}
    for made in ("good.safetensors", "good.json"):
        (folder / made).unlink()
    return folder, contents, entries


@given(st.data(), st.sampled_from(sorted(CARDS)))
def model_predicts_or_is_refused(data: st.DataObject, name: str) -> None:
    folder, contents, entries = _place()
    card = data.draw(changed(CARDS[name]))
    tensors = data.draw(st.one_of(st.just(entries[name]), changed(entries[name])))
    (folder / "m.safetensors").write_bytes(header_of(card, tensors) + contents[name])
    symbol = "A" if name == "panel" else ""  # which is predicted whatever the series are
    try:
        rows = predict_file(folder / "m.safetensors", folder / "A_1m.parquet", last=2, symbol=symbol)
    except (DataError, UsageError) as error:
        assert is_shown(str(error))
    else:
        assert all(isinstance(value, float) for row in rows for value in row.values.values())
    assert {path.name for path in folder.iterdir()} == {"m.safetensors", "A_1m.parquet"}


PROPERTIES = (header_is_listed_or_refused, model_predicts_or_is_refused)
