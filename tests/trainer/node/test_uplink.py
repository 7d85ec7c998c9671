"""Uploads to S3, also while S3 refuses."""

from __future__ import annotations

import hashlib
import io
import threading
from datetime import datetime, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.exceptions import ConnectTimeoutError

from tests.pieces import named
from trainer.aws import folder_uploads, parts
from trainer.aws.access import Access
from trainer.aws.objects import S3Objects
from trainer.aws.place import REHEARSAL
from trainer.base.errors import TrainingFailed
from trainer.base.files import read_block
from trainer.node import uplink as module_of_uplink
from trainer.node.announced import Announced
from trainer.node.heartbeat import HeartbeatThread
from trainer.node.identity import NodeIdentity
from trainer.node.progress import Progress
from trainer.node.report import Status
from trainer.node.shared import Node
from trainer.node.uplink import Parts, Uplink
from trainer.rehearsal.kept_bucket import KeptBucket

KEY = "models/experiments/r/1/lstm_A_1m.safetensors"
CONTENT = b"weights"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def uplink(access: Access) -> Uplink:
    bucket = f"uplink-{(access.access_key or '')[4:16]}"
    s3 = access.client("s3")
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    return Uplink(access, bucket)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    path = tmp_path / "models/lstm_A_1m.safetensors"
    path.write_bytes(CONTENT)
    path.with_suffix(".json").write_text("{}")
    return path


def put(uplink: Uplink, model: Path) -> str:
    with model.open("rb") as body:
        return uplink.put_file(body, KEY, SHA256, len(CONTENT), once=True)


def test_a_large_checkpoint_goes_on_where_it_broke_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in (
        (parts, "PART_BYTES", 1000),
        (parts, "_BLOCK_BYTES", 100),
        (module_of_uplink, "WHOLE_BYTES", 2000),
        (folder_uploads, "LEAST_PART_BYTES", 1),
    ):
        monkeypatch.setattr(module, name, value)
    bucket, sent, moved = KeptBucket(tmp_path / "bucket"), list[int](), list[int]()
    bucket.versioned, upload_part = True, bucket.upload_part
    content = bytes(range(256)) * 40
    sha256 = hashlib.sha256(content).hexdigest()

    def breaks(**asked: Any) -> Any:
        if asked["PartNumber"] == 9 and not sent.count(9):
            sent.append(9)
            raise ConnectTimeoutError(endpoint_url="s3")
        sent.append(asked["PartNumber"])
        return upload_part(**asked)

    monkeypatch.setattr(bucket, "upload_part", breaks)
    uplink = Uplink(cast(Any, SimpleNamespace(client=lambda *_, **__: bucket)), "b")
    uplink.moved = lambda: moved.append(1)
    for name, large in (("outputs/x", False), ("checkpoints/x", True)):
        known: Any = {"journals": tmp_path / "uploads"} if large else {}
        send = partial(uplink.put_file, io.BytesIO(content), name, sha256, len(content), **known)
        if large:
            with pytest.raises(ConnectTimeoutError):
                send()
            uplink.put_file(io.BytesIO(content), name, sha256, len(content), **known)
        else:
            send()
        head = bucket.head_object(Key=name)
        assert head["Metadata"] == {"sha256": sha256} and ("ChecksumSHA256" in head) is not large
    assert sorted(sent) == [*range(1, 10), 9, *range(10, 12)] and len(moved) >= 3
    assert bucket.get_object(Key="checkpoints/x")["Body"].read() == content


def test_the_copy_of_a_large_checkpoint_has_s3s_own_hash(
    uplink: Uplink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 5 << 20)  # S3's least
    monkeypatch.setattr(module_of_uplink, "WHOLE_BYTES", 1 << 20)
    content = b"weights " * 800_000
    sha256, key = hashlib.sha256(content).hexdigest(), "checkpoints/x"
    known = {"journals": tmp_path / "uploads"}
    version_id = uplink.put_file(io.BytesIO(content), key, sha256, len(content), **known)
    objects = S3Objects(uplink.s3, uplink.bucket)
    assert (sent := objects.head(key=key)) and (sent.checksum, sent.sha256) == ("", sha256)
    objects.copy(source=key, version_id=version_id, key="resumed/x", create=True, sha256=sha256)
    copy = objects.get(key="resumed/x")
    assert copy is not None and (copy.checksum, copy.body) == (sha256, content)


