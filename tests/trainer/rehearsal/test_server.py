"""The server as a process: its life, its leases, and what it remembers after it has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.processes import alive
from trainer.aws.access import Access
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConfigError
from trainer.base.files import whole_file
from trainer.base.instants import from_iso, iso
from trainer.rehearsal import kept_bucket, server
from trainer.rehearsal.client import lease_server, rehearsal, stop_server
from trainer.rehearsal.server import EmbeddedAws
from trainer.rehearsal.world import StoredSchedule

SLEEPER = b"#!/bin/sh\necho $$ > $MAYFLY_ROOT/pid\nsleep 600\n"
UNTIL_TOLD = b"#!/bin/sh\ntouch $MAYFLY_ROOT/up\nuntil [ -e $MAYFLY_ROOT/go ]; do sleep 0.1; done\npoweroff\n"


def server_pid(root: Path) -> int:
    return int(json.loads((root / "server.json").read_text())["pid"])


def versions(s3: Any, bucket: str) -> list[tuple[str, str, bool, datetime]]:
    answer = s3.list_object_versions(Bucket=bucket)
    found = answer.get("Versions", []) + answer.get("DeleteMarkers", [])
    return [(one["Key"], one["VersionId"], one["IsLatest"], one["LastModified"]) for one in found]


def test_objects_come_back_with_the_same_versions(tmp_path: Path) -> None:
    account = "900000000001"
    with EmbeddedAws(tmp_path) as aws:
        s3 = aws.access(account).client("s3")
        s3.create_bucket(Bucket="versions")
        s3.put_bucket_versioning(Bucket="versions", VersioningConfiguration={"Status": "Enabled"})
        s3.put_bucket_policy(Bucket="versions", Policy=json.dumps({"Version": "2012-10-17", "Statement": []}))
        by_key = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "arn:aws:kms:us-east-1:900000000001:key/k"}
        rules = {"Rules": [{"ApplyServerSideEncryptionByDefault": by_key}]}
        s3.put_bucket_encryption(Bucket="versions", ServerSideEncryptionConfiguration=rules)
        for number in range(3):
            s3.put_object(
                Bucket="versions", Key="models/a b", Body=f"v{number}".encode(), Metadata={"run": "r1"}
            )
        deleted = s3.put_object(Bucket="versions", Key="gone", Body=b"gone")["VersionId"]
        s3.delete_object(Bucket="versions", Key="gone")
        s3.put_object(Bucket="versions", Key="really gone", Body=b"x")
        last = {"Key": "really gone", "VersionId": versions(s3, "versions")[-2][1]}
        s3.delete_objects(Bucket="versions", Delete={"Objects": [last]})
        before = versions(s3, "versions")
    with EmbeddedAws(tmp_path) as aws:
        s3 = aws.access(account).client("s3")
        assert versions(s3, "versions") == before
        newest = s3.get_object(Bucket="versions", Key="models/a b")
        assert (newest["Body"].read(), newest["Metadata"]) == (b"v2", {"run": "r1"})
        assert s3.get_object(Bucket="versions", Key="gone", VersionId=deleted)["Body"].read() == b"gone"
        assert s3.get_bucket_versioning(Bucket="versions")["Status"] == "Enabled"
        (rule,) = s3.get_bucket_encryption(Bucket="versions")["ServerSideEncryptionConfiguration"]["Rules"]
        assert rule["ApplyServerSideEncryptionByDefault"] == by_key
        assert "2012-10-17" in s3.get_bucket_policy(Bucket="versions")["Policy"]
        s3.put_object(Bucket="versions", Key="models/a b", Body=b"v3")
        assert len(versions(s3, "versions")) == len(before) + 1


def test_old_versions_go_when_the_lifecycle_says_so(tmp_path: Path) -> None:
    account = "900000000003"
    rule = {
        "ID": "heartbeats",
        "Status": "Enabled",
        "Filter": {"Prefix": "live/"},
        "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
    }
    with EmbeddedAws(tmp_path) as aws:
        s3 = aws.access(account).client("s3")
        s3.create_bucket(Bucket="with-rules")
        s3.put_bucket_versioning(Bucket="with-rules", VersioningConfiguration={"Status": "Enabled"})
        s3.put_bucket_lifecycle_configuration(Bucket="with-rules", LifecycleConfiguration={"Rules": [rule]})
        for key in ("live/a", "models/a"):
            for number in range(3):
                s3.put_object(Bucket="with-rules", Key=key, Body=f"{number}".encode())
    for record in (tmp_path / "s3" / account / "with-rules").glob("*.json"):  # two days pass
        saved = json.loads(record.read_text())
        at = from_iso(saved["modified_at"]) - timedelta(days=2)
        record.write_text(json.dumps({**saved, "modified_at": iso(at)}))
    with EmbeddedAws(tmp_path) as aws:
        s3 = aws.access(account).client("s3")
        assert [key for key, *_ in versions(s3, "with-rules")] == ["live/a", *["models/a"] * 3]
        assert s3.get_object(Bucket="with-rules", Key="live/a")["Body"].read() == b"2"
    assert len(list((tmp_path / "s3" / account / "with-rules").iterdir())) == 2 * 4


def test_uploads_that_nobody_completes_go_likewise(tmp_path: Path) -> None:
    account, known = "900000000004", {"Bucket": "unfinished", "Key": "data/large"}
    rule = {
        "ID": "unfinished-uploads",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
    }
    with EmbeddedAws(tmp_path) as aws:
        s3 = aws.access(account).client("s3")
        s3.create_bucket(Bucket="unfinished")
        s3.put_bucket_lifecycle_configuration(Bucket="unfinished", LifecycleConfiguration={"Rules": [rule]})
        old, new = (s3.create_multipart_upload(**known)["UploadId"] for _ in range(2))
        for upload in (old, new):
            s3.upload_part(**known, UploadId=upload, PartNumber=1, Body=b"part")
    uploads = tmp_path / "s3" / account / "unfinished" / ".uploads"
    begun = time.time() - 8 * 24 * 3600
    os.utime(uploads / old / "upload.json", (begun, begun))
    with EmbeddedAws(tmp_path) as aws:
        aws.restore()
        assert [folder.name for folder in uploads.iterdir()] == [new]


def test_ended_instances_are_shown_after_a_restart(tmp_path: Path, make_desk: Callable[..., Any]) -> None:
    account = "900000000002"
    with EmbeddedAws(tmp_path, run_nodes=False) as aws:
        desk = make_desk(aws.access(account))
        ended, lost = (desk.launched(token=token, tags={"run_id": "r1"}) for token in ("t1", "t2"))
        desk.ec2.terminate_instances(InstanceIds=[ended])
        before = desk.instance(ended)
    with EmbeddedAws(tmp_path, run_nodes=False) as aws:
        ec2 = aws.access(account).client("ec2")
        found = ec2.describe_instances(Filters=[{"Name": "tag:run_id", "Values": ["r1"]}])["Reservations"]
        seen = {one["InstanceId"]: one for reservation in found for one in reservation["Instances"]}
        assert {one["State"]["Name"] for one in seen.values()} == {"terminated"}
        assert seen[ended]["StateReason"] == before["StateReason"]
        assert seen[ended]["LaunchTime"] == before["LaunchTime"]
        assert seen[lost]["StateReason"]["Code"] == "Server.InternalError"
        ec2.terminate_instances(InstanceIds=[ended])


def test_a_program_less_rehearsal_finds_what_was_made(root: Path) -> None:
    with rehearsal(root, program=False) as access:
        access.client("s3").create_bucket(Bucket="made-before")
        access.client("ssm").put_parameter(Name="/mayfly/mayfly/dev", Value="outputs", Type="String")
        pid = server_pid(root)
    assert stop_server(root)
    assert not alive(pid)
    with rehearsal(root, program=False) as access:
        assert [one["Name"] for one in access.client("s3").list_buckets()["Buckets"]] == ["made-before"]
        ssm = access.client("ssm")
        assert ssm.get_parameter(Name="/mayfly/mayfly/dev")["Parameter"]["Value"] == "outputs"
        newer = {"Name": "/mayfly/mayfly/dev", "Value": "newer", "Type": "String"}
        ssm.put_parameter(**newer)  # as the program, applied again
        with pytest.raises(ssm.exceptions.ParameterAlreadyExists):
            ssm.put_parameter(**newer)


def test_the_program_is_applied_once(aws_server: EmbeddedAws, stack: tuple[Access, StackOutputs]) -> None:
    access, outputs = stack
    before = len(aws_server.cloud(access).calls)
    assert aws_server.apply_program(access)["bucket"] == outputs.bucket
    assert len(aws_server.cloud(access).calls) == before


def test_two_commands_share_one_server(root: Path) -> None:
    with rehearsal(root, program=False) as first, rehearsal(root, program=False) as second:
        assert first.endpoint_url == second.endpoint_url


@pytest.mark.nightly
@pytest.mark.slow
def test_a_server_ends_after_its_last_lease_unless_a_node_runs(
    root: Path, tmp_path: Path, make_desk: Callable[..., Any], wait_until: Callable[..., None]
) -> None:
    """Two servers, side by side: one whose node runs on after its launcher was killed, and one that nobody
    needs any more.
    """
    idle_root = tmp_path / "idle"
    holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    server, idle = lease_server(root, holder=holder.pid), lease_server(idle_root, holder=holder.pid)
    desk = make_desk(server.access(), user_data=UNTIL_TOLD)
    instance_id = desk.launched()
    wait_until(lambda: (root / "sandbox" / instance_id / "up").exists())
    assert alive(server.pid) and alive(idle.pid)
    holder.kill()  # a lease dies with its holder, whatever killed it
    holder.wait()
    wait_until(lambda: not alive(idle.pid))  # after how long: test_leases.py
    assert not (idle_root / "server.json").exists()
    assert alive(server.pid)  # though nobody has leased it for as long
    assert desk.state(instance_id) == "running"
    (root / "sandbox" / instance_id / "go").touch()
    wait_until(lambda: not alive(server.pid))
    with rehearsal(root, program=False) as access:
        found = access.client("ec2").describe_instances()["Reservations"][0]["Instances"][0]
        assert found["State"]["Name"] == "terminated"
        assert found["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_a_killed_server_leaves_no_node_and_tells_what_was_lost(
    root: Path, make_desk: Callable[..., Any], wait_until: Callable[..., None]
) -> None:
    with rehearsal(root, program=False) as access:
        desk = make_desk(access, user_data=SLEEPER)
        instance_id = desk.launched()
        pid_file = root / "sandbox" / instance_id / "pid"
        wait_until(lambda: pid_file.exists() and bool(pid_file.read_text().strip()))
        node = int(pid_file.read_text())
        wait_until(lambda: (root / "instances" / "000000000001" / f"{instance_id}.json").exists())
        os.kill(server_pid(root), signal.SIGKILL)
        with rehearsal(root, program=False) as again:
            assert not alive(node)
            found = again.client("ec2").describe_instances()["Reservations"][0]["Instances"][0]
            assert (found["InstanceId"], found["State"]["Name"]) == (instance_id, "terminated")


def test_stop_ends_what_runs(
    root: Path, make_desk: Callable[..., Any], wait_until: Callable[..., None]
) -> None:
    with rehearsal(root, program=False) as access:
        desk = make_desk(access, user_data=SLEEPER)
        pid_file = root / "sandbox" / desk.launched() / "pid"
        wait_until(lambda: pid_file.exists() and bool(pid_file.read_text().strip()))
        pids = [int(pid_file.read_text()), server_pid(root)]
        assert stop_server(root)
        assert not any(alive(pid) for pid in pids)
        assert not stop_server(root)


# --- memory that can't be read, and a disk that is full
# ----------------------------------------------------------------


def remembered(root: Path) -> None:
    """Leave a bucket with an object and an ended instance behind."""
    # not the first of this process: moto keeps accounts by number, and this server forgets its own
    account = "900000000011"
    with EmbeddedAws(root, run_nodes=False) as aws:
        s3 = aws.access(account).client("s3")
        s3.create_bucket(Bucket="remembered")
        s3.put_object(Bucket="remembered", Key="key", Body=b"words")


def read_in_this_process(root: Path) -> None:
    """Read a root as a server does that starts; a process of its own takes a second for it."""
    with EmbeddedAws(root, run_nodes=False) as aws:
        aws.restore()


VERSION, SETTING = "s3/900000000011/remembered/000000001.json", "settings/900000000011/9-x.json"
INSTANCE = "instances/900000000011/i-0123456789abcdef0.json"
OUTSIDE = '{"service": "s3", "operation": "CreateBucket", "about": "", "params": {"Bucket": "../../../x"}}'
FOREIGN = '{"service": "s3", "operation": "PutBucketVersioning", "params": {"Bucket": "b"}}'


@pytest.mark.parametrize(
    ("read", "file", "text"),
    [
        (lease_server, VERSION, "{"),
        (read_in_this_process, VERSION, "[]"),
        (read_in_this_process, SETTING, "5"),
        (read_in_this_process, SETTING, FOREIGN),
        (read_in_this_process, SETTING.replace("9-", "0-"), OUTSIDE),
        (read_in_this_process, INSTANCE, "null"),
        (read_in_this_process, INSTANCE, '{"id": "../../.."}'),
        (lease_server, "format.json", '{"format": 1}'),
        (lease_server, "format.json", "x"),
    ],
)
def test_unreadable_memory_is_one_line_with_file_and_remedy(
    root: Path, read: Callable[[Path], object], file: str, text: str
) -> None:
    root.mkdir(mode=0o700)
    remembered(root)
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)
    with pytest.raises(ConfigError) as failed:
        read(root)
    assert str(root / file) in failed.value.why + failed.value.what
    assert "ove" in failed.value.do and "\n" not in str(failed.value)


def test_a_link_in_the_place_of_an_object_is_no_version(root: Path, tmp_path: Path) -> None:
    root.mkdir(mode=0o700)
    remembered(root)
    (tmp_path / "precious").write_text("secret")
    payload = root / "s3/900000000011/remembered/000000001"
    payload.unlink()
    payload.symlink_to(tmp_path / "precious")
    with EmbeddedAws(root, run_nodes=False) as aws:
        assert "Contents" not in aws.access("900000000011").client("s3").list_objects_v2(Bucket="remembered")


def test_an_instance_whose_name_leads_elsewhere_deletes_nothing(root: Path, tmp_path: Path) -> None:
    root.mkdir(mode=0o700)
    remembered(root)
    (tmp_path / "precious").mkdir()
    folder = root / "instances" / "900000000011"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "i-0123456789abcdef0.json").write_text(json.dumps({"id": "../../precious"}))
    with pytest.raises(ConfigError):
        lease_server(root)
    assert (tmp_path / "precious").is_dir()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of objects' files for which the disk has no room the next time."""
    names = list[str]()

    def written(path: Path) -> Any:
        if path.name in names:
            names.remove(path.name)
            return nullcontext(Path("/dev/full"))  # which takes nothing
        return whole_file(path)

    monkeypatch.setattr(kept_bucket, "whole_file", written)
    return names


