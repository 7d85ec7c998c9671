"""The job: every setting of a run, in one flat TOML file. Its keys, types, defaults and units stand here, and those of a model
or a target in their homes.

Standard library only: the launcher, the Lambdas, the node and the trainer all read jobs through this module.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, get_args, get_type_hints

from trainer import models, targets
from trainer.errors import UsageError, nearest
from trainer.settings import CHUNKS, ModelSettings, TargetSettings, check_limits, setting

AUTO = "auto"  # of `batch`, whose number is 0 then
CALENDARS = ("auto", "24x7", "sessions", "events")
STRATEGIES = ("auto", "lanes", "streams", "fused")
TUNE = ("auto", "never", "always")
SCHEDULES = ("constant", "cosine")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
MARKETS = ("on_demand", "spot")
MAX_JOB_NAME = 24  # a schedule's name ends at 64 characters: <project>-<run id>-<purpose>
_EXPECTED = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_DURATION_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True, kw_only=True)
class Job(targets.TargetKeys, models.ModelKeys):
    """What to train, on which data, on which machines, within which time and money. Every field is a key of the job file."""

    name: str = setting("mayfly", "Name of the job, in run ids: lower case letters, digits and dashes, 24 at most.")

    # what to train
    model: str = setting(models.DEFAULT, "Model: " + ", ".join(models.MODELS) + ".")
    target: str = setting("", "Target, what is forecast: " + ", ".join(targets.TARGETS) + "; empty: the model's default.")

    # on which data
    data: str = setting("", "Folder or file of candles, uploaded to the bucket's raw/; empty: what raw/ holds.")
    symbols: tuple[str, ...] = setting((), "Symbols to train; empty: every symbol found.")
    timeframe: str = setting("", "Timeframe, such as 1m or 1h; empty: the only one there is.")
    bars: int = setting(0, "Last bars of each symbol to use; 0: all.")
    calendar: str = setting("auto", "What counts as a hole: " + ", ".join(CALENDARS) + ".")
    validation_fraction: float = setting(0.15, "Share of the bars, after training, for early stopping.")
    test_fraction: float = setting(0.15, "Share of the bars, at the end, for the final score.")
    embargo: int = setting(0, "Bars left out between spans; never below the horizon.")
    folds: int = setting(
        1, "Models in time: each is tested on the bars after those of the one before, and trains on all older."
    )

    # how
    epochs: int = setting(15, "Passes over the training windows, at most.")
    batch: int = setting(
        256, "Windows in one optimizer step; 0 or auto: what the tuner finds fastest on the chip, which changes the model."
    )
    learning_rate: float = setting(1e-3, "AdamW's learning rate.")
    warmup_steps: int = setting(0, "Optimizer steps over which the learning rate rises from nothing.")
    schedule: str = setting(
        "constant", "Learning rate after the warm-up: " + ", ".join(SCHEDULES) + " (to zero at the last epoch's end)."
    )
    weight_decay: float = setting(1e-2, "AdamW's weight decay.")
    clip_norm: float = setting(1.0, "Gradient norm above which a step is scaled down.")
    ema: float = setting(
        0.0, "Decay a step of a moving average of the weights, which is validated and kept in their place; 0: none."
    )
    patience: int = setting(3, "Epochs without a better validation loss before a model stops.")
    strategy: str = setting(
        "auto", "How a worker trains its models: " + ", ".join(STRATEGIES) + ". It changes the speed, not the model."
    )
    pack: int = setting(0, "Models that one worker trains together; 0: one on a CPU, eight on a GPU.")
    micro_batch: int = setting(0, "Windows in one slice of a batch, for speed and memory; 0: by device.")
    tune: str = setting(
        "auto",
        "Whether a trial of 12 s finds the fastest way before a training of a shape that is new here: auto (before an "
        "estimated run of ten minutes or more), never, or always.",
    )
    precision: str = setting(
        "auto", "Numbers of matrix products: " + ", ".join(PRECISIONS) + "; auto goes by the chip, fp32 on a CPU."
    )
    activation_checkpointing: bool = setting(False, "Compute activations again in the backward pass: less memory, more time.")
    gpu_profile: str = setting("", "Profile of the GPU, as `mayfly profiles` lists them; empty: by the GPU that is there.")
    trace_steps: int = setting(0, "Steps that each worker records with torch's profiler, to OUT/trace; 0: none.")
    checkpoint_seconds: int = setting(60, "Seconds of training between checkpoints of a model; 0: none.")
    stage_gib: float = setting(
        1.0, "GiB of host memory in which a worker may prepare the next symbol while it trains; 0: it does not."
    )
    seed: int = setting(0, "Seed of weights, batch order and dropout.")
    seeds: int = setting(1, "Models of each symbol and fold: with this seed, the next, and so on.")
    retries: int = setting(1, "Times a model whose worker died is tried again.")

    # on which machines, within which time and money
    instance: tuple[str, ...] = setting((), "Instance types in order of preference.")
    market: str = setting("on_demand", "Market: " + " or ".join(MARKETS) + ".")
    budget: float = setting(0.0, "Dollars the run may cost at most; 0: no budget.")
    max_duration: str = setting("", "Longest run, such as 90m or 6h; empty: three times the plan, 30m to 12h.")
    nodes: int = setting(1, "Instances of the run.")

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def model_settings(self) -> ModelSettings:
        """Return the settings of the job's model."""
        return _settings(models.MODELS[self.model], self)

    @cached_property
    def target_settings(self) -> TargetSettings:
        """Return the settings of the job's target."""
        return _settings(targets.TARGETS[self.target_name], self)

    @property
    def target_name(self) -> str:
        """Return the name of the target: the job's, else the model's default."""
        return self.target or targets.DEFAULT_OF.get(self.model, targets.DEFAULT)

    @property
    def bars_seen(self) -> int:
        """Return how many bars one output depends on."""
        return self.model_settings.bars_seen

    @property
    def unit(self) -> str:
        """Return what a step takes and a rate counts: windows or chunks."""
        return self.model_settings.reads

    def max_duration_or(self, default: timedelta) -> timedelta:
        """Return the job's `max_duration`, or `default` where it names none."""
        return parse_duration(self.max_duration) if self.max_duration else default

    def to_dict(self) -> dict[str, Any]:
        """Return the job as JSON values, in the order of `job_keys`."""
        values = {key: getattr(self, key) for key, _, _ in job_keys()}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _settings(home: Any, job: Job) -> Any:
    """Return a home's settings from the job's keys; a key that the flat job does not know has its default."""
    return home(**{item.name: getattr(job, item.name) for item in fields(home) if hasattr(job, item.name)})


