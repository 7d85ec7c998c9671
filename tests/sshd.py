"""SSH servers on loopback for tests: paramiko's own server side in this process, and OpenSSH's where it is
installed.

Both run real commands as this user, give real terminals and lead to real ports, for one public key.
"""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import socket
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from getpass import getuser
from pathlib import Path
from typing import Any

import paramiko

from trainer.node.ssh import authorize, host_keys

SSHD = shutil.which("sshd") or next(
    (path for path in ("/usr/sbin/sshd", "/usr/local/sbin/sshd") if Path(path).exists()), None
)


@dataclass
class SshServer:
    """A server: where it listens, its user, and its public host keys as a node publishes them."""

    port: int
    user: str
    published: bytes
    asked: list[str] = field(default_factory=list)  # users who tried to sign in, where the server tells
    log: Path | None = None

    @property
    def refuses_this_account(self) -> bool:
        """Return whether OpenSSH lets nobody in as this user, whatever the key: an account may be locked."""
        return self.log is not None and "not allowed because" in self.log.read_text()


def key_pair(path: Path) -> str:
    """Make an ed25519 key as OpenSSH does, without a comment; return the public half."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path.with_suffix(path.suffix + ".pub").read_text().strip()


class SshAnswers(paramiko.ServerInterface):
    """Answers to paramiko's server side, for one connection."""

    def __init__(self, server: SshServer, authorized: str, transport: paramiko.Transport) -> None:
        self._server, self._transport = server, transport
        self._key = authorized.split()[1]
        self._size = (80, 24)
        self._ports: dict[int, tuple[str, int]] = {}
        self._screen: int | None = None
        self._pty = False

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self._server.asked.append(username)
        fits = (username, key.get_base64()) == (self._server.user, self._key)
        return paramiko.AUTH_SUCCESSFUL if fits else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if kind == "session":
            return paramiko.OPEN_SUCCEEDED
        return paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_pty_request(self, channel: Any, term: Any, width: int, height: int, *_: Any) -> bool:
        self._size, self._pty = (width, height), True
        return True

    def check_channel_window_change_request(self, channel: Any, width: int, height: int, *_: Any) -> bool:
        assert self._screen is not None
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        return True

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        _beside(self._on_terminal, channel, ["bash", "--norc"])
        return True

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        words = ["bash", "-c", command.decode()]
        run = self._on_terminal if self._pty else self._on_pipes
        _beside(run, channel, words)
        return True

    def _on_terminal(self, channel: paramiko.Channel, words: list[str]) -> None:
        self._screen, other = pty.openpty()
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", self._size[1], self._size[0], 0, 0))
        child = subprocess.Popen(words, stdin=other, stdout=other, stderr=other, start_new_session=True)
        os.close(other)
        screen = self._screen
        _beside(_copy, channel.recv, lambda block: os.write(screen, block))
        _copy(lambda size: os.read(screen, size), channel.sendall)
        _end(channel, child.wait())

    def _on_pipes(self, channel: paramiko.Channel, words: list[str]) -> None:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        child = subprocess.Popen(words, bufsize=0, **pipes)
        assert child.stdin and child.stdout and child.stderr
        _beside(_copy, channel.recv, child.stdin.write, child.stdin.close)
        errors = _beside(_copy, child.stderr.read, channel.sendall_stderr)
        _copy(child.stdout.read, channel.sendall)
        errors.join()
        _end(channel, child.wait())

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: Any, destination: tuple[str, int]
    ) -> int:
        try:
            target = socket.create_connection(destination, timeout=500)
        except OSError:
            return paramiko.OPEN_FAILED_CONNECT_FAILED
        _beside(self._lead, target)
        return paramiko.OPEN_SUCCEEDED

    def _lead(self, target: socket.socket) -> None:
        channel = self._transport.accept(10)
        assert channel is not None
        back = _beside(_copy, target.recv, channel.sendall, channel.shutdown_write)
        _copy(channel.recv, target.sendall, lambda: target.shutdown(socket.SHUT_WR))
        back.join()
        target.close()
        channel.close()


def _end(channel: paramiko.Channel, exit_code: int) -> None:
    """End a command, and leave it to the client to close the channel: our close could overtake the answer to
    its request. One that a signal ended has no exit code (RFC 4254, section 6.10).
    """
    with suppress(OSError, EOFError):
        if exit_code < 0:
            told = paramiko.Message()
            told.add_byte(bytes([paramiko.common.MSG_CHANNEL_REQUEST]))
            told.add_int(channel.remote_chanid)
            for part in ("exit-signal", False, "KILL", False, "", ""):
                told.add_boolean(part) if isinstance(part, bool) else told.add_string(part)
            channel.get_transport()._send_user_message(told)
            channel.close()
            return
        channel.send_exit_status(exit_code)
        channel.shutdown_write()


def _beside(call: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Start a call in a thread of its own."""
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    thread.start()
    return thread


def _copy(read: Any, write: Any, end: Any = lambda: None) -> None:
    with suppress(OSError, EOFError):
        while block := read(1 << 15):
            write(block)
    with suppress(OSError, EOFError):
        end()


@contextmanager
def paramiko_server(folder: Path, authorized: str) -> Iterator[SshServer]:
    """Serve with paramiko, until the `with` ends."""
    folder.mkdir(exist_ok=True)
    public = key_pair(folder / "ssh_host_ed25519_key")
    own = paramiko.Ed25519Key.from_private_key_file(str(folder / "ssh_host_ed25519_key"))
    listener = socket.create_server(("127.0.0.1", 0))
    server = SshServer(port=listener.getsockname()[1], user="mayfly", published=f"{public}\n".encode())
    transports: list[paramiko.Transport] = []

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(client)
            transport.add_server_key(own)
            transports.append(transport)
            with suppress(paramiko.SSHException, EOFError, OSError):
                transport.start_server(server=SshAnswers(server, authorized, transport))

    _beside(accept)
    try:
        yield server
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for transport in transports:
            transport.close()


@contextmanager
def openssh_server(folder: Path, authorized: str) -> Iterator[SshServer]:
    """Serve with OpenSSH, as this user and for this user, with the files that a node writes."""
    etc, home = folder / "etc", folder / "home"
    etc.mkdir(parents=True, exist_ok=True)
    home.mkdir(exist_ok=True)
    for kind in ("ed25519", "ecdsa"):
        make = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(etc / f"ssh_host_{kind}_key")]
        subprocess.run(make, check=True)
    authorize(home, authorized)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    lines = [
        f"ListenAddress 127.0.0.1:{port}",
        *(f"HostKey {etc}/ssh_host_{kind}_key" for kind in ("ed25519", "ecdsa")),
        f"AuthorizedKeysFile {home}/.ssh/authorized_keys",
        f"PidFile {folder}/pid",
        "StrictModes no",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
    ]
    (etc / "sshd_config").write_text("\n".join(lines) + "\n")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    log = (folder / "log").open("wb")
    child = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(etc / "sshd_config")], stderr=log)
    try:
        while True:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            assert child.poll() is None, (folder / "log").read_text()
            time.sleep(0.01)
        yield SshServer(port=port, user=getuser(), published=host_keys(etc), log=folder / "log")
    finally:
        child.terminate()
        child.wait()
        log.close()


SERVERS = {"paramiko": paramiko_server, "openssh": openssh_server}
