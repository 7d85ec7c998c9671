"""The stages of a piece: a training of each of its networks, and with `train.refit` one more of each on all
bars, once the first ones are scored.

A stage is one run of the loop. What earlier stages left travels in the checkpoints of the later ones, so that
a machine that is lost in a refit does not train the first fit again. Everything read back is checked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from trainer.base.strict_json import Fields, Unsound, Value, read_object
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.store.card import Card, card_from_json
from trainer.train.observing.events import finite
from trainer.train.run import FIRST_STEPS, MOST_MATES, Run, steps_of

DOCUMENT = "stages.document"  # a checkpoint's tensor of bytes: facts of the fits, and their card
FIT = "fit-"  # begins the names of a checkpoint's tensors of a fit: fit-0.<name of the weight>
MOST_CARD = 32 << 20  # letters
MOST_DOCUMENT_BYTES = 4 * MOST_CARD
MOST_FITS, MOST_EPOCHS, MOST_STEPS = 2_000, 100_000, 2**53
_WHOLE = {
    "epochs_run": MOST_EPOCHS,
    "best_epoch": MOST_EPOCHS,
    "lowered": 100,
    "steps": MOST_STEPS,
    "scored_before": MOST_EPOCHS,
}


@dataclass(frozen=True, kw_only=True)
class FittedNetwork:
    """A finished training of one network: its best weights, with buffers, and how it went."""

    weights: Mapping[str, torch.Tensor]
    epochs_run: int
    best_epoch: int
    final_learning_rate: float
    lowered: int
    steps: int
    scored_before: int  # see `Run.scored_before`
    history: list[dict[str, Any]]
    first_steps: list[dict[str, Any]]  # losses, as in `Run`
    mates: tuple[str, ...]  # see `Run.mates`
    outputs_NO: np.ndarray | None = field(
        default=None, compare=False
    )  # on validation; see `Run.best_outputs`

    @property
    def facts(self) -> dict[str, Any]:
        """Return how it went, for a card: a loss that was not finite, and an undefined score, are None."""
        names = ("epochs_run", "best_epoch", "final_learning_rate", "lowered", "steps", "history")
        losses = [step["loss"] for step in self.first_steps]
        facts: dict[str, Any] = finite(
            {**{name: getattr(self, name) for name in names}, "first_steps": losses}
        )
        return facts


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The finished stages of a piece; `card` is that of the first fits, once they are scored."""

    members: int = 1
    refit: bool = False
    fits: tuple[FittedNetwork, ...] = ()
    card: Card | None = None

    @property
    def on_all_bars(self) -> bool:
        """Return whether the next stage is a refit."""
        return len(self.fits) >= self.members

    @property
    def is_to_score(self) -> bool:
        """Return whether the first fits have just ended and have no card yet, which only rank 0 has."""
        return len(self.fits) == self.members and self.card is None

    @property
    def is_over(self) -> bool:
        """Return whether no stage is left."""
        return len(self.fits) >= self.members * (1 + self.refit)

    @property
    def member(self) -> int:
        """Return the number of the network of the next stage, from 0."""
        return len(self.fits) % self.members

    @property
    def first_fits(self) -> tuple[FittedNetwork, ...]:
        """Return the trainings whose networks never saw the test span."""
        return self.fits[: self.members]

    @property
    def refits(self) -> tuple[FittedNetwork, ...]:
        """Return the trainings on all bars."""
        return self.fits[self.members :]

    def with_run(self, run: Run, job: Job) -> Stages:
        """Return the stages with a run of the loop that has ended."""
        fit = FittedNetwork(
            weights=run.best_weights,
            epochs_run=run.epoch,
            best_epoch=run.best_epoch,
            final_learning_rate=run.learning_rate,
            lowered=run.lowered,
            steps=steps_of(run, job),
            scored_before=run.scored_before,
            history=run.history,
            first_steps=run.first_steps,
            mates=run.mates,
            outputs_NO=run.best_outputs,
        )
        return replace(self, fits=(*self.fits, fit))

    def on_cpu(self) -> Stages:
        """Return the stages with all weights on the CPU, without outputs."""
        fits = (
            replace(fit, weights={name: one.cpu() for name, one in fit.weights.items()}, outputs_NO=None)
            for fit in self.fits
        )
        return replace(self, fits=tuple(fits))

    def prepare(self, run: Run, job: Job) -> None:
        """Set a new run to the next stage: its number of epochs and rate, and its place among the others."""
        left = self.members * (1 + self.refit) - len(self.fits) - 1
        run.fit = len(self.fits) + 1 if self.members * (1 + self.refit) > 1 else 0
        run.epochs_before = sum(fit.epochs_run for fit in self.fits)
        run.steps_before = sum(fit.steps for fit in self.fits)
        run.epochs_after = left * job.train.epochs
        run.earlier = self._tensors() if self.fits else {}
        if self.on_all_bars:
            first = self.first_fits[self.member]
            run.validation, run.last_epoch = None, first.best_epoch
            run.learning_rate = first.final_learning_rate
            run.epochs_after = sum(fit.best_epoch for fit in self.first_fits[self.member + 1 :])
        if self.fits:
            run.saved_at = -sys.float_info.max  # its first checkpoint is due at once

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Return the finished stages as tensors of a checkpoint."""
        facts = [
            {**fit.facts, "scored_before": fit.scored_before, "mates": list(fit.mates)} for fit in self.fits
        ]
        document = {"fits": facts, "card": self.card.to_json() if self.card else ""}
        body = bytearray(json.dumps(finite(document), allow_nan=False).encode())
        weights = {
            f"{FIT}{number}.{name}": tensor
            for number, fit in enumerate(self.fits)
            for name, tensor in fit.weights.items()
        }
        return {**weights, DOCUMENT: torch.frombuffer(body, dtype=torch.uint8)}


def is_of_a_stage(name: str) -> bool:
    """Return whether a checkpoint's tensor is what an earlier stage left."""
    return name == DOCUMENT or name.startswith(FIT)


