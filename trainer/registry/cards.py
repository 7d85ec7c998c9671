"""Read a model's card from the header of its object in the bucket, without its weights."""

from __future__ import annotations

from trainer.artifacts.card import MOST_HEADER_BYTES, Card, header_bytes, read_card
from trainer.errors import DataError
from trainer.runs.store import Objects, given

FIRST_BYTES = 256 * 1024  # cards of our models take about 10 KB; a longer header costs a second request


def card_of(objects: Objects, *, key: str, version_id: str = "") -> Card | None:
    """Return a model's card, or None for an object that is no model of ours."""
    stored = given(lambda: objects.get(key=key, version_id=version_id, first_bytes=FIRST_BYTES))
    if stored is None:
        return None
    needed = header_bytes(stored.body)
    if FIRST_BYTES < needed <= MOST_HEADER_BYTES:
        stored = given(lambda: objects.get(key=key, version_id=version_id, first_bytes=needed)) or stored
    try:
        return read_card(stored.body)
    except DataError:
        return None
