"""Identity of this node: its instance and its launch's tags, read from instance metadata (IMDSv2).

On the caller's own machine it is read from a file that `mayfly agent` wrote.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from trainer.base.instants import from_iso
from trainer.runs.keys import NodeKeys

TOKEN_SECONDS = 300  # life of a session's token
PAUSES = (0.2, 0.4, 0.8, 1.6, 3.2)  # seconds between tries: the service may fail or throttle for a moment


@dataclass(frozen=True, kw_only=True)
class NodeIdentity:
    """One node of one attempt of one run."""

    run_id: str
    attempt: int
    node: int
    deadline: datetime
    instance_id: str = ""  # empty: the caller's own machine
    instance_type: str = ""
    spot_zone: str = ""  # of a spot instance, whose price follows the zone; '': it is billed on demand
    role_id: str = ""  # unique id of its role, which its own keys begin with
    boot_seconds: int = 0  # of an instance: limit of its boot

    def boot_ends(self, booted_at: datetime) -> datetime:
        """Return when its boot's time is over."""
        return booted_at + timedelta(seconds=self.boot_seconds)

    @property
    def keys(self) -> NodeKeys:
        """Return the keys that it writes."""
        return NodeKeys(
            role_id=self.role_id,
            instance_id=self.instance_id,
            run_id=self.run_id,
            attempt=self.attempt,
            node=self.node,
        )


def read_identity(endpoint: str, *, pause: Callable[[float], None] = time.sleep) -> NodeIdentity:
    """Ask the metadata service at `endpoint`, again after PAUSES. Raises OSError when it does not answer."""
    metadata = Metadata(endpoint)

    def ask(path: str) -> str:
        for seconds in PAUSES:
            try:
                return metadata.ask(path)
            except (OSError, http.client.HTTPException):
                pause(seconds)
        return metadata.ask(path)

    is_spot = ask("instance-life-cycle") == "spot"
    return NodeIdentity(
        run_id=ask("tags/instance/run_id"),
        attempt=int(ask("tags/instance/attempt")),
        node=int(ask("tags/instance/node")),
        deadline=from_iso(ask("tags/instance/deadline")),
        instance_id=ask("instance-id"),
        instance_type=ask("instance-type"),
        spot_zone=ask("placement/availability-zone") if is_spot else "",
        role_id=ask("tags/instance/role_id"),
        boot_seconds=int(ask("tags/instance/boot_seconds")),
    )


def own_identity(file: Path) -> NodeIdentity:
    """Return the identity of an agent on the caller's own machine; its keys begin with the caller's
    `aws:userid`.
    """
    values = json.loads(file.read_text())
    run_id, deadline = values["run_id"], from_iso(values["deadline"])
    return NodeIdentity(run_id=run_id, attempt=1, node=0, deadline=deadline, role_id=values["user_id"])


class Metadata:
    """The metadata service of this instance, asked with a session's token (IMDSv2)."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint, self._token = endpoint.rstrip("/"), ""
        # link-local: never through a proxy
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, path: str) -> str:
        """Return the text of a path. Raises OSError when the service does not answer, or has no such path."""
        try:
            return self._get(path)
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
        self._token = ""  # it expired
        return self._get(path)

    def find(self, path: str) -> str | None:
        """Return the text of a path, None if there is no such path. Raises OSError without an answer."""
        try:
            return self.ask(path)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def _get(self, path: str) -> str:
        if not self._token:
            self._token = self._answer("api/token", "PUT", **{"token-ttl-seconds": str(TOKEN_SECONDS)})
        return self._answer(f"meta-data/{path}", "GET", token=self._token)

    def _answer(self, path: str, method: str, **headers: str) -> str:
        named = {f"X-aws-ec2-metadata-{name}": value for name, value in headers.items()}
        request = urllib.request.Request(f"{self._endpoint}/latest/{path}", method=method, headers=named)
        return str(self._opener.open(request, timeout=5).read().decode())
