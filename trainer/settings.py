"""What a model and a target say of themselves, as data: the classes that the settings in their homes extend.

Standard library only: the control plane reads and prices a job by these. A home is described in docs/models-and-targets.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import ge, gt, le, lt
from typing import Any, ClassVar, Self

from trainer.errors import UsageError

WINDOWS, CHUNKS = "windows", "chunks"  # what a model reads: one output a window, or one for each bar of a chunk
FLOAT, HALF = 4, 2  # bytes of a number
HIGHER, LOWER = "higher", "lower"
_LIMITS = {
    "least": (ge, "{:g} or more"),
    "above": (gt, "above {:g}"),
    "most": (le, "at most {:g}"),
    "below": (lt, "below {:g}"),
}


def setting(default: Any, help: str, **limits: float) -> Any:
    """Declare a key: its default, the sentence that the docs show, and its limits: `least`, `above`, `most`, `below`."""
    return field(default=default, metadata={"help": help, "limits": limits})


def horizon_setting() -> Any:
    """Declare `horizon`, which several targets have in common."""
    return setting(5, "Bars ahead that the label looks, where it looks so many bars and not sessions ahead.", least=1)


def volatility_bars_setting() -> Any:
    """Declare `volatility_bars`, which several targets have in common."""
    return setting(60, "Bars of the trailing volatility that some targets have their labels in.", least=2)


def check_limits(key: str, value: Any, limits: dict[str, float]) -> None:
    """Raise UsageError where a value lies outside the limits that `setting` declared."""
    if not all(_LIMITS[name][0](value, limit) for name, limit in limits.items()):
        expected = " and ".join(_LIMITS[name][1].format(limit) for name, limit in limits.items())
        raise UsageError(f"job key '{key}' is {value!r}", why=f"it must be {expected}", do=f"Set {key} to {expected}.")


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a slice of a batch is trained, as far as its memory depends on it."""

    half: bool  # matrix products in bf16 or fp16
    fused: bool  # the stacked form, else plain modules
    recompute: bool  # activation checkpointing
    accumulates: bool  # the batch has other slices, too


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Bytes that one slice takes besides rows and weights. `assumed` is the part of `kept` that cannot be counted on a CPU."""

    kept: float  # from the forward pass, for the backward pass
    workspace: float  # what the backward pass holds besides, where it holds most
    assumed: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """A model's settings, and what follows from them without torch. `network.py` beside them builds it."""

    reads: ClassVar[str] = WINDOWS
    batch_key: ClassVar[str] = "batch"  # the job key that says how many windows, or chunks, are in one optimizer step
    shape: ClassVar[tuple[str, ...]] = ()  # keys that its speed depends on: what was tuned is kept by them
    shorter: ClassVar[str] = "lookback"  # the keys that lower `bars_seen`, for messages
    has_stacked_form: ClassVar[bool] = False  # network.stacked exists: streams and fused packs can train it
    recompute_pays: ClassVar[bool] = False  # activation checkpointing is tried where memory is short
    is_recurrent: ClassVar[bool] = False  # runs the recurrent kernels of a GPU's library, whose precision has rules of its own
    counts_gradients: ClassVar[bool] = False  # `activations` includes the gradients of the weights
    small: ClassVar[dict[str, Any]] = {}  # settings of a size that one CPU core trains in a minute

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
    def words(self) -> str:
        """Return its size in words."""
        return ""

    @property
    def gains_from_threads(self) -> bool:
        """Return whether a second idle core makes training faster."""
        return False

    @property
    def costs(self) -> tuple[float, float]:
        """Return what one output costs to train on a CPU and on a GPU, against the default model's."""
        return 1.0, 1.0

    @property
    def cpu_slice(self) -> int:
        """Return how many windows, or chunks, a CPU is fastest with at once."""
        return 256

    def architecture(self, *, features: int, outputs: int) -> dict[str, Any]:
        """Return what `network.build` needs to build it again, as JSON values: what the card keeps."""
        return {"features": features, "outputs": outputs}

    def num_weights(self, *, features: int, outputs: int) -> int:
        """Return its number of weights."""
        return 0

    def activations(self, training: Training, *, features: int, outputs: int, reads: int) -> Activations:
        """Return what a slice of `reads` windows or chunks takes."""
        return Activations(kept=0.0, workspace=0.0)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A score: its name in the card, its title for people, and which direction is better."""

    name: str
    title: str
    better: str = HIGHER
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a receipt: the place of its value in the scores of a span, and of the value in brackets."""

    title: str
    value: tuple[str, ...]
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TargetSettings:
    """A target's settings, and what follows from them without numpy. `labels.py`, `loss.py` and `scores.py` do the rest."""

    label_columns: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = ()  # the first is the headline
    gains: ClassVar[tuple[str, ...]] = ()  # metrics whose gain over each baseline gets an interval
    table: ClassVar[tuple[Column, ...]] = ()
    farther: ClassVar[str] = "horizon"  # the keys that change how far a label looks ahead, for messages

    @property
    def outputs(self) -> int:
        """Return how many numbers the model gives for each bar."""
        return 1

    @property
    def reach(self) -> int:
        """Return how many bars before its own a label or a column of a prediction reads."""
        return 0

    @property
    def bars_ahead(self) -> int:
        """Return how many bars a label reads after its own, at least."""
        return 1

    def options(self) -> tuple[Self, ...]:
        """Return the settings to choose from for a series: the first that leaves enough separate labels in test."""
        return (self,)

    def about(self) -> dict[str, Any]:
        """Return the description of its metrics that stands beside them in the card."""
        described = {
            metric.name: {"title": metric.title, "better": metric.better, "unit": metric.unit} for metric in self.metrics
        }
        table = [{"title": one.title, "value": list(one.value), "beside": list(one.beside)} for one in self.table]
        return {"headline": self.metrics[0].name, "metrics": described, "table": table}
