"""A card is not believed: every type and bound is checked when it is read, and each violation is one
DataError.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.store.test_weights import CARD
from trainer.base.errors import DataError
from trainer.store.card import METADATA_KEY, CardPanel, card_from_json, read_card
from trainer.store.card_reading import MOST_CARD_BYTES

OF_SERIES = ("symbol", "calendar", "horizon", "scaler", "splits", "fitted", "number")
PANEL = {"scaler_of": "rank", "calendar": "24x7", "horizon": 5, "fitted": {}, "scaler": CARD.series[0].scaler}
LOSSES = {"begins": [0, 86_400], "bars": [24, 24], "sums": {"log_loss": {"model": [1.0, 2.0], "mean": None}}}
OWN = {"file": "net.py", "class": "Net", "sha256": "a" * 64, "text": "class Net: ..."}


TWIN = {
    "sha256": "a" * 64,
    "trained_until": "2024-01-01T00:00:00Z",
    "series": [asdict(CARD.series[0])],
    "panel": None,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"family": ["lstm"]},
        {"symbol": {"deep": 1}},
        {"symbol": "x" * 300},
        {"symbol": "../../x"},
        {"architecture": []},
        {"features": "ab"},
        {"features": ["a", 1]},
        {"features": ["a"]},
        {"columns": ["other"]},
        {"columns": ["x"] * 20},
        {"lookback": -1},
        {"lookback": True},
        {"lookback": 1.5},
        {"lookback": 10**30},
        {"horizon": -1},
        {"scaler": {}},
        {"scaler": {"mean": [0.1], "std": [1.0], "limit": 10.0}},
        {"scaler": {"mean": [0.1, 0.2], "std": [1.0], "limit": 10.0}},
        {"scaler": {"mean": [0.1, "0.2"], "std": [1.0, 1.0], "limit": 10.0}},
        {"scaler": {"mean": [[0.1], [0.2]], "std": [1.0, 1.0], "limit": 10.0}},
        {"scaler": {"mean": [0.1, 0.2], "std": [1.0, 0], "limit": 10.0}},
        {"scaler": {"mean": [0.1, 0.2], "std": [1.0, -1.0], "limit": 10.0}},
        {"scaler": {"mean": [0.1, 0.2], "std": [1.0, 1.0], "limit": "ten"}},
        {"scaler": {"mean": [0.1, 1e300], "std": [1.0, 1.0], "limit": 10.0}},
        {"metrics": {"test": [1]}},
        {"metrics": {"about": {"headline": 1}}},
        {"data": {"synthetic": "no"}},
        {"splits": 5},
        {"training": None},
        {"fitted": {"shift": "x"}},
        {"fitted": {"": 1.0}},
        {"own_files": {"model": {**OWN, "file": "../net.py"}}},
        {"own_files": {"model": {**OWN, "sha256": "short"}}},
        {"own_files": {"model": "net.py"}},
        {"fold": 3, "folds": 2},
        {"folds": 10**9},
        {"seed": -1},
        {"series": {"symbol": "A"}},
        {"series": [asdict(CARD.series[0])] * 2},
        {"series": []},
        {"series": ["BTC-USD"]},
        {"series": [{**asdict(CARD.series[0]), "more": 1}]},
        {"metrics": {"test": 1}},
        {"piece": 5},
        {"kind": None},
        {"format": "1"},
        {"other": 1},
        {"number": -1},
        {"panel": {"scaler_of": "rank"}},
        {"losses": {"begins": [1]}},
        {"losses": {**LOSSES, "begins": [-5_364_662_401, 0]}},
        {"losses": {**LOSSES, "begins": [86_400, 0]}},
        {"losses": {**LOSSES, "begins": [0, 0]}},
        {"losses": {**LOSSES, "bars": [24]}},
        {"losses": {**LOSSES, "bars": [24, 0]}},
        {"losses": {**LOSSES, "sums": {"log_loss": {"model": [1.0]}}}},
        {"losses": {**LOSSES, "sums": {"log_loss": {"model": [1.0, "2"]}}}},
        {"losses": {**LOSSES, "sums": {"log_loss": 5}}},
        {"panel": {**PANEL, "scaler_of": "other"}},
        {"panel": {**PANEL, "more": 1}},
        {"format": True},
        {"format": {"a": 1}},
        {"mayfly": None},
        {"splits": json.loads("[" * 40 + "]" * 40)},
        {"trained_until": "yesterday"},
        {"trained_until": 5},
        {"members": 0},
        {"members": 10**6},
        {"held_out": {"sha256": "a" * 64}},
        {"held_out": {**TWIN, "sha256": "short"}},
        {"held_out": {**TWIN, "series": []}},
        {"held_out": {**TWIN, "series": [{**asdict(CARD.series[0]), "scaler": {}}]}},
        {"held_out": {**TWIN, "more": 1}},
    ],
    ids=lambda changes: json.dumps(changes)[:60],
)
def test_a_malformed_card_is_one_error(changes: dict[str, Any]) -> None:
    card = asdict(CARD)
    for key, value in changes.items():
        (card["series"][0] if key in OF_SERIES else card)[key] = value
    with pytest.raises(DataError, match="the model's card can't be used") as caught:
        card_from_json(json.dumps(card))
    assert "\n" not in str(caught.value)


def test_a_card_with_own_files_and_columns_comes_back() -> None:
    card = replace(CARD, columns=["b"], own_files={"model": OWN}, fold=2, folds=3, target="quantiles")
    card = replace(card, series=[replace(card.series[0], fitted={"shift": -0.5})], panel=CardPanel(**PANEL))
    assert card_from_json(card.to_json()) == card


def test_a_refits_card_has_that_of_its_twin() -> None:
    later = replace(CARD.series[0], fitted={"shift": 2.0})
    card = replace(CARD, series=[later], held_out=TWIN, trained_until="2024-02-01T00:00:00Z", members=3)
    assert card_from_json(card.to_json()) == card
    assert card.twin == replace(CARD, trained_until="2024-01-01T00:00:00Z", members=3)
    assert CARD.twin is CARD


@pytest.mark.parametrize("name", ["trained_until", "held_out", "members", "tried", "test_scored"])
def test_a_card_lacks_no_field(name: str) -> None:
    values = {key: value for key, value in asdict(CARD).items() if key != name}
    with pytest.raises(DataError, match="can't be used"):
        card_from_json(json.dumps(values))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[" * 100_000, '{"format": NaN}', "\ud800", '{"x": "' + "y" * (MOST_CARD_BYTES + 1) + '"}'],
)
def test_text_that_is_no_card_is_one_error(text: str) -> None:
    with pytest.raises(DataError, match="the model's card can't be used"):
        card_from_json(text)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"__metadata__": []}',
        b'{"__metadata__": {"mayfly_card": 5}}',
        b'{"__metadata__": {"mayfly_card": ["a"]}}',
        b'{"w": {"data_offsets": "ab"}}',
        b'{"w": {"data_offsets": [0, "5"]}}',
        b'{"w": 5}',
        b"\xff\xff",
    ],
)
def test_a_hostile_header_is_one_error(header: bytes, tmp_path: Any) -> None:
    content = len(header).to_bytes(8, "little") + header
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(DataError, match="is not a whole model file"):
        read_card(tmp_path / "m.safetensors")


def test_a_header_of_many_tensors_is_refused_unparsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100,000 tensors took 9.5 s."""
    tensors = {
        f"w{number}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for number in range(40_000)
    }
    for extra, why in (({}, "has no format"), (tensors, "bytes besides the card, too many for tensors")):
        header = json.dumps(
            {"__metadata__": {METADATA_KEY: json.dumps({"x": '"' * 3_000_000})}, **extra}
        ).encode()
        (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        with pytest.raises(DataError, match=why):
            read_card(tmp_path / "m.safetensors")


def test_a_model_that_is_not_a_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.safetensors")
    with pytest.raises(DataError, match="it is not a plain file"):
        read_card(tmp_path / "m.safetensors")


TRADES = {"begins": [0, 86_400], "net": [0.01, -0.02]}
GROUPS = {
    "n": [5, 5],
    "forecast": [0.4, 0.6],
    "happened": [0.2, 0.8],
    "low": [None, 0.1],
    "high": [None, 0.9],
}


def test_trades_and_reliability_come_back() -> None:
    card = replace(CARD, trades=TRADES, reliability={"up": GROUPS})
    assert card_from_json(card.to_json()) == card


def test_a_card_of_bars_before_1970_comes_back() -> None:
    old = {"begins": [-5_364_662_400, 0]}  # 1800-01-01
    card = replace(CARD, losses={**LOSSES, **old}, trades={**TRADES, **old})
    card = replace(card, trained_until="1899-12-30T00:00:00Z")
    assert card_from_json(card.to_json()) == card


@pytest.mark.parametrize(
    "changes",
    [
        {"trades": {"begins": [0]}},
        {"trades": {**TRADES, "begins": [86_400, 0]}},
        {"trades": {**TRADES, "net": [0.01]}},
        {"trades": {**TRADES, "net": [0.01, "1"]}},
        {"trades": {**TRADES, "net": None}},
        {"trades": {**TRADES, "more": []}},
        {"reliability": {"up": {**GROUPS, "n": [5, 0]}}},
        {"reliability": {"up": {**GROUPS, "n": [5]}}},
        {"reliability": {"up": {**GROUPS, "forecast": [0.4, None]}}},
        {"reliability": {"up": {**GROUPS, "happened": [0.4, 7]}}},
        {"reliability": {"up": [1]}},
        {"reliability": [1]},
    ],
    ids=lambda changes: json.dumps(changes)[:60],
)
def test_malformed_trades_and_reliability_are_one_error(changes: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="the model's card can't be used"):
        card_from_json(json.dumps({**asdict(CARD), **changes}))
