"""Secrets of a script: read under a role of its own, given to the script alone, and left out of all that the
agent sends.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from tests.iam import assert_allowed_is_needed
from tests.nodes import bundle, node_on
from tests.planned import plan_script
from trainer.aws.access import Access
from trainer.aws.objects import open_objects
from trainer.aws.stack_outputs import StackOutputs, script_secrets_path, secrets_path
from trainer.base.errors import ConfigError
from trainer.base.instants import utc_now
from trainer.job.reading import job_from
from trainer.launch.bundle import BundleName
from trainer.launch.known_times import KnownTimes
from trainer.launch.preflight import query_offers
from trainer.launch.start import record_of, write_task
from trainer.launch.tasks import script_task
from trainer.launch.work import Account, ScriptWork
from trainer.machines.instances import instance_type
from trainer.node import report, stage
from trainer.node.agent import fetch_manifest
from trainer.node.command import run_command
from trainer.node.redaction import RedactedStream, Redaction
from trainer.node.shared import Node
from trainer.node.stack_secrets import read_secrets
from trainer.rehearsal.server import EmbeddedAws
from trainer.runs.store import manifest_key, stop_key

__all__ = ["bundle"]  # a fixture
SECRET = "k3y/of+the=tracker"
CODE = BundleName(sha256="ab" * 32, lock_sha256="cd" * 32)


@pytest.mark.parametrize("size", [16, 64])
def test_no_part_of_a_secret_shows_however_the_stream_is_cut(size: int) -> None:
    made = Redaction({"KEY": SECRET, "NAME": "é-ü-secret"})
    for shift in range(size + len(SECRET)):
        before, after = "x" * shift, "y" * 2 * size
        text = f"{before}{SECRET}{after}é-ü-secret\nnext {SECRET}".encode()
        stream = RedactedStream(io.BytesIO(text), made)
        blocks = list(iter(lambda stream=stream: stream.readline(size), b""))
        assert b"".join(blocks).decode() == f"{before}[KEY]{after}[NAME]\nnext [KEY]"
        parts = (SECRET[:8].encode(), SECRET[-8:].encode())
        assert not any(part in block for block in blocks for part in parts)


@pytest.mark.parametrize("user", ["", "u", "us", "use"])
def test_a_secret_shows_not_in_base64_either(user: str) -> None:
    made = Redaction({"KEY": SECRET})
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        basic = encode(f"{user}{SECRET}".encode()).decode()
        said = made.redacted(f"Authorization: Basic {basic}")
        assert "[KEY]" in said and not any(basic[at : at + 8] in said for at in range(4, len(basic) - 12))
    assert Redaction({"SHORT": "abcde"}).redacted("YWJj") == "YWJj", "too little of it to be told from words"


def test_without_a_secret_a_stream_is_passed_on_as_it_is() -> None:
    stream = RedactedStream(io.BytesIO(b"a\nbcdef"), Redaction({}))
    assert [stream.readline(4) for _ in range(4)] == [b"a\n", b"bcde", b"f", b""]


SCRIPT = """
[ "$TRACKER_KEY" = "k3y/of+the=tracker" ] || exit 9
# No process of the machine has one in its words, which every user could read.
for words in /proc/[0-9]*/cmdline; do
  case "$(tr '\\0' ' ' < "$words")" in *"$TRACKER_KEY"*) exit 8 ;; esac
