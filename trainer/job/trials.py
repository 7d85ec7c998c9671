"""Ends of a search's trials: read from events, ranked, and summed up for a model's card.

Standard library only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.base.errors import UsageError
from trainer.base.strict_json import Fields, Unsound
from trainer.job.model_names import ENDS
from trainer.job.search import MOST_KEYS, SearchSettings, Values, text_of, values_in

MOST_EPOCHS = 100_000
MOST_TOLD = 200  # trials that a card lists, the best first


@dataclass(frozen=True, kw_only=True)
class TrialEnd:
    """The end of a trial. `score`: its least validation loss, or a script's best; None if it has none.
    `epochs`: of a script, how often it told its score.
    """

    trial: int
    values: Values
    end: str  # of ENDS
    score: float | None = None
    epochs: int = 0

    @property
    def rank(self) -> tuple[bool, float, int]:
        """Return its place among the trials of a study: whole ones first, the least loss, the first."""
        loss = math.inf if self.score is None else self.score
        return loss == math.inf or self.end != "done", loss, self.trial

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values, those of the trial as texts."""
        values = {key: text_of(value) for key, value in self.values}
        parts = {"trial": self.trial, "values": values, "end": self.end}
        return {**parts, "score": self.score, "epochs": self.epochs}


def read_end(fields: Fields, search: SearchSettings) -> TrialEnd:
    """Return the end of a trial as `to_dict` has it. Raises Unsound, also for values that are not of the
    search; one that was left out may have none.
    """
    named, end = fields.table("values", most=MOST_KEYS).entries(), fields.choice("end", ENDS)
    try:
        texts = {name: item.text() for name, item in named.items()}
        values = values_in(search, texts) if texts or end != "left_out" else ()
    except UsageError as error:
        raise Unsound(f"{fields.name}: {error}") from error
    return TrialEnd(
        trial=fields.whole("trial", least=1),
        values=values,
        end=end,
        score=fields.number("score"),
        epochs=fields.whole("epochs", most=MOST_EPOCHS),
    )


def told_of(trials: Sequence[TrialEnd]) -> dict[str, Any]:
    """Return a card's summary of a study from its trials, the best first; {} without any."""
    if not trials:
        return {}
    counts = Counter(one.end for one in trials)
    return {
        "values": trials[0].to_dict()["values"],
        "score": trials[0].score,
        "tried": len(trials) - counts["left_out"],
        **{end: counts[end] for end in ENDS},
        "trials": [one.to_dict() for one in trials[:MOST_TOLD]],
    }
