"""First on PYTHONPATH of every Python that a test starts: no socket beyond loopback. See tests/network.py.

An audit hook, which nothing can take off again. What Python is started without site (-I, -S) and what is no
Python at all is kept in by the network namespace, where there is one.
"""

from __future__ import annotations

import errno
import sys
from typing import Any

NAMES = ("", "localhost", "ip6-localhost", "::1")


def _is_loopback(host: object) -> bool:
    if isinstance(host, (bytes, bytearray)):
        host = bytes(host).decode(errors="replace")
    if not isinstance(host, str):  # None: the wildcard of getaddrinfo; numbers: a netlink address
        return True
    return host in NAMES or (host.startswith("127.") and host.replace(".", "").isdecimal())


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if not event.startswith("socket."):
        return
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None  # AF_UNIX has a path
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if not _is_loopback(host):
        raise PermissionError(errno.EACCES, f"tests open no socket beyond loopback ({event} to {host!r})")


sys.addaudithook(_refuse)