def parse_duration(text: str) -> timedelta:
    """Parse '90m', '1h30m', '2d'. Raises UsageError for anything else, zero included."""
    parts = _DURATION.findall(text.strip().lower())
    if not parts or _DURATION.sub("", text.strip().lower()).strip():
        raise UsageError(f"'{text}' is not a duration", do="Write it as 45s, 90m, 6h or 1h30m.")
    total = timedelta(**{_DURATION_UNITS[unit]: 0 for _, unit in parts})
    for number, unit in parts:
        total += timedelta(**{_DURATION_UNITS[unit]: float(number)})
    if total <= timedelta(0):
        raise UsageError(f"'{text}' is no time at all", do="Give a duration above zero.")
    return total


def load_job(path: Path) -> dict[str, Any]:
    """Read a job file into settings. Raises UsageError when it is missing, is not TOML, or holds a table."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"job file {path} does not exist", do="See examples/crypto-lstm.toml for one.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise UsageError(f"job file {path} is not TOML", why=str(error), do="See examples/crypto-lstm.toml for one.") from error
    for key, value in values.items():
        if isinstance(value, dict):
            raise UsageError(f"job file {path} has a table [{key}]", why="a job is flat", do="Write its keys at the top level.")
    return values


def job_from(*sources: dict[str, Any]) -> Job:
    """Build a job from dictionaries of settings, later ones winning. Raises UsageError for an unknown key."""
    merged: dict[str, Any] = {}
    for source in sources:
        merged.update(source)
    known = get_type_hints(Job)
    for key in merged:
        if key not in known:
            raise UsageError(f"unknown job key '{key}'", do=nearest(key, known) or "examples/crypto-lstm.toml shows every key.")
    return Job(**{key: _typed(key, value, known[key]) for key, value in merged.items()})


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Read `--set key=value` arguments; values are TOML, and a bare word is text."""
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set '{assignment}' has no value", do="Write --set key=value, such as --set hidden=128.")
        settings[key.strip()] = _toml_value(text.strip())
    return settings


