"""plan.json: the plan of every symbol of a job, written by the first process that reads the bars. Standard
library only.

    {"format", "made_for", "timeframe", "inputs", "synthetic", "notes", "files": [...],
     "symbols": {...}, "refused": {...}}

A plan is untrusted input, so reading it checks every type and bound. Workers derive their windows from it
(`job_plan`) and refuse other bars and other counts. Shapes are in bars: a span, and a range of holes, is
[start, stop), half-open.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from trainer.base.errors import DataError, UsageError
from trainer.base.own_file import OwnFile
from trainer.base.strict_json import MOST_TEXT, Fields, Unsound, Value, read_object
from trainer.base.symbols import flaw
from trainer.base.text import some_of
from trainer.data.columns import told_of
from trainer.data.splits import Span, Spans
from trainer.data.table import CALENDARS, EXCHANGES
from trainer.job.job import Job
from trainer.job.start_model import start_model_of
from trainer.targets.target import TargetSettings

FORMAT = 2
MOST_NOTES, MOST_ORIGINS = 1_000, 40
MOST_SETTING = 100_000  # characters of a setting: the symbols of an index, as in a card
LARGEST_BYTES = 1 << 28
MOST_VALUES = LARGEST_BYTES // 5  # holes of [1, 2]: many series may have many
MOST_COUNT = 1 << 53  # of bytes and rows
SPANS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class FoldPlan:
    """The spans of one fold, and how many bars of each a model can use; `chunks` is 0 for a model that reads
    windows.
    """

    spans: Spans
    bars: Mapping[str, int]  # by span: valid bars (see `series_plan`)
    ties: int  # bars without a label because the price does not move
    chunks: int

    @property
    def num_reads(self) -> int:
        """Return how many windows, or chunks, an epoch visits."""
        return self.chunks or self.bars["train"]


@dataclass(frozen=True, kw_only=True)
class SymbolPlan:
    """One symbol: its bars, the settings chosen for it, and its folds, oldest first."""

    symbol: str
    files: tuple[str, ...]
    rows: int  # in the files, before they are joined and cut to the last bars
    bars: int
    first: str  # the first bar's start, UTC
    last: str
    sha256: str  # of the bars: `candles.bars_sha256`
    calendar: str
    holes: tuple[tuple[int, int], ...]  # ranges of bars; there is a hole before each bar in them
    target: Mapping[str, Any]  # the target's settings, with values chosen for those that the job leaves open
    horizon_bars: int
    folds: tuple[FoldPlan, ...]

    @property
    def num_holes(self) -> int:
        """Return the number of holes."""
        return sum(stop - start for start, stop in self.holes)

    @property
    def mark(self) -> bytes:
        """Return, as JSON, the values that a model of this symbol depends on: bars and choices, but not
        files.
        """
        values = {key: value for key, value in _symbol_values(self).items() if key not in ("files", "rows")}
        return json.dumps(values, sort_keys=True).encode()

    def target_of(self, job: Job) -> TargetSettings:
        """Return the job's target as chosen for this symbol. Raises DataError for a choice that the job does
        not allow.
        """
        for option in job.target.options():
            if target_values(option) == dict(self.target):
                return option
        raise DataError(
            f"the plan has {dict(self.target)} for {self.symbol}",
            why=f"the job's target is {job.target.name} with {target_values(job.target)}",
            do="Plan again: leave --plan out.",
        )

    def summary(self) -> dict[str, Any]:
        """Return a summary for events and reports."""
        return {
            "bars": self.bars,
            "holes": self.num_holes,
            "ties": self.folds[-1].ties,
            "calendar": self.calendar,
            "windows": dict(self.folds[-1].bars),
            "folds": [dict(fold.bars) for fold in self.folds],
            **self.target,
            "horizon_bars": self.horizon_bars,
        }


@dataclass(frozen=True, kw_only=True)
class RefusedSymbol:
    """A symbol that no model can be trained on, with its error."""

    symbol: str
    bars: int
    what: str
    why: str
    do: str

    @property
    def error(self) -> DataError:
        """Return the error."""
        return DataError(self.what, why=self.why, do=self.do)


@dataclass(frozen=True, kw_only=True)
class PlannedFile:
    """A candle file, and the part that the job uses."""

    file: str
    bytes: int
    sha256: str
    bars: int
    symbols: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DataPlan:
    """The plan of a job's data."""

    made_for: Mapping[str, Any]  # the settings that planning depends on: `settings_of`
    timeframe: str
    inputs: tuple[str, ...]  # of the model: features, then columns
    synthetic: bool
    files: tuple[PlannedFile, ...]
    symbols: Mapping[str, SymbolPlan]
    refused: Mapping[str, RefusedSymbol]
    notes: tuple[str, ...] = ()  # notes for the user; they change nothing
    origins: tuple[str, ...] = ()  # of fetched files: sources, and how the symbols were chosen

    def to_bytes(self) -> bytes:
        """Return plan.json. Raises DataError if it would be too large to be read again.

        Files that all of several symbols read, as with an index, are named once, `beside` their own.
        """
        several = [entry.files for entry in self.symbols.values()] if len(self.symbols) > 1 else [()]
        shared = set(several[0]).intersection(*several)
        values = {
            "format": FORMAT,
            "made_for": self.made_for,
            "timeframe": self.timeframe,
            "inputs": list(self.inputs),
            "synthetic": self.synthetic,
            "notes": list(self.notes),
            **({"origins": list(self.origins)} if self.origins else {}),
            **({"beside": sorted(shared)} if shared else {}),
            "files": [asdict(file) for file in self.files],
            "symbols": {
                symbol: {
                    **_symbol_values(entry),
                    "files": [name for name in entry.files if name not in shared],
                }
                for symbol, entry in self.symbols.items()
            },
            "refused": {
                symbol: {key: value for key, value in asdict(entry).items() if key != "symbol"}
                for symbol, entry in self.refused.items()
            },
        }
        content = json.dumps(values, separators=(",", ":"), allow_nan=False).encode()
        if len(content) > LARGEST_BYTES:
            holes = sum(entry.num_holes for entry in self.symbols.values())
            raise DataError(
                f"the plan takes {len(content)} bytes, {LARGEST_BYTES} are the most",
                why=f"{holes} holes",
                do="Train fewer symbols.",
            )
        return content

    def decided(self, job: Job) -> Job:
        """Return the job with what its bars decide: the timeframe, and the symbols of the index."""
        return job.with_data(timeframe=self.timeframe, columns=tuple(self.made_for["data"]["columns"]))

    def summary(self, job: Job) -> dict[str, Any]:
        """Return the data summary of the `started` event of a job that it fits."""
        planned = self.symbols.values()
        return {
            "files": [
                {"file": file.file, "bars": file.bars, "symbols": list(file.symbols)} for file in self.files
            ],
            "timeframe": self.timeframe,
            "bars": sum(entry.bars for entry in planned) + sum(entry.bars for entry in self.refused.values()),
            "holes": sum(entry.num_holes for entry in planned),
            "synthetic": self.synthetic,
            "symbols": {entry.symbol: entry.summary() for entry in planned},
            "refused": [str(entry.error) for entry in self.refused.values()],
            "notes": list(self.notes),
            "warmup": self.decided(job).data.warmup,
        }

    def check_fits(self, job: Job) -> None:
        """Raise DataError if the plan belongs to another job."""
        made_for, wanted = dict(self.made_for), settings_of(job)
        others = sorted(
            f"{table}.{key}"
            for table in wanted
            for key in wanted[table].keys() | made_for.get(table, {}).keys()
            if wanted[table].get(key) != made_for.get(table, {}).get(key)
        )
        known = self.symbols.keys() | self.refused.keys()
        missing = [symbol for symbol in job.data.chosen(()) if symbol not in known]
        why = ""
        if others:
            why = f"it has another {', '.join(others)}"
        elif missing:
            why = f"it has no {some_of(missing, 6)}"
        elif any(len(entry.folds) != job.data.folds for entry in self.symbols.values()):
            why = "other folds"
        if why:
            raise DataError("the plan belongs to another job", why=why, do="Plan again: leave --plan out.")


