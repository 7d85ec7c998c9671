"""What a command can reach with credentials: its own user's files, the metadata service, keys of other runs."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.network import in_namespace
from tests.nightly import others_nightly
from tests.nodes import bundle, listed, node, node_on, own_user, reported, run_task, stop_when, task_of
from tests.planned import plan_script
from tests.prepare_runs import CODE
from tests.trainer.node.test_hostile_commands import APART, PYTHON, Run, run
from trainer.aws.access import Access
from trainer.aws.objects import open_objects
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConfigError, DataError, TrainerError
from trainer.base.instants import utc_now
from trainer.job.reading import job_from
from trainer.job.script import CONTRACT
from trainer.launch.cpu_run import PREPARE, plan_cpu_run
from trainer.launch.known_times import KnownTimes
from trainer.launch.plan import RunPlan
from trainer.launch.preflight import query_offers
from trainer.launch.start import record_of
from trainer.launch.work import Account, Refresh, ScriptWork, Work
from trainer.machines.instances import instance_type
from trainer.node import command as module
from trainer.node import own_user as own_user_module
from trainer.node import stage
from trainer.node.own_user import OwnUser
from trainer.node.shared import Node
from trainer.rehearsal.metadata import MetadataView, RoleCredentials, TokenStore, respond
from trainer.runs.manifest import ManifestInput

if TYPE_CHECKING:
    from trainer.rehearsal.server import EmbeddedAws

__all__ = ["bundle", "node", "own_user", "run", "stop_when"]  # fixtures

# What a hostile program tries, and whether it can. It runs as on EC2, as a user of its own.
HOSTILE = """
import ctypes
def can(what, act):
    try: act()
    except OSError: return
    print("CAN", what, flush=True)
can("read its data", lambda: open(os.environ["MAYFLY_DATA"] + "/y.csv").read())
can("change its data", lambda: open(os.environ["MAYFLY_DATA"] + "/y.csv", "w"))
can("write to its folder", lambda: open("x", "w").close())
can("read the agent's log", lambda: open(work + "/node.log").read())
can("write to the agent's folder", lambda: open(work + "/x", "w"))
can("read the run's events", lambda: os.listdir(work + "/events"))
can("read the agent's inputs", lambda: os.listdir(work + "/inputs"))
can("read what the agent's own programs are given", lambda: os.listdir(work + "/command/given"))
can("read the agent's variables", lambda: open(f"/proc/{os.getppid()}/environ").read())
can("read the agent's memory", lambda: open(f"/proc/{os.getppid()}/mem", "rb"))
can("kill the agent", lambda: os.kill(os.getppid(), 0))
can("become root", lambda: os.setuid(0))
can("list the agent's code", lambda: os.listdir(work + "/../code"))
can("write above OUT", lambda: open(out + "/../x", "w"))
can("make a folder above OUT", lambda: os.mkdir(out + "/../../x"))
can("take a file of the agent's away", lambda: os.rename(work + "/node.log", out + "/stolen"))
can("have a timer start it again", lambda: open("/var/spool/cron/crontabs/root", "a"))
def of_another(pid):
    if os.stat("/proc/" + pid).st_uid == os.getuid():
        raise OSError("its own")
    open("/proc/" + pid + "/environ").read()
for number in filter(str.isdecimal, os.listdir("/proc")):
    can("read another process's variables", lambda: of_another(number))
