"""A node at work without a machine: its bucket is a dictionary, and its command a program in a folder."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from botocore.exceptions import ClientError

from tests.jobs import job_of
from tests.manifests import manifest
from tests.processes import await_stop_of
from tests.records import intent
from trainer.aws.access import Access
from trainer.aws.place import REHEARSAL
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.instants import utc_now
from trainer.base.strict_json import Fields
from trainer.control.fleet import create_fleet_request
from trainer.job.pieces import pieces_of
from trainer.job.reading import job_from
from trainer.launch.inputs import ChosenCandles
from trainer.launch.start import recorded
from trainer.launch.tasks import Task, refresh_task, script_task, training_task
from trainer.node import command, command_run, piece_run
from trainer.node.identity import NodeIdentity
from trainer.node.own_user import OwnUser
from trainer.node.report import Status, ending, result
from trainer.node.shared import Node
from trainer.node.uplink import Uplink
from trainer.runs.record import RunPiece, RunRecord
from trainer.runs.reports import NodeResult, read_outputs, read_result
from trainer.runs.snapshots import SnapshotFile
from trainer.runs.start_file import CarriedObject, StartFile, start_to_json
from trainer.runs.store import carried_key, start_key

if TYPE_CHECKING:
    from trainer.rehearsal.server import EmbeddedAws

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
DATA = b"1,2"


class CommandBucket:
    """S3 as far as a command's node needs it: it checks each body against its hash."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.refuses = False
        self.heads_to_fail = 0

    def head_object(self, *, Key: str, **_: Any) -> dict[str, Any]:
        if self.heads_to_fail:
            self.heads_to_fail -= 1
            failed = {"Error": {"Code": "503"}, "ResponseMetadata": {"HTTPStatusCode": 503}}
            raise ClientError(cast(Any, failed), "HeadObject")
        if Key not in self.objects:
            raise ClientError({"Error": {"Code": "404"}}, "HeadObject")
        return {}

    def put_object(
        self, *, Key: str, Body: Any, ChecksumSHA256: str = "", IfNoneMatch: str = "", **_: Any
    ) -> dict[str, str]:
        body = Body if isinstance(Body, bytes) else Body.read()
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        if self.refuses:
            raise ClientError({"Error": {"Code": "SlowDown"}}, "PutObject")
        if digest != (ChecksumSHA256 or digest):
            raise ClientError({"Error": {"Code": "BadDigest"}}, "PutObject")
        if IfNoneMatch and Key in self.objects:
            raise ClientError({"Error": {"Code": "PreconditionFailed"}}, "PutObject")
        self.objects[Key] = body
        self.puts.append(Key)
        return {"VersionId": f"v{len(self.puts)}"}

    def get_object(self, *, Key: str, **_: Any) -> dict[str, Any]:
        body = self.objects[Key]
        return {"Body": SimpleNamespace(iter_chunks=lambda size: [body])}


class MemoryUplink(Uplink):
    """The node's access to that bucket."""

    def __init__(self) -> None:
        self.bucket, self.s3 = "b", CommandBucket()
        self._quick = self.s3
        self.tries = 0
        self.fails: set[int] = set()  # those of the tries that S3 does not take

    def read(self, key: str) -> bytes:
        if key not in self.s3.objects:
            raise ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject")
        return self.s3.objects[key]

    def try_send(self, key: str, body: bytes) -> bool:
        self.tries += 1
        if self.tries in self.fails:
            return False
        self.s3.objects[key] = body
        return True


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node of a rehearsal, before its command."""
    identity = NodeIdentity(
        run_id="r",
        attempt=1,
        node=0,
        deadline=utc_now() + timedelta(hours=1),
        instance_id="i-1",
        instance_type="t",
        role_id="AROA",
    )
    (tmp_path / "work").mkdir()
    status = Status(identity=identity)
    status.enter("boot", NOW)
    uplink = MemoryUplink()
    uplink.s3.objects[start_key("r", 1)] = started_by("r", "i-1")
    return Node(work=tmp_path / "work", place=REHEARSAL, uplink=uplink, status=status)


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a command's files in the unpacked bundle; the image's Python is /usr/bin's."""
    packed = tmp_path / "code" / "trainer" / "script_files"
    packed.mkdir(parents=True)
    (packed.parent / "__init__.py").touch()
    monkeypatch.setattr(command.trainer, "__file__", str(packed.parent / "__init__.py"))
    monkeypatch.setattr(command, "make_venv", lambda *_, **__: Path("/usr/bin"))
    monkeypatch.setattr(command_run, "POLL_SECONDS", 0.01)
    return packed


