"""Documents of a score run: what control asks it to score, and the scores that it writes.

    asked.json   {"format", "until", "pieces": [{"piece", "since",
                 "models": [{"side", "path", "key", "version_id", "sha256"}]}]}, given by control
    scores.json  {"format", "failed": [{"piece", "reason"}], "pieces": [{"piece",
                 "models": [{"side", "key", "version_id", "sha256", "losses"}]}]}, written by the scorer

The second is untrusted: `read_scores` compares it with what was asked, and checks every type, bound and cell.
Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainer.base.strict_json import MOST_TEXT, Fields, Unsound, Value, read_object
from trainer.store.card_reading import MOST_BARS, MOST_CARD_NUMBER, MOST_CELLS
from trainer.targets.losses import MODEL, Losses

FORMAT = 1
ASKED_FILE, SCORES_FILE = "asked.json", "scores.json"
MOST_SCORES_BYTES = 64 * 2**20  # 500 models with their champions and 400 cells take 50 MB
MOST_PIECES = 20_000
MOST_BASELINES = 20
Side = Literal["challenger", "champion"]
SIDES: tuple[Side, ...] = ("challenger", "champion")


@dataclass(frozen=True, kw_only=True)
class AskedModel:
    """A model to score: which side it is, its file below GIVEN, and its object by version and hash."""

    side: Side
    path: str
    key: str
    version_id: str
    sha256: str

    @property
    def identity(self) -> dict[str, str]:
        """Return what the scorer reports of it."""
        return {name: getattr(self, name) for name in ("side", "key", "version_id", "sha256")}


@dataclass(frozen=True, kw_only=True)
class AskedPiece:
    """A piece: its challenger, and its champion if there is one."""

    piece: str  # its title
    since: int = 0  # seconds since 1970 before which none of its bars is scored
    models: tuple[AskedModel, ...]

    def of(self, side: Side) -> AskedModel | None:
        """Return the model of a side."""
        return next((model for model in self.models if model.side == side), None)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """All that a score run scores. `until`: seconds since 1970 of its data's last bar."""

    pieces: tuple[AskedPiece, ...]
    until: int

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        pieces = [asdict(one) for one in self.pieces]
        return {"format": FORMAT, "until": self.until, "pieces": pieces}


@dataclass(frozen=True, kw_only=True)
class ScoredPiece:
    """The losses of a piece's models on the same cells; without them why there are none."""

    challenger: Losses | None = None
    champion: Losses | None = None
    reason: str = ""


def asked_from(value: Any) -> Asked:
    """Return what is asked, from the JSON values that control wrote. Raises Unsound."""
    parts = Value(value, "what is asked").fields().exactly(("format", "until", "pieces"))
    parts["format"].whole(least=FORMAT, most=FORMAT)
    pieces = tuple(map(_asked_piece, parts["pieces"].items(least=1, most=MOST_PIECES)))
    return Asked(pieces=pieces, until=parts["until"].whole())


def _asked_piece(value: Value) -> AskedPiece:
    parts = value.fields().exactly(("piece", "since", "models"))
    models = tuple(map(_asked_model, parts["models"].items(least=1, most=len(SIDES))))
    return AskedPiece(piece=parts["piece"].text(), since=parts["since"].whole(), models=models)


def _asked_model(value: Value) -> AskedModel:
    parts = value.fields().exactly(("side", "path", "key", "version_id", "sha256"))
    side: Side = "champion" if parts["side"].choice(SIDES) == "champion" else "challenger"
    texts = {name: parts[name].text(most=1024) for name in ("path", "key", "version_id")}
    return AskedModel(side=side, sha256=parts["sha256"].sha256(), **texts)


def written_scores(pieces: Iterable[Mapping[str, Any]], failed: Mapping[str, str]) -> bytes:
    """Return scores.json: pieces with their models, and the reasons of those without."""
    listed = [{"piece": piece, "reason": reason[:MOST_TEXT]} for piece, reason in failed.items()]
    values = {"format": FORMAT, "pieces": list(pieces), "failed": listed}
    return json.dumps(values, separators=(",", ":"), allow_nan=False).encode()


