"""Verify production models by hand: bytes, hash, card and decision have to agree. Standard library only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from trainer.aws.objects import Objects, Stored
from trainer.base.errors import DataError
from trainer.store.card import read_card
from trainer.store.decisions import BY_HAND, GateDecision, UnreadableDecision, read_decision
from trainer.store.production import MOST_PROMOTED_BYTES, production_name


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A production model as it is, and what does not agree about it; `flaws` is empty for a sound one."""

    name: str  # GROUP/NAME
    version_id: str
    sha256: str  # of its bytes
    decision: GateDecision | None  # the last one about it
    flaws: tuple[str, ...]

    @property
    def origin(self) -> str:
        """Return how it came into production, as text."""
        decision = self.decision
        if decision is None or decision.winner != self.sha256 or decision.gate == BY_HAND:
            return "by hand"
        chosen = f"by the gate, run {decision.run_id}"
        return chosen if decision.promote else f"stayed beside run {decision.run_id}"


def verify(objects: Objects, newest: Stored) -> Verified:
    """Verify a production model by its newest version, as S3 lists it."""
    full_name = production_name(newest.key)
    head = objects.head(key=newest.key, version_id=newest.version_id)
    flaws: list[str] = []
    sha256, decision = "", None
    if head is None or head.size > MOST_PROMOTED_BYTES:
        flaws.append("it is gone" if head is None else f"it has {head.size:,} bytes, too many to read here")
    elif (stored := objects.get(key=newest.key, version_id=newest.version_id)) is None:
        flaws.append("it is gone")
    else:
        sha256 = hashlib.sha256(stored.body).hexdigest()
        flaws += _of_bytes(stored.body, sha256, head.sha256, full_name)
    try:
        decision = read_decision(objects, full_name)
        flaws += _of_decision(decision, sha256)
    except UnreadableDecision as error:
        flaws.append(str(error))
    return Verified(
        name=full_name, version_id=newest.version_id, sha256=sha256, decision=decision, flaws=tuple(flaws)
    )


def _of_bytes(body: bytes, sha256: str, told: str, full_name: str) -> list[str]:
    flaws = (
        [f"its bytes have another hash than S3 has of it, {told[:12]}"] if told not in ("", sha256) else []
    )
    try:
        card = read_card(body)
    except DataError as error:
        return [*flaws, str(error)]
    own = full_name.partition("/")[2]
    return flaws if card.model == own else [*flaws, f"its card is of {card.model}"]


def _of_decision(decision: GateDecision | None, sha256: str) -> list[str]:
    if decision is None or decision.winner == sha256:
        return []
    left = f"left model {decision.winner[:12]}" if decision.winner else "left no model"
    return [f"the last decision about it, of {decision.decided_at:%Y-%m-%d %H:%M} UTC, {left}"]
