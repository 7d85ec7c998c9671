"""A machine for the node's tests: the embedded AWS's bucket, a metadata service, and the real bootstrap in a
sandbox.

The code bundle holds the real package, with a stand-in for `trainer.train` that writes the events which its
job asks for.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

import trainer
from infra import policies
from tests.iam import instance_policy
from tests.jobs import job_of
from tests.manifests import MACHINE, manifest
from tests.nodes import put_start_file
from tests.pieces import named
from trainer.aws.access import Access
from trainer.aws.objects import Objects, open_objects
from trainer.base.code_files import code_files
from trainer.base.instants import iso
from trainer.job.job import Job
from trainer.launch.inputs import ChosenCandles, Input
from trainer.launch.tasks import training_task
from trainer.rehearsal.account import EmbeddedAccount
from trainer.rehearsal.instance import NodeProcess, start_node
from trainer.rehearsal.keys import Credentials
from trainer.rehearsal.metadata import MetadataView, RoleCredentials, TokenStore, respond
from trainer.runs.manifest import ExpectedMachine, Manifest
from trainer.runs.record_json import to_json

if TYPE_CHECKING:
    from trainer.rehearsal.forks import ForkServerProcess
    from trainer.rehearsal.server import EmbeddedAws

RUN, BUCKET = "20261120-235912-test-k3v9", "node-tests"
PACKAGE = Path(trainer.__file__).parent

STAND_IN = """
import argparse, hashlib, json, pathlib, signal, sys, time

parser = argparse.ArgumentParser()
for name in ("job", "data", "out", "events", "checkpoints", "finished", "workers", "device", "plan", "arriving", "machine"):
    parser.add_argument("--" + name, type=str if name in ("workers", "device") else pathlib.Path)
options = parser.parse_args()
script = json.loads((options.data / "script.json").read_text())
signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
print("the trainer runs on", options.workers, options.device, flush=True)
import trainer; print("code:", trainer.__file__, flush=True)
with (options.events / "events.jsonl").open("a") as events:
    for event in script["events"]:
        if event["event"] == "model_done":
            content = ("weights of " + event["piece"]).encode()
            (options.out / event["file"]).write_bytes(content)
            (options.out / event["file"]).with_suffix(".json").write_text("{}")
            event.setdefault("sha256", hashlib.sha256(content).hexdigest())
        print(json.dumps({"time": "2026-11-20T00:00:00Z", **event}), file=events, flush=True)
