"""A command's side of the embedded AWS: find or start its server, lease it, have the Pulumi program applied,
give access.

The server is a separate process, so that it survives the command that started it; the note of `home` has its
address and secret. Both sides of a request to the server itself prove that they know that secret. Nothing
here imports moto or boto3.
"""

from __future__ import annotations

import hmac
import http.client
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trainer
from trainer.aws.access import Access
from trainer.base import environment
from trainer.base.errors import ConfigError
from trainer.base.extras import needs
from trainer.rehearsal import home
from trainer.rehearsal.forks import ForkedProcess, start_python
from trainer.rehearsal.home import Note
from trainer.rehearsal.interruptions import Interruption
from trainer.rehearsal.keys import NONCE_HEADER, SIGNATURE_HEADER, TIME_HEADER, Keyring
from trainer.rehearsal.processes import start_ticks

ACCOUNT = "000000000001"
SERVER = "trainer.rehearsal.server"  # the module of the server's process
# Against a hang: it takes about two on an idle machine; a server that ends is noticed at once.
START_SECONDS = 300.0
STOP_SECONDS = 30.0
PROGRAM_SECONDS = 600.0  # longer than `pulumi_apply.APPLY_SECONDS`, whose error says more


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: another process may answer in the server's place."""

    def redirect_request(self, *_: Any) -> None:
        return None


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)  # no proxy on loopback


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server, and our lease on it."""

    note: Note
    lease: str

    @property
    def url(self) -> str:
        """Return its address."""
        return self.note.url

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self.note.pid

    def access(self) -> Access:
        """Return the desk's access to the account."""
        return Keyring(self.note.secret).credentials(ACCOUNT).access(self.url)

    def apply_program(self) -> None:
        """Have the Pulumi program applied to the account, unless it is already; seconds. Raises ConfigError
        with its error.
        """
        try:
            answer = _ask(self.note, "program", {"account": ACCOUNT}, timeout_seconds=PROGRAM_SECONDS)
        except OSError as failure:
            what = "the embedded AWS failed while the Pulumi program was applied to it"
            do = "Try again; its server.log may tell more."
            raise ConfigError(what, why=str(failure), do=do) from failure
        if error := answer.get("error"):
            raise ConfigError(error["what"], why=error["why"], do=error["do"])

    def release(self) -> None:
        """Release the lease; a server that is gone needs none."""
        try:
            _ask(self.note, "release", {"lease": self.lease})
        except OSError:
            return


@contextmanager
def rehearsal(root: Path | None = None, *, program: bool = True, create: bool = True) -> Iterator[Access]:
    """Give access to the embedded AWS of `root` while the context lasts; it starts in about two seconds.

    With `program`, the Pulumi program is applied in the account; without, it has what earlier rehearsals left
    in its bucket. Raises ConfigError off Linux, without the packages of the `rehearsal` extra, when the
    server does not come up, and, without `create`, where there was no rehearsal yet.
    """
    root = root or default_root()
    if not create and not root.exists():
        why, do = f"there is no folder {root}", "Rehearse a launch first: mayfly launch --rehearse."
        raise ConfigError("nothing was rehearsed yet", why=why, do=do)
    server = lease_server(root)
    try:
        if program:
            server.apply_program()
        yield server.access()
    finally:
        server.release()


def default_root() -> Path:
    """Return the folder of this desk's embedded AWS."""
    return environment.rehearsal_home()


def interrupt_run(
    run_id: str,
    wanted: Interruption,
    *,
    attempt: int = 1,
    root: Path | None = None,
) -> None:
    """Ask the embedded AWS of `root` (default: this desk's) to take the machine of a run's attempt back.
    Raises ConfigError if it does not run.
    """
    note = home.read_note(root or default_root())
    try:
        if note is None:
            raise ConnectionError("it has no note")
        asked = {"account": ACCOUNT, "run_id": run_id, "attempt": attempt, **vars(wanted)}
        _ask(note, "interrupt", asked)
    except OSError as error:
        what = "the embedded AWS was not told of the interruption"
        raise ConfigError(what, why=str(error), do="Launch again.") from error