def test_a_full_disk_is_said_when_an_object_is_written(tmp_path: Path, full: list[str]) -> None:
    with EmbeddedAws(tmp_path / "root", run_nodes=False) as aws:
        s3 = aws.access("900000000009").client("s3")
        s3.create_bucket(Bucket="full-disk")
        full.append("000000001.json")
        with pytest.raises(ClientError) as failed:
            s3.put_object(Bucket="full-disk", Key="key", Body=b"x")
    assert failed.value.response["Error"]["Code"] == "DiskFull"
    assert "No space left" in failed.value.response["Error"]["Message"]


def test_a_write_to_a_full_disk_can_be_repeated(tmp_path: Path, full: list[str]) -> None:
    root, key = tmp_path / "root", {"Bucket": "full-disk", "Key": "model"}
    with EmbeddedAws(root, run_nodes=False) as aws:
        s3 = aws.access("900000000009").client("s3", total_max_attempts=1)
        s3.create_bucket(Bucket="full-disk")
        s3.put_bucket_versioning(Bucket="full-disk", VersioningConfiguration={"Status": "Enabled"})
        for number, body in enumerate((b"one", b"two")):
            condition = {"IfMatch": s3.head_object(**key)["ETag"]} if number else {"IfNoneMatch": "*"}
            full.append(f"{2 * number + 1:09d}.json")
            with pytest.raises(ClientError, match="DiskFull"):
                s3.put_object(**key, Body=body, **condition)
            s3.put_object(**key, Body=body, **condition)
    assert not full
    with EmbeddedAws(root, run_nodes=False) as later:
        s3 = later.access("900000000009").client("s3")
        assert s3.get_object(**key)["Body"].read() == b"two"
        assert len(s3.list_object_versions(Bucket="full-disk")["Versions"]) == 2


