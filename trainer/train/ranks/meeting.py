"""The trainers of several machines that train one model together: node 0 leads, the others follow.

A line of JSON a message, over one connection a follower. Both ends have proved that they know the attempt's
token (HMAC over the other's nonce) before anything else is read. Each sends a sign every BEAT_SECONDS; one
that sends none for SILENT_SECONDS is lost, as is one whose connection ends. Of torch's and NCCL's own
connections nothing is proved: see docs/security.md.

    leader     {"say": "start", "session", "piece", "micro_batch"}   every node starts its torchrun
               {"say": "stop", "session"}                            every node ends it
               {"say": "bye"}                                        all pieces are over
    follower   {"say": "trouble", "session", "reason", ...}          its ranks can't go on
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import queue
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from trainer.base.cluster import Cluster
from trainer.base.errors import TrainingFailed, UsageError
from trainer.base.files import read_plain
from trainer.base.strict_json import Fields, Unsound, read_object

PORT = 29_400  # of the leader; torchrun's stores are on those behind it
BEAT_SECONDS, SILENT_SECONDS = 2.0, 45.0
JOIN_SECONDS = 900.0  # until all have planned and loaded torch
GREET_SECONDS, SEND_SECONDS = 10.0, 10.0
MOST_LINE, MOST_TOKEN = 65_536, 4_096
SIOCGIFADDR = 0x8915  # of Linux: the IPv4 address of an interface
DO = "Read `mayfly logs`; the next attempt goes on from the newest checkpoints."


class Meeting:
    """This node's end: what the others say, and whether they are there. `close` leaves it."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        token: bytes,
        port: int = PORT,
        silent: float = SILENT_SECONDS,
        join: float = JOIN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wait for every node, at most `join` seconds. Raises TrainingFailed if one does not come, or if the
        leader can't listen.
        """
        self.cluster, self._token, self._port = cluster, token, port
        self._silent, self._clock = silent, clock
        self._inbox: queue.SimpleQueue[tuple[int, Fields | None]] = queue.SimpleQueue()
        self._lines: dict[int, _Line] = {}
        self._heard: dict[int, float] = {}
        self._ends = threading.Event()
        self._until = clock() + join
        # Before all are there: who came early would count a leader without a sign as lost.
        threading.Thread(target=self._beat, name="meeting-beat", daemon=True).start()
        try:
            self._gather() if cluster.is_head else self._join()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave: the others notice."""
        self._ends.set()
        for line in self._lines.values():
            line.close()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message: the leader to all, a follower to the leader. Whom it does not reach is lost, which
        `heard` says.
        """
        for line in list(self._lines.values()):  # others may still be coming
            line.send(message)

    def heard(self, *, wait: float = 0.0) -> list[tuple[int, Fields]]:
        """Return what others have said since the last call, each with its node; wait for it so many seconds.

        Raises TrainingFailed if a node is lost.
        """
        found, lost = list[tuple[int, Fields]](), dict[int, str]()
        with suppress(queue.Empty):
            message = self._inbox.get(timeout=wait) if wait else self._inbox.get_nowait()
            while True:
                node, said = message
                self._heard[node] = self._clock()
                if said is None:
                    lost[node] = "its connection ended"
                elif said.values.get("say") != "beat":
                    found.append((node, said))
                message = self._inbox.get_nowait()
        for node, at in self._heard.items():
            if self._clock() - at > self._silent:
                lost.setdefault(node, f"it was silent for {self._silent:.0f} s")
        if lost and not any(said.values.get("say") == "bye" for _, said in found):
            names = "; ".join(f"node {node}: {why}" for node, why in sorted(lost.items()))
            raise TrainingFailed("a machine that trains the model with others is lost", why=names, do=DO)
        return found

    def _gather(self) -> None:
        place = (self.cluster.address, self._port)
        try:
            listener = socket.create_server(place)
        except OSError as error:
            what = f"node 0 cannot listen at {place[0]}:{place[1]}"
            do = "Name its own address in the cluster's file, and end what listens there."
            raise TrainingFailed(what, why=os.strerror(error.errno or 0), do=do) from error
        with listener:
            listener.settimeout(1.0)
            while len(self._lines) < len(self.cluster.addresses) - 1:
                self._check_time("nodes that did not come: " + self._missing)
                with suppress(TimeoutError):
                    caller, _ = listener.accept()
                    self._admit(caller)

    @property
    def _missing(self) -> str:
        nodes = range(1, len(self.cluster.addresses))
        return ", ".join(str(node) for node in nodes if node not in self._lines)

    def _admit(self, caller: socket.socket) -> None:
        """Let a caller in that proves the token, as a node that has not come yet; hang up on any other."""
        try:
            line, nonce = _Line(caller), secrets.token_hex(16)
            line.send({"nonce": nonce})
            hello = line.read()
            node = hello.whole("node", least=1, most=len(self.cluster.addresses) - 1)
            if node in self._lines or not self._is_proof(hello.text("proof"), f"{node}:{nonce}"):
                raise Unsound("not a node of this attempt")
            line.send({"proof": self._proof(f"0:{hello.text('nonce')}")})
        except (Unsound, OSError):
            caller.close()
            return
        self._meet(node, line)

    def _join(self) -> None:
        while True:
            self._check_time(f"node 0 at {self.cluster.head} did not answer")
            with suppress(OSError):
                line = _Line(socket.create_connection((self.cluster.head, self._port), timeout=GREET_SECONDS))
                break
            time.sleep(0.2)
        try:
            own, challenge = secrets.token_hex(16), line.read().text("nonce")
            node = self.cluster.node
            line.send({"node": node, "proof": self._proof(f"{node}:{challenge}"), "nonce": own})
            if not self._is_proof(line.read().text("proof"), f"0:{own}"):
                raise Unsound("it does not know the token of this attempt")
        except (Unsound, OSError) as error:
            line.close()
            what = f"node {self.cluster.node} was not let in by node 0"
            raise TrainingFailed(what, why=str(error), do=DO) from error
        self._meet(0, line)

    def _meet(self, node: int, line: _Line) -> None:
        self._lines[node], self._heard[node] = line, self._clock()
        threading.Thread(target=self._listen, args=(node, line), name=f"node-{node}", daemon=True).start()

    def _check_time(self, missing: str) -> None:
        if self._clock() > self._until:
            raise TrainingFailed("the machines of this attempt did not meet", why=missing, do=DO)

    def _listen(self, node: int, line: _Line) -> None:
        with suppress(Unsound, OSError):
            while True:
                self._inbox.put((node, line.read(timeout=None)))
        self._inbox.put((node, None))

    def _beat(self) -> None:
        while not self._ends.wait(BEAT_SECONDS):
            self.tell({"say": "beat"})

    def _proof(self, text: str) -> str:
        return hmac.new(self._token, text.encode(), "sha256").hexdigest()

    def _is_proof(self, proof: str, text: str) -> bool:
        return hmac.compare_digest(proof.encode(), self._proof(text).encode())


def token_of(path: Path | None) -> bytes:
    """Return the attempt's token. Raises UsageError without one."""
    try:
        token = read_plain(path, most_bytes=MOST_TOKEN).strip() if path else b""
    except OSError as error:
        what, do = f"cannot read the cluster's token {path}", "Check the path and its permissions."
        raise UsageError(what, why=str(error.strerror), do=do) from error
    if len(token) < 32:
        raise UsageError(
            "several machines train one model, and there is no token for them",
            why="RAY_AUTH_TOKEN_PATH names no file of 32 characters or more",
            do="The node's agent sets it; at a desk, write one random file and give all nodes its path.",
        )
    return token


def interface_of(address: str) -> str:
    """Return the name of the network interface with an address; '' if there is none, and libraries choose."""
    if address.startswith("127."):
        return "lo0" if sys.platform == "darwin" else "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no IPv4 address
                known = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(known[20:24]) == address:
                    return name
    return ""


class _Line:
    """One connection: a JSON object a line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(GREET_SECONDS)
        self._connection, self._sending = connection, threading.Lock()
        self._file = connection.makefile("rb", buffering=MOST_LINE)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; if that fails, the connection is over."""
        with self._sending, suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def read(self, *, timeout: float | None = GREET_SECONDS) -> Fields:
        """Return the next message. Raises Unsound for a malformed one, and OSError at the end."""
        self._connection.settimeout(timeout or SEND_SECONDS + SILENT_SECONDS)
        body = self._file.readline(MOST_LINE + 1)
        if not body.endswith(b"\n"):
            raise OSError("the connection ended")
        return read_object(body, most_bytes=MOST_LINE, name="a message")

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
