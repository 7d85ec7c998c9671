"""A whole command of a node while S3 refuses or hangs, credentials expire or the disk is full: it ends in the
right state, with its log in S3 to the last line. Its S3 is the embedded AWS's; its clock runs by what it waits.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ReadTimeoutError

from tests.disks import fill, small_disk
from tests.manifests import PIECE, command, manifest
from tests.nodes import bundle, node, put_start_file
from tests.processes import await_end_of
from trainer.aws.access import Access
from trainer.base.instants import utc_now
from trainer.node import agent, heartbeat
from trainer.node.heartbeat import HeartbeatThread
from trainer.node.node_log import NodeLog
from trainer.node.report import lease
from trainer.node.shared import Node
from trainer.node.uplink import Uplink
from trainer.runs.lease import read_lease, silent
from trainer.runs.record_json import to_json
from trainer.runs.store import manifest_key

__all__ = ["bundle", "node"]  # fixtures

STALL = 0  # instead of a status: no answer comes
STORMS = {"SlowDown": 503, "InternalError": 500, "ExpiredToken": 400, "": STALL}


class Clock:
    """A clock that only those move who wait."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        time.sleep(0.001)


@dataclass
class Storm:
    """S3 refuses every call with a code, or hangs, from the command's first line for so many seconds."""

    clock: Clock
    code: str
    began: Path  # the command makes this file
    seconds: float
    ends: float = 0.0
    refused: list[str] = field(default_factory=list)

    def strike(self, request: Any, **_: Any) -> AWSResponse | None:
        self.ends = self.ends or (self.clock.now + self.seconds if self.began.exists() else 0.0)
        if self.clock.now >= self.ends:
            return None
        self.refused.append(request.url)
        if (status := STORMS[self.code]) == STALL:
            raise ReadTimeoutError(endpoint_url=request.url)
        answer = AWSResponse(request.url, status, {}, None)
        answer._content = f"<Error><Code>{self.code}</Code><Message>storm</Message></Error>".encode()
        return answer


@dataclass(kw_only=True)
class Work:
    """The agent's work on a command, in this process."""

    node: Node
    access: Access
    bundle: Path
    clock: Clock

    @property
    def s3(self) -> Any:
        return self.access.client("s3")

    @property
    def began(self) -> Path:
        return self.node.work / "command/files/began"

    def storm(self, code: str, seconds: float) -> Storm:
        storm = Storm(self.clock, code, self.began, seconds)
        for client in (self.node.uplink.s3, self.node.uplink._quick):
            client.meta.events.register("before-send.s3", storm.strike)
        return storm

    def run(self, text: str) -> int:
        """Carry out a script's manifest; return the agent's exit code."""
        (self.bundle / "run.sh").write_text(text)
        known = {"devices": "none", "files": {"run.sh": ""}, "restarts": 0}
        made = manifest(run_id="r", command=command(**known), inputs=(), pieces=(PIECE,))
        bucket = self.node.uplink.bucket
        self.s3.put_object(Bucket=bucket, Key=manifest_key("r"), Body=to_json(made))
        put_start_file(self.s3, bucket, "r", "i-1")
        log, logger = NodeLog(self.node.work / "node.log"), logging.getLogger("trainer.node")
        logger.addHandler(log)
        try:
            with HeartbeatThread(self.node, log.read):
                return agent.run(self.node)
        finally:
            logger.removeHandler(log)
            log.close()

    def result(self) -> dict[str, Any]:
        return json.loads(self._read(self.node.status.identity.keys.result))

    def log(self) -> str:
        """Return the log as S3 has it."""
        listed = self.s3.list_objects_v2(
            Bucket=self.node.uplink.bucket, Prefix=self.node.status.identity.keys.log
        )
        return b"".join(self._read(entry["Key"]) for entry in listed.get("Contents", ())).decode()

    def _read(self, key: str) -> bytes:
        return self.s3.get_object(Bucket=self.node.uplink.bucket, Key=key)["Body"].read()