def test_a_folder_without_room_for_programs_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    aws = EmbeddedAws(run_nodes=False, programs=tmp_path / "file" / "programs")
    with aws, pytest.raises(ConfigError, match="can't be kept") as failed:
        aws.apply_program(aws.account())
    assert str(tmp_path / "file") in failed.value.what and "MAYFLY_PROGRAMS" in failed.value.do


def test_a_temporary_folder_with_too_long_a_path_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("t" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    aws = EmbeddedAws(tmp_path / "root", run_nodes=False, fork_nodes=True)
    with aws, pytest.raises(ConfigError, match="temporary folder is too long") as failed:
        aws.apply_program(aws.account())
    assert "TMPDIR" in failed.value.do
    assert not list(deep.iterdir())


def test_two_commands_at_once_start_one_fork_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aws, made = EmbeddedAws(tmp_path / "root", run_nodes=False, fork_nodes=True), list[object]()
    access = aws.access("900000000022")
    other = threading.Thread(target=lambda: aws.apply_program(access), daemon=True)

    def started(_: object) -> Any:
        made.append(0)
        if len(made) == 1:
            other.start()
            other.join(1)  # it ends meanwhile only if nothing keeps it waiting
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(server, "ForkServerProcess", started)
    monkeypatch.setattr(aws, "_apply_or_replay", lambda *_: {})
    with aws:
        aws.apply_program(access)
        other.join(30)
    assert len(made) == 1


def test_a_server_that_stops_ends_no_other(root: Path, tmp_path: Path) -> None:
    lease_server(root)
    copy = tmp_path / "copy"
    copy.mkdir(mode=0o700)
    (copy / "server.json").touch(mode=0o600)
    (copy / "server.json").write_bytes((root / "server.json").read_bytes())
    pid = server_pid(root)
    assert not stop_server(copy)
    assert alive(pid)
    assert stop_server(root)


def test_a_function_that_still_runs_keeps_the_server() -> None:
    told = threading.Event()
    call = threading.Thread(target=told.wait)
    with EmbeddedAws(run_nodes=False) as aws:
        aws.cloud(aws.account()).invocations.append(call)
        call.start()
        assert aws.busy()
        told.set()
        call.join()
        assert not aws.busy()


def test_a_run_that_nobody_settled_keeps_the_server() -> None:
    """Its one-time schedules are armed before its machine, and deleted as it is closed: control may do it."""
    with EmbeddedAws(run_nodes=False) as aws:
        cloud = aws.cloud(aws.account())
        with cloud.lock:
            armed = StoredSchedule(
                group="g",
                name="sweep",
                expression=cloud.clock.now() + timedelta(hours=1),
                target={},
                enabled=True,
                delete_after_completion=True,
                start=cloud.clock.now(),
            )
            cloud.world.put_schedule(armed)
        assert aws.busy()
        with cloud.lock:
            cloud.world.delete_schedule("g", "sweep")
        assert not aws.busy()
