"""The rule by which a challenger replaces the champion, from both models' losses on the same cells of time.

A challenger is promoted if it is better than its baselines by the rule of `marks.py`, and better than the
champion: a smaller deciding score by more than the margin, beyond chance, and no other proper score worse at
5 %. Ties, doubts and too few cells keep the champion.

Chance: `GateRule.level` is the rate of false promotions over `GateRule.challenges` decisions about one
champion, of which each gets an equal part (Bonferroni). So the rate holds for each decision, over any year of
Sundays, and however much the test spans of neighbouring Sundays overlap. `benchmarks/gate.py` measures it.
Both marks correct for the trials of a search, as in a receipt: the challenger is the best of `tried`.
Pure, standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainer.targets.described import TRIED
from trainer.targets.inference import FEWEST_CELLS
from trainer.targets.losses import Losses
from trainer.targets.marks import Judgement, judge
from trainer.targets.target import LOWER, TargetSettings

CHAMPION = "champion"


@dataclass(frozen=True, kw_only=True)
class GateRule:
    """Requirements of a promotion."""

    level: float = 0.05  # rate of false promotions over `challenges` decisions about one champion
    margin: float = 0.0  # gain over the champion that is not enough, in the unit of the deciding score
    least_cells: int = 60  # two months of days: fewer are one season
    challenges: int = 52  # a year of Sundays

    def __post_init__(self) -> None:
        if not 0 < self.level < 1 or self.challenges < 1 or self.margin < 0:
            raise ValueError(
                f"{self} is not valid: a rule has a level between 0 and 1, a challenge, a margin of 0 or more"
            )
        if self.least_cells < FEWEST_CELLS:
            raise ValueError(f"a decision takes {FEWEST_CELLS} cells or more, not {self.least_cells}")

    @property
    def alpha(self) -> float:
        """Return the level of a single decision."""
        return self.level / self.challenges


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision about a challenger: its reason is a sentence, its numbers are JSON values."""

    promote: bool
    reason: str
    numbers: Mapping[str, Any]


def decide(
    target: TargetSettings,
    rule: GateRule,
    *,
    challenger: Losses,
    champion: Losses | None,
    challenge: int,
    tried: int = 1,
) -> Decision:
    """Decide on a challenger. `challenge` counts the decisions about this champion, from 1; it is recorded.
    `tried`: trials of its search, by the job.

    Raises ValueError for a challenge below 1.
    """
    if challenge < 1:
        raise ValueError(f"challenge {challenge} is none: they count from 1")
    lower = {metric.name: metric.better == LOWER for metric in target.metrics}
    scores = {name: lower[name] for name in target.proper}
    if champion is not None:
        challenger, champion = challenger.shared(champion)
    over_baselines = _judged(target, challenger, challenger.gains(scores), tried=tried)
    over_champion = None
    if champion is not None:
        gains = {CHAMPION: challenger.beside(champion, scores)}
        over_champion = _beyond(rule.margin, target, challenger, gains, tried=tried)
    rivals = {CHAMPION: over_champion} if champion is not None else {}
    objection = _too_few(rule, len(challenger.begins)) or next(
        filter(None, (_objection(target, rule, one) for one in (*rivals.values(), over_baselines))), ""
    )
    reason = objection or _shown(target, over_champion or over_baselines)
    numbers = {
        "score": target.proper[0],
        "challenge": challenge,
        "level": rule.level,
        "challenges": rule.challenges,
        "tried": tried,
        "alpha": rule.alpha,
        "margin": rule.margin,
        "cells": len(challenger.begins),
        "least_cells": rule.least_cells,
        "baselines": over_baselines and asdict(over_baselines),
        "champion": over_champion and asdict(over_champion),
    }
    return Decision(promote=not objection, reason=reason, numbers=numbers)


def _judged(
    target: TargetSettings, losses: Losses, gains: Mapping[str, Any], *, tried: int
) -> Judgement | None:
    about = {"proper": target.about()["proper"], TRIED: tried}
    (found,) = judge([{"about": about, "test": {"cells": len(losses.begins), "better": gains}}])
    return found


def _beyond(
    margin: float,
    target: TargetSettings,
    losses: Losses,
    gains: Mapping[str, Mapping[str, Any]],
    *,
    tried: int,
) -> Judgement | None:
    """Return the judgement of gains less the margin, with the gain and its interval as they are."""
    decides = target.proper[0]
    net = {
        name: {**its, decides: its[decides] and {**its[decides], "gain": its[decides]["gain"] - margin}}
        for name, its in gains.items()
    }
    found = _judged(target, losses, net, tried=tried)
    if found is None or found.gain is None or found.low is None or found.high is None:
        return found
    return replace(found, gain=found.gain + margin, low=found.low + margin, high=found.high + margin)


def _too_few(rule: GateRule, cells: int) -> str:
    return "" if cells >= rule.least_cells else f"{cells} cells, and a decision takes {rule.least_cells}"


def _objection(target: TargetSettings, rule: GateRule, found: Judgement | None) -> str:
    """Return why a judgement is not enough to promote; '' if it is."""
    if found is None or found.p is None:
        return "a gain that decides is not known"
    if found.mark != "better":
        return f"{found.mark}: {_shown(target, found)}"
    if found.p > rule.alpha:
        takes = f"one of {rule.challenges} decisions takes p = {rule.alpha:.2g}"
        return f"not beyond chance: {_shown(target, found)}, p = {found.p:.2g}, and {takes}"
    return ""


def _shown(target: TargetSettings, found: Judgement | None) -> str:
    """Return the gain of a judgement as text."""
    if found is None or found.gain is None:
        return "no gain is known"
    title = next(metric.title for metric in target.metrics if metric.name == target.proper[0])
    interval = f"[{found.low:+.4g}, {found.high:+.4g}]"
    return f"{title} gains {found.gain:+.4g} {interval} over {found.baseline}, {found.cells:,} cells"
