"""The picture of `mayfly data check --html`: one file with bars, holes and defects of each symbol over time.

It loads nothing, and has no script (`base.html`). Bars are drawn by `BUCKETS` of equal time, so that a page
stays small.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainer.base.files import whole_file
from trainer.base.html import document, text
from trainer.base.text import counted
from trainer.data.check.findings import HOLE, NOTED, REFUSED, Defect, SymbolCheck
from trainer.data.check.folder import FolderCheck
from trainer.data.read.candles import Candles, time_text

BUCKETS = 300  # of time, for each symbol
HEIGHT, VOLUME = 100, 28  # of the prices and the volumes, in units of the picture
_WIDTH = 1000
_KINDS = {REFUSED: "bad", NOTED: "odd", HOLE: "hole"}
_STYLE = (Path(__file__).with_name("page.css")).read_text(encoding="utf-8")


@dataclass(kw_only=True)
class Page:
    """Draws symbols while a folder is checked, then writes the page."""

    _sections: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, one: SymbolCheck) -> None:
        """Draw a symbol, whose bars are in memory."""
        self._sections[one.symbol, one.timeframe] = _section(one)

    def write(self, path: Path, made: FolderCheck) -> None:
        """Write the page: symbols that training refuses, others with findings, then those without."""
        with whole_file(path) as partial:
            partial.write_text(self._document(made), encoding="utf-8")

    def _document(self, made: FolderCheck) -> str:
        def drawn(symbols: list[SymbolCheck]) -> str:
            return "\n".join(self._sections[one.symbol, one.timeframe] for one in symbols)

        refused = [one for one in made.symbols if one.is_refused]
        found = [one for one in made.symbols if one.findings and not one.is_refused]
        clean = [one for one in made.symbols if not one.findings]
        words = f"{counted(len(clean), 'symbol')} without a finding"
        rest = f"<details><summary>{words}</summary>{drawn(clean)}</details>"
        title = f"Candles of {made.path}"
        parts = [
            f"<h1>{text(title)}</h1>",
            _summary(made, len(refused), len(found)),
            drawn(refused),
            drawn(found),
        ]
        return document(title, style=_STYLE, body="\n".join([*parts, rest if clean else ""]))


def _summary(made: FolderCheck, refused: int, found: int) -> str:
    bars = sum(one.bars for one in made.symbols)
    facts = [
        (counted(len(made.symbols), "symbol"), counted(bars, "bar"), ""),
        (f"{refused:,} refused", "training leaves them out", "bad" if refused else ""),
        (f"{found:,} with findings", "training reads them", "odd" if found else ""),
    ]
    if made.unreadable:
        facts.append((counted(len(made.unreadable), "file"), "can't be read", "bad"))
    boxes = "".join(f'<li class="{kind}"><b>{text(one)}</b> {text(other)}</li>' for one, other, kind in facts)
    errors = "".join(f'<li class="bad">{text(str(error))}</li>' for error in made.unreadable)
    notes = "".join(f"<li>{text(note)}</li>" for note in made.notes)
    return f'<ul class="facts">{boxes}</ul><ul class="notes">{errors}{notes}</ul>'


def _section(one: SymbolCheck) -> str:
    kind, word = ("bad", "refused") if one.is_refused else ("", "trained on")
    calendar = f", calendar {one.calendar}" if one.calendar else ""
    head = (
        f'<h2>{text(one.symbol)} <span class="mark {kind}">{word}</span></h2>'
        f"<p>{counted(one.bars, 'bar')} of {text(one.timeframe)}{text(calendar)}{_range(one.candles)}</p>"
    )
    if one.candles is None:
        lanes = "".join(
            f'<li class="{_KINDS.get(one.training, "")}">{_label(one)}</li>' for one in one.findings
        )
        return f'<section>{head}<ul class="lanes">{lanes}</ul></section>'
    first, last = int(one.candles.timestamp[0]), int(one.candles.timestamp[-1])
    lanes = "".join(_lane(finding, one, first, last) for finding in one.findings)
    return f'<section>{head}{_chart(one.candles, first, last)}<ul class="lanes">{lanes}</ul></section>'


def _chart(candles: Candles, first: int, last: int) -> str:
    """Return prices, from low to high on a logarithmic scale, above volumes, over time."""
    buckets = _places(candles.timestamp, first, last, BUCKETS)
    begins = np.flatnonzero(np.diff(buckets, prepend=-1))
    width = _WIDTH / BUCKETS
    x = (buckets[begins] + 0.5) * width
    low = np.log(np.minimum.reduceat(candles.low, begins))
    high = np.log(np.maximum.reduceat(candles.high, begins))
    bottom, top = float(low.min()), float(high.max())
    scale = (HEIGHT - 2) / (top - bottom or 1.0)
    upper, lower = HEIGHT - 1 - (high - bottom) * scale, HEIGHT - 1 - (low - bottom) * scale
    volume = np.add.reduceat(candles.volume, begins)
    tall = volume / (volume.max() or 1.0) * VOLUME
    bars = _lines(x, np.minimum(upper, lower - 0.8), lower)
    floor = np.full(len(x), HEIGHT + VOLUME + 4.0)
    volumes = _lines(x, floor - tall, floor)
    middle = first + (last - first) // 2
    days = "".join(f"<span>{time_text(moment)[:10]}</span>" for moment in (first, middle, last))
    return (
        f'<div class="chart"><svg viewBox="0 0 {_WIDTH} {HEIGHT + VOLUME + 4}"'
        ' preserveAspectRatio="none" role="img"'
        f' aria-label="Prices and volumes of {text(candles.symbol)}">'
        f'<path class="bars" d="{bars}"/><path class="volume" d="{volumes}"/></svg>'
        f'<div class="days">{days}</div></div>'
    )


def _lane(finding: Defect, one: SymbolCheck, first: int, last: int) -> str:
    """Return a finding with its bars over time; holes as long as they are."""
    kind = _KINDS.get(finding.training, "")
    strip = ""
    if finding.training == HOLE:
        edges = np.stack([_places(one.hole_times[:, side], first, last, _WIDTH) for side in (0, 1)], axis=1)
        edges = np.unique(edges, axis=0)
        spans = "".join(f"M{start} 5H{stop}" for start, stop in edges.tolist() if stop > start)
        strip = f'<path class="span" d="{spans}"/>{_ticks(edges[:, 0])}'
    elif finding.count:
        inside = finding.times[(finding.times >= first) & (finding.times <= last)]
        strip = _ticks(_places(inside, first, last, _WIDTH))
    svg = f'<svg viewBox="0 0 {_WIDTH} 10" preserveAspectRatio="none" aria-hidden="true">{strip}</svg>'
    return f'<li class="{kind}">{_label(finding)}{svg if strip else ""}</li>'


def _label(finding: Defect) -> str:
    count = f"<b>{finding.count:,}</b> " if finding.count else ""
    detail = f' <span class="detail">({text(finding.detail)})</span>' if finding.detail else ""
    outcome = finding.training if finding.training != NOTED else "noted, and trained on"
    fix = f"; --fix {finding.fix}" if finding.fix else ""
    return f'{count}{text(finding.text)}{detail} <span class="outcome">{text(outcome + fix)}</span>'


def _places(times: np.ndarray, first: int, last: int, buckets: int) -> np.ndarray:
    """Return the bucket (N,) int64 of each time, of so many from `first` to `last`."""
    share = (times - first).astype(np.float64) / max(1, last - first)
    return np.clip((share * buckets).astype(np.int64), 0, buckets - 1)


def _lines(x: np.ndarray, upper: np.ndarray, lower: np.ndarray) -> str:
    rows = zip(x.tolist(), upper.tolist(), lower.tolist(), strict=True)
    return "".join(f"M{place:.1f} {high:.1f}V{low:.1f}" for place, high, low in rows)


def _ticks(places: np.ndarray) -> str:
    marks = "".join(f"M{place} 0V10" for place in np.unique(places).tolist())
    return f'<path class="tick" d="{marks}"/>'


def _range(candles: Candles | None) -> str:
    if candles is None:
        return ""
    return f", prices {_price(float(candles.low.min()))} to {_price(float(candles.high.max()))}"


def _price(price: float) -> str:
    return f"{price:,.2f}" if price >= 1 else f"{price:.4g}"
