"""The `[search]` table of a job: keys with the values that trials try, and the trials of a grid, or of a
random search.

These are functions of the table alone: a plan, a node and a later attempt draw the same trials. What TPE
proposes is in `trainer.cluster.proposals`. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, product
from random import Random
from typing import Any, TypeVar

from trainer.base.errors import UsageError
from trainer.base.own_file import OwnFile
from trainer.base.settings import (
    MOST_JOB_NUMBER,
    bad_value,
    brief,
    check_limits,
    keys_of,
    read_keys,
    setting,
)
from trainer.job.machine import parse_duration
from trainer.job.script import Better, named_metric

J = TypeVar("J")  # a `Job`, whose module imports this one

METHODS = ("grid", "random", "tpe")
PRUNING = ("auto", "never", "halving")
DEFAULT_TRIALS, MOST_TRIALS = 20, 2_000  # of a study
MOST_KEYS, MOST_CHOICES = 8, 1_000
TABLES = ("model", "train")  # whose keys may be searched
# Keys of [train] that change neither rows nor windows, nor how many models there are.
OF_TRAIN = (
    *("batch", "learning_rate", "warmup_steps", "warmup_epochs", "steps_per_epoch", "schedule"),
    *("rate_scaling", "weight_decay", "clip_norm", "ema", "patience"),
)
# Keys that the models of a pack share: the others are rates, and limits, of each model by itself.
OF_A_PACK = ("train.batch", "train.ema")
DIGITS = 6  # of a drawn number
_FINITE = 1_000_000  # combinations of choices, above which random trials may repeat
_FORM = "a list of choices, or { low = 1e-4, high = 1e-2, log = true }"

Values = tuple[tuple[str, Any], ...]  # of a trial: keys with their tables, and values


@dataclass(frozen=True, kw_only=True)
class Range:
    """A range of numbers, whole ones if both ends are; with `log` uniform in their logarithm."""

    low: float
    high: float
    log: bool = False

    @property
    def is_whole(self) -> bool:
        """Return whether it has whole numbers only."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def at(self, share: float) -> float | int:
        """Return the number at a share of the range, 0 to below 1; of few digits, so that tables are read."""
        low, high = (self.low, self.high + 1) if self.is_whole else (self.low, self.high)
        value = low * (high / low) ** share if self.log else low + (high - low) * share
        return self.rounded(value)

    def rounded(self, value: float) -> float | int:
        """Return a number of the range as trials have it."""
        if self.is_whole:
            return min(max(math.floor(value), int(self.low)), int(self.high))
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


