"""A spot run at a desk whose machines a test takes back, one attempt after the other, when their command is where
the test wants it.

Each machine's work stands still meanwhile: its processes are stopped, or a script of the test waits. So
nothing depends on how fast it is.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.desk import Desk, until
from trainer.base.instants import utc_now
from trainer.rehearsal.client import interrupt_run
from trainer.rehearsal.interruptions import Interruption
from trainer.runs.capacity import OBJECT, to_bytes
from trainer.runs.record import RunRecord
from trainer.runs.record_json import record_from_json
from trainer.runs.start_file import StartFile, read_start
from trainer.runs.store import start_key

NOTICE_SECONDS = 120.0  # as AWS gives
ZONES = "abcdef"  # of the embedded us-east-1


class TakenRun:
    """One run on spot. Its launch is under way once this is made."""

    def __init__(self, desk: Desk, *words: str) -> None:
        self.desk, self._before = desk, set(desk.stored("runs/"))
        self.said = ""  # by the launch, once it has ended
        self._launch = desk.start("launch", "--rehearse", "--json", "--spot", "--max-duration", "3h", *words)

    def receipt(self) -> dict[str, Any]:
        """Wait for the run's end, and return the receipt of one that is done."""
        out, self.said = self._launch.communicate(timeout=2000)
        assert self._launch.returncode == 0, f"{out[-2500:]} {self.said[-2500:]}"
        receipt: dict[str, Any] = json.loads(out)
        return receipt

    def record(self) -> RunRecord | None:
        """Return the run's record, None before it has one."""
        for key, body in self.desk.stored("runs/").items():
            if key.endswith("/run.json") and key not in self._before:
                return record_from_json(body)
        return None

    def start_file(self, attempt: int) -> StartFile:
        """Return what an attempt began with."""
        record = self.record()
        assert record is not None
        key = start_key(record.run_id, attempt)
        return read_start(self.desk.stored(key)[key], run_id=record.run_id, attempt=attempt)

    def node(self, attempt: int) -> Path:
        """Wait for the machine of an attempt, and return its work folder."""

        def folder() -> Path | None:
            record = self.record()
            launches = (
                record.attempts[attempt - 1].launches if record and len(record.attempts) >= attempt else ()
            )
            ids = [one for launch in launches for one in launch.instance_ids]
            return self.desk.home / "sandbox" / ids[0] / "opt/mayfly/work" if ids else None

        return Path(self.await_(folder))

    def await_(self, true: Callable[[], Any]) -> Any:
        """Wait until something holds, as long as the launch goes on."""

        def looked() -> Any:
            value = true()
            if not value and self._launch.poll() is not None:
                out, err = self._launch.communicate()
                raise AssertionError(f"the run ended before that: {out[-2500:]} {err[-2500:]}")
            return value

        return until(looked, seconds=2000)

    def events(self, attempt: int, name: str) -> list[dict[str, Any]]:
        """Return the events of that name that an attempt's training told so far."""
        file = self.node(attempt) / "events" / "events.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
        told = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in told if event["event"] == name]

    def stop_at(self, attempt: int, piece: str, epoch: int, *, started: str = "model_started") -> list[int]:
        """Stop the processes that train (`started` names the event with their ids) after an epoch of a piece
        and the first report of its steps, and wait until their machine has reported that.
        """

        def reached() -> bool:
            ended, counted = self.events(attempt, "epoch"), self.events(attempt, "progress")
            is_over = any(one["piece"] == piece and one["epoch"] >= epoch for one in ended)
            return is_over and any(
                one["piece"] == piece for one in counted
            )  # the count of its steps is known

        self.await_(reached)
        pids = sorted({event["pid"] for event in self.events(attempt, started)})
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self.await_(lambda: self._reported(attempt).get(piece, {}).get("epoch", 0) >= epoch)
        return pids

    def _reported(self, attempt: int) -> dict[str, dict[str, Any]]:
        """Return the progress of each piece as S3 has it from an attempt's machine."""
        record = self.record()
        assert record is not None
        (keys,) = record.as_of(attempt).nodes
        body = self.desk.stored(keys.progress).get(keys.progress, b"{}")
        reported: dict[str, dict[str, Any]] = json.loads(body).get("progress", {})
        return reported

    def take(self, attempt: int, *, notice: bool, stopped: Iterable[int] = ()) -> None:
        """Have AWS take the machine of an attempt back. With `notice` the stopped processes go on once it is
        there, and may take as long for their last checkpoint as AWS gives.
        """
        record = self.record()
        assert record is not None
        wanted = Interruption(share=0, notice_seconds=NOTICE_SECONDS if notice else 0)
        interrupt_run(record.run_id, wanted, attempt=attempt, root=self.desk.home)
        if notice:
            word = self.node(attempt) / "command" / "notice"
            self.await_(lambda: word.exists() and word.read_text() == "stop\n")
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        else:  # until it is gone: what is let go next must not reach it
            (launch,) = record.attempts[attempt - 1].launches[-1:]
            self.await_(lambda: self._state(launch.instance_ids[0]) == "terminated")

    def _state(self, instance_id: str) -> str:
        found = self.desk.access().client("ec2").describe_instances(InstanceIds=[instance_id])
        return str(found["Reservations"][0]["Instances"][0]["State"]["Name"])

    def fill(self, instance_type: str, *, until_attempt: int) -> None:
        """Let the bucket remember every spot pool of a type as full until an attempt has a machine of another."""
        s3 = self.desk.access().client("s3")
        (bucket,) = (entry["Name"] for entry in s3.list_buckets()["Buckets"])

        def launched() -> bool:
            full = {f"{instance_type} spot us-east-1{zone}": utc_now() for zone in ZONES}
            s3.put_object(Bucket=bucket, Key=OBJECT, Body=to_bytes(full))
            record = self.record()
            begun = record.attempts[until_attempt - 1 :] if record else ()
            return any(launch.instance_ids for one in begun for launch in one.launches)

        self.await_(launched)


def adds_up(receipt: dict[str, Any], *types: str, causes: Iterable[str]) -> None:
    """Check the sums of the receipt of a run that ended done after one machine of each type."""
    assert (receipt["state"], receipt["exit_code"], receipt["failed"]) == ("done", 0, [])
    assert tuple(one["instance_type"] for one in receipt["instances"]) == types
    assert {one["market"] for one in receipt["instances"]} == {"spot"}
    assert all(one["proof"] == "described terminated" for one in receipt["instances"])
    attempts, dollars = receipt["attempts"], receipt["dollars"]
    assert [one["cause"] for one in attempts] == list(causes)
    ids = [one["instance_id"] for one in receipt["instances"]]
    assert [instance for one in attempts for instance in one["instances"]] == ids
    for bound in ("low", "high"):
        parts = sum(one[f"spent_{bound}"] for one in attempts)
        assert abs(parts - dollars[f"spent_{bound}"]) < 1e-5
    prices = {one["instance_id"]: one["price_usd_per_hour"] for one in receipt["instances"]}
    for one in attempts:
        assert 0 < one["seconds_low"] <= one["seconds_high"]
        assert abs(one["spent_high"] - one["seconds_high"] / 3600 * prices[one["instances"][0]]) < 1e-5
    assert dollars["spot_saved_low"] <= dollars["spot_saved_high"]
    phases = [value for name, value in receipt["seconds"].items() if name != "total"]
    assert abs(sum(phases) - receipt["seconds"]["total"]) < 1e-6
    assert receipt["left"] == []
