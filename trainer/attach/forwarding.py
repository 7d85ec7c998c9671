"""Port forwarding: connections to a local port of 127.0.0.1 reach a port of the node's loopback."""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import suppress

import paramiko

from trainer.attach.request import Forward
from trainer.base.errors import UsageError

log = logging.getLogger(__name__)
HERE = THERE = "127.0.0.1"
OPEN_SECONDS = 15.0
_BLOCK_BYTES = 1 << 16


class ForwardedPort:
    """A listening port; each connection is a channel of its own. Ends with the connection to the node."""

    def __init__(self, transport: paramiko.Transport, forward: Forward) -> None:
        """Raises UsageError if the local port is taken."""
        self._transport, self._remote = transport, forward.remote
        try:
            self._listener = socket.create_server((HERE, forward.local))
        except OSError as error:
            why, do = error.strerror or str(error), "Name another: --forward LOCAL:REMOTE."
            raise UsageError(f"port {forward.local} can't be listened on", why=why, do=do) from error
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> ForwardedPort:
        threading.Thread(target=self._accept, name=f"forward-{self.port}", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # wakes accept()
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, address = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._carry, args=(client, address), daemon=True).start()

    def _carry(self, client: socket.socket, address: tuple[str, int]) -> None:
        try:
            channel = self._transport.open_channel(
                "direct-tcpip", (THERE, self._remote), address, timeout=OPEN_SECONDS
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            log.warning("nothing answers at port %d of the node: %s", self._remote, error)
            client.close()
            return
        back = threading.Thread(target=_pump, args=(channel, client), daemon=True)
        back.start()
        _pump(client, channel)
        back.join()
        channel.close()
        client.close()


def _pump(source: socket.socket | paramiko.Channel, sink: socket.socket | paramiko.Channel) -> None:
    """Copy until the source ends, then tell the sink so: the other direction may go on."""
    try:
        while block := source.recv(_BLOCK_BYTES):
            sink.sendall(block)
    except (OSError, EOFError, paramiko.SSHException):
        pass
    with suppress(OSError, EOFError, paramiko.SSHException):
        sink.shutdown_write() if isinstance(sink, paramiko.Channel) else sink.shutdown(socket.SHUT_WR)