Choices = tuple[Any, ...]
Space = Mapping[str, Range | Choices]


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """The `[search]` table. A job searches if `over` is given."""

    over: Any = setting(
        "", "Keys of [model] and [train], or values of a script, each with " + _FORM + "; empty: no search."
    )
    method: str = setting(
        "random",
        "How trials are chosen: "
        + ", ".join(METHODS)
        + " (grid: every combination of the choices; tpe: by what the others scored, which needs the extra"
        " search).",
        choices=METHODS,
    )
    trials: int = setting(
        0,
        f"Trials of each model; 0: all of a grid, {DEFAULT_TRIALS} of another method.",
        least=0,
        most=MOST_TRIALS,
    )
    prune: str = setting(
        "auto",
        "Early end of trials that fall behind: "
        + ", ".join(PRUNING)
        + " (halving: after 1, 3, 9, ... epochs, or a script's scores, only the best third goes on; auto: of"
        " models, but not of a grid).",
        choices=PRUNING,
    )
    within: str = setting(
        "", "Time of an attempt after which no further trial begins, such as 90m; empty: no limit."
    )
    dollars: float = setting(
        0.0,
        "Dollars of an attempt's machines after which no further trial begins; 0: no limit.",
        least=0,
        most=10_000_000,
    )
    score: str = setting(
        "", "Of a script: the number of its events that decides, and the better end, such as loss:min."
    )
    seed: int = setting(0, "Seed of the trials that are drawn.", least=0, most=4_294_967_295)

    def __post_init__(self) -> None:
        check_limits("search", self)
        if self.within:
            parse_duration(self.within, "search.within")
        named_metric("search.score", self.score)
        if self.over in ("", None):
            return
        space = self.space
        if not 1 <= len(space) <= MOST_KEYS:
            raise UsageError(f"search.over has {len(space)} keys", do=f"Name 1 to {MOST_KEYS}.")
        if self.method == "grid":
            if ranges := [key for key, values in space.items() if isinstance(values, Range)]:
                why, do = "a grid has choices only", "List its values, or set search.method = random."
                raise UsageError(f"search.over has a range for {ranges[0]}", why=why, do=do)
            size = math.prod(len(values) for values in space.values() if not isinstance(values, Range))
            if size > MOST_TRIALS or (self.trials and self.trials != size):
                why = f"search.trials is {self.trials}" if self.trials else f"it may have {MOST_TRIALS:,}"
                do = "Set search.method = random, which tries some of them, or list fewer values."
                raise UsageError(f"the grid of search.over has {size:,} combinations", why=why, do=do)

    def __hash__(self) -> int:
        return hash((self.method, self.trials, self.seed, repr(self.over)))  # a table has none

    @property
    def space(self) -> Space:
        """Return the values of each key, named with its table. Raises UsageError."""
        if not isinstance(self.over, Mapping):
            do = f"Give each key {_FORM}."
            raise UsageError(f"job key 'search.over' is {brief(self.over)}", why="it must be a table", do=do)
        flat: dict[str, Any] = {}
        for key, values in self.over.items():  # TOML reads model.hidden as a table of a table
            if key in TABLES and isinstance(values, Mapping) and "low" not in values:
                flat |= {f"{key}.{name}": its for name, its in values.items()}
            else:
                flat[key] = values
        return {key: _values_of(key, values) for key, values in flat.items()}

    @property
    def prunes(self) -> bool:
        """Return whether trials that fall behind end early."""
        return self.prune == "halving" or (self.prune == "auto" and self.method != "grid" and not self.score)

    @property
    def asks_optuna(self) -> bool:
        """Return whether optuna proposes its trials, or ends some early."""
        return bool(self.over) and (self.prunes or not self.is_planned)

    @property
    def metrics(self) -> dict[str, Better]:
        """Return the number of a script's events that decides, and its better end; {} for models."""
        return named_metric("search.score", self.score)

    @property
    def better(self) -> Better:
        """Return the better end of scores: of models that of validation losses."""
        return next(iter(self.metrics.values()), "min")

    @property
    def is_planned(self) -> bool:
        """Return whether all trials are known before the first begins."""
        return self.method != "tpe"

    @property
    def within_seconds(self) -> float:
        """Return after how many seconds of an attempt no further trial begins; infinite without a limit."""
        return parse_duration(self.within).total_seconds() if self.within else math.inf

    @property
    def num_trials(self) -> int:
        """Return how many trials each study has at most."""
        most = self.trials or DEFAULT_TRIALS
        sizes = [_FINITE if isinstance(values, Range) else len(values) for values in self.space.values()]
        if self.method == "grid":
            return math.prod(sizes)
        return min(most, math.prod(sizes)) if self.is_planned else most

    @property
    def trial_values(self) -> list[Values]:
        """Return the values of every trial, in order; () for each that is not known before it begins."""
        space, count = self.space, self.num_trials
        if not self.is_planned:
            return [()] * count
        named = [tuple((key, value) for value in values) for key, values in space.items()
                 if not isinstance(values, Range)]  # fmt: skip
        if self.method == "grid":
            return [tuple(row) for row in islice(product(*named), count)]
        draws, sizes = Random(f"search {self.seed}"), [len(values) for values in named]
        if len(named) == len(space) and math.prod(sizes) <= _FINITE:
            places = draws.sample(range(math.prod(sizes)), count)
            return [tuple(_at(place, named)) for place in places]
        return [tuple(_drawn(space, draws)) for _ in range(count)]


