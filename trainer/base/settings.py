"""Declare, read and check the keys of a job's tables; base class of the settings of models.

Standard library only: the control plane reads and prices a job by these. A home is described in
docs/models.md.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from functools import cache
from operator import ge, gt, le, lt
from typing import Any, ClassVar, Self, get_args, get_type_hints

from trainer.base.errors import UsageError

MOST_JOB_NUMBER = 10**18  # of any number of a job, whatever limits its key has
WINDOWS, CHUNKS = "windows", "chunks"  # a model's reads: with one output, or with one for each bar
FLOAT, HALF = 4, 2  # bytes of a number
RECURRENT, CONVOLUTION, ATTENTION, UNKNOWN = "recurrent", "convolution", "attention", "unknown"  # kernels
# Columns of a bar's context, with their largest number; 0 is unknown, or not meaningful for the timeframe. A
# series' number is its place in its piece, from 1 on, and has no limit; the others are of the bar's start,
# UTC (trainer/data/context.py).
CONTEXT = {"series": 0, "weekday": 7, "month": 12, "time_of_day": 96}
CONTEXT_BYTES = 2  # of a number: int16
MOST_TOML_BYTES = 1 << 20  # of a job and the like; 400,000 keys
MOST_KEY_PARTS = 32  # names joined by dots, as in a key; tomllib's time grows with their square
_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_KEY_PARTS}}}")
_LIMITS = {
    "least": (ge, "{:,} or more"),
    "above": (gt, "above {:,}"),
    "most": (le, "at most {:,}"),
    "below": (lt, "below {:,}"),
}


_EXPECTED = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def setting(default: Any, help: str, *, key: str = "", choices: Iterable[str] = (), **limits: float) -> Any:
    """Declare a key: its default, the sentence that the docs show, its choices or its limits.

    Limits are `least`, `above`, `most` and `below`. `key` is its name in a job where that is no name for
    Python's.
    """
    return field(
        default=default, metadata={"help": help, "key": key, "choices": tuple(choices), "limits": limits}
    )


def keys_of(settings: Any) -> dict[str, Field[Any]]:
    """Return the keys of a table's dataclass, or of one's instance, in order: the fields that `setting`
    declares.
    """
    return {item.metadata["key"] or item.name: item for item in fields(settings) if "help" in item.metadata}


def read_keys(table: str, cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a table's dataclass for the values of its keys. Raises UsageError for a value of
    another type.
    """
    keys, hints = keys_of(cls), _hints(cls)
    return {
        keys[key].name: typed(f"{table}.{key}", value, hints[keys[key].name]) for key, value in values.items()
    }


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields; a millisecond, which each of many cards would take."""
    return get_type_hints(cls)


def read_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raises ValueError for a malformed text, and for one that would take long or much memory."""
    if len(text) > MOST_TOML_BYTES:
        raise ValueError(f"it has {len(text):,} characters, more than {MOST_TOML_BYTES:,}")
    if match := _LONG_KEY.search(text):
        raise ValueError(f"{match[0][:20]}... is more than {MOST_KEY_PARTS} names joined by dots")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("its lists or tables are too deep") from error


def bad_value(key: str, value: Any, expected: str) -> UsageError:
    """Return the error for an invalid value. `key` has its table: train.epochs."""
    do = f"Change it in the job, or by --set {key}=VALUE."
    return UsageError(f"job key '{key}' is {brief(value)}", why=f"it must be {expected}", do=do)


def brief(value: Any) -> str:
    """Format a value for an error, shortened to a line."""
    if isinstance(value, int) and not -MOST_JOB_NUMBER <= value <= MOST_JOB_NUMBER:
        return "a number of more than 18 digits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]} ..."


