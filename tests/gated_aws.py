"""The embedded AWS of a desk in the test's own process: its clock can be moved, requests can be held at a gate
while their sender is killed, and it notes who wrote what.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.aws.account import CheckedAccount
from tests.aws.server import CheckedAws
from tests.desk import until
from trainer.aws.stack_outputs import StackOutputs, parameter_name
from trainer.control.cloud import AwsCloud
from trainer.rehearsal import home, lambdas
from trainer.rehearsal.account import Principal
from trainer.rehearsal.client import ACCOUNT
from trainer.rehearsal.leases import Leases
from trainer.rehearsal.processes import start_ticks
from trainer.rehearsal.server import Control
from trainer.rehearsal.wire import Call
from trainer.rehearsal.world import AwsError
from trainer.runs.record import RunRecord
from trainer.runs.store import read_record
from trainer.runs.stored_receipt import read_receipt

CONTROL, SWEEPER, DESK = "mayfly-dev-control", "mayfly-dev-sweeper", "desk"
TICK_SECONDS = 300.0  # between two calls of control by its schedule


@dataclass(kw_only=True)
class Gate:
    """Holds the first matching request of a desk until it is opened.

    `takes` decides by service, operation and parameters; `before`: the request is held before it is carried
    out, and then never is; else its answer is held, and lost.
    """

    takes: Callable[[Call], bool]
    before: bool = True
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def hold(self, call: Call) -> None:
        """Hold a request. Raises AwsError once the gate is opened: nobody is there for an answer."""
        if not self.reached.is_set() and self.takes(call):
            self.reached.set()
            self.opened.wait()
            raise AwsError("ServiceUnavailable", "nobody waits for this answer", 503)


@dataclass(kw_only=True)
class GatedAccount(CheckedAccount):
    """An account with at most one gate, which notes the writers of objects."""

    gate: Gate | None = None
    writers: dict[str, str] = field(default_factory=dict)  # key -> kind of its last writer
    asked: threading.local = field(default_factory=threading.local)  # `by`: who asks in this thread

    def before(self, call: Call, principal: Principal | None) -> None:
        """Hold a request of the desk that has to wait at the gate before it is carried out."""
        super().before(call, principal)
        self.asked.by = DESK if principal is None else principal.name
        if principal is None and self.gate is not None and self.gate.before:
            self.gate.hold(call)

    def after(self, call: Call) -> None:
        """Hold the answer to a request of the desk."""
        super().after(call)
        if (call.service, call.operation) == ("s3", "PutObject"):
            self.writers[call.params["Key"]] = self.asked.by
        if self.asked.by == DESK and self.gate is not None and not self.gate.before:
            self.gate.hold(call)


class GatedAws(CheckedAws):
    """The embedded AWS of one desk."""

    account_type = GatedAccount

    @property
    def own(self) -> GatedAccount:
        """Return the desk's account."""
        cloud = self.cloud(self.access(ACCOUNT))
        assert isinstance(cloud, GatedAccount)
        return cloud

    def control(self) -> AwsCloud:
        """Return what control sees."""
        access = self.access(ACCOUNT)
        name = parameter_name("mayfly", "dev")
        text = access.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
        return AwsCloud(access, StackOutputs.from_json(text))

    def record(self, run_id: str) -> RunRecord:
        """Return a run's record."""
        return read_record(self.control().objects, run_id)[0]

    def machines(self, run_id: str) -> list[Any]:
        """Return the instances of a run, the first one first."""
        with self.own.lock:
            found = [one for one in self.own.world.instances.values() if one.tags.get("run_id") == run_id]
        return sorted(found, key=lambda one: one.running_at)

    def break_function(self, name: str) -> None:
        """Let a function raise whenever it is called."""
        folder = self.root / "broken" / name
        folder.mkdir(parents=True)
        (folder / "broken.py").write_text("def handler(event, context):\n    raise RuntimeError('broken')\n")
        function = self.own.functions[name]
        object.__setattr__(function, "folder", folder)
        object.__setattr__(function, "handler", "broken.handler")

    def call_control(self) -> None:
        """Let control's schedule call it, and wait for its end. The clock moves if no node runs."""
        cloud = self.own
        occupied = [one for one in cloud.world.instances.values() if one.occupied]
        if occupied:  # in real time
            lambdas.invoke_event(cloud, CONTROL, b"{}")
        else:
            cloud.advance(TICK_SECONDS)
            until(lambda: cloud.invocations or cloud.in_flight)
        self.settle_down()

    def settle_down(self) -> None:
        """Wait until no schedule and no function is under way."""
        cloud = self.own
        until(lambda: not cloud.in_flight)
        lambdas.wait_for_invocations(cloud)

    def settled_by_control(self, run_id: str, *, calls: int = 12) -> dict[str, Any]:
        """Call control until the run has its receipt; while a node works, only once. Return the receipt."""
        objects, cloud = self.control().objects, self.own
        for _ in range(calls):
            self.call_control()
            until(lambda: not any(one.occupied for one in cloud.world.instances.values()))
            self.settle_down()
            if receipt := read_receipt(objects, run_id):
                return receipt
        raise AssertionError(f"no receipt of {run_id} after {calls} calls: {self.record(run_id)}")


@contextmanager
def gated_aws(root: Path, *, programs: Path, fork_server: Path) -> Iterator[GatedAws]:
    """Run the embedded AWS of a desk in this process, where the desk's commands find it."""
    root = home.open_home(root)
    with home.open_private(root / home.LOCK, os.O_WRONLY) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        home.check_version(root)
        options: dict[str, Any] = {
            "programs": programs,
            "fork_nodes": True,
            "fork_server": lambda: fork_server,
        }
        with GatedAws(root, **options) as aws:
            aws.front.mounts["_rehearsal"] = Control(aws, Leases())
            pid, secret = os.getpid(), aws.keyring.secret
            note = home.Note(url=aws.url, pid=pid, started=start_ticks(pid), secret=secret)
            home.write_note(root, note)
            try:
                yield aws
            finally:
                if aws.own.gate is not None:
                    aws.own.gate.opened.set()
                (root / home.NOTE).unlink(missing_ok=True)