@pytest.fixture
def work(node: Node, access: Access, bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> Work:
    caplog.set_level(logging.INFO, "trainer.node")
    bucket, clock = f"weather-{(access.access_key or '')[4:16]}", Clock()
    s3 = access.client("s3")
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    node.uplink = Uplink(access, bucket)
    for module in ("uplink", "announced", "outputs", "heartbeat", "snapshots", "stage"):
        monkeypatch.setattr(f"trainer.node.{module}.time", clock)
    monkeypatch.setattr("botocore.endpoint.time", clock)  # its pauses between two tries
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(heartbeat, "PARTS_SECONDS", 0.0)
    for module, name in (
        ("uplink", "RETRY_SECONDS"),
        ("outputs", "POLL_SECONDS"),
        ("snapshots", "POLL_SECONDS"),
    ):
        monkeypatch.setattr(f"trainer.node.{module}.{name}", 10.0)  # of that clock: fewer tries
    return Work(node=node, access=access, bundle=bundle, clock=clock)


SPEAKS = "echo $$ > pid; touch began; echo result > $MAYFLY_OUT/a.txt; sleep 0.2; echo the last words"


@pytest.mark.parametrize("code", STORMS)
def test_two_minutes_of_storm_cost_a_run_nothing(work: Work, code: str) -> None:
    storm = work.storm(code, 120.0)
    assert work.run(SPEAKS) == 0
    assert storm.refused and work.clock.now >= 120
    result = work.result()
    assert (result["state"], result["exit_code"], result["error"]) == ("done", 0, None)
    assert result["scripts"][0]["done"] and "notes" in result["scripts"][0]
    log = work.log()
    assert log.count("| the last words") == 1 and log.count("ended done, exit code 0") == 1
    assert log == (work.node.work / "node.log").read_text(), "every line, once and in order"


def test_a_storm_without_end_is_one_line_and_an_exit_code(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.node.shared.LAST_UPLOADS_SECONDS", 60.0)
    work.storm("ExpiredToken", 1e9)
    assert work.run(SPEAKS) == 103
    lines = (work.node.work / "node.log").read_text().splitlines()
    (said,) = [
        line for line in lines if "result.json was not sent (S3 did not take it within 60 s). " in line
    ]
    assert said.endswith("Launch again: what it has sent before is in S3.")
    await_end_of({int((work.node.work / "command/files/pid").read_text())})


# --- a small disk


@pytest.fixture
def disk(work: Work) -> Iterator[Path]:
    """The node's work folder on a disk of 20 MB."""
    with small_disk(work.node.work):
        yield work.node.work


FILLS = """
echo begun; head -c 100000000 /dev/zero > big
i=0; while [ $i -lt 300 ]; do i=$((i + 1)); echo "line $i after the disk was full"; done
echo "can't write the model: no space left" >&2; exit 3
"""


def test_a_command_that_fills_the_disk_is_heard_to_the_end(
    work: Work, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.node.stage.SPARE_BYTES", 0)
    assert work.run(FILLS) == 100
    assert (disk / "command/files/big").stat().st_size > 15_000_000
    result, log = work.result(), work.log()
    assert (result["state"], result["exit_code"]) == ("failed", 100)
    error = result["error"]
    assert error["what"] == "the script ended with exit code 3" and "no space left" in error["why"]
    assert all(f"| line {number} after" in log for number in range(1, 301))
    assert "ended failed, exit code 100" in log.splitlines()[-1]
    assert len(log) > (disk / "node.log").stat().st_size, "the disk has less of it"


def test_a_disk_that_is_full_before_the_command_is_one_line(work: Work, disk: Path) -> None:
    fill(disk)
    assert work.run(SPEAKS) == 100
    error = work.result()["error"]
    assert error["what"] == "the disk is full" and "No space left on device" in error["why"]
    assert error["do"] == work.node.place.more_disk
    assert error["what"] in work.log()


# --- a wrong clock


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_node_whose_clock_is_wrong_counts_as_silent(node: Node, hours: int) -> None:
    """Where the bootstrap could not set it: its lease says nothing, and the node is replaced."""
    now = utc_now()
    body = json.dumps(lease(node.status, now + timedelta(hours=hours))).encode()
    until = None
    if hours < 0:
        until = read_lease(body, now).lease_until
    else:
        with pytest.raises(Exception, match="in the future"):
            read_lease(body, now)
    assert silent(launched_at=now - timedelta(minutes=16), lease_until=until, now=now)
