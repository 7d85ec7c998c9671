"""The pieces of a run, as its record and its receipt name them.

The record has them from the launch on, so that the Lambda that closes a run need not know their kinds.
Records and receipts from before 2026-11-22 name symbols instead, from which their pieces are derived here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainer.job.model_names import MODEL_SUFFIX, is_model_file, label, read_name


@dataclass(frozen=True, kw_only=True)
class RunPiece:
    """A piece that a run was launched for. `model` is its model's name, `piece` its label."""

    model: str
    piece: str
    kind: str
    series: tuple[str, ...]
    fold: int = 1
    seed: int = 0

    @property
    def identity(self) -> dict[str, Any]:
        """Return its fields in a receipt."""
        numbers = {"fold": self.fold, "seed": self.seed}
        return {"piece": self.piece, "kind": self.kind, "series": list(self.series), **numbers}


def models_under(prefix: str, keys: Iterable[str], pieces: tuple[RunPiece, ...]) -> Iterator[str]:
    """Yield the keys of models directly under the prefix; only of the run's pieces if its record
    names them.
    """
    names = {piece.model for piece in pieces}
    for key in keys:
        file = key.removeprefix(prefix)
        if is_model_file(file) and (not names or file.removesuffix(MODEL_SUFFIX) in names):
            yield key


def identity_of(job: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the piece of an entry of a result or a receipt of this job."""
    fold, seed = int(entry.get("fold", 1)), int(entry.get("seed", job_setting(job, "train.seed", 0)))
    if "piece" in entry:
        return {key: entry[key] for key in ("piece", "kind", "series")} | {"fold": fold, "seed": seed}
    return _of_symbol(job, str(entry.get("symbol", "")), fold=fold, seed=seed)


def identity_of_file(job: Mapping[str, Any], pieces: tuple[RunPiece, ...], file: str) -> dict[str, Any]:
    """Return the piece of a model's file."""
    model = file.removesuffix(MODEL_SUFFIX)
    known = next((piece for piece in pieces if piece.model == model), None)
    if known is not None:
        return known.identity
    name = read_name(model)
    numbers = {"fold": name.fold, "seed": name.seed} if name.fold is not None else {}
    return identity_of(job, {"symbol": name.symbol, **numbers})


def planned_pieces(job: Mapping[str, Any], pieces: tuple[RunPiece, ...]) -> list[dict[str, Any]]:
    """Return every piece of a run; of a record that names none, one for each symbol, fold and seed of its
    job.
    """
    if pieces:
        return [piece.identity for piece in pieces]
    first = int(job_setting(job, "train.seed", 0))
    return [
        _of_symbol(job, symbol, fold=fold, seed=seed)
        for symbol in job_setting(job, "data.symbols", ())
        for fold in range(1, int(job_setting(job, "data.folds", 1)) + 1)
        for seed in range(first, first + int(job_setting(job, "train.seeds", 1)))
    ]


def job_setting(job: Mapping[str, Any], key: str, default: Any) -> Any:
    """Return a setting of a stored job by its table and key, such as train.seed. Jobs of formats 1 and 2 are
    flat.
    """
    table, _, name = key.partition(".")
    values = job.get(table)
    return (values if isinstance(values, Mapping) else job).get(name, default)


def _of_symbol(job: Mapping[str, Any], symbol: str, *, fold: int, seed: int) -> dict[str, Any]:
    several = int(job_setting(job, "data.folds", 1)) * int(job_setting(job, "train.seeds", 1))
    title = label(symbol, fold=fold, seed=seed, models_per_symbol=several)
    return {"piece": title, "kind": "symbol", "series": [symbol], "fold": fold, "seed": seed}
