"""A Python that forks instead of starting: third-party libraries are loaded once, and each new interpreter is
a fork.

Loading torch takes four core-seconds, and a node starts three interpreters that need it. Nothing of `trainer`
is loaded here: a fork finds its code in its own folders, as a new interpreter would. A plain script, which
imports the standard library:

    python fork_server.py SOCKET PID [LIBRARY...]  # standard input is the listening socket, bound to SOCKET
    python fork_server.py --supervise SUPERVISOR SOCKET USER_DATA LOG [NAMESPACE...]
                                                   # a node, whose Pythons may all be new

Its parent binds the socket (`listen`), so that a client can connect at once and waits only for its fork.

A client (`fork_client`) sends one message with its open files; the answers are {"pid"} and, at the end,
{"exit"}. A client asks for `python -m MODULE ...`, `python -c CODE ...` (for multiprocessing), `python
--supervise ...` (the first process of a node, which is a fork server of its own) or `python --serve SOCKET`
(a fork server for another process, which passes the listening socket as standard input).

When a client goes away, its fork is killed with its process group, unless it is detached; a node's first
process ends by itself, with its node, when the server that forked it is gone. This server ends when the
process with PID does.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import multiprocessing.spawn
import os
import runpy
import selectors
import signal
import site
import socket
import sys
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

# Libraries of a node's agent, its smoke test, the trainer and its workers.
LIBRARIES = ("boto3", "numpy", "pyarrow.parquet", "safetensors.torch", "torch")
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15  # linux/prctl.h
HEADER_BYTES = 8
MOST_FILES = 64
MOST_BYTES = 1 << 20
MESSAGE_SECONDS = 10.0  # limit for a client that stops in the middle of its message
POLL_SECONDS = 0.1


SERVE, SUPERVISE = "--serve", "--supervise"
STANDARD_PATH = [
    path for path in sys.path if path.startswith(sys.base_prefix) and "site-packages" not in path
]


class ForkServer:
    """Server for clients on a Unix socket. `step` returns None after a while, and in a new fork the order to
    run.
    """

    def __init__(self, path: Path, listener: socket.socket) -> None:
        """Serve the clients of a listening socket that is bound to `path`."""
        self._selector = selectors.DefaultSelector()
        self._listener, self._path = listener, path
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._forks: dict[socket.socket, Order | None] = {}  # by client; None until its message has come

    def step(self) -> Order | None:
        """Serve the clients that have sent something. Returns None, or in a new fork the order to run."""
        for key, _ in self._selector.select(POLL_SECONDS):
            if key.fileobj is self._listener:
                client, _ = self._listener.accept()
                client.settimeout(MESSAGE_SECONDS)
                self._forks[client] = None
                self._selector.register(client, selectors.EVENT_READ)
                continue
            order = self._hear(key.fileobj)  # type: ignore[arg-type]
            if order is not None:
                return order
        return None

    def collect(self) -> dict[int, int] | None:
        """Wait for ended children and notify their clients; return their exit codes by process id, None
        without any child.
        """
        ended: dict[int, int] = {}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended or None
            if pid == 0:
                return ended
            ended[pid] = os.waitstatus_to_exitcode(status)
            for client in [client for client, fork in self._forks.items() if fork and fork.pid == pid]:
                with suppress(OSError):
                    client.sendall(_line({"exit": ended[pid]}))
                self._forget(client)

    def close(self) -> None:
        """Kill every fork that would not end by itself, and remove the socket with its folder."""
        for fork in self._forks.values():
            if fork is not None:
                fork.abandon()
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self._path.parent.rmdir()  # unless other files lie there

    def _hear(self, client: socket.socket) -> Order | None:
        fork = self._forks[client]
        try:
            order = None if fork else receive_order(client)
        except (OSError, ValueError, KeyError, TypeError):
            order = None
        if order is None:  # the client is gone, or not ours
            if fork is not None:
                fork.abandon()
            self._forget(client)
            return None
        order.parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._selector.close()
            for held in (self._listener, *self._forks):
                held.close()
            return order
        for descriptor in order.files.values():
            os.close(descriptor)
        order.pid = pid
        self._forks[client] = order
        with suppress(OSError):
            client.sendall(_line({"pid": pid}))
        return None

    def _forget(self, client: socket.socket) -> None:
        self._selector.unregister(client)
        client.close()
        del self._forks[client]


class Order:
    """Order of a fork: Python's command line, environment, folder, and open files by number."""

    def __init__(self, message: dict[str, Any], received: list[int]) -> None:
        self.executable = str(message["executable"])
        self.arguments = [str(word) for word in message["arguments"]]
        self.environment = {str(name): str(value) for name, value in message["environment"].items()}
        self.folder = str(message["folder"])
        self.name = str(message["name"])
        self.files = dict(zip(map(int, message["files"]), received, strict=True))
        self.detached = bool(message["detached"])
        self.parent = 0  # the server that forks it
        self.pid = 0  # of the fork, as its server knows it

    def abandon(self) -> None:
        """Kill the fork with its process group, unless it is detached."""
        if self.detached:
            return
        for kill in (os.killpg, os.kill):  # it may not have its own group yet
            with suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)

    def become(self) -> None:
        """Give this fork a session, open files, a folder, an environment and signals as a new process would
        have them.
        """
        os.setsid()
        above = max(self.files, default=-1) + 1  # a higher number may exceed a small `ulimit -n`
        moved = {number: _out_of_the_way(descriptor, above) for number, descriptor in self.files.items()}
        for number, descriptor in moved.items():
            os.dup2(descriptor, number, inheritable=True)
            os.close(descriptor)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_NAME, self.name.encode()[:15], 0, 0, 0)
        if not self.detached:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)  # noqa: SIM115
        sys.stdout.reconfigure(write_through=bool(self.environment.get("PYTHONUNBUFFERED")))

    def run(self) -> None:
        """Run the code as `__main__`. Raises its exceptions, SystemExit included."""
        flag, what, rest = split_command(self.arguments)
        sys.executable = self.executable
        multiprocessing.spawn.set_executable(self.executable)
        multiprocessing.current_process().authkey = os.urandom(32)
        flags = self.arguments[: self.arguments.index(flag)]
        isolated = "-I" in flags
        is_safe = isolated or "-P" in flags or self.environment.get("PYTHONSAFEPATH")
        first = [] if is_safe else ["" if flag == "-c" else self.folder]
        more = "" if isolated else self.environment.get("PYTHONPATH", "")
        added = [path for path in more.split(os.pathsep) if path]
        sys.path[:] = [*first, *added, *STANDARD_PATH]
        sys.path_importer_cache.clear()
        if "-S" not in flags:
            for folder in Path(self.executable).parent.parent.glob("lib/python3*/site-packages"):
                site.addsitedir(str(folder))
            site.execsitecustomize()
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        sys.argv = [flag, *rest]
        if flag == "-c":
            exec(compile(what, "<string>", "exec"), main.__dict__)
        else:
            runpy._run_module_as_main(what)  # type: ignore[attr-defined]  # what `python -m` itself calls


