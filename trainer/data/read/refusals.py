"""The errors of a folder of candles: unknown symbols, other timeframes, files that can't be used."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from trainer.base.errors import DataError, nearest
from trainer.base.text import some_of
from trainer.data.read.file_names import is_part

MOST_NAMED = 20  # files that can't be used, or symbols, in an error


class OtherTimeframe(DataError):
    """The candles have other timeframes than the requested one."""


class SeveralTimeframes(DataError):
    """The candles have several timeframes, and none was requested."""

    timeframes: tuple[str, ...] = ()


def all_of(errors: Sequence[DataError], total: int) -> DataError:
    """Return the error of several files that can't be used, with the remedies of the first of them."""
    told = [f"{error.what}: {error.why}" if error.why else error.what for error in errors]
    more = [f"and {len(errors) - MOST_NAMED} more"] if len(errors) > MOST_NAMED else []
    do = " ".join(dict.fromkeys(error.do for error in errors[:MOST_NAMED] if error.do))
    what = f"{len(errors)} of {total} files can't be used"
    return DataError(what, why="; ".join([*told[:MOST_NAMED], *more]), do=do)


def refuse_unknown(
    path: Path, wanted: tuple[str, ...], chosen: str, known: set[str], frames: Iterable[str]
) -> None:
    """Raise DataError for a wanted symbol that is not known, and if none is."""
    if not known:
        raise no_such_timeframe(path, chosen, frames)
    for symbol in wanted:
        if symbol not in known:
            there = some_of(sorted(known), MOST_NAMED)
            raise DataError(
                f"unknown symbol '{symbol}'",
                why=f"{path} holds{f' at {chosen}' if chosen else ''} {there}",
                do=nearest(symbol, known) or "Choose one of these.",
            )


def refuse_nameless(path: Path, symbols: Collection[str]) -> None:
    """Raise DataError if the symbols are those of several files named only by their dates or parts: of one
    symbol, most likely, of which each would train a model.
    """
    if len(symbols) > 1 and all(map(is_part, symbols)):
        raise DataError(
            f"{path} holds {len(symbols)} files whose names have no symbol",
            why=some_of(sorted(symbols), 3),
            do="Name them SYMBOL_TIMEFRAME_DATE, or name their folder by the symbol and give the one above.",
        )


def without(path: Path, known: set[str], exclude: Collection[str]) -> tuple[str, ...]:
    """Return the known symbols without the excluded ones. Raises DataError for an unknown one, or if none is
    left.
    """
    for symbol in exclude:
        if symbol not in known:
            do = nearest(symbol, known) or "Leave it out of data.exclude."
            what = f"unknown symbol '{symbol}' in data.exclude"
            raise DataError(what, why=f"{path} does not hold it", do=do)
    if left := known - set(exclude):
        return tuple(sorted(left))
    why = f"data.exclude names all of {path}"
    raise DataError("no symbol is left to train", why=why, do="Leave one out of data.exclude.")


def several_timeframes(path: Path, several: Sequence[str]) -> SeveralTimeframes:
    """Return the error of candles of several timeframes, of which none was chosen."""
    error = SeveralTimeframes(
        f"{path} holds candles of several timeframes: {', '.join(several)}",
        why="a run trains on one",
        do=f"Choose one: --set data.timeframe={several[0]}.",
    )
    error.timeframes = tuple(several)
    return error


def no_such_timeframe(path: Path, chosen: str, frames: Iterable[str]) -> OtherTimeframe:
    """Return the error of candles without a chosen timeframe; `frames` are those that there are."""
    listed = sorted({frame for frame in frames if frame})
    return OtherTimeframe(
        f"{path} holds no candles of timeframe {chosen}",
        why=f"it holds {', '.join(listed)}",
        do=f"Choose --set data.timeframe={listed[0]}.",
    )
