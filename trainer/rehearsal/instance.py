"""A node as a process group of this machine: started in a sandbox folder, watched, and ended with all of its
descendants.

Owns the sandbox's layout, its PATH of stubs and its timers, and leaves no process behind. Knows nothing of
EC2: the server decides when an instance starts and ends.

    <sandbox>/.mayfly-sandbox        marks the folder; names its scratch folder, for `reap`
    <sandbox>/bin                    the whole PATH of the node: the stubs, and links to a few harmless tools
    <sandbox>/run                    user data, started timers, `poweroff` once it was called
    <sandbox>/var/log/cloud-init-output.log
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from trainer.base.environment import processor_settings
from trainer.base.files import whole_file
from trainer.rehearsal.fork_server import SUPERVISE
from trainer.rehearsal.forks import SERVER as FORK_SERVER
from trainer.rehearsal.forks import ForkedProcess, ForkServerProcess, start_python
from trainer.rehearsal.processes import POLL_SECONDS, Member, end, members_of, send_signals, start_ticks

STUBS = Path(__file__).with_name("stubs")
SUPERVISOR = Path(__file__).with_name("supervisor.py")
FORKING_PYTHON = Path(__file__).with_name("forking_python.sh")
FORK_CLIENT = Path(__file__).with_name("fork_client.py")
MARKER = ".mayfly-sandbox"
# Tools of bootstrap.sh and its libraries. systemctl, poweroff and the like come from STUBS alone, so that no
# process that looks tools up by PATH can reach this machine's own.
TOOLS = (
    *("bash", "sh", "env", "basename", "cat", "chmod", "cp", "cut", "date", "df", "dirname", "find", "grep"),
    *("head", "id", "ln", "ls", "mkdir", "mktemp", "mv", "nproc", "readlink", "rm", "sed", "sha256sum"),
    *("sleep", "sort", "tail", "tee", "timeout", "touch", "tr", "uname", "wc"),
)
TOOL_FOLDERS = "/usr/bin:/bin"
SCRATCH_PREFIX = "mayfly-"
_INSTANCE_ID = re.compile(r"i-[\w-]{1,60}", re.ASCII)
State = Literal["running", "poweroff", "exited"]


def start_node(
    *,
    sandbox: Path,
    instance_id: str,
    instance_type: str,
    user_data: bytes,
    environment: dict[str, str],
    forks: ForkServerProcess | None = None,
    namespaces: Sequence[str] = (),
) -> NodeProcess:
    """Run user data as a node in `sandbox` and return the process; about 0.1 s. With `forks`, its
    interpreters are forks; with `namespaces` (files of /proc), it enters these first.

    `environment` is the node's whole environment besides HOME, PATH, the processor's settings and the
    sandbox's own. It needs AWS_EC2_METADATA_SERVICE_ENDPOINT, AWS_ENDPOINT_URL and MAYFLY_REHEARSAL_GPUS (how
    many GPUs the type has).
    """
    sandbox = sandbox.resolve()
    prepare_sandbox(sandbox)
    script = sandbox / "run" / "user-data"
    script.write_bytes(user_data)
    script.chmod(0o700)
    # Sockets live in TMPDIR, and the path of one holds 107 bytes: a deep sandbox would exceed that.
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX))
    variables = {
        "HOME": str(sandbox / "home"),
        "TMPDIR": str(scratch),
        "LANG": "C.UTF-8",
        "MAYFLY_DESK_PYTHON": sys.executable,
        **processor_settings(),
        **environment,
        "PATH": str(sandbox / "bin"),
        "MAYFLY_ROOT": str(sandbox),
        "MAYFLY_INSTANCE": instance_id,
        "MAYFLY_INSTANCE_TYPE": instance_type,
    }
    try:
        log = str(sandbox / "var/log/cloud-init-output.log")
        words = (str(SUPERVISOR), str(scratch / "forks"), str(script), log, *namespaces)
        supervisor, first_line = _start_supervisor(words, sandbox, instance_id, variables, forks)
        if not first_line.strip():
            what = f"the first process of {instance_id} ended with {supervisor.wait()} before its user data"
            raise RuntimeError(what)
    except (OSError, RuntimeError):
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    node = NodeProcess(
        instance_id=instance_id,
        sandbox=sandbox,
        scratch=scratch,
        process_group=int(first_line),
        supervisor=supervisor,
        supervisor_started=start_ticks(supervisor.pid),
    )
    record = {"instance_id": instance_id, "process_group": int(first_line), "scratch": str(scratch)}
    try:
        with whole_file(sandbox / MARKER) as new:  # a server that is killed here must not leave half a record
            new.write_text(json.dumps(record))
    except OSError:
        node.terminate(grace_seconds=0)
        raise
    return node


def _start_supervisor(
    words: tuple[str, ...],
    sandbox: Path,
    instance_id: str,
    variables: dict[str, str],
    forks: ForkServerProcess | None,
) -> tuple[subprocess.Popen[bytes] | ForkedProcess, bytes]:
    """Start a node's first process; return it with the line that it prints, the user data's process group."""
    words, socket = (SUPERVISE, *words), words[1]
    reader, writer = os.pipe()
    with (
        os.fdopen(reader, "rb") as first_line,
        os.fdopen(writer, "wb") as stdout,
        Path(os.devnull).open("rb") as stdin,
    ):
        files = {0: stdin.fileno(), 1: stdout.fileno(), 2: 2}
        process: subprocess.Popen[bytes] | ForkedProcess
        if forks is None:
            process = start_python(
                ("-I", "-S", str(FORK_SERVER), *words),
                server=None,
                environment=variables,
                folder=sandbox / "home",
                files=files,
                name=instance_id,
            )
        else:
            forking = sandbox / "bin" / "mayfly-python"
            shutil.copyfile(FORKING_PYTHON, forking)
            forking.chmod(0o755)
            variables |= {
                "MAYFLY_DESK_PYTHON": str(forking),
                "MAYFLY_REAL_PYTHON": sys.executable,
                "MAYFLY_FORK_SOCKET": socket,
                "MAYFLY_FORK_CLIENT": str(FORK_CLIENT),
            }
            process = forks.start(
                words, environment=variables, folder=sandbox / "home", files=files, name=instance_id
            )
        stdout.close()
        return process, first_line.readline()


def prepare_sandbox(sandbox: Path) -> None:
    """Lay out an empty sandbox: folders, stubs, links to the tools that a node may call."""
    for folder in ("bin", "etc/systemd/system", "home", "opt/mayfly", "run/timers", "var/log"):
        (sandbox / folder).mkdir(parents=True, exist_ok=True)
    (sandbox / MARKER).write_text("{}")
    for stub in STUBS.iterdir():
        shutil.copyfile(stub, sandbox / "bin" / stub.name)
        (sandbox / "bin" / stub.name).chmod(0o755)  # a wheel may have lost the bit
    for tool in TOOLS:
        path = shutil.which(tool, path=TOOL_FOLDERS)
        if path and not (sandbox / "bin" / tool).exists():
            (sandbox / "bin" / tool).symlink_to(path)


@dataclass(kw_only=True)
class NodeProcess:
    """One running node."""

    instance_id: str
    sandbox: Path
    scratch: Path  # its TMPDIR, removed at its end
    process_group: int  # of the user data; never signalled, since its id may be reused
    supervisor: subprocess.Popen[bytes] | ForkedProcess
    supervisor_started: str

    def poll(self) -> State:
        """Return the node's state: `poweroff` after a call of that stub, `exited` if user data ended without
        one.
        """
        if (self.sandbox / "run/poweroff").exists():
            return "poweroff"
        if (self.sandbox / "run/user-data-exit").exists() or self.supervisor.poll() is not None:
            return "exited"
        return "running"

    def tick(self, now: datetime) -> None:
        """Fire every started timer that is due at `now`, as systemd would: outside the node's process
        group.
        """
        for timer in sorted((self.sandbox / "run/timers").glob("[!.]*.timer")):
            settings = _unit_settings(timer.read_text())
            if parse_calendar(settings["OnCalendar"]) > now:
                continue
            timer.rename(timer.with_suffix(".fired"))
            unit, tools = settings.get("Unit", f"{timer.stem}.service"), str(self.sandbox / "bin")
            subprocess.run([f"{tools}/systemctl", "start", unit], env={"PATH": tools}, check=True, timeout=30)

    def terminate(self, *, grace_seconds: float) -> None:
        """End every process of the node: SIGTERM (and SIGCONT, for stopped ones), then SIGKILL; return when
        none is left.
        """
        end(self._members, grace_seconds=grace_seconds)
        self.supervisor.kill()
        self.supervisor.wait()
        end(self._members, grace_seconds=0)  # the subreaper's end may have orphaned some
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _members(self) -> set[Member]:
        supervisor = (self.supervisor.pid, self.supervisor_started)
        return members_of(self.instance_id, self.sandbox, supervisor) - {supervisor}


def reap(root: Path) -> int:
    """Kill the remaining processes of nodes in `root`/sandbox, whose server was killed; return their number.

    The folder is not trusted, since it may have come with a repository: a node's processes are known by their
    own marks, and a scratch folder is removed only if it is ours.
    """
    killed = 0
    for marker in (root / "sandbox").glob(f"*/{MARKER}"):
        sandbox = marker.parent.resolve()
        if _INSTANCE_ID.fullmatch(sandbox.name):
            while members := members_of(sandbox.name, sandbox, None):
                killed += len(members)
                send_signals(members, signal.SIGKILL)
                time.sleep(POLL_SECONDS)
        _remove_scratch(marker)
    return killed


def _remove_scratch(marker: Path) -> None:
    """Remove a sandbox's scratch folder, if it is this user's own, right in the temporary folder, and has our
    name.
    """
    try:
        folder = Path(json.loads(marker.read_text(encoding="utf-8"))["scratch"])
        about = folder.lstat()
    except (OSError, ValueError, KeyError, TypeError):
        return  # the server died before it wrote the record, or the record is damaged
    ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
    named = folder.name.startswith(SCRATCH_PREFIX) and ".." not in folder.parts
    if ours and named and folder.parent == Path(tempfile.gettempdir()):
        shutil.rmtree(folder, ignore_errors=True)


def parse_calendar(text: str) -> datetime:
    """Read an absolute systemd calendar expression in UTC, such as `2026-11-20 23:59:12 UTC`."""
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=timezone.utc)


def _unit_settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