print(sorted(name for name in os.environ if name.startswith(("AWS_", "MAYFLY_"))))
print("\\x1b]0;title\\x07", flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for name in ("good", ".bashrc"):
    open(out + "/" + name, "w").write(name)
os.symlink(work + "/node.log", out + "/log")
can("link to the agent's log", lambda: os.link(work + "/node.log", out + "/hard"))
open(out + "/zzz-large", "wb").truncate(20_000_001)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: most of its files in /proc are root's
        with open(out + "/.ready", "w") as file:
            file.write(str(os.getpid()))
        os.rename(out + "/.ready", out + "/ready")
    while True:
        time.sleep(1000)
while True:
    time.sleep(1000)
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not PYTHON.exists(), reason="needs root, and a Python that every user may run"
)
@pytest.mark.parametrize("name", APART)
def test_a_command_with_its_own_user_reaches_only_its_own_files(
    node: Node,
    run: Run,
    own_user: OwnUser,
    stop_when: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    stop_when(lambda: (node.work / "command" / "out" / "ready").exists())
    stopped = run(name, HOSTILE, words=(str(PYTHON), "-I", "run.py"), out_bytes=20_000_000)
    read = reported(node, stopped)
    assert list(own_user.processes()) == [], "whatever it forked away is gone"
    hidden = Path("/proc") / listed(node)["ready"] / "stat"  # of the one that hid
    assert not hidden.exists() or hidden.read_text().rpartition(")")[2].split()[0] in "ZX"
    assert (read.state, read.scripts[0]["exit_code"]) == ("stopped", -signal.SIGKILL)
    said = read.scripts[0]["last_lines"]
    assert [line.removeprefix("CAN ") for line in said[:-2]] == ["read its data", "write to its folder"]
    assert said[-2:] == [str(sorted(CONTRACT)), "\x1b]0;title\x07"], "escaped where it is printed"
    assert set(listed(node)) == {"good", "ready"} and listed(node)["good"] == "good"
    told = "\n".join(read.scripts[0]["notes"])
    assert ".bashrc was not" in told
    assert "log was not uploaded: it is a link" in told
    assert "zzz-large was not" in told
    assert not any(b"the agent's own" in body for body in node.uplink.s3.objects.values())


# Ask the metadata service for the role's credentials, as a program on EC2 does.
ASKS = """
import urllib.request
def ask(path, method="GET", **headers):
    asked = urllib.request.Request("ADDRESS/latest/" + path, method=method, headers=headers)
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=60).read().decode()
try:
    token = ask("api/token", "PUT", **{"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    headers = {"X-aws-ec2-metadata-token": token}
    folder = "meta-data/iam/security-credentials/"
    print("took", ask(folder + ask(folder, **headers), **headers))
except OSError as error:
    print("refused:", error)
"""


@pytest.fixture
def metadata_service() -> Iterator[tuple[str, int]]:
    """A metadata service on loopback that lends a role to whoever asks; its address."""
    lent = RoleCredentials(
        role="node",
        access_key="AKIAOFTHENODE",
        secret_key="of the role",
        session_token="t",
        expires_at=utc_now() + timedelta(hours=1),
    )
    known: dict[str, str] = dict.fromkeys(("instance_type", "availability_zone", "region"), "x")
    view, tokens = MetadataView(instance_id="i-1", **known, credentials=lent), TokenStore()

    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = respond(view, tokens, self.command, self.path, dict(self.headers), utc_now())
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_GET

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_address[0], server.server_port  # type: ignore[misc]  # it is a name
        server.shutdown()


@pytest.fixture
def firewall(
    own_user: OwnUser,
    metadata_service: tuple[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """The product's own firewall rules, in this process's network alone; only the user is made up."""
    rules: list[str] = []
    run_line = own_user_module._run

    def run_rule(line: str) -> int:
        if "iptables" not in line:
            return 0
        rules.append(line)
        return run_line(line)

    entry = SimpleNamespace(pw_uid=own_user.uid, pw_gid=own_user.gid)
    monkeypatch.setattr(own_user_module, "_run", run_rule)
    monkeypatch.setattr(own_user_module, "ETC", tmp_path)
    monkeypatch.setattr(own_user_module, "METADATA", metadata_service)
    monkeypatch.setattr(own_user_module.pwd, "getpwnam", lambda name: entry)
    monkeypatch.setattr(module, "make_own_user", own_user_module.make_own_user)
    yield
    for line in rules:
        run_line(line.replace(" -I ", " -D "))


@pytest.mark.skipif(
    os.geteuid() != 0 or not PYTHON.exists() or not in_namespace(),
    reason="needs root, a Python that every user may run, and a network namespace for firewall rules",
)
@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("walled", [False, True], ids=["open", "walled"])
def test_the_firewall_keeps_credentials_from_a_command(
    node: Node,
    run: Run,
    own_user: OwnUser,
    metadata_service: tuple[str, int],
    request: pytest.FixtureRequest,
    walled: bool,
    name: str,
) -> None:
    if walled:
        request.getfixturevalue("firewall")
    source = ASKS.replace("ADDRESS", "http://{}:{}".format(*metadata_service))
    try:
        failed = run(name, source, words=(str(PYTHON), "-I", "run.py"))
    except ConfigError as error:  # no iptables here, so no program runs
        assert walled and shutil.which("iptables") is None
        assert "can't be kept from the machine's credentials" in str(error)
        assert not node.status.scripts
        return
    said = "\n".join(reported(node, failed).scripts[0]["last_lines"])
    if walled:
        assert said.startswith("refused: ") and "Connection refused" in said
    else:
        assert said.startswith("took ") and "AKIAOFTHENODE" in said, "it would answer"


@pytest.fixture
def lend(
    aws_server: EmbeddedAws, stack: tuple[Access, StackOutputs], tmp_path: Path
) -> Callable[[str], Node]:
    """Return a function that launches an instance under a role of the stack, and returns a node with it."""
    access, outputs = stack

    def node_with(role: str) -> Node:
        secrets = ["KEY"] if role == "script" else []
        script = {"command": "sh run.sh", "secrets": secrets}
        machine = {"max_duration": "1h", "instance": ["g6.xlarge"]}
        job = job_from({"name": "s", "script": script, "machine": machine})
        now, objects = utc_now(), open_objects(access, outputs.bucket)
        account = Account(access=access, outputs=outputs, objects=objects)
        if role == "prepare":
            plan: RunPlan = plan_cpu_run(PREPARE, account, budget_usd=1.0)[1]
            work: Work = Refresh(job=job, code=CODE, inputs=())
        else:
            machines = [instance_type("g6.xlarge")]
            offers = query_offers(access, outputs=outputs, machines=machines, spot=False)
            by = {"subnets": outputs.subnets, "input_bytes": 3, "place": access.place}
            plan = plan_script(job, offers, known=KnownTimes(), **by)
            work = ScriptWork(job=job, code=CODE, files={}, sha256="", names=("s",))
        record = record_of(work, plan, account, preflight_at=now, now=now)
        node, _, lent = node_on(aws_server, access, outputs, record, tmp_path / "own")
        assert lent == f"mayfly-dev-{outputs.region}-{role}"
        return node

    return node_with


@pytest.mark.parametrize(
    ("role", "parameter", "key"),
    [
        ("instance", "script-secrets/KEY", "models/production/x"),
        ("script", "secrets/KEY", "raw/main/x"),
        ("prepare", "script-secrets/KEY", "models/production/x"),
    ],
)
def test_no_manifest_widens_its_instances_role(
    stack: tuple[Access, StackOutputs],
    node: Node,
    bundle: Path,
    lend: Callable[[str], Node],
    monkeypatch: pytest.MonkeyPatch,
    role: str,
    parameter: str,
    key: str,
) -> None:
    access, outputs = stack
    monkeypatch.setattr(stage, "PAUSES", (0.0,))
    own = lend(role)
    name = f"/mayfly/mayfly/dev/{parameter}"
    access.client("ssm").put_parameter(Name=name, Value="of another", Type="SecureString")
    version = access.client("s3").put_object(Bucket=outputs.bucket, Key=key, Body=b"x")["VersionId"]
    task = task_of(node, "score")
    read = ManifestInput(path="data/x", key=key, version_id=version, sha256="", bytes=1)
    with pytest.raises(DataError, match="AccessDenied|Forbidden"):
        run_task(own, replace(task, inputs=(read,)))
    secret = replace(task.command, secrets={"KEY": name})
    with pytest.raises(TrainerError, match="the secret KEY can't be read"):
        run_task(own, replace(task, inputs=(), command=secret))


# What a program that has its machine's credentials tries with the keys of other nodes and runs.
ROBS = """
import boto3
from botocore.exceptions import ClientError
s3 = boto3.client("s3", **LENT, config=boto3.session.Config(retries={"total_max_attempts": 1}))
for name, (operation, arguments) in TRIES.items():
    try:
        getattr(s3, operation)(Bucket=BUCKET, **arguments)
        print("got:", name)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        print("refused:" if code in ("AccessDenied", "403") else f"failed {code}:", name)
"""
OWN_WRITES = ("write live/OWN/r1/1/x", "write attempts/OWN/r1/1/0/x", "write checkpoints/OWN/r1/1/0/x")
MODEL_KEYS = ("write models/experiments/OWN/r1/1/x",)
# A training's instance reads run folders (docs/security.md), one with secrets only manifests, start files and
# requests to stop; each the copies of checkpoints, in a version that it knows.
READ_OF_RUNS = (
    *(
        "read runs/r0/manifest.json",
        "read runs/r0/attempts/1/stop.json",
        "read runs/r0/attempts/1/start.json",
    ),
    "read a version of resumed/r0/2/x",
)
ROBBED = {
    "instance": {
        *(*OWN_WRITES, *MODEL_KEYS, *READ_OF_RUNS, "read models/experiments/OWN/r1/1/x"),
        "read runs/r0/plan.json",
    },
    "script": {*OWN_WRITES, *MODEL_KEYS, *READ_OF_RUNS},
    "prepare": {*OWN_WRITES, *READ_OF_RUNS},
}


ATTEMPT = ("attempts/1/start", "attempts/1/stop")


def tries_of(s3: Any, bucket: str, own: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Put objects of other nodes and runs into the bucket; return what is tried with them, and with its own."""
    role_id = own.partition(":")[0]
    others = (f"{role_id}:i-0123456789abcdef0", f"{role_id}:{own.partition(':')[2]}0", "AROAOTHER:i-1", "x")
    ends = {"live/": "r1/1/x", "attempts/": "r1/1/0/x", "models/experiments/": "r1/1/x"}
    ends |= {"checkpoints/": "r1/1/0/x"}
    keys = [f"{prefix}{other}/{end}" for prefix, end in ends.items() for other in (*others, f"x/{own}")]
    names = ("run", "manifest", "receipt", "plan", *ATTEMPT)
    keys += [*(f"runs/r0/{name}.json" for name in names), "runs/index.json", "resumed/r0/2/x"]
    mine = [f"{prefix}{own}/{end}" for prefix, end in ends.items()]
    tries: dict[str, tuple[str, dict[str, Any]]] = {}
    for key in (*mine, *keys):
        version = s3.put_object(Bucket=bucket, Key=key, Body=b"x")["VersionId"]
        tries |= {
            f"read {key}": ("get_object", {"Key": key}),
            f"read a version of {key}": ("get_object", {"Key": key, "VersionId": version}),
            f"write {key}": ("put_object", {"Key": key, "Body": b"y"}),
            f"delete {key}": ("delete_object", {"Key": key}),
            f"delete a version of {key}": ("delete_object", {"Key": key, "VersionId": version}),
            f"copy to {key}": ("copy_object", {"Key": key, "CopySource": f"{bucket}/{keys[0]}"}),
            f"copy from {key}": ("copy_object", {"Key": mine[1], "CopySource": f"{bucket}/{key}"}),
        }
    for prefix in (*(f"{prefix}{others[0]}/" for prefix in ends), f"live/{own}/", "runs/", ""):
        tries[f"list {prefix!r}"] = ("list_objects_v2", {"Prefix": prefix})
        tries[f"list versions of {prefix!r}"] = ("list_object_versions", {"Prefix": prefix})
    return tries


@pytest.mark.parametrize(
    ("name", "role"),
    others_nightly(
        [("train", "instance"), ("script", "script"), ("prepare", "prepare")],
        lambda pair: pair[0] != "prepare",
    ),
)
def test_no_commands_credentials_reach_the_keys_of_others(
    stack: tuple[Access, StackOutputs],
    run: Run,
    lend: Callable[[str], Node],
    caplog: pytest.LogCaptureFixture,
    name: str,
    role: str,
) -> None:
    access, outputs = stack
    node = lend(role)
    identity, lent = node.status.identity, node.uplink.s3._request_signer._credentials
    own = f"{identity.role_id}:{identity.instance_id}"
    tries = tries_of(access.client("s3"), outputs.bucket, own)
    keys = {"aws_access_key_id": lent.access_key, "aws_secret_access_key": lent.secret_key}
    where = {"endpoint_url": access.endpoint_url, "region_name": outputs.region}
    given = f"LENT, TRIES, BUCKET = {({**keys, **where}, tries, outputs.bucket)!r}\n"
    with caplog.at_level(logging.INFO):
        assert run(name, given + ROBS) is None
    lines = [record.getMessage() for record in caplog.records]
    said = [line.removeprefix("| ") for line in lines if line.startswith("| ")]
    got = {line.removeprefix("got: ").replace(own, "OWN") for line in said if line.startswith("got: ")}
    copied = {line for line in got if line.startswith("copy")}
    assert got - copied == ROBBED[role]
    newest = [one for one in ROBBED[role] if one.startswith("read ") and " version of " not in one]
    assert copied == {f"copy from {one.removeprefix('read ')}" for one in newest}
    assert len([line for line in said if line.startswith("refused: ")]) == len(tries) - len(got) > 100