done 2> /dev/null
echo "logging in with $TRACKER_KEY" >&2
head -c 8185 /dev/zero | tr '\\0' x; echo "$TRACKER_KEY"
echo '{"step": 1, "name-secret": 2}' >> $MAYFLY_EVENTS
echo '{"step": 2, "PLAIN": 2}' >> $MAYFLY_EVENTS
touch "$MAYFLY_OUT/plain-name-secret" "$MAYFLY_OUT/model"
echo failed: "$TRACKER_KEY"; exit 3
"""


@dataclass(frozen=True, kw_only=True)
class SecretRun:
    access: Access
    outputs: StackOutputs
    node: Node
    role: str


@pytest.fixture
def run(
    aws_server: EmbeddedAws, stack: tuple[Access, StackOutputs], tmp_path: Path, bundle: Path
) -> SecretRun:
    """A run of a script with two secrets whose instance is there, and whose node is this process, under that
    node's role.
    """
    access, outputs = stack
    objects, now = open_objects(access, outputs.bucket), utc_now()
    script = {"command": "sh run.sh", "secrets": ["TRACKER_KEY", "OTHER"]}
    machine = {"max_duration": "1h", "instance": ["g6.xlarge"]}
    job = job_from({"name": "s", "script": script, "machine": machine})
    ssm, path = access.client("ssm"), script_secrets_path("mayfly", "dev")
    ssm.put_parameter(Name=f"{path}TRACKER_KEY", Value=SECRET, Type="SecureString")
    ssm.put_parameter(Name=f"{path}OTHER", Value="name-secret", Type="SecureString")
    offers = query_offers(access, outputs=outputs, machines=[instance_type("g6.xlarge")], spot=False)
    there = {"subnets": outputs.subnets, "place": access.place}
    plan = plan_script(job, offers, known=KnownTimes(), input_bytes=3, **there)
    work = ScriptWork(job=job, code=CODE, files={"run.sh": ""}, sha256="", names=("s",))
    account = Account(access=access, outputs=outputs, objects=objects)
    record = record_of(work, plan, account, preflight_at=now, now=now)
    sha256 = hashlib.sha256(b"1,2").hexdigest()
    key = f"raw/.files/{sha256}"
    version = access.client("s3").put_object(Bucket=outputs.bucket, Key=key, Body=b"1,2")["VersionId"]
    entry = {"path": "x.csv", "key": key, "version_id": version, "sha256": sha256, "bytes": 3}
    task = script_task(record, job, {"run.sh": ""}, [entry], sha256="")
    assert task.command.secrets["OTHER"] == "/mayfly/mayfly/dev/script-secrets/OTHER"
    write_task(record, task, CODE, objects, offers=offers)
    assert SECRET.encode() not in objects.get(key=manifest_key(record.run_id)).body  # type: ignore[union-attr]
    node, record, role = node_on(aws_server, access, outputs, record, tmp_path / "work")
    (bundle / "run.sh").write_text(SCRIPT)
    return SecretRun(access=access, outputs=outputs, node=node, role=role)


def test_a_scripts_secrets_are_in_nothing_that_the_agent_sends(
    aws_server: EmbeddedAws, run: SecretRun, caplog: pytest.LogCaptureFixture
) -> None:
    node, s3, bucket = run.node, run.access.client("s3"), run.outputs.bucket
    assert run.role == f"mayfly-dev-{run.outputs.region}-script"
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(Exception, match=r"exit code 3 \(failed: \[TRACKER_KEY\]\)") as failed,
    ):
        run_command(node, fetch_manifest(node))
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "| logging in with [TRACKER_KEY]" in said
    assert "[OTHER]" not in said
    assert "x[TRACKER_KEY]" in said.replace("\n| ", "")
    (script,) = node.status.scripts
    assert script["last_lines"][-1] == "failed: [TRACKER_KEY]"
    assert script["notes"] == [
        "plain-[OTHER] was not uploaded: a secret is in its name",
        "its events have PLAIN, and none is known to be its score: name it in script.best, as PLAIN:min or"
        " PLAIN:max",
        "1 line of its events could not be read",
    ]
    ended = report.ending(status=node.status, stop_reason="", error=failed.value, now=utc_now())  # type: ignore[arg-type]
    value = report.result(node.status, ended=ended, unfinished="", python_packages="")
    keys = node.status.identity.keys
    node.uplink.send(keys.result, json.dumps(value).encode(), patience_seconds=0)
    assert node.uplink.try_send(keys.lease, b"{}")
    events = (node.work / "events" / "events.jsonl").read_text()
    assert '"PLAIN": 2' in events
    stored = [
        s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        for item in page["Contents"]
    ]
    told = "\n".join([said, events, str(failed.value), *(body.decode(errors="replace") for body in stored)])
    assert SECRET not in told and "name-secret" not in told and "k3y/of" not in told

    # Its role is enough for that, from bootstrap.sh on, and allows no more.
    s3.put_object(Bucket=bucket, Key="code/x.whl", Body=b"")
    node.uplink.s3.get_object(Bucket=bucket, Key="code/x.whl")
    assert not node.uplink.exists(stop_key(node.status.identity.run_id, 1))
    policy = run.access.client("iam").get_role_policy(RoleName=run.role, PolicyName="script")
    decisions = aws_server.cloud(run.access).decisions
    decided = [(asked, by) for who, asked, by in decisions if who.role == run.role]
    assert_allowed_is_needed(decided, policy["PolicyDocument"], {})


def test_no_page_or_message_has_a_secret_put_into_a_command_line() -> None:
    root = Path(__file__).resolve().parents[3]
    pages = [root / "README.md", *root.glob("docs/**/*.md"), *root.glob("examples/**/*.md")]
    lines = [
        line
        for path in [*pages, *root.glob("trainer/**/*.py"), *root.glob("infra/*.py")]
        for line in path.read_text(encoding="utf-8").splitlines()
        if "put-parameter" in line and "SecureString" in line
    ]
    assert len(lines) >= 4 and [line for line in lines if "--value file://" not in line] == []


def test_other_keys_and_unusable_secrets_are_refused(run: SecretRun) -> None:
    s3, own, bucket = run.access.client("s3"), run.node.uplink, run.outputs.bucket
    run_id, refresh = run.node.status.identity.run_id, f"{secrets_path('mayfly', 'dev')}EXCHANGE"
    run.access.client("ssm").put_parameter(Name=refresh, Value="x" * 9, Type="SecureString")
    version = s3.put_object(Bucket=bucket, Key="raw/main/x.csv", Body=b"x")["VersionId"]
    calls: list[Callable[[], Any]] = [
        lambda: own.client("ssm").get_parameter(Name=refresh, WithDecryption=True),
        lambda: own.s3.get_object(Bucket=bucket, Key="raw/main/x.csv", VersionId=version),
        lambda: own.s3.get_object(Bucket=bucket, Key=f"runs/{run_id}/run.json"),
        lambda: own.s3.put_object(Bucket=bucket, Key="models/experiments/AROAOTHER:i-1/x", Body=b""),
        lambda: own.s3.list_objects_v2(Bucket=bucket),
    ]
    for call in calls:
        with pytest.raises(ClientError, match="AccessDenied"):
            call()
    parameter = f"{script_secrets_path('mayfly', 'dev')}X"
    with pytest.raises(ConfigError, match=r"the secret X is not set .* aws ssm put-parameter --type Secure"):
        read_secrets(run.node, {"X": parameter})
    run.access.client("ssm").put_parameter(Name=parameter, Value="abc", Type="SecureString")
    line = r"the secret X can't be used \(it needs 4 characters or more.* Set another value"
    with pytest.raises(ConfigError, match=line):
        read_secrets(run.node, {"X": parameter})


def test_a_secret_is_asked_for_again_while_systems_manager_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "PAUSES", (0.0,))
    codes = ["ThrottlingException", "ServiceUnavailable"]

    def get_parameter(**asked: Any) -> dict[str, Any]:
        if codes:
            raise ClientError({"Error": {"Code": codes.pop(0)}}, "GetParameter")
        return {"Parameter": {"Value": f"value of {asked['Name']}"}}

    uplink = SimpleNamespace(client=lambda service: SimpleNamespace(get_parameter=get_parameter))
    node = cast(Node, SimpleNamespace(uplink=uplink, is_stopping=lambda: False))
    assert read_secrets(node, {"X": "/x"}) == {"X": "value of /x"}
    assert not codes
