"""Run torchrun with its store on loopback. Takes torchrun's own arguments and ends when its standard input
closes.

    python -m trainer.train.ranks.torchrun --nproc-per-node 8 --max-restarts 1 -m MODULE

torchrun's static rendezvous keeps one store over all restarts, so that restarted ranks read keys of dead ones
(torch 2.13), and listens on every interface. This one makes a new store for each start, on a free port of
loopback.
"""

from __future__ import annotations

import socket
import sys
import threading
import uuid
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

LOOPBACK = "127.0.0.1"
STORE_TIMEOUT = timedelta(minutes=5)  # for all ranks to load torch: a minute from a cold volume


class LoopbackRendezvous(RendezvousHandler):
    """Static rendezvous on one machine: all ranks are known, none joins later."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._store: TCPStore | None = None

    @property
    def use_agent_store(self) -> bool:
        """Return whether ranks use the store of this process."""
        return True

    def get_backend(self) -> str:
        """Return the name of this rendezvous."""
        return "loopback"

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a rendezvous with a new store, for the next start of the ranks."""
        listener = socket.create_server((LOOPBACK, 0))
        port = listener.getsockname()[1]
        self._store = TCPStore(  # replaces the previous one and its keys
            LOOPBACK,
            port,
            is_master=True,
            timeout=STORE_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            use_libuv=True,
        )
        return RendezvousInfo(
            PrefixStore(self._run_id, self._store), 0, 1, RendezvousStoreInfo(LOOPBACK, port)
        )

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
    """Run torchrun with these arguments and our rendezvous."""
    threading.Thread(target=end_with_stdin, name="parent-watch", daemon=True).start()
    rendezvous_handler_registry.register("loopback", _handler)
    # torchrun requires an endpoint but does not use it: the port is known only when the store exists.
    torchrun(
        ["--rdzv-backend=loopback", f"--rdzv-endpoint={LOOPBACK}", f"--rdzv-id={uuid.uuid4()}", *arguments]
    )


def _handler(parameters: RendezvousParameters) -> RendezvousHandler:
    return LoopbackRendezvous(parameters.run_id)


if __name__ == "__main__":
    main(sys.argv[1:])
