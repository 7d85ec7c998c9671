"""A model of the user's own: a class in a Python file, with the measurements of a trial.

Settings, memory and cost, standard library only. `network` builds it. Docs: docs/models.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainer.base.errors import UsageError
from trainer.base.own_file import OwnFile, digest_of
from trainer.base.settings import (
    CHUNKS,
    FLOAT,
    WINDOWS,
    Activations,
    ModelCost,
    ModelSettings,
    Training,
    setting,
)
from trainer.base.strict_json import Fields, Unsound

# Tensors of the largest kept size that the backward pass is assumed to hold: two gradients and one temporary.
BACKWARD_TENSORS = 3
LEARNS_FROM = {WINDOWS: 256, CHUNKS: 4}  # default batch in windows or chunks
NOT_KNOWN_YET = -1  # default batch before it is known what the model reads


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """Measurements of a user's model, from building it and running it once. A read is a window, or a chunk of
    `chunk` bars.
    """

    of: str  # digest of the measured class, file and settings
    receptive_field: int  # 0: it reads windows
    weights: int
    kept_bytes: float  # kept for the backward pass, per read
    kept_once_bytes: float  # kept besides, per batch of any size
    largest_bytes: float  # of the largest kept tensor, per read
    mflop: float  # per read, forward and backward
    slices: bool  # whether slices of a batch give the gradient of the whole


@dataclass(frozen=True, kw_only=True)
class OwnModel(OwnFile, ModelSettings):
    """The settings of a user's own model."""

    part = "model"
    measured_as = MeasuredModel
    shape = ("code",)
    shorter = "model.lookback (or the receptive_field of the class)"
    is_any_module = True

    lookback: int = setting(60, "Bars of a window.", least=1)
    chunk: int = setting(256, "Output bars of a chunk, for a class with a receptive_field.", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_names()

    @property
    def code(self) -> str:
        """Return a digest of everything that memory and speed depend on."""
        return digest_of(self.sha256, self.class_name, self.given, self.lookback, self.chunk)

    @property
    def trial(self) -> MeasuredModel | None:
        """Return the measurements if they are of the current file and settings, else None."""
        measured: MeasuredModel | None = self.measured
        return measured if self.is_tried else None

    @property
    def reads(self) -> str:  # type: ignore[override]
        return CHUNKS if self.trial and self.trial.receptive_field else WINDOWS

    @property
    def default_batch(self) -> int:  # type: ignore[override]
        return LEARNS_FROM[self.reads] if self.trial else NOT_KNOWN_YET

    @property
    def bars_seen(self) -> int:
        return self.trial.receptive_field if self.trial and self.reads == CHUNKS else self.lookback

    @property
    def bars_out(self) -> int:
        return self.chunk if self.reads == CHUNKS else 1

    @property
    def build_options(self) -> dict[str, Any]:
        return {"file": self.file}

    @property
    def title(self) -> str:
        return self.class_name

    @property
    def words(self) -> str:
        return f"{self.class_name} of {self.base_name}"

    def architecture(self, *, features: int, outputs: int) -> dict[str, Any]:
        return {
            **self.manifest_entry(),
            "features": features,
            "outputs": outputs,
            "lookback": self.lookback,
            "settings": self.given,
            "reads": self.reads,
        }

    @classmethod
    def check_architecture(
        cls, architecture: Mapping[str, Any], *, features: int, outputs: int, bars_seen: int
    ) -> None:
        """Check the form only: whether the class accepts its settings shows when it is built."""
        try:
            fields = Fields(architecture, "architecture")
            parts = fields.exactly(
                ("file", "class", "sha256", "features", "outputs", "lookback", "settings", "reads")
            )
            parts["sha256"].sha256()
            parts["features"].whole(least=features, most=features)
            parts["outputs"].whole(least=outputs, most=outputs)
            reads, given = parts["reads"].choice((WINDOWS, CHUNKS)), parts["settings"].fields().values
            if reads == WINDOWS:
                parts["lookback"].whole(least=bars_seen, most=bars_seen)
        except Unsound as error:
            what, do = "the architecture is not that of a user's class", "Fetch the model again."
            raise UsageError(what, why=str(error), do=do) from error
        cls.from_keys(
            {**given, **{key: architecture[key] for key in ("file", "class", "sha256", "lookback")}}
        )

    def cost(self, *, features: int, outputs: int) -> ModelCost:
        """Return the measurements of its trial as a cost."""
        trial = self.trial
        if trial is None:
            return ModelCost(is_measured=False, may_slice=False)
        return ModelCost(
            weights=trial.weights,
            mflop=trial.mflop / self.bars_out,
            layer_bytes=trial.kept_bytes,
            may_slice=trial.slices,
            activations=partial(self._activations, trial=trial, features=features),
        )

    def _activations(
        self, training: Training, reads: int, *, trial: MeasuredModel, features: int
    ) -> Activations:
        """Return the bytes of a slice as measured in full precision: half precision takes no more."""
        # By the pack; the module gets a copy.
        gathered = FLOAT * features * (self.bars_seen - 1 + self.bars_out)
        return Activations(
            kept=trial.kept_once_bytes + reads * trial.kept_bytes,
            workspace=reads * (gathered + BACKWARD_TENSORS * trial.largest_bytes),
        )
