"""The scores of a score run, which its machine wrote: whatever was not asked is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from trainer.base.strict_json import Unsound
from trainer.store import scores
from trainer.store.scores import Asked, AskedModel, AskedPiece, asked_from, read_scores, written_scores

PROPER = ("log_loss", "brier")


def model(side: Any, number: int) -> AskedModel:
    key = f"models/{side}/{number}.safetensors"
    return AskedModel(
        side=side, path=f"models/{number}", key=key, version_id=f"v{number}", sha256=f"{number}" * 64
    )


ASKED = Asked(
    until=1_000_000,
    pieces=(
        AskedPiece(piece="BTC-USD", since=86_400, models=(model("challenger", 1), model("champion", 2))),
        AskedPiece(piece="ETH-USD", models=(model("challenger", 3),)),
    ),
)


def losses(level: float = 0.6) -> dict[str, Any]:
    sums = {score: {"model": [level, level], "base_rate": [0.7, 0.8]} for score in PROPER}
    return {"begins": [86_400, 172_800], "bars": [1, 2], "sums": sums}


def sound() -> dict[str, Any]:
    """Return a document as the scorer writes it."""
    pieces = [
        {"piece": one.piece, "models": [{**each.identity, "losses": losses()} for each in one.models]}
        for one in ASKED.pieces
    ]
    return dict(json.loads(written_scores(pieces, {})))


def read(document: Any) -> dict[str, Any]:
    return read_scores(json.dumps(document).encode(), ASKED, proper=PROPER)


def test_what_was_asked_is_read() -> None:
    assert asked_from(json.loads(json.dumps(ASKED.to_json()))) == ASKED
    found = read(sound())
    assert list(found["BTC-USD"].challenger.begins) == [86_400, 172_800]
    assert found["BTC-USD"].champion is not None and found["ETH-USD"].champion is None
    failed = sound() | {"pieces": sound()["pieces"][:1], "failed": [{"piece": "ETH-USD", "reason": "no bar"}]}
    assert read(failed)["ETH-USD"].reason == "no bar" and read(failed)["ETH-USD"].challenger is None


def test_a_score_that_is_undefined_is_read_as_none() -> None:
    document = sound()
    document["pieces"][1]["models"][0]["losses"]["sums"]["brier"]["base_rate"] = None
    assert read(document)["ETH-USD"].challenger.sums["brier"] == {"model": [0.6, 0.6], "base_rate": None}


Change = Callable[[dict[str, Any]], Any]


def of(number: int, side: int, key: str, value: Any) -> Change:
    return lambda it: it["pieces"][number]["models"][side].__setitem__(key, value)


def cells(key: str, value: Any, side: int = 0) -> Change:
    return lambda it: it["pieces"][0]["models"][side]["losses"].__setitem__(key, value)


def sums(score: str, value: Any, side: int = 0) -> Change:
    return lambda it: it["pieces"][0]["models"][side]["losses"]["sums"].__setitem__(score, value)


HOSTILE: dict[str, Change] = {
    "another model": of(0, 0, "key", "models/production/weekly/x.safetensors"),
    "another version": of(0, 1, "version_id", "v9"),
    "another hash": of(0, 0, "sha256", "f" * 64),
    "the sides exchanged": lambda it: it["pieces"][0]["models"].reverse(),
    "the challenger as its own champion": of(0, 1, "side", "challenger"),
    "no champion": lambda it: it["pieces"][0]["models"].pop(),
    "a champion that nobody asked for": lambda it: it["pieces"][1]["models"].append(
        {**model("champion", 2).identity, "losses": losses()}
    ),
    "a piece left out": lambda it: it["pieces"].pop(),
    "a piece twice": lambda it: it["pieces"].append(it["pieces"][0]),
    "a piece that failed and did not": lambda it: it["failed"].append({"piece": "ETH-USD", "reason": ""}),
    "another piece": lambda it: it["pieces"][1].__setitem__("piece", "DOGE-USD"),
    "bars from before": cells("begins", [86_399, 172_800]),
    "bars from after": cells("begins", [86_400, 1_000_001]),
    "cells out of order": lambda it: [cells("begins", [172_800, 86_400], side)(it) for side in (0, 1)],
    "a cell twice": lambda it: [cells("begins", [86_400, 86_400], side)(it) for side in (0, 1)],
    "other cells than the champion": cells("begins", [86_400, 172_801]),
    "other bars than the champion": cells("bars", [2, 2]),
    "cells without bars": lambda it: [cells("bars", [0, 2], side)(it) for side in (0, 1)],
    "no cell": lambda it: [cells("begins", [], side)(it) for side in (0, 1)],
    "an easier baseline for the challenger": sums("log_loss", {"model": [0.6, 0.6], "base_rate": [9, 9]}),
    "no baseline": sums("brier", {"model": [0.6, 0.6]}),
    "no model": sums("brier", {"base_rate": [0.6, 0.6], "persistence": [1, 1]}),
    "another score": sums("accuracy", {"model": [1, 1], "base_rate": [1, 1]}),
    "one score left out": lambda it: it["pieces"][1]["models"][0]["losses"]["sums"].pop("brier"),
    "a sum too few": sums("log_loss", {"model": [0.6], "base_rate": [0.7, 0.8]}),
    "a text as a sum": sums("log_loss", {"model": ["0.6", 0.6], "base_rate": [0.7, 0.8]}),
    "a sum that is true": sums("log_loss", {"model": [True, 0.6], "base_rate": [0.7, 0.8]}),
    "a sum beyond bounds": sums("log_loss", {"model": [-1e300, 0.6], "base_rate": [0.7, 0.8]}),
    "too many baselines": sums("brier", {"model": [1, 1], **{f"b{n}": [1, 1] for n in range(30)}}),
    "a field more": lambda it: it.__setitem__("promote", True),
    "another format": lambda it: it.__setitem__("format", 2),
    "a list": lambda it: it.__setitem__("pieces", {}),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=list(HOSTILE))
def test_whatever_was_not_asked_is_refused(change: Change) -> None:
    document = sound()
    change(document)
    with pytest.raises(Unsound):
        read(document)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b'{"format": NaN}', b"[" * 100_000])
def test_what_is_no_document_is_refused(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsound):
        read_scores(body, ASKED, proper=PROPER)
    monkeypatch.setattr(scores, "MOST_SCORES_BYTES", 100)
    with pytest.raises(Unsound, match="more than 100 bytes"):
        read(sound())