def listen(path: Path) -> socket.socket:
    """Return a listening socket that only this user can connect to."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(64)
    return listener


def inherited_listener() -> socket.socket:
    """Return the listening socket that is this process's standard input."""
    return socket.socket(fileno=os.dup(0))


def split_command(words: list[str]) -> tuple[str, str, list[str]]:
    """Split Python's command line at -m or -c, after its flags: (flag, module or code, the rest)."""
    for place, word in enumerate(words):
        if word in ("-m", "-c"):
            return word, words[place + 1], words[place + 2 :]
        if word not in ("-u", "-B", "-s", "-P", "-I", "-S"):
            break
    raise ValueError(f"a fork server can't run python {' '.join(words)}")


def receive_order(client: socket.socket) -> Order | None:
    """Read one message with its open files; None if the client is gone."""
    head, ancillary, _, _ = client.recvmsg(
        HEADER_BYTES, socket.CMSG_SPACE(MOST_FILES * 4), socket.MSG_WAITALL
    )
    received = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(data)
    if not head:
        return None
    size, body = int.from_bytes(head, "big"), bytearray()
    if size > MOST_BYTES:
        raise ValueError(f"a message of {size} bytes")
    while len(body) < size:
        block = client.recv(size - len(body))
        if not block:
            return None
        body += block
    return Order(json.loads(body), received.tolist())


