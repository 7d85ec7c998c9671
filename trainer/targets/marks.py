"""The one rule for whether a model is worth using: for receipts, lists, messages, comparisons and promotion.

A model is *better* if its target's deciding score beats every baseline's beyond chance, with the error rate
held over all models of its run and the trials of their searches, and none of the target's proper scores is
worse than a baseline's at 5 %. The scores are those of `TargetSettings.proper`, of which the truth has the
best value on average; the first decides. Pure, standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal, get_args

from trainer.base.strict_json import Unsound, Value
from trainer.base.text import some_of
from trainer.targets.described import tried_for
from trainer.targets.inference import FEWEST_CELLS, CellMean, t_quantile

LEVEL = 0.05  # of false discoveries among a run's models, and of a single doubt
POWER = 0.8  # with which `needed` cells would show the gain
MOST_NEEDED = 100_000
MOST_NAMED = 5  # models of a verdict
MOST_FREEDOM = 100_000
MOST_GAIN = 1e15  # and of its error: a receipt takes the ends of their interval

Mark = Literal["better", "too little to tell", "no different", "worse"]
MARKS: tuple[Mark, ...] = get_args(Mark)  # in the order of a table
MEANINGS: dict[Mark, str] = {
    "better": "beats every baseline on the test span beyond chance, among all models of its run",
    "too little to tell": "chance is not excluded; the cells in brackets are of how many it would take",
    "no different": "a baseline is as good, as far as the test span tells",
    "worse": "a baseline is better beyond chance",
}


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A model's mark, and its gain in the deciding score over the baseline that is the hardest to beat."""

    mark: Mark
    baseline: str
    gain: float | None  # positive is better; None with too few cells for an estimate
    low: float | None
    high: float | None
    p: float | None  # of no gain over that baseline
    cells: int
    needed: int | None  # cells that would show the gain four times in five; None if none would, or it shows


@dataclass(frozen=True, kw_only=True)
class _Gains:
    """A model's gains over each baseline, by score, as its metrics tell them."""

    cells: int
    by_baseline: Mapping[str, Mapping[str, CellMean]]
    decides: str

    @property
    def hardest(self) -> str:
        """Return the baseline over which a gain is the least certain; '' without an estimate."""
        known = {name: its[self.decides].p_positive for name, its in self.by_baseline.items()}
        return max(known, key=lambda name: known[name], default="")

    @property
    def p_better(self) -> float:
        """Return the chance of such a gain, or loss, if a baseline is as good. Two-sided, so that no mark
        contradicts the interval beside it.
        """
        return min(
            1.0, 2 * max((its[self.decides].p_positive for its in self.by_baseline.values()), default=1.0)
        )

    @property
    def p_worse(self) -> float:
        """Return the chance of the surest loss in the deciding score if no baseline is better; two-sided."""
        all_p = [its[self.decides].p_negative for its in self.by_baseline.values()]
        return min(1.0, 2 * min(all_p) * len(all_p)) if all_p else 1.0

    @property
    def is_doubted(self) -> bool:
        """Return whether any proper score is worse than a baseline's at 5 %, without a correction."""
        return any(one.p_negative < LEVEL for its in self.by_baseline.values() for one in its.values())


def judge(metrics: Sequence[Mapping[str, Any]]) -> list[Judgement | None]:
    """Return the judgement of each model of a run by its metrics; None for one without proper scores."""
    gains = [_gains(one) for one in metrics]
    counted = [one for one in gains if one is not None]
    tried = sum(tried_for(its) for its, one in zip(metrics, gains, strict=True) if one is not None)
    better = _discoveries([one.p_better for one in counted], tried=tried)
    worse = _discoveries([one.p_worse for one in counted], tried=tried)
    made = iter(
        [_judgement(one, better=up, worse=down) for one, up, down in zip(counted, better, worse, strict=True)]
    )
    return [None if one is None else next(made) for one in gains]