def job_of(job: J, values: Values) -> J:
    """Return the job of a trial, or of the model that has its values; a script's values are no keys of it.
    Raises UsageError for values that make no sense, together or with the job.
    """
    if not values or getattr(job, "script").command:  # noqa: B009
        return job
    changed: dict[str, Any] = {}
    for table in TABLES:
        keys = {key.removeprefix(f"{table}."): value for key, value in values if key.startswith(f"{table}.")}
        part = getattr(job, table)
        if keys:
            changed[table] = replace(part, **read_keys(table, type(part), keys))
    changed["search"] = SearchSettings()
    made: J = replace(job, **changed)  # type: ignore[type-var]
    return made


def shape_of(values: Values) -> str:
    """Return a text that is equal for trials whose models can train in one pack: sizes, batch, average."""
    shared = [f"{key}={value}" for key, value in values if key.startswith("model.") or key in OF_A_PACK]
    return " ".join(shared) or "same"


def dearest(job: Any) -> Values:
    """Return the values of a job's search that take the most time and memory, each key by itself."""

    def cost(key: str, value: Any) -> tuple[float, float, float]:
        made = job_of(job, ((key, value),))
        return made.cost.flops or made.cost.weights, made.cost.weights, made.train.batch

    ends = {key: _ends(values) for key, values in job.search.space.items()}
    return tuple((key, max(its, key=lambda value: cost(key, value))) for key, its in ends.items())


def largest(job: J) -> J:
    """Return the job of the trial that takes the most time and memory; the job itself without a search."""
    search: SearchSettings = getattr(job, "search")  # noqa: B009
    return job_of(job, dearest(job)) if search.over else job


def check_search(job: Any) -> None:
    """Raise UsageError for a search over keys that trials of one job can't differ in, or with a value that
    makes no sense.
    """
    search = job.search
    if not search.over:
        if any(key.startswith("search.") and key != "search.over" for key in job.given):
            example = 'over = { "train.learning_rate" = [1e-3, 1e-2] }'
            do = f"Set search.over, such as {example}, or leave [search] out."
            raise UsageError("a [search] without over", why="there is nothing to search", do=do)
        return
    if job.script.command:  # `script_search`
        return
    if search.score:
        do = "Leave search.score out: the validation loss decides, of which the least is the best."
        raise UsageError("search.score without a script", why="Mayfly's models have their own", do=do)
    if job.train.distributed == "always" or (job.data.panel and job.train.distributed == "auto"):
        do = "Set train.distributed = never."
        raise UsageError("a search with a model on all devices", why="each trial trains on one", do=do)
    for key, values in search.space.items():
        _check_key(job, key)
        for value in values if not isinstance(values, Range) else _ends(values):
            _check_same_windows(job, key, value)
    for number, planned in enumerate(search.trial_values, 1):
        try:
            job_of(job, planned)
        except UsageError as error:
            named = ", ".join(f"{key} = {value}" for key, value in planned)
            raise UsageError(f"trial {number} ({named}): {error.what}", why=error.why, do=error.do) from error


def values_in(search: SearchSettings, texts: Mapping[str, str]) -> Values:
    """Return values of a trial by their texts, as reports have them. Raises UsageError for keys or values
    that the search does not have.
    """
    space = search.space
    if texts.keys() != space.keys():
        what = f"a trial has values of {', '.join(texts)[:120]}"
        raise UsageError(what, why="the search has others", do="Search again: start a new run.")
    return tuple((key, _value_in(key, space[key], texts[key])) for key in space)


