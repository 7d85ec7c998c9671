"""Signs of progress between a training's events: a validation batch, a score, a symbol read.

Long work calls `sign` after each part that it has done. The process that reports progress calls `tell_signs`
once, with the function that takes the signs. No timer gives a sign.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SECONDS = 5.0  # between two signs that are told: one costs a message, and bounds are minutes
_report: Callable[[dict[str, Any]], None] | None = None
_told_at = float("-inf")


def tell_signs(report: Callable[[dict[str, Any]], None] | None) -> None:
    """Report signs of progress in this process to `report`, as events `moved`; None switches them off."""
    global _report, _told_at
    _report, _told_at = report, float("-inf")


def sign(of: str) -> None:
    """Give a sign: a part of this work is done. Told every SECONDS at most."""
    global _told_at
    if _report is None or time.monotonic() - _told_at < SECONDS:
        return
    _told_at = time.monotonic()
    _report({"event": "moved", "of": of})
