"""The machines of one attempt that work together: the file by which a node's agent tells its command.

Node 0 is the head: Ray's, and torchrun's rank 0 lives there. Standard library only.
"""

from __future__ import annotations

import ipaddress
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer.base.errors import UsageError
from trainer.base.files import read_plain, whole_file
from trainer.base.strict_json import Unsound, read_object

FORMAT = 1
MOST_NODES = 64
MOST_BYTES = 16_384


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The nodes of an attempt in order, by their private IPv4 addresses, and which of them this one is."""

    node: int
    addresses: tuple[str, ...]

    @property
    def head(self) -> str:
        """Return the address of node 0."""
        return self.addresses[0]

    @property
    def address(self) -> str:
        """Return this node's own address."""
        return self.addresses[self.node]

    @property
    def is_head(self) -> bool:
        """Return whether this is node 0."""
        return self.node == 0


def write_cluster(path: Path, cluster: Cluster) -> None:
    """Write a cluster's file."""
    with whole_file(path) as partial:
        partial.write_text(json.dumps({"format": FORMAT, **asdict(cluster)}), encoding="utf-8")


def read_cluster(path: Path) -> Cluster:
    """Read a cluster's file. Raises UsageError for one that is missing or malformed."""
    try:
        fields = read_object(read_plain(path, most_bytes=MOST_BYTES), most_bytes=MOST_BYTES, name=path.name)
        if fields.values.get("format") != FORMAT:
            raise Unsound(f"its format is not {FORMAT}")
        addresses = tuple(
            private_address(item.text()) for item in fields.value("addresses").items(most=MOST_NODES)
        )
        node = fields.whole("node", most=MOST_NODES - 1)
        if not 2 <= len(addresses) == len(set(addresses)) or node >= len(addresses):
            raise Unsound("its nodes are not two or more with an address each, this one among them")
    except (OSError, Unsound) as error:
        what, do = f"cannot read the cluster's file {path}", "The node's agent writes it."
        raise UsageError(what, why=str(error), do=do) from error
    return Cluster(node=node, addresses=addresses)


def private_address(text: str) -> str:
    """Return an IPv4 address of a private network, or of loopback as in a rehearsal. Raises Unsound for
    anything else.
    """
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError as error:
        raise Unsound(f"{text[:40]!r} is not an IPv4 address") from error
    if not address.is_private or address.is_unspecified or address.is_link_local:
        raise Unsound(f"{text[:40]!r} is not the address of a private network")
    return str(address)