def node(uplink: Uplink, work: Path) -> Node:
    deadline = datetime(2026, 11, 20, tzinfo=timezone.utc)
    identity = NodeIdentity(
        run_id="r", attempt=1, node=0, deadline=deadline, instance_id="i-1", instance_type="t"
    )
    return Node(work=work, place=REHEARSAL, uplink=uplink, status=Status(identity=identity))


EVENT = {
    "event": "model_done",
    "model": "lstm_A_1m",
    **named("A"),
    "family": "lstm",
    "file": "lstm_A_1m.safetensors",
    "sha256": SHA256,
    "metrics": {},
}


class Outage:
    """S3 not answering the next calls."""

    def __init__(self, uplink: Uplink, calls: int) -> None:
        self.left = calls
        for client in (uplink.s3, uplink._quick):
            client.meta.events.register("before-send.s3", self.refuse)

    def refuse(self, request: Any, **_: Any) -> None:
        if self.left > 0:
            self.left -= 1
            raise ConnectTimeoutError(endpoint_url=request.url)


def test_a_model_uploaded_again_is_the_same_version(uplink: Uplink, model: Path) -> None:
    first = put(uplink, model)
    assert first and put(uplink, model) == first


def test_a_model_never_replaces_another_content(uplink: Uplink, model: Path) -> None:
    uplink.s3.put_object(Bucket=uplink.bucket, Key=KEY, Body=b"other")
    with pytest.raises(TrainingFailed, match="exists with other content"):
        put(uplink, model)


def test_a_file_that_vanished_is_the_models_failure(uplink: Uplink, model: Path, tmp_path: Path) -> None:
    model.unlink()
    one = node(uplink, tmp_path)
    uploads = Announced(one, model.parent, "models")
    uploads.add(EVENT)
    uploads.finish()
    assert one.status.models == [] and "can't be read" in one.status.failed[0]["reason"]


def test_a_model_waits_out_an_outage(uplink: Uplink, model: Path, tmp_path: Path) -> None:
    one = node(uplink, tmp_path)
    uploads = Announced(one, model.parent, "models")
    uploads.add(EVENT)
    Outage(uplink, calls=2)
    uploads.send()
    assert one.status.models == []
    uploads.finish()
    assert [entry["piece"] for entry in one.status.models] == ["A"]
    assert one.status.failed == []


