"""The meter of a training (`meter`) for people. Without torch, since a desk draws it, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def meter_words(event: Mapping[str, Any]) -> str:
    """Return the meter's fields of a progress event for people; empty without any."""
    formats = {
        "learning_rate": "rate {:.2e}",
        "mfu": "MFU {:.1%}",
        "memory_gib": "{:.1f} GiB",
        "usd": "${:.2f}",
    }
    words = [text.format(event[key]) for key, text in formats.items() if event.get(key) is not None]
    if event.get("eta_seconds") is not None:
        words.append(f"at most {duration(event['eta_seconds'])} left")
    return "  ".join(words)


def duration(seconds: float) -> str:
    """Write a duration in its two largest units: `3 h 12 min`, `4 min 10 s`, `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