def lease_server(root: Path, *, holder: int | None = None) -> Server:
    """Lease the server of `root` for a process (default: this one); start the server if none runs."""
    if sys.platform != "linux":
        do = "Run this in a container, or use an AWS account."
        raise ConfigError("the embedded AWS needs Linux or a container", do=do)
    needs("moto")
    root = home.open_home(root)
    deadline = time.monotonic() + START_SECONDS
    starting: subprocess.Popen[bytes] | ForkedProcess | None = None
    while time.monotonic() < deadline:
        server = _lease_running(root, holder or os.getpid())
        if server:
            return server
        # A new server ends at once if another one runs or is ending: then try again.
        code = None if starting is None else starting.poll()
        if code:
            raise _start_failed(root)
        if starting is None or code is not None:
            starting = _start(root)
        time.sleep(0.1)
    raise _start_failed(root)


def stop_server(root: Path) -> bool:
    """End the server of `root`, and no other, with everything that runs in it, and wait. Returns whether
    there was one.
    """
    root = root.resolve()
    note = home.read_note(root)
    if note is None:
        return False
    try:
        if not _ask(note, "stop", {"root": str(root)}).get("stopped"):
            return False
    except OSError:
        return False
    deadline = time.monotonic() + STOP_SECONDS
    while start_ticks(note.pid) == note.started and time.monotonic() < deadline:
        time.sleep(0.05)
    return True


def _lease_running(root: Path, holder: int) -> Server | None:
    note = home.read_note(root)
    if note is None:
        return None
    try:
        lease = _ask(note, "lease", {"pid": holder, "root": str(root)}).get("lease")
    except OSError:  # it was killed, and perhaps another process has its port
        return None
    return Server(note=note, lease=lease) if lease else None


def _start(root: Path) -> subprocess.Popen[bytes] | ForkedProcess:
    """Start a server in a session of its own: a Ctrl-C at the desk must not end it."""
    with (
        home.open_private(root / home.LOG, os.O_WRONLY | os.O_APPEND) as log,
        Path(os.devnull).open("rb") as nothing,
    ):
        return start_python(
            ("-m", SERVER, "--root", str(root)),
            server=environment.rehearsal_environment().fork_server,
            environment=environment.for_embedded_aws(source=str(Path(next(iter(trainer.__path__))).parent)),
            folder=root,
            files={0: nothing.fileno(), 1: log.fileno(), 2: log.fileno()},
            name="mayfly-aws",
            detached=True,
        )


def _ask(note: Note, what: str, body: dict[str, Any], *, timeout_seconds: float = 10.0) -> dict[str, Any]:
    """Send a request to the server itself. Raises OSError without an answer, or for one not signed with its
    secret.
    """
    keyring, path, data = Keyring(note.secret), f"/_rehearsal/{what}", json.dumps(body).encode()
    at, nonce = str(int(time.time())), secrets.token_hex(16)
    headers = {
        "Content-Type": "application/json",
        TIME_HEADER: at,
        NONCE_HEADER: nonce,
        SIGNATURE_HEADER: keyring.request_signature(path, at, nonce, data),
    }
    request = urllib.request.Request(f"{note.url}{path}", data=data, headers=headers)
    try:
        with _direct.open(request, timeout=timeout_seconds) as answer:
            text, signature = answer.read(), answer.headers.get(SIGNATURE_HEADER, "")
    except http.client.HTTPException as error:
        raise ConnectionError(f"no HTTP at {note.url}: {error!r}") from error
    if not hmac.compare_digest(keyring.answer_signature(nonce, text).encode(), signature.encode()):
        raise ConnectionError(f"another process answers at {note.url}")
    reply: dict[str, Any] = json.loads(text)
    return reply


def _start_failed(root: Path) -> ConfigError:
    """Return the error of a server that did not start: its own refusal, a full disk, or the last line that it
    printed.
    """
    what, log = "the embedded AWS did not start", root / home.LOG
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    last = lines[-1] if lines else "it said nothing"
    if last.startswith(home.REFUSED):
        reply = json.loads(last.removeprefix(home.REFUSED))
        return ConfigError(reply["what"], why=reply["why"], do=reply["do"])
    if shutil.disk_usage(root).free < home.LEAST_FREE_BYTES:
        return home.disk_full(root)
    return ConfigError(what, why=last, do=f"Read {log}.")