@pytest.fixture
def start(node: Node, bundle: Path) -> Callable[..., None]:
    """Return a function that runs a shell script as the node's command; its data is one file of three
    names.
    """

    def run_it(text: str, *, search: Any = None, **keys: Any) -> None:
        (bundle / "run.sh").write_text(text)
        (node.work / "node.log").write_text("the agent's own")
        script = {"command": "sh run.sh", "env": ["A=1"], **keys}
        tables = {"script": script, "machine": {"max_duration": "1h"}, "search": search or {}}
        job = job_from({"name": "s", **tables})
        pieces = recorded(pieces_of(job, (), timeframe=""))
        record = SimpleNamespace(project="mayfly", stack="dev", run_id="r", pieces=pieces)
        task = script_task(cast(Any, record), job, {"run.sh": ""}, inputs(node), sha256="")
        run_task(node, task)

    return run_it


@pytest.fixture
def stop_when(node: Node, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that stops the node, or does something else, once a condition holds as its command is
    followed.
    """

    def arrange(holds: Callable[[], bool], act: Callable[[], object] | None = None) -> None:
        follow = piece_run.PieceRun.follow

        def followed(run: piece_run.PieceRun) -> None:
            follow(run)
            if holds():
                act() if act else node.stop("stop.json")

        monkeypatch.setattr(piece_run.PieceRun, "follow", followed)

    return arrange


@pytest.fixture
def silence_of(node: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], bool]], list[int]]:
    """Return a function that stops each process of the command for which a condition holds, and lets its bound
    pass then. It returns the processes it has stopped.
    """

    def arrange(holds: Callable[[int], bool]) -> list[int]:
        now, stopped = [0.0], list[int]()
        node.clock = lambda: now[0]
        look = piece_run.PieceRun._look_at_progress

        def looked(run: Any) -> None:
            look(run)
            pid = run._process.pid
            if pid not in stopped and run._process.output.num_blocks and holds(len(stopped)):
                stopped.append(pid)
                os.kill(pid, signal.SIGSTOP)
                await_stop_of(pid)
                run._looked_at = float("-inf")
                look(run)  # what it did until now
                now[0] += run.progress_bound + 1

        monkeypatch.setattr(piece_run.PieceRun, "_look_at_progress", looked)
        return stopped

    return arrange


@pytest.fixture
def own_user(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnUser]:
    """A user of its own for the node's command, in a work folder that it may enter: the test is root."""
    # Another for each worker of pytest-xdist: a user's processes are killed, and its packets refused, by its id.
    number = 64_321 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    user = OwnUser(uid=number, gid=number)
    base = Path(tempfile.mkdtemp(prefix="script-user-", dir="/tmp"))  # pytest's own are closed to others
    base.chmod(0o755)
    node.work, node.place = base / "work", replace(node.place, own_user=True)
    node.work.mkdir()
    monkeypatch.setattr(command, "make_own_user", lambda **_: user)
    yield user
    user.kill_all()
    shutil.rmtree(base)


def started_by(run_id: str, *instances: str, **more: Any) -> bytes:
    """Return the start file of a first attempt, or of another one."""
    return start_to_json(StartFile(**{"run_id": run_id, "attempt": 1, "instances": instances, **more}))


def put_start_file(s3: Any, bucket: str, run_id: str, instance_id: str, *, attempt: int = 1) -> None:
    """Write the start file of an attempt that begins with a checkpoint, and that checkpoint, as its caller
    does.
    """
    content = b"an earlier state"
    sha256, size = hashlib.sha256(content).hexdigest(), len(content)
    key = carried_key(run_id, attempt, sha256)
    version_id = s3.put_object(Bucket=bucket, Key=key, Body=content)["VersionId"]
    objects = (CarriedObject(sha256=sha256, size=size, key=key, version_id=version_id),)
    of_file = hashlib.sha256(content[3:]).hexdigest()
    files = (SnapshotFile(path="m/1/manifest.json", size=size - 3, sha256=of_file, object=sha256, offset=3),)
    body = started_by(run_id, instance_id, attempt=attempt, objects=objects, files=files)
    s3.put_object(Bucket=bucket, Key=start_key(run_id, attempt), Body=body)


def node_on(
    aws: EmbeddedAws, access: Access, outputs: StackOutputs, record: RunRecord, work: Path
) -> tuple[Node, RunRecord, str]:
    """Create a run's instance; return a node in this process that has its role, its record, and the role."""
    from trainer.rehearsal.nodes import role_credentials  # late, as in tests/conftest.py

    begin = record.created_at
    launch = intent(deadline=begin + timedelta(minutes=30), intended_at=begin)
    record = record.with_new_launch(launch)
    answer = access.client("ec2").create_fleet(**create_fleet_request(record, record.ladder[0], launch))
    (instance_id,) = answer["Instances"][0]["InstanceIds"]
    created = replace(launch, outcome="created", instance_ids=(instance_id,))
    cloud = aws.cloud(access)
    lent = role_credentials(cloud, cloud.world.instances[instance_id])
    assert lent is not None
    own = replace(access, access_key=lent.access_key, secret_key=lent.secret_key)
    put_start_file(access.client("s3"), outputs.bucket, record.run_id, instance_id)
    identity = NodeIdentity(
        run_id=record.run_id,
        attempt=1,
        node=0,
        deadline=launch.deadline,
        instance_id=instance_id,
        instance_type=record.ladder[0].instance_type,
        role_id=record.instance_role_id,
    )
    work.mkdir()
    status = Status(identity=identity)
    status.enter("boot", record.created_at)
    node = Node(work=work, place=REHEARSAL, uplink=Uplink(own, outputs.bucket), status=status)
    return node, record.with_launch(created, record.created_at), lent.role


def task_of(node: Node, name: str) -> Task:
    """Return a small task with the command of that name, or one from outside."""
    piece = RunPiece(model="script_s", piece="s", kind="script", series=())
    record: Any = SimpleNamespace(project="mayfly", stack="dev", run_id="r", pieces=(piece,), num_nodes=1)
    script = {"name": "s", "script": {"command": "sh run.sh"}, "machine": {"max_duration": "1h"}}
    scripted = script_task(record, job_from(script), {}, inputs(node), sha256="")
    scores = {"name": "score", "title": "the scorer", "restarts": 0, "beside": ("scores.json",)}
    candles = ChosenCandles(timeframe="1m", bars={}, synthetic=True)
    return {
        "train": lambda: training_task(record, job_of(), candles, cast(Any, None)),
        "script": lambda: scripted,
        "prepare": lambda: refresh_task(record, job_of(refresh="fetch.py"), ()),
        "score": lambda: replace(scripted, command=replace(scripted.command, **scores)),
    }[name]()


def inputs(node: Node) -> list[dict[str, Any]]:
    """Put a file into the bucket, and return its entries under three names, one of them of a data set."""
    sha256 = hashlib.sha256(DATA).hexdigest()
    made = []
    for path, key in {
        "a/x.csv": f"raw/.files/{sha256}",
        "y.csv": f"raw/.files/{sha256}",
        "z.csv": "raw/points/z.csv",
    }.items():
        node.uplink.s3.objects[key] = DATA
        made.append({"path": path, "key": key, "version_id": "v", "sha256": sha256, "bytes": len(DATA)})
    return made


def run_task(node: Node, task: Task) -> None:
    """Run a task as the node's agent does."""
    by = {"job": task.job.to_dict(), "documents": dict(task.documents), "pieces": task.pieces}
    command.run_command(node, manifest(command=task.command, inputs=task.inputs, **by))


def listed(node: Node) -> dict[str, str]:
    """Return what outputs.json names: path -> content."""
    keys, objects = node.status.identity.keys, node.uplink.s3.objects
    if keys.output_index not in objects:
        return {}
    files = read_outputs(Fields(json.loads(objects[keys.output_index]), "the list"), prefix=keys.outputs)
    return {item["file"]: objects[item["key"]].decode() for item in files}


def reported(
    node: Node, error: Any = None, *, unfinished: str = "stopped", names: tuple[str, ...] = ()
) -> NodeResult:
    """Return the node's result as a desk reads it."""
    ended = ending(status=node.status, stop_reason=node.end_reason, error=error, now=NOW)
    body = json.dumps(result(node.status, ended=ended, unfinished=unfinished, python_packages="")).encode()
    return read_result(body, models_prefix=node.status.identity.keys.models, names=names)
