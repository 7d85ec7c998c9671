"""Models as tables: those of a receipt, with what they are good for, and those of a bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from trainer.aws.objects import Stored
from trainer.base.text import some_of
from trainer.cli.output import bars_are, duration, money
from trainer.cli.views.table import BAD, GOOD, Cell, FittedTable, lines, styled
from trainer.cli.views.trading import TradedTable, equity_lines, named_metrics, reliability_lines
from trainer.machines.storage import S3_USD_PER_GB_MONTH
from trainer.store.comparison import ComparedRow, Side
from trainer.store.decisions import BY_HAND, GateDecision
from trainer.store.differences import Difference
from trainer.store.listing import Model
from trainer.store.production import RETRAINS, production_name
from trainer.store.pruning import Pruning, StoredModel
from trainer.store.verification import Verified
from trainer.targets.described import (
    beside_headline,
    cells,
    decided,
    gain,
    headline_title,
    refit_until,
    sample,
    tested,
    titles,
)
from trainer.targets.marks import MEANINGS, judged

MARKS = {
    "better": ("✓", GOOD),
    "too little to tell": ("?", "yellow"),
    "no different": ("=", ""),
    "worse": ("↓", BAD),
}
SCORE, BASELINE, GAIN, SAMPLE = "test score", "baseline", "gain [95 %]", "bars (cells)"
REFIT_UNTIL = "refit until"
DIFFERENCE, WORTH = "difference [95 %]", "worth using"
REFITTED = "scores of the held-out twins; the models themselves were trained again on all bars"
MOST_VALUE = 60  # characters of a value in a table of differences
MOST_TRADED, MOST_RELIABILITY = 30, 4  # models
BESIDE = {  # the marks of a comparison
    "better": "better than the reference beyond chance, among the rows of its run",
    "too little to tell": "ahead, and chance is not excluded",
    "no different": "the reference is as good, as far as the test span tells",
    "worse": "the reference is better beyond chance",
}


def prune_table(pruning: Pruning) -> FittedTable:
    """Return the table of models to delete, a row for each run and folder."""
    rows: dict[str, list[StoredModel]] = {}
    for model in pruning.chosen:
        kept = model.key.startswith(RETRAINS)
        rows.setdefault(f"{model.run_id}{' (kept by its retrain)' if kept else ''}", []).append(model)
    return FittedTable(
        [
            {
                "run": run,
                "models": f"{len(models):,}",
                "MB": f"{sum(model.bytes for model in models) / 1e6:,.1f}",
                "made (UTC)": f"{max(model.modified_at for model in models):%Y-%m-%d}",
                "names": some_of([model.name for model in models], 3),
            }
            for run, models in rows.items()
        ],
        right=("models", "MB"),
        leaving=("names",),
    )


def prune_lines(pruning: Pruning, *, deleted: Sequence[StoredModel] | None) -> Iterator[str]:
    """Yield what a pruning deletes, or what it has `deleted`, and what it keeps."""
    chosen = pruning.chosen if deleted is None else deleted
    count, size = len(chosen), sum(model.bytes for model in chosen)
    what = f"{count:,} model{'s' * (count != 1)}, {size / 1e9:.2f} GB"
    month = f"${size / 1e9 * S3_USD_PER_GB_MONTH:,.2f}"
    if not pruning.chosen:
        yield "nothing to delete"
    elif deleted is not None:
        yield f"deleted: {what}"
        if since := len(pruning.chosen) - count:
            yield f"keeps {since:,} that {'is' if since == 1 else 'are'} needed by now"
    else:
        yield f"would delete {what} ({month} a month); --delete does"
    for why, number in sorted(pruning.kept.items(), key=lambda one: -one[1]):
        yield f"keeps {number:,} {why}"


def judged_table(models: Sequence[Mapping[str, Any]]) -> FittedTable:
    """Return the table of a receipt's models: the deciding score beside a baseline's, then the others."""
    metrics = models[0].get("metrics") or {}  # a run trains one target
    decides, others = headline_title(metrics), beside_headline(metrics)
    noun = "symbol" if all(model["series"] == [model["piece"]] for model in models) else "piece"
    rows = [
        _judged_row(model, noun, decides, [titles(metrics)[place] for place in others], others)
        for model in models
    ]
    rest = [titles(metrics)[place] for place in reversed(others)]
    # The gain stays longest, hashes leave first.
    leaving = ("sha256", "version", "model", *rest, SAMPLE, BASELINE)
    return FittedTable(rows, right=(decides, GAIN, SAMPLE, *rest), leaving=leaving)


def legend(models: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what the signs and brackets of a table of judged models mean."""
    marks = {model["judgement"]["mark"] for model in models if model["judgement"]}
    yield from (f"{MARKS[mark][0]} {meaning}" for mark, meaning in MEANINGS.items() if mark in marks)
    if not marks:
        return
    dates, lengths = (
        {tested(model.get("metrics") or {})[part] for model in models} - {""} for part in (0, 1)
    )
    span = f"test {dates.pop()}: " if len(dates) == 1 else ""
    cell = f" of {lengths.pop()}" if len(lengths) == 1 else ""
    yield f"{span}gain over the baseline beside it, with its 95 % interval over separate cells{cell}"
    if untils := sorted({until for model in models if (until := refit_until(model.get("metrics") or {}))}):
        yield f"{REFITTED}, until {untils[-1]}"