def judged(models: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a run's models, each with its judgement as JSON values; null for one without proper scores."""
    made = judge([model.get("metrics") or {} for model in models])
    return [{**model, "judgement": one and asdict(one)} for model, one in zip(models, made, strict=True)]


def gain_values(gain: CellMean) -> dict[str, Any]:
    """Return a gain as the metrics of a model have it."""
    low, high = gain.interval()
    return {"gain": gain.value, "error": gain.error, "freedom": gain.freedom, "low": low, "high": high}


def in_order(models: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return models that were judged, the best mark first, then the surest gain, then by piece."""

    def place(model: Mapping[str, Any]) -> tuple[int, float, str]:
        judgement = model["judgement"]
        if judgement is None:
            return len(MARKS), 0.0, str(model["piece"])
        p = judgement["p"]
        return MARKS.index(judgement["mark"]), 1.0 if p is None else p, str(model["piece"])

    return sorted(models, key=place)


def verdict(models: Sequence[Mapping[str, Any]]) -> str:
    """Return what a run's judged models are good for, in a sentence; '' if none has a judgement."""
    known = [model for model in models if model["judgement"] is not None]
    if not known:
        return ""
    by_mark = {mark: [one for one in known if one["judgement"]["mark"] == mark] for mark in MARKS}
    good = [str(model["piece"]) for model in in_order(by_mark["better"])]
    named = f" ({some_of(good, MOST_NAMED)})" if good else ""
    first = f"{len(good) or 'none'} of {len(known)} {'is' if len(good) < 2 else 'are'} worth using{named}"
    rest = [_counted(mark, by_mark[mark]) for mark in MARKS[1:] if by_mark[mark]]
    return ", ".join([first, *rest]) + ("" if good else "; nothing to put to use")


def _counted(mark: Mark, models: Sequence[Mapping[str, Any]]) -> str:
    if mark != "no different":
        return f"{len(models)} {mark}"
    baselines = {model["judgement"]["baseline"] for model in models}
    return f"{len(models)} no different from {baselines.pop() if len(baselines) == 1 else 'a baseline'}"


def _judgement(gains: _Gains, *, better: bool, worse: bool) -> Judgement:
    hardest = gains.hardest
    if not hardest:
        return Judgement(
            mark="too little to tell", baseline="", gain=None, low=None, high=None, p=None,
            cells=gains.cells, needed=FEWEST_CELLS,
        )  # fmt: skip
    found = gains.by_baseline[hardest][gains.decides]
    mark = _mark(gains, found, better=better, worse=worse)
    low, high = found.interval()
    return Judgement(
        mark=mark, baseline=hardest, gain=found.value, low=low, high=high, p=gains.p_better,
        cells=gains.cells, needed=_needed(found, gains.cells) if mark == "too little to tell" else None,
    )  # fmt: skip


def _mark(gains: _Gains, found: CellMean, *, better: bool, worse: bool) -> Mark:
    if worse:
        return "worse"
    if better and not gains.is_doubted:
        return "better"
    return "too little to tell" if found.value > 0 and not gains.is_doubted else "no different"


def _needed(found: CellMean, cells: int) -> int | None:
    """Return how many cells would show a gain of this size against this spread, with a chance of 80 %."""
    wanted = t_quantile(1 - LEVEL / 2, found.freedom) + NormalDist().inv_cdf(POWER)
    if found.t * MOST_NEEDED < wanted:  # no gain, or so little that its square is no number
        return None
    needed = math.ceil(cells * (wanted / found.t) ** 2)
    return max(cells + 1, needed) if needed <= MOST_NEEDED else None


def _discoveries(values: Sequence[float], *, tried: int) -> list[bool]:
    """Return which p values are discoveries at 5 % among so many `tried` (Benjamini and Hochberg 1995). Those
    of trials that were not scored are not known and count as 1.
    """
    ranked = sorted(values)
    limit = max((p for rank, p in enumerate(ranked, 1) if p <= LEVEL * rank / tried), default=-1.0)
    return [p <= limit for p in values]


def _gains(metrics: Mapping[str, Any]) -> _Gains | None:
    """Return a model's gains as its metrics tell them; None if they don't, or in another form."""
    about, test = metrics.get("about") or {}, metrics.get("test") or {}
    proper, told, cells = about.get("proper"), test.get("better"), test.get("cells")
    if not isinstance(proper, (list, tuple)) or not proper or not isinstance(told, Mapping):
        return None
    if not isinstance(cells, int) or not told:
        return None
    read = {
        str(name): {str(score): _estimate(its.get(score)) for score in proper}
        if isinstance(its, Mapping)
        else {}
        for name, its in told.items()
    }
    whole = {
        name: {score: one for score, one in its.items() if one is not None} for name, its in read.items()
    }
    if any(len(its) < len(proper) for its in whole.values()):
        whole = {}  # a gain that is not known excludes nothing
    return _Gains(cells=cells, by_baseline=whole, decides=str(proper[0]))


def _estimate(told: Any) -> CellMean | None:
    """Return an estimate as metrics tell it; None if it is null or none of ours."""
    try:
        gain = Value(told, "the gain").fields()
        value = gain.value("gain").number(least=-MOST_GAIN, most=MOST_GAIN)
        error = gain.value("error").number(least=0, most=MOST_GAIN)
        return CellMean(value=value, error=error, freedom=gain.whole("freedom", least=1, most=MOST_FREEDOM))
    except Unsound:
        return None