def check_limits(table: str, settings: Any) -> None:
    """Raise UsageError for the first value outside the choices or limits that `setting` declared, and for
    infinity.
    """
    for key, item in keys_of(settings).items():
        value = getattr(settings, item.name)
        choices, limits = item.metadata["choices"], item.metadata["limits"]
        wrong = [one for one in (value if isinstance(value, tuple) else (value,)) if one not in choices]
        if choices and wrong:
            raise bad_value(f"{table}.{key}", wrong[0], "one of " + ", ".join(choices))
        if not all(_LIMITS[name][0](value, limit) for name, limit in limits.items()) or value == float("inf"):
            expected = " and ".join(_LIMITS[name][1].format(limit) for name, limit in limits.items())
            raise bad_value(f"{table}.{key}", value, expected or "a number")


def typed(key: str, value: Any, hint: Any) -> Any:
    """Return a TOML value as its key's type. Raises UsageError for another type. `key` has its table."""
    if hint is Any:  # its own table checks it
        return value
    if get_args(hint):  # tuple[str, ...]
        items = value.split(",") if isinstance(value, str) else value
        if isinstance(items, (list, tuple)) and all(isinstance(item, str) for item in items):
            named = tuple(item.strip() for item in items if item.strip())
            if items and not named:
                do = f"Name at least one, or leave {key} out."
                raise UsageError(f"job key '{key}' is {brief(value)}", why="it names nothing", do=do)
            return named
    elif isinstance(value, int) and abs(value) > MOST_JOB_NUMBER:
        raise bad_value(key, value, "a number of at most 18 digits")
    elif hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif hint is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    elif type(value) is hint:
        return value
    expected = "a list of texts" if get_args(hint) else _EXPECTED[hint]
    raise UsageError(
        f"job key '{key}' is {brief(value)}", why=f"it takes {expected}", do=f"Set {key} to {expected}."
    )


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of a training on which the memory of a slice depends."""

    half: bool  # matrix products in bf16 or fp16
    fused: bool  # the stacked form, else plain modules
    recompute: bool  # activation checkpointing
    accumulates: bool  # the batch has other slices, too
    frozen: bool = False  # only the head trains, on a pretrained encoder
    on_gpu: bool = False  # whose library takes a workspace for a recurrent layer


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Bytes that one slice takes besides rows and weights. `assumed` is the part of `kept` that can't be
    counted on a CPU.
    """

    kept: float  # from the forward pass, for the backward pass
    workspace: float  # the backward pass's additional bytes, at its peak
    assumed: float = 0.0


def _no_activations(training: Training, reads: int) -> Activations:
    return Activations(kept=0.0, workspace=0.0)


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """The cost of training a model on any machine, for its numbers of inputs and outputs. A read is a window,
    or a chunk. `trainer.machines` makes seconds and bytes of it.
    """

    weights: int = 0
    frozen: int = 0  # of the weights: those have no gradients and no moments
    # Members of its module lists, and the weights of the largest one: they can be gathered one at a time
    # where a model is divided among GPUs.
    blocks: int = 0
    block_weights: int = 0
    # Of a read, forward and backward, a multiplication and an addition as two, without what activation
    # checkpointing does again, as in MFU; 0: not counted.
    flops: float = 0.0
    activations: Callable[[Training, int], Activations] = _no_activations  # of a slice of so many reads
    counts_gradients: bool = False  # `activations` includes the gradients of the weights
    recompute_pays: bool = False  # activation checkpointing is tried where memory is short
    kernel: str = UNKNOWN  # in which its time is spent: RECURRENT, CONVOLUTION, ATTENTION
    steps: int = 0  # of a RECURRENT read, each of which waits for the one before
    width: int = 0  # of its matrices
    mflop: float | None = None  # of an output, as its kernel's rates count them; None: not known
    layer_bytes: float | None = None  # of a read, which a CPU's caches should hold; None: not known
    is_measured: bool = True  # a user's own model has to be built first
    may_slice: bool = True  # slices of a batch have the gradient of the whole

    @property
    def trained(self) -> int:
        """Return how many of its weights are trained."""
        return self.weights - self.frozen


