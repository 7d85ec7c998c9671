"""Candles as tables: what `mayfly data check` found, and what its repair did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from trainer.base.text import counted, some_of
from trainer.cli.views.table import BAD, DIM, GOOD, Cell, FittedTable, lines, styled
from trainer.data.check.findings import NOTED, REFUSED, TRAINED, Defect, SymbolCheck
from trainer.data.check.folder import FolderCheck
from trainer.data.check.repair import Repaired, RepairedFile

MOST_CLEAN = 40  # symbols without a finding that have a row of their own
MOST_NAMED = 8
STYLES = {REFUSED: BAD, NOTED: "yellow", TRAINED: DIM}


def checked_table(made: FolderCheck) -> RenderableType:
    """Return the table of a check: a row for each symbol, and one for each of its findings below."""
    clean = [one for one in made.symbols if not one.findings]
    shown = made.symbols if len(clean) <= MOST_CLEAN else [one for one in made.symbols if one.findings]
    parts: list[RenderableType] = []
    if shown:
        rows = [row for one in shown for row in _rows(one)]
        parts.append(
            FittedTable(
                rows,
                right=("count",),
                leaving=("last", "fix", "first"),
                wraps=("bars and defects", "training"),
            )
        )
    if len(shown) < len(made.symbols):
        names = some_of([one.symbol for one in clean], MOST_NAMED)
        parts.append(styled(f"{counted(len(clean), 'symbol')} without a finding: {names}", DIM))
    parts += [styled(f"can't be read: {error}", BAD) for error in made.unreadable]
    parts += [styled(f"note: {note}", DIM) for note in made.notes]
    parts.append(_verdict(made))
    return lines(*parts)


def _rows(one: SymbolCheck) -> Iterator[dict[str, Cell]]:
    files = counted(len(one.files), "file")
    yield _row(
        symbol=one.symbol,
        text=f"bars of {one.timeframe}, {files}" + (f", calendar {one.calendar}" if one.calendar else ""),
        count=one.bars,
        first=one.first,
        last=one.last,
        training=REFUSED if one.is_refused else TRAINED,
        fix="",
    )
    for finding in one.findings:
        yield _row(
            symbol="",
            text=f"  {finding.text}" + (f" ({finding.detail})" if finding.detail else ""),
            count=finding.count or "",
            first=finding.first,
            last=finding.last if finding.count > 1 else "",
            training=finding.training,
            fix=finding.fix,
        )


def _row(
    *, symbol: str, text: str, count: int | str, first: str, last: str, training: str, fix: str
) -> dict[str, Cell]:
    return {
        "symbol": symbol,
        "bars and defects": text,
        "count": f"{count:,}" if isinstance(count, int) else count,
        "first": _short(first),
        "last": _short(last),
        "training": Text(training, style=STYLES.get(training, "")),
        "fix": fix,
    }


def _short(moment: str) -> str:
    """Return a time without the parts that are zero: a day, or a minute."""
    return moment.removesuffix("T00:00:00Z").removesuffix(":00Z")


def _verdict(made: FolderCheck) -> RenderableType:
    refused = [one.symbol for one in made.symbols if one.is_refused]
    bars = sum(one.bars for one in made.symbols)
    whole = f"{counted(len(made.symbols), 'symbol')}, {counted(bars, 'bar')}"
    if made.unreadable or refused:
        what = [f"training refuses {some_of(refused, MOST_NAMED)}"] if refused else []
        what += [f"{counted(len(made.unreadable), 'file')} can't be read"] if made.unreadable else []
        return styled(f"{whole}: {'; '.join(what)}", BAD)
    return styled(f"{whole}: training reads all of them", GOOD)


def repaired_lines(repaired: Repaired) -> RenderableType:
    """Return what a repair wrote, file by file, and what its own check says."""
    changed = [one for one in repaired.files if not one.is_copy]
    copies = len(repaired.files) - len(changed)
    parts: list[RenderableType] = [styled(f"{one.file}: {_done(one)}", "") for one in changed]
    if copies:
        parts.append(
            styled(f"{counted(copies, 'file')} copied as {'it is' if copies == 1 else 'they are'}", DIM)
        )
    parts += [styled(f"not copied: {file}: {why}", BAD) for file, why in repaired.left_out.items()]
    left = _left(repaired.after.symbols)
    parts += [styled(f"not repaired: {symbol}: {finding.text}", BAD) for symbol, finding in left]
    parts.append(lines(f"{repaired.out}:", _verdict(repaired.after)))
    return lines(*parts)


def _done(one: RepairedFile) -> str:
    done = [f"sorted {counted(one.rows, 'row')}"] if one.is_sorted else []
    if one.duplicates:
        done.append(f"dropped {counted(one.duplicates, 'bar')} that it had twice")
    if one.refused:
        done.append(f"dropped {counted(one.refused, 'bar')} that training refuses: holes now")
    return ", ".join(done)


def _left(symbols: Sequence[SymbolCheck]) -> list[tuple[str, Defect]]:
    return [
        (one.symbol, finding) for one in symbols for finding in one.findings if finding.training == REFUSED
    ]
