"""The card of a model that lies in the bucket, read from the object itself: its header holds it, no weight is fetched."""

from __future__ import annotations

from trainer.artifacts.card import Card, read_card
from trainer.errors import DataError
from trainer.runs.store import Objects

HEADER_BYTES = 256 * 1024  # cards of our models take about 10 KB; a longer header costs a second request


def card_of(objects: Objects, *, key: str, version_id: str = "") -> Card | None:
    """Return a model's card, or None for an object that is no model of ours."""
    for first_bytes in (HEADER_BYTES, 0):
        stored = objects.get(key=key, version_id=version_id, first_bytes=first_bytes)
        if stored is None:
            return None
        try:
            return read_card(stored.body)
        except DataError:
            if len(stored.body) < HEADER_BYTES:
                return None  # this was all of it
    return None
