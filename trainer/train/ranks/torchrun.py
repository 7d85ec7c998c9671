"""Run torchrun with a store of its own. Takes torchrun's own arguments, behind a place, and ends when its
standard input closes.

    python -m trainer.train.ranks.torchrun 127.0.0.1:0 0 1 ID --nproc-per-node 8 --max-restarts 1 -m MODULE
    python -m trainer.train.ranks.torchrun 10.0.0.5:29401 1 2 ID --nproc-per-node 8 --max-restarts 0 -m MODULE

The place is the store's address and port on node 0 (0: a free one, for one node), the number of this node and
of all, and an id that the nodes share.

torchrun's static rendezvous keeps one store over all restarts, so that restarted ranks read keys of dead ones
(torch 2.13), and listens on every interface. This one makes a new store for each start, on one address.
"""

from __future__ import annotations

import socket
import sys
import threading
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.run import main as torchrun

from trainer.train.child_processes import end_with_stdin

BACKEND = "static-store"
STORE_TIMEOUT = timedelta(minutes=5)  # for all ranks to load torch: a minute from a cold volume


class StaticRendezvous(RendezvousHandler):
    """All nodes are known, none joins later; node 0 has the store."""

    def __init__(self, run_id: str, *, address: str, port: int, node: int, nodes: int) -> None:
        self._run_id, self._address, self._port = run_id, address, port
        self._node, self._nodes = node, nodes
        self._store: TCPStore | None = None

    @property
    def use_agent_store(self) -> bool:
        """Return whether ranks use the store of this process."""
        return True

    def get_backend(self) -> str:
        """Return the name of this rendezvous."""
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a rendezvous with a new store, for the next start of the ranks."""
        port, listening = self._port, None
        if self._node == 0:
            listener = socket.create_server((self._address, port))
            port, listening = listener.getsockname()[1], listener.detach()
        self._store = TCPStore(  # replaces the previous one and its keys
            self._address,
            port,
            is_master=self._node == 0,
            timeout=STORE_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listening,
            use_libuv=True,
        )
        store, where = PrefixStore(self._run_id, self._store), RendezvousStoreInfo(self._address, port)
        return RendezvousInfo(store, self._node, self._nodes, where)

    def is_closed(self) -> bool:
        """Return False: it is always open."""
        return False

    def set_closed(self) -> None:
        """Do nothing: it ends with the process."""

    def num_nodes_waiting(self) -> int:
        """Return 0: no other machine joins."""
        return 0

    def get_run_id(self) -> str:
        """Return the id of this run of torchrun."""
        return self._run_id

    def shutdown(self) -> bool:
        """Return True: it ends with the process."""
        return True


def main(arguments: list[str]) -> None:
    """Run torchrun with these arguments behind the place."""
    (endpoint, node, nodes, run_id), own = arguments[:4], arguments[4:]
    threading.Thread(target=end_with_stdin, name="parent-watch", daemon=True).start()
    rendezvous_handler_registry.register(BACKEND, _handler)
    place = ["--nnodes", nodes, f"--rdzv-backend={BACKEND}", f"--rdzv-endpoint={endpoint}"]
    torchrun([*place, f"--rdzv-id={run_id}", f"--rdzv-conf=node={node},nodes={nodes}", *own])


def _handler(parameters: RendezvousParameters) -> RendezvousHandler:
    address, _, port = parameters.endpoint.rpartition(":")
    node, nodes = parameters.get_as_int("node", 0), parameters.get_as_int("nodes", 1)
    assert node is not None and nodes is not None
    return StaticRendezvous(parameters.run_id, address=address, port=int(port), node=node, nodes=nodes)


if __name__ == "__main__":
    main(sys.argv[1:])