def text_of(value: Any) -> str:
    """Return a value as a report has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_key(job: Any, key: str) -> None:
    table, _, name = key.partition(".")
    has_start, is_own = (
        bool(job.train.init or getattr(job.model, "encoder", "")),
        isinstance(job.model, OwnFile),
    )
    model = [one for one in keys_of(job.model) if not one.startswith("encoder")]
    mine = [] if has_start or is_own else model
    known = [*(f"model.{one}" for one in mine), *(f"train.{one}" for one in OF_TRAIN)]
    if key in known:
        return
    do, why = f"Search over {', '.join(known)}.", "trials of a model differ in its sizes and rates alone"
    if table not in TABLES:
        why = "a search takes keys of [model] and [train]"
    elif table == "model" and is_own:
        why = "your own model is tried with one set of its keys before the run"
    elif has_start and name in model and table == "model":
        why = "all trials start from one model, with its settings"
    elif table == "model" and name not in keys_of(job.model):
        why = f"{job.model.name} has no such key"
    raise UsageError(f"search.over has {key[:80]}", why=why, do=do)


def _check_same_windows(job: Any, key: str, value: Any) -> None:
    try:
        made = job_of(job, ((key, value),))
    except UsageError as error:
        raise UsageError(f"search.over: {error.what}", why=error.why, do=error.do) from error
    if (made.model.bars_seen, made.model.bars_out) != (job.model.bars_seen, job.model.bars_out):
        why = f"with {value} an output sees {made.model.bars_seen} bars, with the job's {job.model.bars_seen}"
        if made.model.bars_out != job.model.bars_out:
            why = f"with {value} it reads other chunks"
        do = "Leave it out: trials share rows and windows. Launch a job for each value."
        raise UsageError(f"search.over has {key}", why=why, do=do)


def _values_of(key: str, given: Any) -> Range | Choices:
    """Return a key's range or choices. Raises UsageError."""
    what, do = f"search.over has {key} = {brief(given)}", f"Give {_FORM}."
    if isinstance(given, Mapping):
        log, numbers = given.get("log", False), list[Any]((given.get("low"), given.get("high")))
        known = [one for one in numbers if type(one) in (int, float) and abs(one) <= MOST_JOB_NUMBER]
        if set(given) - {"low", "high", "log"} or len(known) < 2 or not isinstance(log, bool):
            why = "a range has low, high and log, with numbers of at most 18 digits"
            raise UsageError(what, why=why, do=do)
        if not known[0] < known[1] or (log and known[0] <= 0):
            raise UsageError(what, why="low must be below high, and above 0 with log", do=do)
        return Range(low=known[0], high=known[1], log=log)
    if not isinstance(given, (list, tuple)) or not 1 <= len(given) <= MOST_CHOICES:
        raise UsageError(what, why=f"a key has a range, or 1 to {MOST_CHOICES:,} choices", do=do)
    if not all(isinstance(value, (str, int, float)) for value in given):
        raise UsageError(what, why="a choice is a number, a text, or true or false", do=do)
    if len({text_of(value) for value in given}) < len(given):
        raise UsageError(what, why="it has a choice twice", do="Leave one of them out.")
    return tuple(given)


def _value_in(key: str, values: Range | Choices, text: str) -> Any:
    if not isinstance(values, Range):
        named = {text_of(value): value for value in values}
        if text in named:
            return named[text]
    else:
        try:
            number = int(text) if values.is_whole else float(text)
        except ValueError:
            number = math.nan
        if values.low <= number <= values.high:
            return number
    raise bad_value(key, text, "a value of search.over")


def _ends(values: Range | Choices) -> Choices:
    return (values.low, values.high) if isinstance(values, Range) else values


def _at(place: int, named: list[tuple[tuple[str, Any], ...]]) -> Iterator[tuple[str, Any]]:
    """Yield the place-th combination of choices."""
    for choices in named:
        place, number = divmod(place, len(choices))
        yield choices[number]


def _drawn(space: Space, draws: Random) -> Iterator[tuple[str, Any]]:
    for key, values in space.items():
        yield key, values.at(draws.random()) if isinstance(values, Range) else draws.choice(values)
