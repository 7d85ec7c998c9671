"""Forks that stand for new interpreters: code, files, signals and exit codes of their own, and none outlives
its client.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import alive
from trainer.base.environment import PROCESSOR_SETTINGS
from trainer.rehearsal import fork_client, forks
from trainer.rehearsal import fork_server as fork_server_script
from trainer.rehearsal.fork_client import send_order
from trainer.rehearsal.forks import ForkedProcess, ForkServerProcess, fork

CLIENT = Path(fork_client.__file__)
LOOK = """
import json, os, sys
import trainer
json.dump({
    "argv": sys.argv[1:], "cwd": os.getcwd(), "variables": dict(os.environ), "trainer": trainer.__file__,
    "loaded": "torch" in sys.modules, "session": os.getsid(0), "pid": os.getpid(), "executable": sys.executable,
    "main": __name__, "extra": os.read(int(sys.argv[2]), 100).decode() if len(sys.argv) > 2 else "",
}, open("seen.json", "w"))
print("out"); print("err", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


def run_nothing(server: ForkServerProcess) -> int:
    """Wait until the server has forked a Python that does nothing; return its exit code."""
    files = {0: 0, 1: 2, 2: 2}
    return server.start(("-c", ""), environment={}, folder=Path("/"), files=files, name="first").wait()


@pytest.fixture(scope="module")
def server(fork_server: Path) -> Iterator[ForkServerProcess]:
    """A fork of the session's server, as an embedded AWS has one."""
    server = ForkServerProcess(fork_server)
    assert run_nothing(server) == 0
    yield server
    server.close()


@pytest.fixture
def start(server: ForkServerProcess, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a client, which stands for `python -m trainer.MODULE ...` of a package of
    its own.
    """
    package = tmp_path / "code" / "trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    started = []

    def run(code: str, *words: str, **options: Any) -> subprocess.Popen[str]:
        (package / "look.py").write_text(code)
        client = [sys.executable, "-I", "-S", str(CLIENT), str(server.path)]
        process = subprocess.Popen(
            [*client, str(tmp_path / "venv/bin/python"), "-m", "trainer.look", *words],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path / "code"), "PYTHONSAFEPATH": "1", "MINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(process)
        return process

    (tmp_path / "venv/lib/python3/site-packages").mkdir(parents=True)
    yield run
    for process in started:
        process.kill()
        process.wait()


def pid_in(file: Path, wait_until: Callable[..., None]) -> int:
    wait_until(lambda: file.exists() and file.read_text())
    return int(file.read_text())


def test_a_fork_has_its_own_code_files_and_variables(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"handed on")
    process = start(LOOK, "7", str(reader), pass_fds=(reader,))
    out, err = process.communicate()
    os.close(reader)
    os.close(writer)
    assert (process.returncode, out, err) == (7, "out\n", "err\n")
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["argv"] == ["7", str(reader)] and seen["extra"] == "handed on"
    assert seen["cwd"] == str(tmp_path) and seen["main"] == "__main__"
    assert seen["trainer"] == str(tmp_path / "code/trainer/__init__.py")  # and not the checkout's package
    assert seen["variables"]["MINE"] == "1" and "PYTEST_CURRENT_TEST" not in seen["variables"]
    assert seen["loaded"] and seen["session"] == seen["pid"] != os.getsid(0)
    assert seen["executable"] == str(tmp_path / "venv/bin/python")


def test_libraries_load_with_the_users_processor_settings_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Forks would otherwise compute with other instructions than this Python, and differ in last digits."""
    seen, looking = tmp_path / "seen.json", tmp_path / "server.py"
    looking.write_text(
        f"import json, os, pathlib; pathlib.Path({str(seen)!r}).write_text(json.dumps(dict(os.environ)))"
    )
    monkeypatch.setattr(forks, "SERVER", looking)
    for name in PROCESSOR_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("DESK_SECRET", "of the desk")
    server = ForkServerProcess()
    try:
        assert server._server is not None and server._server.wait() == 0
    finally:
        server.close()
    assert json.loads(seen.read_text()) == {**forks.ENVIRONMENT, "OPENBLAS_CORETYPE": "Haswell"}


def test_a_fork_server_loads_nothing_of_ours(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    code = "import sys, json; json.dump([sys.path, sorted(sys.modules)], open('seen.json', 'w'))"
    assert start(code).wait() == 0
    path, modules = json.loads((tmp_path / "seen.json").read_text())
    ours = {name for name in modules if name.split(".")[0] in ("trainer", "infra")}
    assert ours <= {"trainer", "trainer.look"}
    root = str(Path(__file__).resolve().parents[3])
    assert not [folder for folder in path if folder == root or folder.startswith(f"{root}/trainer")]


def test_a_fork_begins_under_a_small_limit_of_open_files() -> None:
    code = """
import os, resource
from trainer.rehearsal.fork_server import Order
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
known = {"executable": "", "arguments": [], "environment": {}, "folder": "/", "name": "small", "detached": True}
received = [os.dup(2), os.dup(1), os.dup(2)]
Order({**known, "files": [0, 1, received[0]]}, received).become()
print("begun")
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (0, "begun\n"), process.stderr


def test_signals_reach_the_fork_and_its_end_is_the_clients(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    caught = (
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(42))\n"
        "open('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    process = start(caught)
    pid_in(tmp_path / "pid", wait_until)
    process.terminate()
    assert process.wait() == 42
    killed = start("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert killed.wait() == -signal.SIGKILL


def test_a_signal_before_the_forks_id_is_known_reaches_it(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "server"))
            listener.listen()
            command = [sys.executable, "-I", "-S", str(CLIENT), str(tmp_path / "server"), "python"]
            client = subprocess.Popen(command, cwd=tmp_path)
            connection, _ = listener.accept()
        with connection:
            connection.recv(1)  # the order is on its way
            client.terminate()
            connection.sendall(json.dumps({"pid": sleeper.pid}).encode() + b"\n")
            assert sleeper.wait(timeout=500) == -signal.SIGTERM
            connection.sendall(b'{"exit": 42}\n')
            assert client.wait() == 42
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize(
    ("code", "exit_code", "out", "err"),
    [
        ("print('printed', end='')", 0, "printed", ""),
        ("import sys\nsys.exit('in words')", 1, "", "in words\n"),
        ("import sys\nsys.exit(None)", 0, "", ""),
        ("import atexit\natexit.register(print, 'last')", 0, "last\n", ""),
        ("import threading\nthreading.Timer(0.1, print, ['late']).start()", 0, "late\n", ""),
    ],
)
def test_a_fork_leaves_as_an_interpreter_does(
    start: Callable[..., subprocess.Popen[str]], code: str, exit_code: int, out: str, err: str
) -> None:
    process = start(code)
    assert process.communicate() == (out, err) and process.returncode == exit_code


def test_a_forks_error_is_a_traceback_and_ctrl_c_a_signal(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    process = start("raise ValueError('told')")
    _, err = process.communicate()
    assert err.startswith("Traceback") and err.endswith("ValueError: told\n") and process.returncode == 1
    process = start("raise KeyboardInterrupt")
    assert process.communicate()[1].endswith("KeyboardInterrupt\n") and process.returncode == -signal.SIGINT


def test_a_killed_client_ends_its_fork_with_its_children(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    family = (
        "import os, subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\nopen('child',"
        " 'w').write(str(child.pid))\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    process = start(family)
    pid, child = pid_in(tmp_path / "pid", wait_until), pid_in(tmp_path / "child", wait_until)
    process.kill()
    wait_until(lambda: not alive(pid) and not alive(child))


def test_a_servers_forks_end_with_it(
    fork_server: Path, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    server = ForkServerProcess(fork_server)
    code = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    with Path(os.devnull).open("r+b") as nothing:
        files = dict.fromkeys((0, 1, 2), nothing.fileno())
        run_nothing(server)
        forked = fork(server.path, ("-c", code), environment={}, folder=tmp_path, files=files, name="i-1")
    assert pid_in(tmp_path / "pid", wait_until) == forked.pid and forked.poll() is None
    assert Path(f"/proc/{forked.pid}/comm").read_text().strip() == "i-1"
    server.close()
    wait_until(lambda: not alive(forked.pid))


def test_a_client_can_connect_before_the_server_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the first client was faster than the server, found no socket and failed."""
    script = tmp_path / "never_ready.py"
    script.write_text("import time; time.sleep(600)")
    monkeypatch.setattr(forks, "SERVER", script)
    server = ForkServerProcess()
    order: dict[str, Any] = {"arguments": ["-c", ""], "environment": {}, "files": {}, "name": "first"}
    with send_order(server.path, executable="python", folder=tmp_path, **order) as connection:
        server.close()
        with pytest.raises(RuntimeError, match="forked nothing"):
            ForkedProcess(connection)


def test_a_detached_fork_goes_on_without_its_client(
    server: ForkServerProcess, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    code = (
        "import os, time; open('pid', 'w').write(str(os.getpid()))\nwhile not os.path.exists('end'):"
        " time.sleep(0.02)"
    )
    client = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; import fork_client as"
        " c\nc.send_order(Path(sys.argv[2]), executable=sys.executable, arguments=['-c', sys.argv[3]],"
        " environment={}, folder=Path.cwd(), files={0: 0, 1: 2, 2: 2}, name='detached',"
        " detached=True).recv(1)"
    )
    words = [sys.executable, "-I", "-S", "-c", client, str(CLIENT.parent), str(server.path), code]
    subprocess.run(words, cwd=tmp_path, check=True)
    pid = pid_in(tmp_path / "pid", wait_until)
    assert alive(pid)
    (tmp_path / "end").touch()
    wait_until(lambda: not alive(pid))


def test_a_message_of_somebody_else_costs_nothing(server: ForkServerProcess, tmp_path: Path) -> None:
    for nonsense in (b"", b"GET / HTTP/1.1\r\n\r\n", (5).to_bytes(8, "big") + b"[1,2]", b"\xff" * 8):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(server.path))
            stranger.sendall(nonsense)
    assert run_nothing(server) == 0


def test_an_exit_code_that_comes_with_the_process_id_is_read() -> None:
    """On a busy machine both lines came at once, and the second was lost in a buffer."""
    here, there = socket.socketpair()
    with there:
        there.sendall(b'{"pid": 1}\n{"exit": 3}\n')
    assert ForkedProcess(here).wait() == 3


def test_a_server_with_idle_threads_forks_without_a_warning(monkeypatch, tmp_path):
    """On Python 3.12 and newer; it would be in server.log."""

    def warns(*_: object, **__: object) -> None:
        said = "This process (pid=7) is multi-threaded, use of fork() may lead to deadlocks in the child."
        warnings.warn_explicit(said, DeprecationWarning, "fork_server.py", 130, module="__main__")

    monkeypatch.setattr(fork_server_script, "inherited_listener", socket.socket)
    monkeypatch.setattr(fork_server_script, "load_libraries", lambda names: None)
    monkeypatch.setattr(fork_server_script, "serve", warns)
    with warnings.catch_warnings(record=True) as printed:
        warnings.simplefilter("default")
        fork_server_script.main(tmp_path / "socket", until_ends=os.getpid(), more_libraries=())
    assert printed == []