def job_keys() -> list[tuple[str, Any, str]]:
    """Return (key, default, help) of every job key, in order: what names the job, the keys of homes, the rest."""
    first = ("name", "model", "target")
    ordered = sorted(fields(Job), key=lambda item: first.index(item.name) if item.name in first else len(first))
    return [(item.name, item.default, item.metadata["help"]) for item in ordered]


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _typed(key: str, value: Any, hint: Any) -> Any:
    """Turn a TOML value into the field's type, or say what was expected."""
    if (key, value) == ("batch", AUTO):
        return 0
    if get_args(hint):  # tuple[str, ...]
        items = value.split(",") if isinstance(value, str) else value
        if isinstance(items, (list, tuple)) and all(isinstance(item, str) for item in items):
            return tuple(item.strip() for item in items if item.strip())
    elif hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif hint is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    elif type(value) is hint:
        return value
    expected = "a list of texts" if get_args(hint) else _EXPECTED[hint]
    raise UsageError(f"job key '{key}' is {value!r}", why=f"it takes {expected}", do=f"Set {key} to {expected}.")


def check(job: Job) -> None:
    """Raise UsageError for the first setting that makes no sense."""

    def require(condition: bool, key: str, expected: str) -> None:
        if not condition:
            raise UsageError(
                f"job key '{key}' is {getattr(job, key)!r}", why=f"it must be {expected}", do=f"Set {key} to {expected}."
            )

    require(
        re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", job.name) is not None and len(job.name) <= MAX_JOB_NAME,
        "name",
        f"at most {MAX_JOB_NAME} lower case letters, digits and dashes",
    )
    choices_of = {
        "model": models.MODELS,
        "target": ("", *targets.TARGETS),
        "calendar": CALENDARS,
        "schedule": SCHEDULES,
        "strategy": STRATEGIES,
        "tune": TUNE,
        "precision": PRECISIONS,
        "market": MARKETS,
    }
    for key, choices in choices_of.items():
        require(getattr(job, key) in choices, key, "one of " + ", ".join(filter(None, choices)))
    for item in fields(job):
        check_limits(item.name, getattr(job, item.name), item.metadata["limits"])
    for key in ("epochs", "patience", "nodes", "folds", "seeds"):
        require(getattr(job, key) >= 1, key, "1 or more")
    for key in (
        "batch",
        "bars",
        "embargo",
        "retries",
        "pack",
        "micro_batch",
        "trace_steps",
        "checkpoint_seconds",
        "stage_gib",
        "warmup_steps",
        "seed",
        "weight_decay",
        "budget",
    ):
        require(0 <= getattr(job, key) < float("inf"), key, "0 or more")
    for key in ("learning_rate", "clip_norm"):
        require(0 < getattr(job, key) < float("inf"), key, "above 0")
    require(0 <= job.ema < 1, "ema", "0 or more and below 1")
    for key in ("validation_fraction", "test_fraction"):
        require(0 < getattr(job, key) < 1, key, "between 0 and 1")
    require(
        job.validation_fraction + job.folds * job.test_fraction < 0.9,
        "test_fraction",
        "small enough to leave a tenth of the bars for training, whatever the folds take (each tests so many)",
    )
    require(job.nodes == 1, "nodes", "1 (several instances a run come with a later version)")
    if job.max_duration:
        parse_duration(job.max_duration)
    if job.unit == CHUNKS and job.batch == 0:
        key = job.model_settings.batch_key
        why = f"what a step of {job.model} takes is {key} chunks"
        raise UsageError("batch = auto is for models that read windows", why=why, do=f"Set {key}, and leave batch out.")


def job_from_json(text: str) -> Job:
    """Read a job as `json.dumps(job.to_dict())` wrote it."""
    return job_from(json.loads(text))


def with_settings(job: Job, **settings: Any) -> Job:
    """Return the job with some settings changed, checked again."""
    return replace(job, **settings)