_NOT_PLANNED_BY = ("path", "set", "symbols", "exclude", "timeframe", "refresh", "secrets", "stale")


def settings_of(job: Job) -> dict[str, dict[str, Any]]:
    """Return the settings of a job that planning depends on, as JSON values."""
    data = {key: value for key, value in job.to_dict()["data"].items() if key not in _NOT_PLANNED_BY}
    if job.data.own:
        data["own"] = job.data.own.code  # the lookback is measured by it
    model = {"reads": job.model.reads, "bars_seen": job.model.bars_seen, "bars_out": job.model.bars_out}
    if start := start_model_of(job):
        model["start_until"] = start.until
    return {"data": data, "model": model, "target": {"name": job.target.name, **target_values(job.target)}}


def target_values(target: TargetSettings) -> dict[str, Any]:
    """Return the settings of a target that determine its labels, as JSON values; for a user's own target,
    their digest.
    """
    return {"code": target.code} if isinstance(target, OwnFile) else asdict(target)


def read_plan(content: bytes) -> DataPlan:
    """Read plan.json. Raises DataError for anything that planning does not write."""
    try:
        return _plan(read_object(content, most_bytes=LARGEST_BYTES, most_values=MOST_VALUES, name="the plan"))
    except Unsound as error:
        raise DataError(
            "the plan can't be used", why=str(error)[:300], do="Plan again: leave --plan out."
        ) from error