def stages_of(piece: Piece, earlier: Mapping[str, torch.Tensor] | None = None) -> Stages:
    """Return a piece's stages as a checkpoint has them; without one, before the first. Raises Unsound."""
    stages = Stages(members=piece.members, refit=piece.refit)
    if not earlier:
        return stages
    if DOCUMENT not in earlier or earlier[DOCUMENT].dtype != torch.uint8:
        raise Unsound(f"the checkpoint has no {DOCUMENT}")
    body = earlier[DOCUMENT].cpu().numpy().tobytes()
    parts = read_object(
        body, most_bytes=MOST_DOCUMENT_BYTES, name=DOCUMENT, most_number=sys.float_info.max
    ).exactly(("fits", "card"))
    listed = parts["fits"].items(least=1, most=MOST_FITS)
    fits = tuple(_fit(item.fields(), _weights(number, earlier)) for number, item in enumerate(listed))
    text = parts["card"].text(most=MOST_CARD)
    stages = replace(stages, fits=fits, card=card_from_json(text) if text else None)
    if stages.is_over or (stages.on_all_bars and stages.card is None):
        raise Unsound(f"{DOCUMENT} has {len(fits)} fits, which no stage of the piece follows")
    return stages


def _weights(number: int, earlier: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    start = f"{FIT}{number}."
    return {name.removeprefix(start): one for name, one in earlier.items() if name.startswith(start)}


def _fit(fields: Fields, weights: Mapping[str, torch.Tensor]) -> FittedNetwork:
    parts = fields.exactly((*_WHOLE, "final_learning_rate", "history", "first_steps", "mates"))
    if not weights:
        raise Unsound(f"{fields.name} has no weights")
    whole = {name: parts[name].whole(most=most) for name, most in _WHOLE.items()}
    return FittedNetwork(
        weights=weights,
        epochs_run=whole["epochs_run"],
        best_epoch=whole["best_epoch"],
        lowered=whole["lowered"],
        steps=whole["steps"],
        scored_before=whole["scored_before"],
        final_learning_rate=parts["final_learning_rate"].number(least=0, most=1e9),
        history=[_epoch(item) for item in parts["history"].items(most=MOST_EPOCHS)],
        first_steps=[
            {"loss": item.finite_or_none()} for item in parts["first_steps"].items(most=FIRST_STEPS)
        ],
        mates=tuple(item.text() for item in parts["mates"].items(most=MOST_MATES)),
    )


def _epoch(value: Value) -> dict[str, Any]:
    return {name: item.finite_or_none() for name, item in value.fields().entries().items()}