def read_scores(body: bytes, asked: Asked, *, proper: Sequence[str]) -> dict[str, ScoredPiece]:
    """Return the scores of every piece that was asked, by its title. `proper`: those that each model has.

    Raises Unsound for models, versions, hashes, pieces, scores or cells other than asked.
    """
    name = "the scores"
    content = read_object(body, most_bytes=MOST_SCORES_BYTES, most_number=MOST_CARD_NUMBER, name=name)
    parts = content.exactly(("format", "pieces", "failed"))
    parts["format"].whole(least=FORMAT, most=FORMAT)
    wanted = {one.piece: one for one in asked.pieces}
    scored: dict[str, ScoredPiece] = {}
    for item in parts["pieces"].items(most=MOST_PIECES):
        fields = item.fields().exactly(("piece", "models"))
        piece = _new(fields["piece"], wanted, scored)
        models = fields["models"].items(most=len(SIDES))
        scored[piece] = _piece(models, wanted[piece], proper, asked.until)
    for item in parts["failed"].items(most=MOST_PIECES):
        fields = item.fields().exactly(("piece", "reason"))
        piece = _new(fields["piece"], wanted, scored)
        reason = fields["reason"].text(most=MOST_TEXT)
        scored[piece] = ScoredPiece(reason=reason or "the scorer names no reason")
    if missing := sorted(wanted.keys() - scored.keys()):
        raise Unsound(f"{name} have nothing about {missing[0][:80]!r}")
    return scored


def _new(value: Value, wanted: Mapping[str, AskedPiece], scored: Mapping[str, ScoredPiece]) -> str:
    """Return the piece that an entry is about. Raises Unsound for one that was not asked, or twice."""
    piece = value.text()
    if piece not in wanted or piece in scored:
        why = "twice" if piece in scored else "though nobody asked for it"
        raise Unsound(f"{value.name} is {piece[:80]!r}, {why}")
    return piece


def _piece(models: Sequence[Value], asked: AskedPiece, proper: Sequence[str], until: int) -> ScoredPiece:
    if len(models) != len(asked.models):
        why = f"{len(models)} models, and {len(asked.models)} were asked for"
        raise Unsound(f"the scores of {asked.piece[:80]!r} have {why}")
    within = (asked.since, until)
    losses = {
        one.side: _model(value, one, proper, within) for value, one in zip(models, asked.models, strict=True)
    }
    challenger, champion = losses["challenger"], losses.get("champion")
    if champion is not None and _windows(champion) != _windows(challenger):
        raise Unsound(f"the models of {asked.piece[:80]!r} have other cells or baselines than each other")
    return ScoredPiece(challenger=challenger, champion=champion)


def _model(value: Value, asked: AskedModel, proper: Sequence[str], within: tuple[int, int]) -> Losses:
    parts = value.fields().exactly((*asked.identity, "losses"))
    for key, wanted in asked.identity.items():
        if (told := parts[key].text(most=1024)) != wanted:
            raise Unsound(f"{parts[key].name} is {told[:80]!r}, and {wanted[:80]!r} was asked for")
    return _losses(parts["losses"].fields(), proper, within)


def _losses(fields: Fields, proper: Sequence[str], within: tuple[int, int]) -> Losses:
    parts = fields.exactly(("begins", "bars", "sums"))
    least, most = within
    begins = [one.whole(least=least, most=most) for one in parts["begins"].items(least=1, most=MOST_CELLS)]
    bars = [one.whole(least=1, most=MOST_BARS) for one in parts["bars"].items(most=MOST_CELLS)]
    by_score = parts["sums"].fields().exactly(tuple(proper))
    sums = {score: _sums(item, len(begins)) for score, item in by_score.items()}
    if len({frozenset(names) for names in sums.values()}) > 1:
        raise Unsound(f"{fields.name}.sums have other baselines in each score")
    try:
        return Losses(begins=tuple(begins), bars=tuple(bars), sums=sums)
    except ValueError as error:
        raise Unsound(f"{fields.name}: {error}") from error


def _sums(value: Value, cells: int) -> dict[str, list[float] | None]:
    names = value.fields(most=MOST_BASELINES + 1).entries()
    if MODEL not in names or len(names) < 2:
        raise Unsound(f"{value.name} lacks the model, or a baseline")
    return {name: _numbers(item, cells) for name, item in names.items()}


def _numbers(value: Value, cells: int) -> list[float] | None:
    if value.value is None:
        return None
    most = MOST_CARD_NUMBER
    return [one.number(least=-most, most=most) for one in value.items(least=cells, most=cells)]


def _windows(losses: Losses) -> tuple[Any, ...]:
    """Return what two models of a piece have in common if they were scored on the same windows."""
    others = {
        score: {name: sums for name, sums in by_name.items() if name != MODEL}
        for score, by_name in losses.sums.items()
    }
    return losses.begins, losses.bars, others