def _plan(content: Fields) -> DataPlan:
    if (written := content.whole("format")) != FORMAT:
        raise Unsound(f"its format is {written}, this version reads {FORMAT}")
    keys = ["format", "made_for", "timeframe", "inputs", "synthetic", "notes", "files", "symbols", "refused"]
    parts = content.exactly([*keys, *(key for key in ("origins", "beside") if key in content.values)])
    beside = tuple(item.file_name() for item in content.value("beside", []).items())
    files = tuple(_file(item) for item in parts["files"].items())
    made_for = {
        table: {key: item.plain(most=MOST_SETTING) for key, item in settings.fields().entries().items()}
        for table, settings in parts["made_for"].fields().exactly(("data", "model", "target")).items()
    }
    _check_columns(parts["made_for"].fields().table("data").value("columns"))
    is_panel = made_for["data"].get("panel") is True
    symbols = {
        name: _symbol(name, item, beside, is_panel=is_panel)
        for name, item in parts["symbols"].fields().entries().items()
    }
    refused = {name: _refused(name, item) for name, item in parts["refused"].fields().entries().items()}
    if symbols.keys() & refused.keys():
        raise Unsound(f"{sorted(symbols.keys() & refused.keys())[0]!r} is planned and refused")
    if wrong := [name for name in (*symbols, *refused) if flaw(name)]:
        raise Unsound(f"{wrong[0][:80]!r} is not a symbol: {flaw(wrong[0])}")
    unknown = {name for entry in symbols.values() for name in entry.files} - {file.file for file in files}
    if unknown:
        raise Unsound(f"{sorted(unknown)[0]!r} is not one of its files")
    return DataPlan(
        made_for=made_for,
        timeframe=parts["timeframe"].text(),
        inputs=tuple(item.text(most=MOST_TEXT) for item in parts["inputs"].items(least=1)),
        synthetic=parts["synthetic"].truth(),
        files=files,
        symbols=symbols,
        refused=refused,
        notes=tuple(item.text(most=MOST_TEXT) for item in parts["notes"].items(most=MOST_NOTES)),
        origins=tuple(
            item.text(most=MOST_TEXT) for item in content.value("origins", []).items(most=MOST_ORIGINS)
        ),
    )


def _check_columns(value: Value) -> None:
    try:
        told_of([item.text(most=MOST_SETTING) for item in value.items()])
    except UsageError as error:
        raise Unsound(f"{value.name}: {error}") from error


def _file(value: Value) -> PlannedFile:
    parts = value.fields().exactly(("file", "bytes", "sha256", "bars", "symbols"))
    return PlannedFile(
        file=parts["file"].file_name(),
        bytes=parts["bytes"].whole(most=MOST_COUNT),
        sha256=parts["sha256"].sha256(),
        bars=parts["bars"].whole(most=MOST_COUNT),
        symbols=tuple(item.text() for item in parts["symbols"].items()),
    )