def test_a_model_stored_without_a_version_is_sent_again(
    uplink: Uplink, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, put = node(uplink, tmp_path), uplink.s3.put_object
    without = lambda **asked: {name: value for name, value in put(**asked).items() if name != "VersionId"}  # noqa: E731
    uploads = Announced(one, model.parent, "models")
    with monkeypatch.context() as lagging:
        lagging.setattr(uplink.s3, "put_object", without)
        uploads.add(EVENT)
        uploads.send()
    assert one.status.models == []
    uploads.finish()
    assert one.status.models[0]["version_id"]


def test_a_model_that_never_reaches_s3_is_reported(
    uplink: Uplink, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.node.shared.LAST_UPLOADS_SECONDS", 0.0)
    one = node(uplink, tmp_path)
    uploads = Announced(one, model.parent, "models")
    uploads.add(EVENT)
    Outage(uplink, calls=100)
    uploads.send()
    uploads.finish()
    assert one.status.models == []
    assert "S3 did not take it" in one.status.failed[0]["reason"]


def test_models_take_turns_while_s3_refuses(
    uplink: Uplink, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(uplink, tmp_path)
    uploads = Announced(one, model.parent, "models")
    tried: list[str] = []

    def put_file(body: Any, key: str, *_: Any, **__: Any) -> Any:
        tried.append(key[-1])
        raise ConnectTimeoutError(endpoint_url="s3")

    monkeypatch.setattr(uplink, "put_file", put_file)
    now = [0.0]
    monkeypatch.setattr("trainer.node.announced.time", SimpleNamespace(monotonic=lambda: now[0]))
    for name in "ABC":
        (model.parent / name).write_bytes(CONTENT)
        (model.parent / f"{name}.json").write_text("{}")
        uploads.add({**EVENT, "file": name})
    for at, expected in ((0, "A"), (0.9, "A"), (1, "AB"), (2.9, "AB"), (3, "ABC"), (7, "ABCA")):
        now[0] = at  # one a try, after growing pauses
        uploads.send()
        assert "".join(tried) == expected


def test_a_part_that_s3_refused_comes_with_the_next_call(uplink: Uplink, tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    parts = Parts(uplink, read=partial(read_block, path), prefix="log/", suffix=".log")
    parts.send()  # there is no file yet
    path.write_text("one\ntwo\nhalf a li")
    Outage(uplink, calls=2)
    parts.send()
    assert sent(uplink) == {}
    parts.send()
    assert sent(uplink) == {"log/000001.log": b"one\ntwo\n"}
    with path.open("a") as file:
        file.write("ne\nlast words")
    parts.send()
    parts.send(final=True)
    assert sent(uplink) == {
        "log/000001.log": b"one\ntwo\n",
        "log/000002.log": b"half a line\n",
        "log/000003.log": b"last words",
    }


def test_a_part_whose_answer_was_lost_never_grows(
    uplink: Uplink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who follows a log reads each part once: what a part gained later would be lost to them."""
    path, try_send = tmp_path / "node.log", uplink.try_send
    parts, lost = Parts(uplink, read=partial(read_block, path), prefix="log/", suffix=".log"), ["log/000001"]

    def unanswered(key: str, body: bytes) -> bool:
        return try_send(key, body) and (not lost or not key.startswith(lost.pop()))

    monkeypatch.setattr(uplink, "try_send", unanswered)
    path.write_text("one\ntwo\n")
    assert not parts.send()
    read = sent(uplink)
    with path.open("a") as file:
        file.write("three\nlast words")
    parts.send(final=True)
    assert read == {"log/000001.log": b"one\ntwo\n"} and sent(uplink) == {
        **read,
        "log/000002.log": b"three\n",
        "log/000003.log": b"last words",
    }


def test_a_long_log_delays_neither_lease_nor_stop_nor_end(tmp_path: Path, monkeypatch) -> None:
    now, puts = [1000.0], list[str]()
    monkeypatch.setattr("trainer.node.heartbeat.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("trainer.node.uplink.PART_BYTES", 8)
    (tmp_path / "node.log").write_text("1234567\n" * 100)

    def try_send(key: str, body: bytes) -> bool:
        kind = key.split("/")[0] if key.startswith("live/") else key.split("/")[-2]
        puts.append(kind)
        now[0] += 4.0 if kind == "log" else 0.0
        if puts.count("log") == 10:
            thread._ended.set()
        return True

    one = node(SimpleNamespace(try_send=try_send, exists=lambda _: puts.count("log") > 5), tmp_path)  # type: ignore[arg-type]
    thread = HeartbeatThread(one, partial(read_block, tmp_path / "node.log"))
    thread._run()
    assert [kind for kind in puts if kind in ("live", "log")] == [*["live", "log"] * 10, "live"]
    assert one.stop_reason == "stop.json"


def test_metrics_of_a_long_run_come_in_few_parts(tmp_path: Path, monkeypatch) -> None:
    """Whoever closes the run reads all of them for its report, within 20 s."""
    now, parts = [0.0], list[tuple[float, str]]()
    monkeypatch.setattr("trainer.node.heartbeat.time", SimpleNamespace(monotonic=lambda: now[0]))
    (tmp_path / "events").mkdir()
    events = (tmp_path / "events/events.jsonl").open("ab", buffering=0)

    def wait(seconds: float) -> None:
        now[0] += seconds
        events.write(b"{}\n")

    def try_send(key: str, body: bytes) -> bool:
        if key.endswith(".jsonl"):
            parts.append((now[0], key))
        return True

    one = node(SimpleNamespace(try_send=try_send, exists=lambda _: False), tmp_path)  # type: ignore[arg-type]
    thread = HeartbeatThread(one, lambda offset, most: b"")
    monkeypatch.setattr(thread, "_ended", SimpleNamespace(is_set=lambda: now[0] > 30 * 3600.0, wait=wait))
    with events:
        thread._run()
    assert len(parts) < 3_000
    pauses = [later - at for (at, _), (later, _) in pairwise(parts)]
    assert max(pauses) < 65 and max(pauses[:100]) < 10


def test_a_large_progress_is_sent_less_often(tmp_path: Path, monkeypatch) -> None:
    """Each state stays in the bucket as a version, and desks read each."""
    now, sent = [0.0], list[tuple[float, int]]()
    monkeypatch.setattr("trainer.node.heartbeat.time", SimpleNamespace(monotonic=lambda: now[0]))

    def try_send(key: str, body: bytes) -> bool:
        if key.endswith("progress.json"):
            sent.append((now[0], len(body)))
        return True

    one = node(SimpleNamespace(try_send=try_send, exists=lambda _: False), tmp_path)  # type: ignore[arg-type]
    thread = HeartbeatThread(one, lambda offset, most: b"")
    for models in (3, 2000):
        sent.clear()
        for beat in range(200):
            pieces = {f"COIN{number}-USD fold 0 seed 0": {"step": beat} for number in range(models)}
            one.status.progress = Progress(pieces=pieces)
            thread._beat()
            now[0] += 3.0
        assert models > 3 or len(sent) == 200, "a small one with each heartbeat"
    assert sum(size for _, size in sent) <= 600 * 16 * 1024 + sent[0][1]
    assert max(later - at for (at, _), (later, _) in pairwise(sent)) < 10
    thread._ended.set()
    thread._send_heartbeat()
    assert sent[-1][0] == now[0], "the last one is not missed"


def test_while_s3_hangs_the_lease_alone_is_tried(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("trainer.node.heartbeat.HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr("trainer.node.heartbeat.PARTS_SECONDS", 0.0)
    (tmp_path / "node.log").write_text("one\n")
    tries = list[str]()

    def try_send(key: str, body: bytes) -> bool:
        tries.append(key.partition("/")[0] if key.startswith("live/") else key.rpartition("/")[2])
        if "000001.log" in tries:
            thread._ended.set()
        return len(tries) > 5

    one = node(SimpleNamespace(try_send=try_send, exists=lambda _: False), tmp_path)  # type: ignore[arg-type]
    thread = HeartbeatThread(one, partial(read_block, tmp_path / "node.log"))
    thread._run()
    assert tries[:7] == ["live"] * 6 + ["progress.json"], "S3 takes the sixth"
    assert tries[-1] == "000001.log"


def test_the_last_of_the_log_outlasts_a_refusal(tmp_path: Path, monkeypatch) -> None:
    now, sent, refused = [0.0], dict[str, bytes](), list[str]()
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    monkeypatch.setattr("trainer.node.heartbeat.time", clock)
    (tmp_path / "node.log").write_text("the last words\n")

    def try_send(key: str, body: bytes) -> bool:
        if now[0] < 20:  # S3 took the result a moment ago
            refused.append(key)
            return False
        sent[key.rpartition("/")[2]] = body
        return True

    one = node(SimpleNamespace(try_send=try_send, exists=lambda _: False), tmp_path)  # type: ignore[arg-type]
    thread = HeartbeatThread(one, partial(read_block, tmp_path / "node.log"))
    thread._thread = threading.Thread(target=lambda: None)
    with thread:
        pass
    assert refused and sent == {"000001.log": b"the last words\n"}


def test_a_part_that_hangs_as_the_node_ends_is_sent_once(uplink: Uplink, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "node.log").write_text("one\n")
    parts = Parts(uplink, read=partial(read_block, tmp_path / "node.log"), prefix="log/", suffix=".log")
    hangs, goes_on, sends = threading.Event(), threading.Event(), uplink.try_send

    def slow(key: str, body: bytes) -> bool:
        hangs.set()
        return goes_on.wait(500) and sends(key, body)

    monkeypatch.setattr(uplink, "try_send", slow)
    other = threading.Thread(target=parts.send)
    other.start()
    assert hangs.wait(500)
    with (tmp_path / "node.log").open("a") as file:
        file.write("two\n")
    last = threading.Thread(target=lambda: parts.send(final=True))
    last.start()
    goes_on.set()
    for thread in (other, last):
        thread.join(500)
    assert b"".join(sent(uplink).values()) == b"one\ntwo\n"


def sent(uplink: Uplink) -> dict[str, bytes]:
    listed = uplink.s3.list_objects_v2(Bucket=uplink.bucket, Prefix="log/").get("Contents", [])
    keys = [entry["Key"] for entry in listed]
    return {key: uplink.s3.get_object(Bucket=uplink.bucket, Key=key)["Body"].read() for key in keys}


def test_a_failed_lookup_is_no_stop_request(uplink: Uplink) -> None:
    assert not uplink.exists("runs/r/attempts/1/stop.json")
    uplink.send("runs/r/attempts/1/stop.json", b"{}", patience_seconds=1)
    Outage(uplink, calls=2)
    assert not uplink.exists("runs/r/attempts/1/stop.json")
    assert uplink.exists("runs/r/attempts/1/stop.json")
