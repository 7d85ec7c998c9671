"""A command or a shell on a node by SSH, with this process's own streams; the exit code is the command's."""

from __future__ import annotations

import os
import select
import signal
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

import paramiko

from trainer.base.environment import terminal_kind
from trainer.base.errors import ConnectionFailed

_BLOCK_BYTES = 1 << 15


def run_command(
    transport: paramiko.Transport, line: str, *, stdin: int, stdout: BinaryIO, stderr: BinaryIO
) -> int:
    """Run a line of the node's shell to its end, without a terminal; return its exit code. `stdin` is a file
    descriptor.
    """
    channel = transport.open_session()
    channel.exec_command(line)
    threading.Thread(target=_send, args=(stdin, channel), daemon=True).start()
    errors = threading.Thread(target=_print, args=(channel.recv_stderr, stderr), daemon=True)
    errors.start()
    _print(channel.recv, stdout)
    errors.join()
    return _exit_code(channel)


def run_shell(transport: paramiko.Transport, line: str, *, keyboard: int, screen: int) -> int:
    """Run a shell or a command with a terminal on the node, connected to this one; return its exit code.

    `keyboard` and `screen` are file descriptors of a terminal. Call it from the main thread: it follows
    changes of size.
    """
    channel = transport.open_session()
    columns, rows = os.get_terminal_size(screen)
    channel.get_pty(term=terminal_kind(), width=columns, height=rows)

    def resized(*_: object) -> None:
        columns, rows = os.get_terminal_size(screen)
        channel.resize_pty(width=columns, height=rows)

    before = signal.signal(signal.SIGWINCH, resized)
    try:
        with _raw(keyboard):
            channel.exec_command(line) if line else channel.invoke_shell()
            _talk(channel, keyboard, screen)
    finally:
        signal.signal(signal.SIGWINCH, before)
    return _exit_code(channel)


def _talk(channel: paramiko.Channel, keyboard: int, screen: int) -> None:
    """Copy bytes both ways until the node's side ends; every key is sent, Ctrl-C too."""
    listening = [channel, keyboard]
    while True:
        ready, _, _ = select.select(listening, [], [])
        if channel in ready:
            block = channel.recv(_BLOCK_BYTES)
            if not block:
                return
            while block:
                block = block[os.write(screen, block) :]
        if keyboard in ready:
            if typed := os.read(keyboard, _BLOCK_BYTES):
                with suppress(OSError):  # the channel is closed, as the next pass sees
                    channel.sendall(typed)
            else:
                channel.shutdown_write()
                listening.remove(keyboard)


@contextmanager
def _raw(terminal: int) -> Iterator[None]:
    before = termios.tcgetattr(terminal)
    try:
        tty.setraw(terminal, termios.TCSADRAIN)  # input typed ahead belongs to the shell
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _send(stdin: int, channel: paramiko.Channel) -> None:
    """Send stdin, read without Python's buffer: a thread that waits in it keeps the process from ending
    cleanly.
    """
    try:
        while block := os.read(stdin, _BLOCK_BYTES):
            channel.sendall(block)
        channel.shutdown_write()
    except OSError:  # the command has ended, or our stdin was closed
        return


def _print(receive: Callable[[int], bytes], sink: BinaryIO) -> None:
    while block := receive(_BLOCK_BYTES):
        sink.write(block)
        sink.flush()


def _exit_code(channel: paramiko.Channel) -> int:
    """Return the command's exit code. Raises ConnectionFailed if none came."""
    code: int = channel.recv_exit_status()
    channel.close()
    if code < 0:
        why = "a signal ended it, or the connection did"
        do = "mayfly status RUN shows if the machine is up."
        raise ConnectionFailed("the command ended without an exit code", why=why, do=do)
    return code