def _refused(symbol: str, value: Value) -> RefusedSymbol:
    parts = value.fields().exactly(("bars", "what", "why", "do"))
    texts = {key: parts[key].text(most=MOST_TEXT) for key in ("what", "why", "do")}
    return RefusedSymbol(symbol=symbol, bars=parts["bars"].whole(), **texts)


def _symbol_values(entry: SymbolPlan) -> dict[str, Any]:
    values = {key: getattr(entry, key) for key in _SYMBOL_KEYS}
    folds = [
        {
            **{name: [span.start, span.stop] for name, span in fold.spans.items()},
            **_after(fold.spans),
            "bars": dict(fold.bars),
            "ties": fold.ties,
            "chunks": fold.chunks,
        }
        for fold in entry.folds
    ]
    return {**values, "target": dict(entry.target), "folds": folds}


def _after(spans: Spans) -> dict[str, list[int]]:
    """Return the part of training after test, of k folds alone, whose spans may be in another order."""
    if not len(spans.after) and spans.validation.start <= spans.test.start:
        return {}
    return {"after": [spans.after.start, spans.after.stop]}


_SYMBOL_KEYS = tuple(field.name for field in fields(SymbolPlan) if field.name != "symbol")


def _symbol(symbol: str, value: Value, beside: tuple[str, ...], *, is_panel: bool) -> SymbolPlan:
    """Return a symbol's plan; `beside`: files that all symbols read. A series of a panel may be shorter than
    the horizon, and have no bar in a span.
    """
    parts = value.fields().exactly(_SYMBOL_KEYS)
    bars = parts["bars"].whole(least=1, most=MOST_COUNT)
    return SymbolPlan(
        symbol=symbol,
        files=(*(item.file_name() for item in parts["files"].items()), *beside),
        rows=parts["rows"].whole(least=bars, most=MOST_COUNT),
        bars=bars,
        first=parts["first"].text(),
        last=parts["last"].text(),
        sha256=parts["sha256"].sha256(),
        calendar=parts["calendar"].choice((*CALENDARS[1:], *EXCHANGES)),  # chosen: not auto
        holes=_holes(parts["holes"], bars),
        target={key: item.plain() for key, item in parts["target"].fields().entries().items()},
        horizon_bars=parts["horizon_bars"].whole(least=1, most=MOST_COUNT if is_panel else bars),
        folds=tuple(_fold(item, bars, least=0 if is_panel else 1) for item in parts["folds"].items(least=1)),
    )


def _holes(value: Value, bars: int) -> tuple[tuple[int, int], ...]:
    ranges, end = [], 0
    for item in value.items():
        start, stop = item.span(least=max(1, end), most=bars)  # there is no hole before the first bar
        if start == stop:
            raise Unsound(f"{item.name} is empty")
        ranges.append((start, stop))
        end = stop + 1  # adjacent ranges would be one range
    return tuple(ranges)


def _fold(value: Value, bars: int, *, least: int) -> FoldPlan:
    fields = value.fields()
    after = ("after",) if "after" in fields.values else ()  # of k folds, whose validation may follow test
    parts = fields.exactly((*SPANS, *after, "bars", "ties", "chunks"))
    order = (
        sorted((*SPANS, *after), key=lambda name: parts[name].span(least=0, most=bars)) if after else SPANS
    )
    spans = dict[str, Span]()
    end = 0
    for name in order:
        start, stop = parts[name].span(least=end, most=bars)
        spans[name], end = Span(start=start, stop=stop), stop
    read = Spans(**spans)
    most = {
        "train": len(read.train) + len(read.after),
        "validation": len(read.validation),
        "test": len(read.test),
    }
    counted = parts["bars"].fields().exactly(SPANS)
    counts = {name: counted[name].whole(least=least, most=most[name]) for name in SPANS}
    return FoldPlan(
        spans=read,
        bars=counts,
        ties=parts["ties"].whole(most=bars),
        chunks=parts["chunks"].whole(most=counts["train"]),
    )
