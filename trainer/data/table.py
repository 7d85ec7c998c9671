"""The `[data]` table of a job: which candles, and how they are split. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from trainer.base.errors import DataError, UsageError, nearest
from trainer.base.settings import bad_value, check_limits, setting
from trainer.base.symbols import RULE, flaw, quoted, tidy
from trainer.base.text import counted
from trainer.data.columns import Told, told_index, told_of
from trainer.data.feature_names import (
    FEATURES,
    SET,
    SETS,
    in_order,
    lookback_of,
    named,
    set_features,
    usual_features,
    warmup_of_features,
)
from trainer.data.feature_table import TABLE
from trainer.data.own_features import OwnFeatures, own_item
from trainer.data.side_names import reads_index, split_sides
from trainer.data.timeframes import DAY, step_of

CALENDARS = ("auto", "24x7", "sessions", "events")
# Exchanges that exchange_calendars 4.13 knows, by market identifier code. Left out are CME's futures, whose
# daily hour without trading it does not know, and Athens, Belgrade, Bucharest and Cyprus, which fail with
# pandas 3.1 (2026-11-22).
EXCHANGES = (
    *("AIXK", "ARCX", "BATS", "BVMF", "IEPA", "XAMS", "XASE", "XASX", "XBDA", "XBKK", "XBOG", "XBOM"),
    *("XBRA", "XBRU", "XBUD", "XBUE", "XCBF", "XCSE", "XDUB", "XDUS", "XEEE", "XETR", "XEUR", "XFRA"),
    *("XHAM", "XHEL", "XHKG", "XICE", "XIDX", "XIST", "XJSE", "XKAR", "XKLS", "XKRX", "XLIM", "XLIS"),
    *("XLIT", "XLJU", "XLON", "XLUX", "XMAD", "XMEX", "XMIL", "XMOS", "XNAS", "XNYS", "XNZE", "XOSL"),
    *("XPAR", "XPHS", "XPRA", "XRIS", "XSAU", "XSES", "XSGO", "XSHG", "XSTO", "XSTU", "XSWX", "XTAE"),
    *("XTAI", "XTAL", "XTKS", "XTSE", "XWAR", "XWBO", "XZAG"),
)
STALE = ("train", "skip")
WALK, K_FOLD = "walk", "kfold"  # of data.split
FETCH = "fetch"  # of data.refresh
MOST_SECRETS = 20
POOLED, BY_SERIES, RANK = "pooled", "series", "rank"  # scalers of a panel
PRESENT = "present"  # first input of a panel's model: 1 if the series has the bar, 0 if it is missing
AUTO, ALL, NONE = "auto", "all", "none"  # of data.features
SUFFIXES = (".parquet", ".pq", ".feather", ".arrow", ".csv", ".csv.gz", ".txt")  # of candle files
_SET = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
# A variable that changes no program's start.
_SECRET = re.compile(r"(?!PATH$|HOME$|LD_|PYTHON|MAYFLY_)[A-Z][A-Z0-9_]{0,63}")


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The candles to train on, and the spans of training, validation and test."""

    path: str = setting(
        "", "Folder or file of candles, uploaded to the data set; empty: what the data set holds."
    )
    folder: str = setting("", "Folder, or s3:// prefix, of any files for a script; empty: none.")
    symbols: tuple[str, ...] = setting((), "Symbols to train; empty: all.")
    set: str = setting("main", "Data set: a folder of raw/ in the bucket.")
    exclude: tuple[str, ...] = setting((), "Symbols to leave out.")
    timeframe: str = setting(
        "", "Timeframe, such as 1m or 1h; empty: that of the data, if there is only one."
    )
    bars: int = setting(0, "Last bars of each symbol to use; 0: all.", least=0, most=1_000_000_000)
    refresh: str = setting(
        "",
        "Before each scheduled run: fetch adds new bars from the source that the set's files name, or your"
        " Python file adds files.",
    )
    secrets: tuple[str, ...] = setting(
        (), "Names of the stack's secrets that the refresh file gets, as variables."
    )
    stale: str = setting(
        "train", "After a refresh that failed: " + " or ".join(STALE) + " the scheduled run.", choices=STALE
    )
    pooled: bool = setting(False, "Train one model on all symbols together instead of one per symbol.")
    panel: bool = setting(
        False, "Train one model on all symbols as a panel: on one calendar, missing days masked."
    )
    scaler: str = setting(
        POOLED,
        "Scaler of a panel's features: pooled (one over all series), series (each its own), rank (among the"
        " series of a date).",
        choices=(POOLED, BY_SERIES, RANK),
    )
    columns: tuple[str, ...] = setting(
        (),
        "Further numeric columns of the candle files that the model reads; NAME lag 1d: the side series"
        " NAME.side.csv; log_return_60 of BTC-USD: a feature of another symbol, or of the index of all;"
        " close=NAME, time=NAME:ms and the like tell which column is a part of the bar, and its unit.",
    )
    features: tuple[str, ...] = setting(
        (AUTO,),
        "Features computed from the bars, besides the columns: auto (of version 1.0, those that look back 64"
        " days at most), all (of version 1.0), none, set:NAME, names, names at longer bars (rsi_14@1h),"
        " and your own (my_features.py:slope).",
    )
    calendar: str = setting(
        "auto", "Calendar that defines holes: " + ", ".join(CALENDARS) + ", or an exchange such as XNYS."
    )
    validation_fraction: float = setting(
        0.15, "Share of the bars, right after those of training, for early stopping.", above=0, below=1
    )
    test_fraction: float = setting(
        0.15, "Share of the bars, the last ones, for the final score.", above=0, below=1
    )
    validation_days: int = setting(
        0,
        "Days (UTC) of validation, right before those of test, instead of data.validation_fraction; 0: by"
        " share.",
        least=0,
        most=100_000,
    )
    test_days: int = setting(
        0,
        "Last days (UTC) of the bars, for the final score, instead of data.test_fraction; 0: by share.",
        least=0,
        most=100_000,
    )
    embargo: int = setting(0, "Bars left out between spans; at least the horizon.", least=0, most=10_000_000)
    folds: int = setting(
        1,
        "Folds: each has its own model, tested on the bars after the previous test span; data.split says what"
        " it trains on.",
        least=1,
        most=1_000,
    )
    split: str = setting(
        WALK,
        "How folds are split: walk (each trains on all older bars) or kfold (tests cover all bars, and each"
        " trains on both sides, purged).",
        choices=(WALK, K_FOLD),
    )

    own: OwnFeatures | None = None  # the user's file among `features`, its hash and measurements

    def __post_init__(self) -> None:
        check_limits("data", self)
        self._take_own_features()
        for key in ("symbols", "exclude"):
            object.__setattr__(self, key, tuple(map(tidy, getattr(self, key))))
        self._check_timeframe()
        if not _SET.fullmatch(self.set):
            raise bad_value("data.set", self.set, "a name of a-z, 0-9, _ and -, at most 40 characters")
        self._check_refresh()
        for key in ("symbols", "exclude"):
            for symbol in getattr(self, key):
                if why := flaw(symbol):
                    raise UsageError(
                        f"job key 'data.{key}' has {quoted(symbol)}", why=why, do=f"The rule: {RULE}."
                    )
        if self.symbols and not self.chosen(()):
            why = "data.exclude names every symbol of data.symbols"
            raise UsageError("no symbol is left to train", why=why, do="Leave one out of data.exclude.")
        self._check_panel()
        if self.calendar not in (*CALENDARS, *EXCHANGES):
            known = f"{', '.join(CALENDARS)}, and exchanges by their market identifier codes"
            do = nearest(self.calendar, (*CALENDARS, *EXCHANGES)) or "Set data.calendar = auto."
            raise UsageError(f"job key 'data.calendar' is {self.calendar!r}", why=f"there are {known}", do=do)
        self._check_sides()
        self._check_features()
        if len(set(self.columns)) < len(self.columns) or {*self.columns} & {*FEATURES, *self.computed}:
            raise bad_value("data.columns", list(self.columns), "names that differ, none of them a feature's")
        if self.features == (NONE,) and not self.further:
            do = "Name columns, such as data.columns = funding_rate, or leave data.features out."
            raise UsageError(
                "data.features = none leaves the model nothing to read", why="data.columns is empty", do=do
            )
        if (self.validation_days > 0) != (self.test_days > 0):
            expected = "more than 0 where data.test_days is, else 0"
            raise bad_value("data.validation_days", self.validation_days, expected)
        if self.split == K_FOLD:
            self._check_k_fold()
        elif not self.test_days and self.validation_fraction + self.folds * self.test_fraction >= 0.9:
            taken = self.validation_fraction + self.folds * self.test_fraction
            tests = counted(self.folds, "test")
            why = f"validation and {tests} take {taken:.0%} of the bars; it must be below 90%"
            do = "Lower data.test_fraction, data.validation_fraction or data.folds."
            raise UsageError(f"job key 'data.test_fraction' is {self.test_fraction}", why=why, do=do)

    def _check_k_fold(self) -> None:
        """Raise UsageError for settings that k folds can't have."""
        if self.folds < 2:
            raise bad_value("data.folds", self.folds, "2 or more with data.split = kfold")
        if self.test_days:
            why, do = (
                "the tests of k folds cover all bars",
                "Leave data.test_days and data.validation_days out.",
            )
            raise UsageError("data.test_days with data.split = kfold", why=why, do=do)
        if self.validation_fraction + 1 / self.folds >= 0.9:
            taken = self.validation_fraction + 1 / self.folds
            what = f"job key 'data.validation_fraction' is {self.validation_fraction}"
            why = f"validation and a fold's test take {taken:.0%} of the bars; it must be below 90%"
            raise UsageError(what, why=why, do="Lower it, or raise data.folds.")

    def chosen(self, known: Iterable[str]) -> tuple[str, ...]:
        """Return the symbols to train: those that the job names, else those that are known, without the
        excluded ones.
        """
        return tuple(symbol for symbol in self.symbols or sorted(known) if symbol not in self.exclude)

    @property
    def test_key(self) -> str:
        """Return the key of the length of test, for messages."""
        if self.split == K_FOLD:
            return "the share of a test, 1 / data.folds"
        return "data.test_days" if self.test_days else "data.test_fraction"

    def shares_of(self, bars: int) -> tuple[float, float]:
        """Return the shares of validation and test of so many bars; of days as if no bar were missing, and of
        days of event bars, which have no number a day, the shares without days.
        """
        if self.split == K_FOLD:
            return self.validation_fraction, 1 / self.folds
        step = step_of(self.timeframe or "1m")
        if not self.test_days or not step:
            return self.validation_fraction, self.test_fraction
        a_day = max(1.0, DAY / step)
        whole = max(1, bars)
        return min(1.0, self.validation_days * a_day / whole), min(1.0, self.test_days * a_day / whole)

    def tests_kept_from(self, fold: int) -> int:
        """Return how many test spans a fold, from 1 on, does not train on: its own, and of a walk those of
        the later folds.
        """
        return 1 if self.split == K_FOLD else 1 + self.folds - fold

    @property
    def told(self) -> Told:
        """Return what the columns tell about the parts of a bar."""
        return told_of(self.columns)[0]

    @property
    def further(self) -> tuple[str, ...]:
        """Return the columns that a model reads besides the bar: those of the candles, then side series."""
        inside, sides = split_sides(told_of(self.columns)[1])
        return (*inside, *(side.entry for side in sides))

    def columns_with(self, members: Iterable[str]) -> tuple[str, ...]:
        """Return the columns with the symbols of the index, if one reads it and the job names none."""
        asks = reads_index(split_sides(self.further)[1]) and not self.told.index
        return (*self.columns, told_index(members)) if asks and members else self.columns

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of a model's inputs per bar, in order: for a panel `present`; features;
        columns.
        """
        return (*((PRESENT,) if self.panel else ()), *self.computed, *self.further)

    @property
    def computed(self) -> tuple[str, ...]:
        """Return the names of the computed features, in order. Sets and `auto` depend on the timeframe."""
        return (*_expanded(self.features, self.timeframe), *(self.own.names if self.own else ()))

    @property
    def warmup(self) -> int:
        """Return how many bars the features look back: the number of unusable rows at the head of a
        series.
        """
        ours = warmup_of_features(self.computed, self.timeframe or "1m")
        return max(ours, self.own.lookback if self.own else 0)

    def _check_timeframe(self) -> None:
        """Raise UsageError for a bad timeframe, before a command starts anything."""
        try:
            step_of(self.timeframe or "1m")
        except DataError as error:
            raise UsageError(error.what, why=error.why, do=error.do) from error

    def _check_panel(self) -> None:
        if self.panel and self.pooled:
            why = "both make one model of all symbols, a panel on one calendar"
            raise UsageError("data.panel and data.pooled", why=why, do="Leave one of them out.")
        if self.panel and len(self.symbols) == 1:
            why = f"data.symbols is {self.symbols[0]}"
            raise UsageError(
                "a panel of one symbol", why=why, do="Name more symbols, or leave data.panel out."
            )
        if self.scaler != POOLED and not self.panel:
            why = "other models scale each series by its own bars"
            raise UsageError(
                f"data.scaler = {self.scaler} without a panel",
                why=why,
                do="Set data.panel = true, or leave it out.",
            )
        if PRESENT in self.columns and self.panel:
            raise UsageError(
                f"job key 'data.columns' has '{PRESENT}'",
                why="a panel's model reads presence by that name",
                do="Rename it.",
            )

    def _check_refresh(self) -> None:
        is_file = self.refresh.endswith(".py") and self.refresh.isprintable()
        if self.refresh and not is_file and self.refresh != FETCH:
            raise bad_value("data.refresh", self.refresh, f"a Python file, or {FETCH}")
        if self.secrets and self.refresh == FETCH:
            why = "it asks public sources, without a key"
            raise UsageError("data.secrets with data.refresh = fetch", why=why, do="Leave data.secrets out.")
        if self.secrets and not self.refresh:
            raise UsageError(
                "data.secrets without data.refresh", do="Set data.refresh, too: the file that gets them."
            )
        if not all(map(_SECRET.fullmatch, self.secrets)) or len(set(self.secrets)) < len(self.secrets) > 0:
            expected = (
                "names of variables that differ, such as API_KEY, none of PATH, HOME, LD_*, PYTHON*, MAYFLY_*"
            )
            raise bad_value("data.secrets", list(self.secrets), expected)
        if len(self.secrets) > MOST_SECRETS:
            raise bad_value("data.secrets", list(self.secrets), f"{MOST_SECRETS} names at most")

    def _take_own_features(self) -> None:
        """Take the user's features out of `features`: there they keep their file's name without its folder.
        Raises UsageError for several files.
        """
        items = {item: pair for item in self.features if (pair := own_item(item))}
        files = sorted({file for file, _ in items.values()})
        if len(files) > 1:
            do = "Put your functions into one file."
            raise UsageError(f"data.features names {', '.join(files)}", why="one file is sent", do=do)
        if not items:
            object.__setattr__(self, "own", None)
            return
        own, names = self.own, tuple(name for _, name in items.values())
        if own is None or own.names != names or files[0] not in (own.base_name, own.file):
            own = OwnFeatures.of_names(files[0], names)
        chosen = (f"{own.base_name}:{items[item][1]}" if item in items else item for item in self.features)
        object.__setattr__(self, "own", own)
        object.__setattr__(self, "features", tuple(chosen))

    def _check_sides(self) -> None:
        """Raise UsageError for side series that can't be, before a command starts anything."""
        try:
            for side in split_sides(told_of(self.columns)[1])[1]:
                side.lookback(self.timeframe or "1m")
        except DataError as error:
            raise UsageError(error.what, why=error.why, do=error.do) from error

    def _check_features(self) -> None:
        own = self.own.names if self.own else ()
        if taken := [name for name in own if named(name) or name in (AUTO, ALL, NONE, PRESENT)]:
            why, do = "a feature of Mayfly's has it, too", "Give your function another name."
            raise UsageError(f"your feature has the name {taken[0]}", why=why, do=do)
        for name in self.features:
            if own_item(name):
                continue
            if name in (AUTO, ALL, NONE) or named(name) or name.removeprefix(SET) in SETS and SET in name:
                continue
            if split_sides((name,))[1]:
                why, do = "it is a column beside the bars", "Add it to data.columns."
                raise UsageError(f"job key 'data.features' has {quoted(name)}", why=why, do=do)
            known = (*TABLE, *(f"{SET}{one}" for one in SETS))
            do = nearest(name, known) or "Set data.features = auto."
            why = "features are auto, all, none, sets, or names that docs/reference.md lists"
            raise UsageError(f"job key 'data.features' has {quoted(name)}", why=why, do=do)
        several = len(self.features) > 1 and NONE in self.features
        if not self.features or several or len(set(self.features)) < len(self.features):
            expected = "auto, all, none alone, sets such as set:broad, or names that differ"
            raise bad_value("data.features", list(self.features), expected)
        try:
            for name in self.features:
                lookback_of(name, self.timeframe or "1m")
        except DataError as error:
            raise UsageError(error.what, why=error.why, do=error.do) from error


@lru_cache(maxsize=64)
def _expanded(features: tuple[str, ...], timeframe: str) -> tuple[str, ...]:
    """Return the names of features, in order, for the values of data.features."""
    names: list[str] = []
    for name in features:
        if own_item(name):
            continue
        if name.startswith(SET):
            names += set_features(name.removeprefix(SET), timeframe)
        else:
            names += {AUTO: usual_features(timeframe), ALL: FEATURES, NONE: ()}.get(name, (name,))
    return in_order(names)
