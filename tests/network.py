"""No test, and no process that a test starts, reaches beyond loopback. A plugin: it closes the network before
anything runs.

Two locks, since neither is everywhere:

- A network namespace with nothing but `lo`, where the kernel lets us make one: it holds every process there
  is below pytest, nodes and functions with their cleared environments included.
- An audit hook in every Python that starts with PYTHONPATH and site (`offline/sitecustomize.py`): it says
  what went wrong.

Set-up (scripts/setup, pip) runs before pytest and outside of both.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import runpy
import socket
import struct
import sys
from pathlib import Path

import pytest

HOOK = Path(__file__).with_name("offline")
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1  # linux/sockios.h, linux/if.h


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Close the network of this process and of what it will start: xdist's workers are among that."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(HOOK) not in paths:  # else this is a worker of xdist, and started with the hook
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HOOK), *filter(None, paths)])
        runpy.run_path(str(HOOK / "sitecustomize.py"))
    if not in_namespace():
        _enter_namespace()


def pytest_report_header() -> str:
    """Say how strong the guard is."""
    return f"network: loopback only, by {'a namespace and ' if in_namespace() else ''}an audit hook"


def in_namespace() -> bool:
    """Return whether this process has no network interface but loopback."""
    return [name for _, name in socket.if_nameindex()] == ["lo"]


def _enter_namespace() -> None:
    """Move this process into a network of its own, by root's right or else in a user namespace; stay where
    neither works.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        user, group = os.getuid(), os.getgid()
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            return
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:  # `ip link set lo up`, without ip
        asked = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(control, SIOCGIFFLAGS, asked))
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