def load_libraries(names: Sequence[str]) -> None:
    """Import every installed library (or run a file that does), and exclude their objects from garbage
    collection.
    """
    gc.disable()  # saves a fifth of the time: libraries leave almost no garbage
    # botocore would load AWS's common runtime, which Lambdas lack; `aws/checksums.py` hides it likewise.
    sys.modules["awscrt"] = None  # type: ignore[assignment]
    for name in names:
        with suppress(ImportError):
            runpy.run_path(name) if name.endswith(".py") else importlib.import_module(name)
    del sys.modules["awscrt"]
    ours = sorted(name for name in sys.modules if name.partition(".")[0] in ("trainer", "infra"))
    assert not ours, f"a fork must find its own code, and {ours} would be this checkout's"
    gc.collect()
    gc.freeze()  # forks share these pages until they are written
    gc.set_threshold(20_000, 20, 20)  # else collections take 1 to 3 % of a short fork's time
    gc.enable()


def serve(server: ForkServer, *, until_ends: int) -> Order | None:
    """Serve until a process has gone. Returns an order in each fork, and None at the end."""
    while Path(f"/proc/{until_ends}").exists():
        order = server.step()
        if order is not None:
            return order
        server.collect()
    server.close()
    return None


def supervise(words: list[str]) -> Order | None:
    """Be the first process of a node (`supervisor.py`), and its fork server. Returns an order in each fork,
    None at the end.
    """
    script, socket_path, user_data, log, *namespaces = words
    path = Path(socket_path)
    for namespace in namespaces:  # of its network, before anything of the node runs
        enter_namespace(namespace)
    supervisor = runpy.run_path(script, run_name="supervisor")
    order: Order | None = supervisor["main"](Path(user_data), Path(log), ForkServer(path, listen(path)))
    return order


def enter_namespace(path: str) -> None:
    """Move this process, which has one thread, into a namespace. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0) != 0:
            raise OSError(ctypes.get_errno(), f"setns({path})")
    finally:
        os.close(descriptor)


def main(path: Path, *, until_ends: int, more_libraries: Sequence[str]) -> None:
    """Load the libraries and serve; in each fork, run the order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the desk is not meant for it
    # Python 3.12 and newer warn of the idle threads that OpenBLAS and Arrow start when they are loaded.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    server = ForkServer(path, inherited_listener())
    load_libraries((*LIBRARIES, *more_libraries))
    order = serve(server, until_ends=until_ends)
    if order is not None:
        leave_after(partial(carry_out, order))


def carry_out(order: Order | None) -> None:
    """Carry out this fork's order, and in the forks of this fork theirs."""
    while order is not None:
        order.become()
        if order.arguments[0] == SERVE:
            order = serve(ForkServer(Path(order.arguments[1]), inherited_listener()), until_ends=order.parent)
        elif order.arguments[0] == SUPERVISE:
            order = supervise(order.arguments[1:])
        else:
            order.run()
            return


def leave_after(act: Callable[[], None]) -> NoReturn:
    """Run a function and end the process as Python would, except that it does not clear its modules.

    Clearing takes half a core-second with torch loaded, and first copies the pages that the forks share.
    """
    code: object = 0
    try:
        act()
    except KeyboardInterrupt:  # Python ends by the signal
        raise
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:  # as an interpreter's last line of defense
        sys.excepthook(*sys.exc_info())
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as multiprocessing does for its own children
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


def _out_of_the_way(descriptor: int, above: int) -> int:
    """Move a file to a number of at least `above`, which no client asked for."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above)
    os.close(descriptor)
    return moved


def _line(message: dict[str, int]) -> bytes:
    return json.dumps(message).encode() + b"\n"


if __name__ == "__main__":
    if sys.argv[1] == SUPERVISE:
        supervise(sys.argv[2:])
    else:
        main(Path(sys.argv[1]), until_ends=int(sys.argv[2]), more_libraries=sys.argv[3:])
