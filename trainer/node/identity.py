"""Identity of this node: its instance and its launch's tags, read from instance metadata (IMDSv2).

On the caller's own machine it is read from a file that `mayfly agent` wrote.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trainer.runs.keys import NodeKeys
from trainer.runs.record import from_iso


@dataclass(frozen=True, kw_only=True)
class NodeIdentity:
    """One node of one attempt of one run."""

    run_id: str
    attempt: int
    node: int
    deadline: datetime
    instance_id: str
    instance_type: str
    spot_zone: str = (
        ""  # availability zone of a spot instance, which its price follows; '': it is billed on demand
    )
    role_id: str = ""  # unique id of its role, which its own keys begin with

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


def read_identity(endpoint: str) -> NodeIdentity:
    """Ask the metadata service at `endpoint`. Raises OSError when it does not answer."""
    ask = _session(endpoint.rstrip("/"))
    return NodeIdentity(
        run_id=ask("tags/instance/run_id"),
        attempt=int(ask("tags/instance/attempt")),
        node=int(ask("tags/instance/node")),
        deadline=from_iso(ask("tags/instance/deadline")),
        instance_id=ask("instance-id"),
        instance_type=ask("instance-type"),
        spot_zone=ask("placement/availability-zone") if ask("instance-life-cycle") == "spot" else "",
        role_id=ask("tags/instance/role_id"),
    )


def own_identity(file: Path) -> NodeIdentity:
    """Return the identity of an agent on the caller's own machine; its keys begin with the caller's
    `aws:userid`.
    """
    values = json.loads(file.read_text())
    return NodeIdentity(
        run_id=values["run_id"],
        attempt=1,
        node=0,
        deadline=from_iso(values["deadline"]),
        instance_id="",
        instance_type="",
        role_id=values["user_id"],
    )


def _session(endpoint: str) -> Callable[[str], str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # link-local: never through a proxy
    put = urllib.request.Request(
        f"{endpoint}/latest/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    )
    token = opener.open(put, timeout=5).read().decode()

    def ask(path: str) -> str:
        get = urllib.request.Request(
            f"{endpoint}/latest/meta-data/{path}", headers={"X-aws-ec2-metadata-token": token}
        )
        return str(opener.open(get, timeout=5).read().decode())

    return ask