def _judged_row(
    model: Mapping[str, Any], noun: str, decides: str, names: Sequence[str], places: Sequence[int]
) -> dict[str, Cell]:
    metrics, judgement = model.get("metrics") or {}, model["judgement"]
    values = cells(metrics)
    score, baseline = decided(metrics, judgement)
    return {
        "": sign(judgement),
        noun: str(model["piece"]),
        decides: score,
        BASELINE: baseline,
        GAIN: gain(judgement),
        SAMPLE: sample(metrics, judgement),
        **{
            name: values[place] if len(values) == len(titles(metrics)) and place < len(values) else "-"
            for name, place in zip(names, places, strict=True)
        },
        "model": "-".join(filter(None, (str(model["family"]), str(model.get("target") or "")))),
        "version": str(model["version_id"])[:8],
        "sha256": str(model["sha256"])[:12],
    }


def sign(judgement: Mapping[str, Any] | None) -> Text:
    """Return the sign of a judgement; '' without one."""
    return styled(*MARKS[judgement["mark"]]) if judgement else styled("", "")


def comparison_view(
    sides: Sequence[Side], title: str, rows: Sequence[ComparedRow], *, trials: float
) -> RenderableType:
    """Return a comparison: what each side cost, each further side beside the first, by symbol, and what
    trading on each model made. One side alone has its equity and the reliability of its probabilities
    instead.
    """
    costs = FittedTable(map(_side, sides), right=("models", WORTH, "spent", "time"))
    traded = TradedTable(named_metrics(sides), trials=trials)
    trades: list[RenderableType] = []
    if traded:
        trades = ["", traded.table(MOST_TRADED), *(styled(line, "dim") for line in traded.legend())]
    if not rows:
        shown = sides[0].cards[:MOST_RELIABILITY]
        return lines(costs, *trades, *equity_lines(shown), *reliability_lines(shown))
    beside = FittedTable(
        [_compared(row, title) for row in rows], right=(title, "reference", DIFFERENCE, SAMPLE)
    )
    legend = [
        f"{sign} {meaning}"
        for mark, (sign, _) in MARKS.items()
        if (meaning := BESIDE[mark]) and _has(rows, mark)
    ]
    first = f"the reference is {sides[0].name}; a difference above zero is better, with its 95 % interval"
    return lines(costs, "", beside, *(styled(line, "dim") for line in (*legend, first)), *trades)


def _has(rows: Sequence[ComparedRow], mark: str) -> bool:
    return any(row.judgement.mark == mark for row in rows)


def _side(side: Side) -> dict[str, Cell]:
    made = judged([{"metrics": card.metrics} for card in side.cards])
    known = [one for one in made if one["judgement"]]
    return {
        "run or model": side.name,
        "models": str(len(side.cards)),
        WORTH: str(sum(one["judgement"]["mark"] == "better" for one in known)) if known else "-",
        "spent": money(side.dollars) if side.dollars is not None else "-",
        "time": duration(side.seconds) if side.seconds is not None else "-",
    }


