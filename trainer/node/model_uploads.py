"""Upload of finished models: each as soon as it is done, retried while S3 refuses, and reported if it fails
for good.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from trainer.base.errors import NotVersioned, TrainingFailed
from trainer.node.progress import identity_of
from trainer.node.shared import Node
from trainer.node.uplink import AWS_ERRORS

log = logging.getLogger(__name__)
POLL_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 30.0


class ModelUploads:
    """Finished models to upload; after a refusal a model is retried with growing pauses."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiting: list[
            tuple[float, float, dict[str, Any]]
        ] = []  # (next try, pause after it, model_done event)
        self._prefix = node.status.identity.keys.models

    def add(self, event: dict[str, Any]) -> None:
        """Add a finished model."""
        self._waiting.append((0.0, 1.0, event))

    def send(self) -> None:
        """Try every model that is due, up to the first that S3 refuses: a call may take minutes then, and the
        agent waits.
        """
        waiting, self._waiting, refused = self._waiting, [], False
        for next_try, pause, event in waiting:
            if refused or next_try > time.monotonic():
                self._waiting.append((next_try, pause, event))
                continue
            try:
                self._node.status.models.append(self._upload(event))
            except (*AWS_ERRORS, NotVersioned) as error:
                log.warning("%s was not uploaded, next try in %.0f s: %s", event["model"], pause, error)
                self._waiting.append((time.monotonic() + pause, min(2 * pause, LONGEST_PAUSE_SECONDS), event))
                refused = True
            except TrainingFailed as error:
                log.error("%s", error)
                self._node.status.failed.append({**identity_of(event), "reason": str(error)})

    def finish(self) -> None:
        """Send the remaining models, and report those that S3 did not accept in time."""
        began = time.monotonic()
        while self._waiting and time.monotonic() - began < self._node.patience_seconds:
            self.send()
            time.sleep(POLL_SECONDS)
        for _, _, event in self._waiting:
            reason = f"trained, but S3 did not take it within {self._node.patience_seconds:.0f} s"
            self._node.status.failed.append({**identity_of(event), "reason": reason})

    def _upload(self, event: dict[str, Any]) -> dict[str, Any]:
        path = self._node.work / "models" / event["file"]
        uploaded = self._node.uplink.upload_model(
            path=path, key=f"{self._prefix}{path.name}", sha256=event["sha256"]
        )
        card = path.with_suffix(".json")
        self._node.uplink.try_send(f"{self._prefix}{card.name}", card.read_bytes())
        log.info("%s is in S3 as %s", event["model"], uploaded.key)
        return {
            **identity_of(event),
            "family": event["family"],
            "target": event.get("target", ""),
            "key": uploaded.key,
            "version_id": uploaded.version_id,
            "sha256": uploaded.sha256,
            "metrics": event["metrics"],
        }
