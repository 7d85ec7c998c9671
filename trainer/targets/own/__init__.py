"""A target of the user's own: a class in a Python file that labels bars and has a loss. Docs:
docs/models.md.

Settings, standard library only. It is scored by its own loss, and by the correlation of the first output with
the first label.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.base.own_file import OwnFile, digest_of
from trainer.base.settings import LOWER, Column, Metric, TargetSettings


@dataclass(frozen=True, kw_only=True)
class MeasuredTarget:
    """Measurements of a user's target: its outputs, and how far its labels reach."""

    of: str  # digest of the measured class, file and settings
    label_columns: int
    outputs: int
    reach: int
    ahead_least: int  # bars from a bar to the end of its label
    ahead_most: int


@dataclass(frozen=True, kw_only=True)
class OwnTarget(OwnFile, TargetSettings):
    """The settings of a user's own target."""

    part = "target"
    measured_as = MeasuredTarget
    metrics = (
        Metric(name="loss", title="loss", better=LOWER),
        Metric(name="correlation", title="correlation"),
    )
    gains = ("loss",)
    table = (
        Column(title="loss (constant)", value=("loss",), beside=("baselines", "constant", "loss")),
        Column(title="correlation", value=("correlation",)),
    )
    farther = "setting of your target"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_names()

    @property
    def trial(self) -> MeasuredTarget | None:
        """Return the measurements if they are of the current file and settings, else None."""
        measured: MeasuredTarget | None = self.measured
        return measured if self.is_tried else None

    @property
    def code(self) -> str:
        """Return a digest of everything but the bars that its labels depend on."""
        return digest_of(self.sha256, self.class_name, self.given)

    @property
    def label_columns(self) -> int:  # type: ignore[override]
        return self.trial.label_columns if self.trial else 1

    @property
    def outputs(self) -> int:
        return self.trial.outputs if self.trial else 1

    @property
    def reach(self) -> int:
        return self.trial.reach if self.trial else 0

    @property
    def bars_ahead(self) -> int:
        return self.trial.ahead_least if self.trial else 1

    @property
    def horizon(self) -> int:
        """Return the length of the longest label in bars."""
        return self.trial.ahead_most if self.trial else 1
