"""The server of the embedded AWS: in this process (`EmbeddedAws`), or as a separate process for commands.

`client` starts the process; to start it by hand:

    python -m trainer.rehearsal.server --root FOLDER

See `home` for the files below the root. `tests/aws/server.py` has more of AWS: permissions, quotas, alarms,
faults.
"""

from __future__ import annotations

import argparse
import fcntl
import hmac
import itertools
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trainer
from trainer.aws.access import Access
from trainer.base.environment import rehearsal_environment
from trainer.base.errors import FULL, ConfigError, TrainerError, problem_of
from trainer.rehearsal import home, instance, lambdas, messages, pulumi_apply, scheduling, storage
from trainer.rehearsal.account import EmbeddedAccount, Rules
from trainer.rehearsal.applied_program import AppliedProgram, ProgramStore, program_hash, replay
from trainer.rehearsal.forks import ForkServerProcess
from trainer.rehearsal.front import RULES, Front
from trainer.rehearsal.http_server import HttpServer
from trainer.rehearsal.interruptions import AskedInterruption, Interruption, interrupt_due
from trainer.rehearsal.keys import FRESH_SECONDS, NONCE_HEADER, SIGNATURE_HEADER, TIME_HEADER, Keyring
from trainer.rehearsal.leases import Leases
from trainer.rehearsal.memory import InstanceLog, StoredSettings
from trainer.rehearsal.node_network import NodeNetwork, open_network
from trainer.rehearsal.nodes import Nodes, remove_sandbox
from trainer.rehearsal.processes import start_ticks
from trainer.rehearsal.signatures import wsgi_name
from trainer.rehearsal.wire import Answer, Environ, call_application, forget_account
from trainer.rehearsal.world import AwsError, Delays

log = logging.getLogger("trainer.rehearsal")
STEP_SECONDS = 0.1
_accounts = itertools.count(1)  # per process, like moto's state
# Settings of a rehearsal's stack that differ from the program's defaults: runs of several machines, too.
USUAL = {"cluster": "true"}


