"""The agent's second thread: every few seconds it uploads heartbeat, log and metrics, looks for a stop
request, and gives up a node that stands still.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial

from trainer.base.errors import TrainingFailed
from trainer.base.files import read_block
from trainer.base.instants import utc_now
from trainer.base.silence import DEAF_SECONDS, HALF_MORE
from trainer.node import report
from trainer.node.shared import Node
from trainer.node.uplink import Parts
from trainer.runs import store

log = logging.getLogger("trainer.node")
HEARTBEAT_SECONDS = 3.0
PARTS_SECONDS = 5.0
# Of a progress that changes all the time: each state stays in the bucket for months, as a version, and every
# desk that follows the run downloads it.
PROGRESS_BYTES_PER_SECOND = 16 * 1024
LAST_SECONDS = 30.0  # for the last of the log: whoever reads the result ends the machine 45 s later
RETRY_SECONDS = 1.0


class HeartbeatThread:
    """The second thread, for as long as the `with` lasts. `read_log` returns bytes of the agent's log."""

    def __init__(self, node: Node, read_log: Callable[[int, int], bytes]) -> None:
        identity = node.status.identity
        keys = identity.keys
        self._node = node
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._lease_key, self._progress_key = keys.lease, keys.progress
        self._progress, self._progress_due = b"", 0.0  # the last that was sent; when the next may be
        self._beat_at = 0.0
        events = node.work / "events/events.jsonl"
        self._stop_key = store.stop_key(identity.run_id, identity.attempt)
        self._parts = (
            Parts(node.uplink, read=read_log, prefix=keys.log, suffix=".log"),
            Parts(node.uplink, read=partial(read_block, events), prefix=keys.metrics, suffix=".jsonl"),
        )

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        ends = time.monotonic() + LAST_SECONDS
        self._thread.join(timeout=LAST_SECONDS)
        self._send_heartbeat()
        for parts in self._parts:
            while not parts.send(final=True) and time.monotonic() < ends:
                time.sleep(RETRY_SECONDS)

    def _run(self) -> None:
        parts_due = 0.0
        while not self._ended.is_set():
            if self._beat() and time.monotonic() >= parts_due:
                parts_due = time.monotonic() + PARTS_SECONDS
                for parts in self._parts:
                    parts.send(go_on=self._goes_on)
            self._wait()

    def _wait(self) -> None:
        """Wait for the next heartbeat. A machine that slept meanwhile, or an agent that was stopped together
        with its command, did not stand still for that time.
        """
        began = utc_now()
        self._ended.wait(HEARTBEAT_SECONDS)
        if (utc_now() - began).total_seconds() > DEAF_SECONDS:
            self._node.moved()

    def _goes_on(self) -> bool:
        """Return whether the `with` lasts, after a heartbeat if one is due: many parts over a slow line
        outlast the lease.
        """
        if time.monotonic() - self._beat_at >= HEARTBEAT_SECONDS:
            self._beat()
        return not self._ended.is_set()

    def _beat(self) -> bool:
        """Send a heartbeat, and look for a stop request. Return whether S3 took the lease: while it hangs,
        each further call would delay the next try by its time-outs.
        """
        node, self._beat_at = self._node, time.monotonic()
        sent = self._send_heartbeat()
        self._look_at_progress()
        if not node.is_stopping() and node.uplink.exists(self._stop_key):
            node.stop("stop.json")
        return sent

    def _look_at_progress(self) -> None:
        """Give up a node that stands still: whoever watches its workers and processes has not acted."""
        node, status = self._node, self._node.status
        if node.is_stopping() or status.progress_at is None:
            return
        still = (utc_now() - status.progress_at).total_seconds()
        if still <= HALF_MORE * status.progress_bound:
            return
        log.error("no progress for %.0f s in phase %s; the agent's stacks:", still, status.phase)
        for line in stacks().splitlines():
            log.error("%s", line)
        what = f"the node made no progress for {still:.0f} s in its phase {status.phase}"
        why = f"{status.progress_bound:.0f} s are allowed there, and half as many more"
        node.fail(TrainingFailed(what, why=why, do="Read `mayfly logs`, and launch again."))

    def _send_heartbeat(self) -> bool:
        """Renew the lease, and send the progress if it changed, a large one less often; return whether S3
        took the lease.
        """
        uplink, status = self._node.uplink, self._node.status
        if not uplink.try_send(self._lease_key, json.dumps(report.lease(status, utc_now())).encode()):
            return False
        if time.monotonic() < self._progress_due and not self._ended.is_set():
            return True
        progress = report.progress(status)
        if progress != self._progress and uplink.try_send(self._progress_key, progress):
            self._progress = progress
            self._progress_due = time.monotonic() + len(progress) / PROGRESS_BYTES_PER_SECOND
        return True


def stacks() -> str:
    """Return the Python stacks of this process's threads."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    return "\n".join(parts)
