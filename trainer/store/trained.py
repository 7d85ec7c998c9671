"""A training as a model's card records it: hardware and settings that its losses depend on, and the losses.

Read strictly: a card is untrusted. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.base.errors import DataError
from trainer.base.strict_json import Fields, Unsound, Value
from trainer.store.card import Card

MOST_FITS, MOST_EPOCHS, MOST_FIRST, MOST_MATES, MOST_KEYS = 2_000, 100_000, 1_000, 4_096, 8
LOSSES = ("train_loss", "validation_loss")


@dataclass(frozen=True, kw_only=True, order=True)
class LossPlace:
    """The step or epoch that a recorded loss belongs to, counted over all trainings of the model."""

    fit: int  # number of the training among the model's, from 1 on; 0: there is one
    unit: Literal["step", "epoch"]
    number: int
    name: str = "train_loss"

    def __str__(self) -> str:
        words = f"{self.unit} {self.number:,}{' validation' if self.name == LOSSES[1] else ''}"
        return f"training {self.fit}, {words}" if self.fit else words


Losses = Mapping[LossPlace, float | None]  # None: not finite


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A training as its model's card records it."""

    model: str
    piece: str
    device: Literal["cpu", "cuda"]
    chip: str
    instructions: str
    driver: str
    deterministic: bool
    torch: str
    precision: str
    strategy: str
    pack: int
    mates: tuple[str, ...]  # models that were in a pack with it, itself included
    micro_batch: int
    activation_checkpointing: bool
    threads: int
    ranks: int  # processes that trained it together; 1: none but its own
    batch: int
    steps_of_epoch: int
    losses: Losses
    values: Mapping[str, str] = field(default_factory=dict)  # keys that its search chose, as texts

    @property
    def depends_on_its_pack(self) -> bool:
        """Return whether its last digits depend on how many models were computed together."""
        return self.strategy == "fused" and len(self.mates) > 1


def trained_of(card: Card) -> Trained:
    """Return how the model of a card was trained. Raises DataError if its card does not say it."""
    try:
        return _trained(card, Value(card.training, "the card.training").fields())
    except Unsound as error:
        why = f"an earlier version made it, or its card is damaged: {error}"
        raise DataError(
            f"the card of {card.model} does not say how it was trained", why=why, do="Train it again."
        ) from error


def _trained(card: Card, fields: Fields) -> Trained:
    fits = [fields, *fields.rows("others", most=MOST_FITS), *fields.rows("refit", most=MOST_FITS)]
    epochs, steps = fields.whole("epochs_run", most=MOST_EPOCHS), fields.whole("steps")
    mates = fields.value("pack_mates").items(most=MOST_MATES)
    return Trained(
        model=card.model,
        piece=card.piece,
        device="cuda" if fields.text("device").startswith("cuda") else "cpu",
        **{name: fields.text(name) for name in ("chip", "instructions", "driver")},
        **{name: fields.text(name) for name in ("torch", "precision", "strategy")},
        deterministic=bool(fields.truth("deterministic")),
        pack=fields.whole("pack", most=MOST_MATES),
        mates=tuple(item.text() for item in mates),
        micro_batch=fields.whole("micro_batch"),
        activation_checkpointing=bool(fields.truth("activation_checkpointing")),
        threads=fields.whole("threads", least=1, most=1_024),
        ranks=fields.table("choice").whole("ranks", 1, least=1, most=MOST_MATES),
        batch=fields.whole("batch"),
        steps_of_epoch=max(1, steps // max(1, epochs)),
        losses=dict(_losses(fits)),
        values=_searched(fields),
    )


def _searched(fields: Fields) -> dict[str, str]:
    if "search" not in fields.values:
        return {}
    named = fields.table("search").table("values", most=MOST_KEYS).entries()
    return {name: item.text() for name, item in named.items()}


def _losses(fits: list[Fields]) -> Iterator[tuple[LossPlace, float | None]]:
    before = 0  # epochs
    for number, fit in enumerate(fits, start=1):
        of: dict[str, Any] = {"fit": number if len(fits) > 1 else 0}
        for step, item in enumerate(fit.value("first_steps").items(most=MOST_FIRST), start=1):
            yield LossPlace(unit="step", number=step, **of), item.finite_or_none()
        epochs = list(fit.rows("history", most=MOST_EPOCHS))
        for epoch, row in enumerate(epochs, start=before + 1):
            yield from _of_epoch(row, {**of, "number": epoch})
        before += len(epochs)


def told_losses(event: Mapping[str, Any]) -> dict[LossPlace, float | None]:
    """Return the losses of one event of a training; {} of another event. Raises Unsound."""
    fields = Fields(event, "the event")
    of: dict[str, Any] = {"fit": fields.whole("fit", 0, most=MOST_FITS)}
    if event.get("event") == "first_steps":
        items = fields.value("losses").items(most=MOST_FIRST)
        places = [LossPlace(unit="step", number=step, **of) for step in range(1, len(items) + 1)]
        return dict(zip(places, (item.finite_or_none() for item in items), strict=True))
    if event.get("event") == "epoch":
        return dict(_of_epoch(fields, {**of, "number": fields.whole("epoch", most=MOST_EPOCHS)}))
    return {}


def _of_epoch(row: Fields, of: dict[str, Any]) -> Iterator[tuple[LossPlace, float | None]]:
    for name in LOSSES:
        if name in row.values:
            value = Value(row.values[name], f"{row.name}.{name}")
            yield LossPlace(unit="epoch", name=name, **of), value.finite_or_none()
