"""The stop request of a node."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

from trainer.aws.place import REHEARSAL
from trainer.node.shared import LAST_UPLOADS_SECONDS, STOPPED_UPLOADS_SECONDS, Node


def test_a_signal_during_another_signals_handler_blocks_nothing(tmp_path: Path) -> None:
    node = Node(work=tmp_path, place=REHEARSAL, uplink=SimpleNamespace(), status=SimpleNamespace())  # type: ignore[arg-type]
    assert not node.is_stopping() and node.patience_seconds == LAST_UPLOADS_SECONDS

    def interrupted(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            node.stop("SIGTERM")
        return interrupted

    def stopped_at_every_line() -> None:
        sys.settrace(interrupted)
        node.stop("SIGTERM")
        sys.settrace(None)

    thread = threading.Thread(target=stopped_at_every_line, daemon=True)  # it would wait for itself for ever
    thread.start()
    thread.join(timeout=500)
    assert not thread.is_alive() and node.is_stopping()
    assert (node.stop_reason, node.patience_seconds) == ("SIGTERM", STOPPED_UPLOADS_SECONDS)
