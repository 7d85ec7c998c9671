"""The instants at which the spans of a fold begin, for one series or several. Numpy, no torch.

With `data.validation_days` and `data.test_days` they are midnights (UTC): the test span has the last days, to
the end of the day of the last bar, and validation those before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.base.errors import DataError
from trainer.data.read.candles import time_text
from trainer.data.splits import Span, Spans
from trainer.data.table import DataSettings
from trainer.data.timeframes import DAY


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The instants of one fold, in ns UTC: begin of validation and test, and end of the test (None: the last
    bar).
    """

    validation: int
    test: int
    stop: int | None = None

    @property
    def words(self) -> str:
        """Return when its spans begin, for messages."""
        return f"validation begins at {time_text(self.validation)}, test at {time_text(self.test)}"

    def spans(self, instants: np.ndarray, *, embargo: int, first: int = 0) -> Spans:
        """Return the spans of a series, or of a panel's dates, with these times, from number `first` on; the
        embargo, in bars or dates, is taken from the older span.
        """
        validation, test = (int(row) for row in np.searchsorted(instants, [self.validation, self.test]))
        stop = len(instants) if self.stop is None else int(np.searchsorted(instants, self.stop))
        return Spans(
            train=Span(start=first, stop=max(first, validation - embargo)),
            validation=Span(start=validation, stop=max(validation, test - embargo)),
            test=Span(start=test, stop=stop),
        )


@dataclass(frozen=True, kw_only=True)
class KFoldCut(Cut):
    """The instants of one of k folds: training goes on after the test. `resumes`: the end of a validation
    that follows the test, since there is too little before it; None: validation ends where test begins.
    """

    resumes: int | None = None

    @property
    def words(self) -> str:
        if self.resumes is None:
            return super().words
        return f"test begins at {time_text(self.test)}, validation follows it until {time_text(self.resumes)}"

    def spans(self, instants: np.ndarray, *, embargo: int, first: int = 0) -> Spans:
        """Return the spans as `Cut` does. What follows the test is not purged yet: `splits.purged`."""
        usual = super().spans(instants, embargo=embargo, first=first)
        begin, end, validation = usual.validation.start, usual.test.stop, usual.validation
        if self.resumes is not None:
            begin = usual.test.start
            opened = min(end + embargo, len(instants))
            end = max(opened, int(np.searchsorted(instants, self.resumes)))
            validation = Span(start=opened, stop=end)
        stop, after = max(min(first, begin), begin - embargo), min(end + embargo, len(instants))
        return Spans(
            train=Span(start=min(first, stop), stop=stop),
            validation=validation,
            test=usual.test,
            after=Span(start=after, stop=len(instants)) if after < len(instants) else Span(start=0, stop=0),
        )


def recent_cuts(first: int, last: int, data: DataSettings) -> tuple[Cut, ...]:
    """Return the instants of each fold, oldest first, by days before the end of the last bar's day; `first`
    and `last` are the usable bars' begins in ns. Raises DataError if nothing is left to train on.
    """
    end = (last // DAY + 1) * DAY
    cuts = []
    for later in reversed(range(data.folds)):
        stop = end - later * data.test_days * DAY
        test = stop - data.test_days * DAY
        validation = test - data.validation_days * DAY
        cuts.append(Cut(validation=validation, test=test, stop=stop if later else None))
    if cuts[0].validation <= first:
        raise DataError(
            f"nothing is left to train on before {time_text(cuts[0].validation)}",
            why=f"validation begins then, and the bars, after the warm-up, at {time_text(first)}",
            do="Give more bars, or lower data.validation_days, data.test_days or data.folds.",
        )
    return tuple(cuts)