class HomeSettings:
    """The settings of a home: the table that chooses it, and how it is read from keys and written as keys."""

    name: ClassVar[str]
    part: ClassVar[str]  # "model" or "target": its table in a job
    takes_any_key: ClassVar[bool] = False  # keys that it does not declare go to a class of the user's own

    @classmethod
    def from_keys(cls, values: Mapping[str, Any]) -> Self:
        """Build it from the keys of its table, all of which it has. Raises UsageError for a bad value."""
        return cls(**read_keys(cls.part, cls, values))

    def to_keys(self) -> dict[str, Any]:
        """Return the keys that make it again, as JSON values; `name` comes first."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]

    def card_keys(self) -> dict[str, Any]:
        """Return the keys that a card keeps, without the name, which it has elsewhere."""
        return {key: value for key, value in self.to_keys().items() if key != "name"}

    @property
    def choice(self) -> dict[str, Any]:
        """Return the keys that choose the home."""
        return {"name": self.name}


@dataclass(frozen=True, kw_only=True)
class ModelSettings(HomeSettings):
    """A model's settings, and what follows from them without torch. `network.py` beside them builds it."""

    part = "model"
    reads: ClassVar[str] = WINDOWS
    default_batch: ClassVar[int] = 256  # reads in one optimizer step where the job names no batch
    shape: ClassVar[tuple[str, ...]] = ()  # keys that determine its speed: tuned settings are stored by them
    shorter: ClassVar[str] = "model.lookback"  # the keys that lower `bars_seen`, for messages
    has_stacked_form: ClassVar[bool] = False  # network.stacked exists: streams and fused packs can train it
    takes_observations: ClassVar[bool] = False  # a window of one bar may be what an environment shows
    reads_context: ClassVar[bool] = False  # the network takes the CONTEXT of each window's last bar, too
    # A module of any kind: with buffers, modes of training and evaluation, random numbers of its own, weights
    # that are tied, frozen or unused. Packs then take care of all that (trainer/train/packs/sequential.py).
    # Its activations are not computed again, and by default it multiplies in full precision: autocast would
    # run an RNN in fp16 and its loss unscaled (trainer/models/lstm/network.py).
    is_any_module: ClassVar[bool] = False
    small: ClassVar[dict[str, Any]] = {}  # settings of a size that one CPU core trains in a minute

    def __post_init__(self) -> None:
        check_limits("model", self)

    @property
    def bars_seen(self) -> int:
        """Return how many bars one output depends on."""
        raise NotImplementedError

    @property
    def bars_out(self) -> int:
        """Return how many outputs one read gives: 1 for a window, the length of a chunk."""
        return 1

    @property
    def num_dropouts(self) -> int:
        """Return how many dropout keys the network takes."""
        return 0

    @property
    def build_options(self) -> dict[str, Any]:
        """Return the further arguments of `network.build` on this machine."""
        return {}

    @property
    def title(self) -> str:
        """Return its label."""
        return self.name

    @property
    def words(self) -> str:
        """Return its size as text."""
        return ""

    def cost(self, *, features: int, outputs: int) -> ModelCost:
        """Return what its training takes."""
        return ModelCost()

    def architecture(self, *, features: int, outputs: int) -> dict[str, Any]:
        """Return the arguments of `network.build` that the card keeps, as JSON values."""
        return {"features": features, "outputs": outputs}

    @classmethod
    def check_architecture(
        cls, architecture: Mapping[str, Any], *, features: int, outputs: int, bars_seen: int
    ) -> None:
        """Raise UsageError for a card's architecture that no settings have, or whose bars differ from the
        card's.
        """
        known = cls.keys_of_architecture({**architecture, "lookback": bars_seen})
        settings = cls.from_keys({key: value for key, value in known.items() if key in keys_of(cls)})
        made = settings.architecture(features=features, outputs=outputs)
        if dict(architecture) != made or settings.bars_seen != bars_seen:
            theirs = {**architecture, "bars seen": bars_seen}
            ours = {**made, "bars seen": settings.bars_seen}
            key = next(key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key))
            what = f"the architecture has {brief(theirs.get(key))} for {key}"
            why = f"settings of these sizes make {brief(ours.get(key))}"
            raise UsageError(what, why=why, do="Fetch the model again.")

    @classmethod
    def keys_of_architecture(cls, architecture: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of an architecture, and of keys from which parts of it follow."""
        return dict(architecture)