time.sleep(script.get("sleep", 0))
sys.exit(script["exit"])
"""
SMOKE = 'import sys\nprint("smoke", *sys.argv[1:])\n'


def model_done(symbol: str, **more: Any) -> dict[str, Any]:
    model = f"lstm_{symbol}_1m"
    done = {"event": "model_done", "model": model, **named(symbol), "family": "lstm"}
    return {**done, "file": f"{model}.safetensors", "metrics": {"test": {"auc": 0.5}}, **more}


def started(*symbols: str) -> dict[str, Any]:
    models = [{"model": f"lstm_{symbol}_1m", **named(symbol)} for symbol in symbols]
    data = {"bars": 7, "synthetic": True}
    return {"event": "started", "models": models, "workers": 4, "device": "cpu", "data": data}


@cache
def bundle(trainer: str = STAND_IN, smoke: str = SMOKE) -> bytes:
    """Return a code bundle: what the agent reaches, and a stand-in for the trainer."""
    packed, stand_ins = io.BytesIO(), {"__init__": "", "__main__": trainer, "smoke": smoke}
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in code_files(["trainer.node.agent"]).items():
            archive.writestr(name, content)
        for name, text in stand_ins.items():
            archive.writestr(f"trainer/train/{name}.py", text)
    return packed.getvalue()


def training_manifest(
    objects: Objects,
    run_id: str,
    job: Job,
    inputs: Sequence[Input],
    machine: ExpectedMachine,
    plan: bytes = b"",
) -> Manifest:
    """Return the manifest of a training of these inputs, which are no candles, on p3.8xlarge."""
    candles = ChosenCandles(timeframe="1m", bars={}, synthetic=True, inputs=tuple(inputs), bars_plan=plan)
    task = training_task(cast(Any, SimpleNamespace(run_id=run_id, num_nodes=1)), job, candles, objects)
    known = {"job": task.job.to_dict(), "documents": dict(task.documents), "command": task.command}
    machines = {"p3.8xlarge": machine}
    return manifest(run_id=run_id, inputs=task.inputs, pieces=(), machines=machines, **known)


def launch_tags(run_id: str, sha256: str, *, deadline: datetime, role_id: str, **more: str) -> dict[str, str]:
    """Return the tags that a launch gives its instance and the bootstrap reads."""
    tags = {"project": "mayfly", "run_id": run_id, "attempt": "1", "node": "0", "boot_seconds": "900"}
    tags |= {"deadline": iso(deadline), "role_id": role_id}
    return {**tags, "bundle_key": f"code/{sha256}.whl", "bundle_sha256": sha256, **more}


@dataclass
class Machine:
    """One instance-to-be; change what a test is about, then start it."""

    access: Access
    cloud: EmbeddedAccount
    own: Credentials  # the node's
    sandbox: Path
    forks: ForkServerProcess | None  # for its interpreters; None: each starts anew
    gpus: int = 4
    expected_gpus: int = 4
    cap_minutes: str = "60"
    boot_seconds: str = "900"
    ahead_seconds: int = 0  # of its account's clock before this machine's
    file_system: str = ""  # of the cache, which this machine's metadata service does not let it mount
    image_python: str = ""  # in the place of the desk's
    smoke: str = SMOKE
    smoke_seconds: float = 180
    trainer: str = STAND_IN
    bundle_sha256: str = ""
    deadline: datetime = field(
        default_factory=lambda: datetime.now(timezone.utc).replace(microsecond=0) + timedelta(minutes=30)
    )
    script: dict[str, Any] = field(default_factory=dict)
    job: Job = field(default_factory=lambda: job_of(symbols=("A", "B")))
    plan: bytes = b""  # as the launch made it; the test writes what the bucket has
    known: dict[str, Any] = field(default_factory=dict)  # what else differs in the manifest
    counts_on: str = "i-1"  # the instance that its attempt's start file names
    node: NodeProcess | None = None
    server: ThreadingHTTPServer | None = None

    def __post_init__(self) -> None:
        self.s3 = self.access.client("s3")
        # The name is global on one server, the account a test's own.
        self.bucket = f"{BUCKET}-{(self.access.access_key or '')[4:16]}"
        self.s3.create_bucket(Bucket=self.bucket)
        self.s3.put_bucket_versioning(Bucket=self.bucket, VersioningConfiguration={"Status": "Enabled"})

    @property
    def own_access(self) -> Access:
        return replace(self.access, access_key=self.own.access_key, secret_key=self.own.secret_key)

    def user_data(self) -> bytes:
        text = (PACKAGE / "node/bootstrap.sh").read_text()
        values = {
            "BUCKET": self.bucket,
            "REGION": "us-east-1",
            "PROJECT": "mayfly",
            "LOCK": "requirements.lock",
        }
        values |= {"CAP_MINUTES": self.cap_minutes, "FILE_SYSTEM": self.file_system}
        for name, value in values.items():
            text = text.replace(f"@@{name}@@", value)
        if self.image_python:
            text = text.replace("image_python=$python", f"image_python={self.image_python}")
        return text.encode()

    def start(self) -> NodeProcess:
        packed = bundle(self.trainer, self.smoke)
        sha256 = hashlib.sha256(packed).hexdigest()
        self.s3.put_object(Bucket=self.bucket, Key=f"code/{sha256}.whl", Body=packed)
        content = json.dumps(self.script).encode()
        version = self.s3.put_object(Bucket=self.bucket, Key="raw/script.json", Body=content)["VersionId"]
        self.s3.put_object(
            Bucket=self.bucket, Key="raw/script.json", Body=b"a later version, which no run asked for"
        )
        digest = hashlib.sha256(content).hexdigest()
        item = Input(key="raw/script.json", version_id=version, sha256=digest, bytes=len(content))
        machine = replace(MACHINE, gpu_count=self.expected_gpus, smoke_seconds=self.smoke_seconds)
        objects = open_objects(self.access, self.bucket)
        made = training_manifest(objects, RUN, self.job, [item], machine, self.plan)
        made = replace(made, **self.known)
        self.s3.put_object(Bucket=self.bucket, Key=f"runs/{RUN}/manifest.json", Body=to_json(made))
        put_start_file(self.s3, self.bucket, RUN, self.counts_on)
        known = {"deadline": self.deadline, "role_id": "AROA1", "boot_seconds": self.boot_seconds}
        tags = launch_tags(RUN, sha256, **known)
        tags["bundle_sha256"] = self.bundle_sha256 or sha256
        self.server = serve_metadata(self._view(tags))
        environment = {
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}/imds/i-1",
            "AWS_ENDPOINT_URL": str(self.access.endpoint_url),
            "MAYFLY_REHEARSAL_GPUS": str(self.gpus),
            "MAYFLY_CLOCK_AHEAD": str(self.ahead_seconds),
        }
        instance = {"instance_id": "i-1", "instance_type": "p3.8xlarge", "user_data": self.user_data()}
        self.node = start_node(sandbox=self.sandbox, environment=environment, forks=self.forks, **instance)
        return self.node

    def stop(self) -> None:
        if self.node:
            self.node.terminate(grace_seconds=0)
        if self.server:
            self.server.shutdown()
            self.server.server_close()

    def wait_for(self, condition: Callable[[], Any], seconds: float = 500) -> Any:
        """Wait for a process of this machine, which no clock of ours can hurry."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds} s; the log says:\n{self.log()}")
            time.sleep(0.05)
        return found

    def wait_until_off(self) -> None:
        node = self.node
        assert node is not None
        self.wait_for(lambda: node.poll() == "poweroff" and (self.sandbox / "run/user-data-exit").exists())

    def exit_code(self) -> int:
        return int((self.sandbox / "run/user-data-exit").read_text())

    def log(self) -> str:
        path = self.sandbox / "var/log/cloud-init-output.log"
        return path.read_text() if path.exists() else ""

    def keys(self, prefix: str) -> list[str]:
        listed = self.s3.list_objects_v2(Bucket=self.bucket, Prefix=prefix)
        return [entry["Key"] for entry in listed.get("Contents", [])]

    def read(self, key: str) -> bytes:
        return self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def result(self) -> dict[str, Any]:
        return json.loads(self.read(f"attempts/AROA1:i-1/{RUN}/1/0/result.json"))

    def timer(self) -> str:
        path = self.sandbox / "run/timers/mayfly-deadline.timer"
        return path.read_text() if path.exists() else ""

    def _view(self, tags: dict[str, str]) -> MetadataView:
        credentials = RoleCredentials(
            role="node",
            access_key=self.own.access_key,
            secret_key=self.own.secret_key,
            session_token="token",
            expires_at=datetime.now(timezone.utc) + timedelta(hours=6),
        )
        place = {"availability_zone": "us-east-1a", "region": "us-east-1"}
        return MetadataView(
            instance_id="i-1", instance_type="p3.8xlarge", tags=tags, credentials=credentials, **place
        )


