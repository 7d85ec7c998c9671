"""A network of their own for rehearsed machines of one attempt: a namespace with nothing but loopback.

Ray listens on every address of its machine, so nodes that share the desk's network could be reached from
outside. Here the server listens in the namespace, too, at its own address, and a proxy for HTTPS leads out;
nothing leads in. Linux only, by root's right or else in a user namespace; `open_network` returns None where
the kernel allows neither.

The namespace belongs to a process of its own, which holds it open until its standard input ends:

    python -I -S node_network.py PORT    # standard input is a Unix socket, which takes the listening ones
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import selectors
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NEW_USER, NEW_NET = 0x10000000, 0x40000000  # linux/sched.h
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # linux/sockios.h, linux/if.h
_START_SECONDS, _CONNECT_SECONDS = 20.0, 30.0
_MOST_HEAD_BYTES, _BLOCK_BYTES = 1 << 14, 1 << 16


@dataclass(frozen=True, kw_only=True)
class NodeNetwork:
    """An open namespace. `spaces` are the files that a process enters; both sockets listen in it."""

    holder: subprocess.Popen[bytes]
    tie: socket.socket  # the holder ends with it, and so with this process
    spaces: tuple[str, ...]
    front: socket.socket  # at the server's own address
    proxy: socket.socket

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables of a node: where HTTPS leads out."""
        host, port = self.proxy.getsockname()
        return {"HTTPS_PROXY": f"http://{host}:{port}", "NO_PROXY": "127.0.0.1,localhost"}

    def close(self) -> None:
        """End the proxy and the holder; the namespace ends with its last process."""
        for listener in (self.front, self.proxy):
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
            listener.close()
        self.tie.close()
        self.holder.wait()


def open_network(port: int) -> NodeNetwork | None:
    """Open a namespace in which `port` of 127.0.0.1 listens, and serve its proxy; None where there is none to
    be had.
    """
    if sys.platform != "linux":
        return None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    words = [sys.executable, "-I", "-S", __file__, str(port)]
    none = subprocess.DEVNULL
    with theirs:
        holder = subprocess.Popen(
            words, stdin=theirs.fileno(), stdout=none, stderr=none, start_new_session=True
        )
    ours.settimeout(_START_SECONDS)
    try:
        kinds, files, *_ = socket.recv_fds(ours, 16, 2)
    except OSError:
        kinds, files = b"", []
    if len(files) != 2:
        ours.close()
        holder.wait()
        return None
    front, proxy = (socket.socket(fileno=number) for number in files)
    threading.Thread(target=_serve_proxy, args=(proxy,), daemon=True).start()
    spaces = tuple(f"/proc/{holder.pid}/ns/{kind}" for kind in kinds.decode().split())
    return NodeNetwork(holder=holder, tie=ours, spaces=spaces, front=front, proxy=proxy)


def _serve_proxy(listener: socket.socket) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:  # closed
            return
        threading.Thread(target=_lead_out, args=(client,), daemon=True).start()


def _lead_out(client: socket.socket) -> None:
    """Serve one CONNECT (RFC 9110, section 9.3.6) to a port of HTTPS outside of this machine."""
    with client:
        try:
            client.settimeout(_CONNECT_SECONDS)
            head = b""
            while b"\r\n\r\n" not in head and len(head) < _MOST_HEAD_BYTES:
                if not (block := client.recv(_BLOCK_BYTES)):
                    return
                head += block
            method, target, *_ = head.split(b" ", 2)
            host, _, port = target.decode("ascii").rpartition(":")
            if method != b"CONNECT" or port != "443":
                client.sendall(b"HTTP/1.1 405 Only CONNECT to port 443\r\n\r\n")
                return
            try:
                other = socket.create_connection((host.strip("[]"), 443), timeout=_CONNECT_SECONDS)
            except OSError:
                client.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                return
            with other:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                _join(client, other)
        except (OSError, ValueError):
            return


def _join(one: socket.socket, other: socket.socket) -> None:
    """Pass bytes both ways until one side ends."""
    with selectors.DefaultSelector() as selector:
        for near, far in ((one, other), (other, one)):
            near.settimeout(_CONNECT_SECONDS)
            selector.register(near, selectors.EVENT_READ, (near, far))
        while True:
            for key, _ in selector.select():
                near, far = key.data
                if not (block := near.recv(_BLOCK_BYTES)):
                    return
                far.sendall(block)


def _enter_new() -> str:
    """Move this process into a network of its own, its loopback up; return the kinds of its namespaces, the
    outer one first. Raises OSError.
    """
    libc, kinds = ctypes.CDLL(None, use_errno=True), "net"
    if libc.unshare(NEW_NET) != 0:
        user, group = os.getuid(), os.getgid()
        if libc.unshare(NEW_USER | NEW_NET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        kinds = "user net"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:  # `ip link set lo up`, without ip
        (flags,) = struct.unpack(
            "16xh14x", fcntl.ioctl(control, _GET_FLAGS, struct.pack("16sh14x", b"lo", 0))
        )
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))
    return kinds


def _hold(port: int) -> None:
    """Open the namespace, send its listening sockets, and wait for the end of standard input."""
    kinds = _enter_new()
    parent = socket.socket(fileno=0)
    listeners = [socket.create_server(("127.0.0.1", number), backlog=128) for number in (port, 0)]
    socket.send_fds(parent, [kinds.encode()], [listener.fileno() for listener in listeners])
    for listener in listeners:
        listener.close()
    parent.recv(1)


if __name__ == "__main__":
    _hold(int(sys.argv[1]))