class EmbeddedAws:
    """An AWS in this process while the context lasts; in a temporary folder if `root` is None."""

    account_type: type[EmbeddedAccount] = EmbeddedAccount
    rules: Rules = RULES
    applier = pulumi_apply.__name__  # the module that applies the Pulumi program, in a process of its own

    def __init__(
        self,
        root: Path | None = None,
        *,
        delays: Delays = Delays(pending_seconds=0, shutting_down_seconds=0),  # noqa: B008  it is frozen
        run_nodes: bool = True,
        fire_schedules: bool = True,
        grace_seconds: float = 10.0,
        programs: Path | None = None,
        fork_nodes: bool = False,
        fork_server: Callable[[], Path] | None = None,
    ) -> None:
        self._is_temporary = root is None
        self.root = root or Path(tempfile.mkdtemp(prefix="mayfly-aws-"))
        self._delays = delays
        self._run_nodes, self._fire_schedules = run_nodes, fire_schedules
        self._programs = ProgramStore(programs or self.root / "programs")
        self._fork_nodes, self._fork_server = fork_nodes, fork_server
        self._stacks: dict[str, dict[str, Any]] = {}  # account -> the program's outputs
        self._stack_locks: dict[str, threading.Lock] = {}
        self.keyring = Keyring()
        self.front = Front(self._make_cloud, self.keyring, self.rules)
        self.nodes = Nodes(grace_seconds=grace_seconds, find_cloud=self._cloud_of_instance)
        self.front.mounts |= {"imds": self.nodes.metadata, "efs": self.nodes.file_system}
        self._server = HttpServer(self.front)
        self.nodes.open_network = self._open_network
        self.front.host = f"127.0.0.1:{self._server.server_port}"
        self._unwritten = ""  # why the instances could not be stored the last time
        self._ends = threading.Event()
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True),
            threading.Thread(target=self._run, daemon=True),
        ]

    @property
    def url(self) -> str:
        """Return the server's address."""
        return f"http://{self.front.host}"

    def __enter__(self) -> EmbeddedAws:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End everything; nodes and functions first, while they can still reach their AWS."""
        self._ends.set()
        self._threads[1].join()
        self.nodes.close()
        lambdas.stop_all()
        self._server.shutdown()
        self._threads[0].join()
        self._server.server_close()
        for cloud in self.front.clouds():
            for one in cloud.world.instances.values():
                cloud.world.lost(one.id, cloud.clock.now())
            self._keep_memory(cloud)
            lambdas.end_all(cloud)
            forget_account(cloud.account)
        if self._is_temporary:
            shutil.rmtree(self.root, ignore_errors=True)

    def account(self) -> Access:
        """Return access to an unused account."""
        return self.access(f"{next(_accounts):012d}")

    def access(self, account: str) -> Access:
        """Return the desk's access to the account of that number."""
        return self.keyring.credentials(account).access(self.url)

    def cloud(self, access: Access) -> EmbeddedAccount:
        """Return the account behind an access."""
        return self.front.cloud((access.access_key or "")[4:16])

    def apply_program(self, access: Access, config: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Apply the Pulumi program to an account, unless it is already, and return its outputs. `config`
        overrides settings.

        Takes some seconds the first time, and milliseconds once the same program's calls are stored. Raises
        ConfigError with the program's error; the account is then unchanged, except for its buckets.
        """
        account = self.cloud(access).account
        with self._stack_locks.setdefault(account, threading.Lock()):
            try:
                if self._fork_nodes and self.nodes.forks is None:  # a launch follows soon: load its libraries
                    self.nodes.forks = ForkServerProcess(self._fork_server() if self._fork_server else None)
                if account not in self._stacks:
                    self._stacks[account] = self._apply_or_replay(access, account, config or {})
            except (TrainerError, OSError) as error:
                forget_account(account, keep=("s3",))  # a half-applied program would block the next try
                if isinstance(error, TrainerError):
                    raise
                what = "the Pulumi program could not be applied to the embedded AWS"
                raise problem_of(error) or ConfigError(what, why=str(error)) from error
            return self._stacks[account]

    def _apply_or_replay(self, access: Access, account: str, config: Mapping[str, str]) -> dict[str, Any]:
        package = Path(next(iter(trainer.__path__)))
        key = program_hash(pulumi_apply.program_folder(), package, stack=pulumi_apply.STACK, config=config)
        with self._programs.locked(key):
            applied = self._programs.read(key)
            if applied is None:
                applied = self._apply(access, config)
                self._programs.write(key, applied)
                return applied.outputs
        try:
            return replay(applied, account=account, send=partial(self.call, account))
        except (AwsError, ValueError) as error:  # the stored application does not fit this server
            log.warning("the stored calls of the Pulumi program can't be replayed: %s", error)
            forget_account(account, keep=("s3",))
            return self._apply(access, config).outputs

    def _apply(self, access: Access, config: Mapping[str, str]) -> AppliedProgram:
        server = self._fork_server() if self._fork_server else None
        return pulumi_apply.apply(access, config=config, module=self.applier, server=server)

    def _open_network(self) -> NodeNetwork | None:
        network = open_network(int(self._server.server_port))
        if network is not None:
            self._server.serve_also(network.front)
        return network

    def call(self, account: str, service: str, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        """Call AWS in an account as its administrator, without a socket. Raises AwsError.

        A function's zip is not sent through the front: to write megabytes as JSON and read them again takes
        50 core-ms.
        """
        if (service, operation) == ("lambda", "CreateFunction"):
            return lambdas.create(self.front.cloud(account), params)
        return call_application(self.front.inside, account, service, operation, params)

    def restore(self) -> None:
        """Restore every account of an earlier server. Raises ConfigError for a file that can't be read."""
        names = {path.name for kind in ("settings", "instances") for path in self.root.glob(f"{kind}/*")}
        for name in sorted(names):
            if len(name) == 12 and name.isdecimal():
                self.front.cloud(name)

    def busy(self) -> bool:
        """Return whether any instance of any account is alive, a function that was called still runs, or
        control has yet to settle a run: its one-time schedules are armed.
        """
        for cloud in self.front.clouds():
            with cloud.lock:
                if cloud.world.alive(cloud.clock.now()):
                    return True
                if cloud.fire_schedules and cloud.world.is_expecting():
                    return True
                if any(thread.is_alive() for thread in (*cloud.in_flight, *cloud.invocations)):
                    return True
        return False

    def healthy(self) -> bool:
        """Return whether both threads run."""
        return all(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while not self._ends.wait(STEP_SECONDS):
            for cloud in self.front.clouds():
                if not cloud.world.instances and not cloud.fire_schedules:
                    continue  # most accounts of tests have none: skipping 300 saves a fortieth of a core
                self.nodes.step(cloud)
                if cloud.fire_schedules:
                    self.fire_due(cloud)
                self._keep_memory(cloud)

    def fire_due(self, cloud: EmbeddedAccount) -> None:
        """Let everything happen that an account's clock makes due."""
        scheduling.fire_due(cloud)
        with cloud.lock:
            now = cloud.clock.now()
            interrupt_due(cloud.world, cloud.interruptions, cloud.buckets.values(), now)
        messages.tell_changes(cloud)

    def _keep_memory(self, cloud: EmbeddedAccount) -> None:
        """Release resources of ended instances in moto, store changes, and drop what AWS would no longer
        show.
        """
        with cloud.lock:
            now = cloud.clock.now()
            forgotten = cloud.world.forget(now)
            instances = list(cloud.world.instances.values())
            for one in instances:
                if one.state(now) == "terminated" and one.id not in cloud.released:
                    cloud.released.add(one.id)
                    cloud.release(one.id)
            try:
                for one in instances:
                    cloud.instance_log.save(one)
                self._unwritten = ""
            except OSError as error:  # a full disk: the next call tries again
                if self._unwritten != str(error):
                    log.error("instances can't be written: %s", error)
                self._unwritten = str(error)
        for instance_id in forgotten:
            remove_sandbox(cloud, instance_id)
            cloud.instance_log.forget(instance_id)

    def _cloud_of_instance(self, instance_id: str) -> EmbeddedAccount | None:
        return next((cloud for cloud in self.front.clouds() if instance_id in cloud.world.instances), None)

    def _make_cloud(self, account: str) -> EmbeddedAccount:
        cloud = self.account_type(
            account=account,
            root=self.root,
            delays=self._delays,
            settings=StoredSettings(self.root / "settings" / account),
            instance_log=InstanceLog(self.root / "instances" / account),
            run_nodes=self._run_nodes,
            fire_schedules=self._fire_schedules,
            endpoint=lambda: self.url,
            keyring=self.keyring,
            function_code=self._programs.folder / "functions",
            fork_functions=self._fork_server,
        )
        storage.restore(cloud)
        for instance_id in cloud.instance_log.restore(cloud.world, cloud.clock.now()):
            remove_sandbox(cloud, instance_id)
        cloud.released.update(cloud.world.instances)
        return cloud


class Control:
    """Requests of commands to the server itself, at /_rehearsal/<what>: JSON, signed with the server's secret
    both ways.
    """

    def __init__(self, aws: EmbeddedAws, leases: Leases) -> None:
        self._aws, self._leases = aws, leases

    def __call__(self, environ: Environ, body: bytes) -> Answer:
        """Answer one request."""
        headers = (TIME_HEADER, NONCE_HEADER, SIGNATURE_HEADER)
        at, nonce, signature = (environ.get(wsgi_name(header), "") for header in headers)
        known = self._aws.keyring.request_signature(environ["PATH_INFO"], at, nonce, body)
        fresh = at.isascii() and at.isdecimal() and abs(time.time() - int(at)) <= FRESH_SECONDS
        if not fresh or not hmac.compare_digest(known.encode(), signature.encode()):
            raise AwsError("AccessDenied", "not for you", 403)
        reply = self._carry_out(environ["PATH_INFO"].rpartition("/")[2], json.loads(body or b"{}"))
        text = json.dumps(reply).encode()
        signed = (SIGNATURE_HEADER, self._aws.keyring.answer_signature(nonce, text))
        return 200, [("Content-Type", "application/json"), signed], text

    def _carry_out(self, what: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request and return the answer. Raises AwsError for an unknown one."""
        if what in ("lease", "stop") and asked["root"] != str(self._aws.root):
            return {"lease": None, "stopped": False}  # the note was copied together with its folder
        if what == "lease":
            return {"lease": self._leases.take(asked["pid"])}
        if what == "stop":
            self._leases.end()
            return {"stopped": True}
        if what == "release":
            self._leases.release(asked["lease"])
            return {}
        if what == "interrupt":
            cloud = self._aws.cloud(self._aws.access(asked["account"]))
            share, notice = float(asked["share"]), float(asked["notice_seconds"])
            wanted = Interruption(share=share, notice_seconds=notice)
            with cloud.lock:
                it = AskedInterruption(wanted=wanted, attempt=int(asked["attempt"]))
                cloud.interruptions[asked["run_id"]] = it
            return {}
        if what == "program":
            try:
                access, own = self._aws.access(asked["account"]), home.read_stack_settings(self._aws.root)
                return {"outputs": self._aws.apply_program(access, USUAL | own)}
            except TrainerError as error:
                return {"error": error.as_dict()}
        raise AwsError("NotFound", "There is nothing here.", 404)


def serve(root: Path, aws_type: type[EmbeddedAws] = EmbeddedAws) -> int:
    """Run the embedded AWS of `root` until it is no longer needed. Returns at once if another process runs
    it.

    Raises ConfigError for a folder that another user owns or may write.
    """
    root = home.open_home(root)
    with home.open_private(root / home.LOCK, os.O_WRONLY) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        home.check_version(root)
        instance.reap(root)
        leases = Leases()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: leases.end())
        wanted = rehearsal_environment()
        with aws_type(
            root,
            delays=Delays(),
            programs=wanted.programs,
            fork_nodes=not wanted.fresh_nodes,
            fork_server=partial(Path, wanted.fork_server) if wanted.fork_server else None,
        ) as aws:
            aws.restore()
            aws.front.mounts["_rehearsal"] = Control(aws, leases)
            pid, secret = os.getpid(), aws.keyring.secret
            home.write_note(root, home.Note(url=aws.url, pid=pid, started=start_ticks(pid), secret=secret))
            while aws.healthy() and not leases.over(time.monotonic(), instances_alive=aws.busy()):
                time.sleep(0.2)
            (root / home.NOTE).unlink(missing_ok=True)
            healthy = aws.healthy()
        return 0 if healthy else 1


def main(arguments: Sequence[str] | None = None, *, aws_type: type[EmbeddedAws] = EmbeddedAws) -> int:
    """Run the server as a process; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.rehearsal.server", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--root", type=Path, required=True, help="folder that holds its memory")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    os.umask(0o077)  # its files, and those of its nodes and functions, are its user's alone
    try:
        return serve(options.root, aws_type)
    except OSError as error:
        if error.errno not in FULL:
            raise
        refused: TrainerError = home.disk_full(options.root)
    except TrainerError as error:
        refused = error
    # For `client`, and for readers of the log.
    print(f"{home.REFUSED}{json.dumps(refused.as_dict())}", file=sys.stderr)
    return refused.exit_code


if __name__ == "__main__":
    sys.exit(main())