def serve_metadata(view: MetadataView) -> ThreadingHTTPServer:
    tokens = TokenStore()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            path = self.path.removeprefix("/imds/i-1")
            status, content_type, body = respond(
                view, tokens, self.command, path, dict(self.headers), datetime.now(timezone.utc)
            )
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


@pytest.fixture
def machine(
    aws_server: EmbeddedAws, access: Access, node_forks: ForkServerProcess, tmp_path: Path
) -> Iterator[Machine]:
    # The stack's own policy; what the machine's tags call its role's id stands in the place of the true one.
    policy = instance_policy(f"{BUCKET}-{(access.access_key or '')[4:16]}").replace(
        "${aws:userid}", "AROA1:i-1"
    )
    cloud, trust = aws_server.cloud(access), json.dumps(policies.trust("ec2.amazonaws.com"))
    role = {"RoleName": "node", "AssumeRolePolicyDocument": trust}
    aws_server.call(cloud.account, "iam", "CreateRole", role)
    own_policy = {"RoleName": "node", "PolicyName": "own", "PolicyDocument": policy}
    aws_server.call(cloud.account, "iam", "PutRolePolicy", own_policy)
    own = cloud.credentials("NODE", "i-1", role="node")
    machine = Machine(access=access, cloud=cloud, own=own, sandbox=tmp_path / "sandbox", forks=node_forks)
    done = [model_done("A"), model_done("B"), {"event": "ended"}]
    machine.script = {"events": [started("A", "B"), *done], "exit": 0}
    yield machine
    machine.stop()