def _compared(row: ComparedRow, title: str) -> dict[str, Cell]:
    judgement = asdict(row.judgement)
    return {
        "": sign(judgement),
        "run or model": row.side,
        "symbol": row.symbol,
        title: f"{row.score:.4f}",
        "reference": f"{row.reference:.4f}",
        DIFFERENCE: gain(judgement),
        SAMPLE: f"{row.bars:,} ({row.judgement.cells:,})",
    }


def models_table(models: Iterable[Model], days: int) -> FittedTable:
    """Return the table of a bucket's models. `days`: of an experiment's life."""
    listed = list(models)
    rows = [_row(model, days) for model in listed]
    if not any(refit_until(model.metrics) for model in listed):
        rows = [{name: cell for name, cell in row.items() if name != REFIT_UNTIL} for row in rows]
    dates = ("expires", "created (UTC)")
    leaving = (
        REFIT_UNTIL,
        "sha256",
        "version",
        "stage",
        *dates,
        "bars",
        "run",
        SAMPLE,
        BASELINE,
        GAIN,
        SCORE,
    )
    return FittedTable(rows, right=(GAIN, SAMPLE), leaving=leaving)


def _row(model: Model, days: int) -> dict[str, Cell]:
    score, baseline = decided(model.metrics, model.judgement)
    title = headline_title(model.metrics)
    return {
        "": sign(model.judgement),
        "model": model.full_name if model.stage == "production" else model.name,
        "stage": model.stage,
        "run": model.run_id or "-",
        SCORE: f"{title} {score}" if title else "-",
        BASELINE: baseline,
        GAIN: gain(model.judgement),
        SAMPLE: sample(model.metrics, model.judgement),
        "bars": bars_are(model.synthetic),
        "created (UTC)": f"{model.created_at:%Y-%m-%d %H:%M}",
        REFIT_UNTIL: refit_until(model.metrics)[:10] or "-",
        "expires": str(model.expires(days) or "-"),
        "version": model.version_id[:8],
        "sha256": model.sha256[:12],
    }


def production_table(versions: Iterable[Stored]) -> FittedTable:
    """Return the table of versions of production models."""
    rows = [
        {
            "model": production_name(one.key),
            "version": one.version_id,
            "put (UTC)": f"{one.modified_at:%Y-%m-%d %H:%M}",
            "bytes": f"{one.size:,}",
        }
        for one in versions
    ]
    return FittedTable(rows, right=("bytes",), leaving=("bytes", "put (UTC)"))


def decision_view(decision: GateDecision) -> RenderableType:
    """Return the last decision about a production model: what it was, why, and who was scored."""
    if decision.gate == BY_HAND:
        at = f"{decision.decided_at:%Y-%m-%d %H:%M}"
        return lines("", f"  {decision.name}: {decision.reason} on {at} UTC")
    outcome = "promoted" if decision.promote else "kept"
    sign, style = ("✓", GOOD) if decision.promote else ("=", "")
    challenge = f", challenge {decision.challenge} of its champion" if decision.champion else ""
    return lines(
        "",
        styled(
            f"{sign} {decision.name}: {outcome} on {decision.decided_at:%Y-%m-%d %H:%M} UTC{challenge}", style
        ),
        f"  {decision.reason}",
        styled(
            f"  of run {decision.run_id}, scored by {decision.score_run_id} (gate {decision.gate})", "dim"
        ),
    )


def differences_view(found: Sequence[Difference], first: str, second: str) -> RenderableType:
    """Return the table of what differs between two models."""
    rows = [
        {"": one.about, "key": one.key, first: _brief(one.first), second: _brief(one.second)} for one in found
    ]
    return lines(
        FittedTable(rows), styled("  by their cards, which the nodes that trained them wrote", "dim")
    )


def _brief(value: Any) -> str:
    text = "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= MOST_VALUE else f"{text[: MOST_VALUE - 3]}..."


def verified_view(found: Sequence[Verified]) -> RenderableType:
    """Return the table of verified production models, and what does not agree about them."""
    rows: list[dict[str, Cell]] = [
        {
            "": styled("✗", BAD) if one.flaws else styled("✓", GOOD),
            "model": one.name,
            "in production": one.origin,
            "version": one.version_id,
            "sha256": one.sha256[:12],
        }
        for one in found
    ]
    flaws = [styled(f"{one.name}: {flaw}", BAD) for one in found for flaw in one.flaws]
    return lines(FittedTable(rows, leaving=("sha256", "in production")), *flaws)
