"""A cloud in memory, with a clock of its own and a caller that can be killed at every side effect."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.pieces import named
from trainer.aws.objects import Conflict, Stored
from trainer.base.errors import ConfigError
from trainer.base.instants import iso
from trainer.control.fleet import FleetAnswer, read_answer
from trainer.runs.deadline import armed_for
from trainer.runs.index import begin_run
from trainer.runs.keys import NodeKeys
from trainer.runs.lease import LEASE
from trainer.runs.observation import DescribedInstance, Remains
from trainer.runs.record import RunRecord
from trainer.runs.snapshots import SnapshotObject, StoredContent, snapshot_of, snapshot_to_json
from trainer.runs.start_file import StartFile, read_start
from trainer.runs.store import start_key, stop_key

SHA256 = "ab" * 32
PENDING, SHUTTING_DOWN = timedelta(seconds=20), timedelta(seconds=40)


class CallerKilled(BaseException):
    """kill -9 of the caller: nothing of ours may catch it."""


def keys_of(run_id: str, machine: DescribedInstance) -> NodeKeys:
    return NodeKeys(role_id="AROA1", instance_id=machine.instance_id, run_id=run_id, attempt=machine.attempt)


@cache  # a node says the same at each of its thousands of beats
def progress_since(began: datetime) -> bytes:
    training = {"epoch": 1, "epochs": 15, "step": 10, "steps": 900, "loss": 0.69, "state": "training"}
    phases = {"boot": iso(began), "train": iso(began)}
    return json.dumps(
        {"phase": "train", "phases": phases, "progress": {"BTC-USD": training}, "models_total": 2}
    ).encode()


@cache  # as often
def start_in(body: bytes, run_id: str, attempt: int) -> StartFile:
    return read_start(body, run_id=run_id, attempt=attempt)


def write_snapshot(objects: MemoryObjects, keys: NodeKeys, number: int, files: Mapping[str, bytes]) -> None:
    """Write a snapshot as a node does: each file's content as an object of its own, then the manifest."""
    parts: dict[str, StoredContent] = {}
    for place, body in enumerate(dict.fromkeys(files.values())):
        sha256, slot = hashlib.sha256(body).hexdigest(), 10 * number + place
        objects.write(keys.snapshot_data(slot), body, sha256=sha256)
        version_id = objects.stored[keys.snapshot_data(slot)][-1].version_id
        made = SnapshotObject(sha256=sha256, size=len(body), version_id=version_id, slot=slot)
        parts[sha256] = StoredContent(object=made, offset=0)
    held = {path: (hashlib.sha256(body).hexdigest(), len(body)) for path, body in files.items()}
    about = {"run_id": keys.run_id, "attempt": keys.attempt, "number": number, "at": objects.cloud.clock}
    objects.write(keys.snapshot(number), snapshot_to_json(snapshot_of(held, parts, **about)))


class MemoryObjects:
    def __init__(self, cloud: MemoryCloud) -> None:
        self.cloud, self.numbers = cloud, itertools.count(1)
        self.stored: dict[str, list[Stored]] = {}

    def get(self, *, key: str, version_id: str = "", first_bytes: int = 0) -> Stored | None:
        self.cloud.advance()
        found = [item for item in self.stored.get(key, []) if not version_id or item.version_id == version_id]
        return found[-1] if found else None

    head = get

    def put(self, *, key: str, body: bytes, if_match: str = "", create: bool = False) -> str:
        return self._put(key, body, if_match, create)

    def _put(self, key: str, body: bytes, if_match: str, create: bool, **hashes: str) -> str:
        self.cloud.side_effect(f"put {key}", before=True)
        current = self.stored.get(key, [])
        if (create and current) or (if_match and (not current or current[-1].etag != if_match)):
            raise Conflict(key)
        etag = self.write(key, body)
        self.stored[key][-1] = replace(self.stored[key][-1], **hashes)
        self.cloud.side_effect(f"put {key}", before=False)
        return etag

    def write(self, key: str, body: bytes, sha256: str = "") -> str:
        """Write as somebody else: no crash, no condition."""
        number = next(self.numbers)
        item = Stored(
            key=key,
            etag=f"e{number}",
            version_id=f"v{number}",
            modified_at=self.cloud.clock,
            sha256=sha256,
            size=len(body),
            body=body,
        )
        self.stored.setdefault(key, []).append(item)
        return item.etag

    def body(self, key: str) -> bytes:
        return self.stored[key][-1].body

    def list(self, *, prefix: str, most: int = 0, after: str = "") -> tuple[Stored, ...]:
        listed = (items[-1] for key, items in sorted(self.stored.items()) if key.startswith(prefix))
        return tuple(item for item in listed if item.key > after)[: most or None]

    def fetch(self, *, key: str, version_id: str, path: Path, sha256: str, size: int) -> str:
        stored = self.get(key=key, version_id=version_id)
        assert stored is not None and len(stored.body) == size
        found = hashlib.sha256(stored.body).hexdigest()
        if sha256 in ("", found):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(stored.body)
        return found

    def digest(self, *, key: str, version_id: str) -> str:
        found = self.get(key=key, version_id=version_id)
        return hashlib.sha256(found.body).hexdigest() if found else ""

    def copy(
        self,
        *,
        source: str,
        version_id: str,
        key: str,
        if_match: str = "",
        create: bool = False,
        sha256: str = "",
    ) -> None:
        found = self.get(key=source, version_id=version_id)
        if found is None:
            raise ConfigError(f"there is no {source}")
        own = hashlib.sha256(found.body).hexdigest() if sha256 else ""  # S3 computes it
        self._put(key, found.body, if_match, create, sha256=own or found.sha256, checksum=own)

    def delete(self, *, key: str, version_id: str) -> None:
        self.cloud.side_effect(f"delete {key}", before=True)
        kept = [item for item in self.stored.get(key, []) if item.version_id != version_id]
        self.stored.pop(key, None)
        if kept:
            self.stored[key] = kept
        self.cloud.side_effect(f"delete {key}", before=False)

    def versions(self, *, key: str) -> tuple[Stored, ...]:
        return tuple(reversed(self.stored.get(key, [])))

    def history(self, *, prefix: str) -> tuple[Stored, ...]:
        keys = sorted(key for key in self.stored if key.startswith(prefix))
        return tuple(item for key in keys for item in reversed(self.stored[key]))

    def folders(self, *, prefix: str) -> tuple[str, ...]:
        below = [key[len(prefix) :] for key in self.stored if key.startswith(prefix)]
        return tuple(sorted({key.split("/")[0] for key in below if "/" in key}))


class MemoryCloud:
    """One account. A node reports after `work`, then powers itself off; each of its habits can be switched
    off.
    """

    def __init__(self, start: datetime) -> None:
        self.clock = start
        self.objects = MemoryObjects(self)
        self.fleets: dict[str, tuple[str, ...]] = {}  # token -> the instances that it made
        self.machines: dict[str, DescribedInstance] = {}
        self.ended: dict[str, tuple[datetime, str]] = {}  # id -> (when shutting-down began, reason)
        self.schedules: dict[str, datetime] = {}
        self.groups: set[str] = set()  # placement groups
        self.full: set[str] = set()  # zones without capacity
        self.answers: list[FleetAnswer | None] = []  # what CreateFleet says next, instead of the truth (None)
        self.parts: list[int] = []  # instances that the next fleets get at most
        self.lost_calls = 0  # the next calls of CreateFleet that never arrive
        self.errors: list[
            str
        ] = []  # codes that stand in the next answers of CreateFleet, in the place of an instance
        self.refused: dict[str, str] = {}  # token -> the code that answered it
        self.work = timedelta(minutes=3)
        self.silent: set[str] = set()  # instances whose node does nothing more
        self.node_works = self.node_beats = self.node_stops = True
        # attempt -> how long its node works before it is ended from outside, and EC2's reason
        self.losses: dict[int, tuple[timedelta, str]] = {}
        self.early = timedelta(0)  # the work after which a node has its first model, and a snapshot; 0: never
        self.calls: list[str] = []
        self.kill_at: int | None = None
        self.requests: dict[str, Mapping[str, Any]] = {}
        self.remains: tuple[Remains, ...] = ()
        self.consoles: dict[str, str] = {}  # what an instance printed
        self.beats: dict[str, datetime] = {}  # by instance: once at each instant, and looks take no time

    def side_effect(self, name: str, *, before: bool) -> None:
        """Note a side effect, and kill the caller right before or right after the one that a test chose."""
        self.advance()
        self.calls.append(name if not before else f"({name}")
        if self.kill_at is not None and len(self.calls) == self.kill_at:
            raise CallerKilled(name)

    def done(self) -> list[str]:
        return [name for name in self.calls if not name.startswith("(")]

    def now(self) -> datetime:
        return self.clock

    def sleep(self, seconds: float) -> None:
        self.clock += timedelta(seconds=max(seconds, 1.0))
        self.advance()

    def left(self, *, run_id: str, instance_ids: tuple[str, ...]) -> tuple[Remains, ...]:
        return self.remains

    def console_output(self, *, instance_id: str) -> str:
        return self.consoles.get(instance_id, "")

    def create_fleet(self, *, request: Mapping[str, Any]) -> FleetAnswer:
        self.side_effect("create_fleet", before=True)
        if self.lost_calls:
            self.lost_calls -= 1
            self.side_effect("create_fleet", before=False)
            return FleetAnswer(kind="unclear", code="ConnectTimeoutError", message="timed out")
        token = request["ClientToken"]
        subnet = request["LaunchTemplateConfigs"][0]["Overrides"][0]["SubnetId"]
        zone = subnet.removeprefix("subnet-")
        if zone in self.full:
            return self._refuse(token, "InsufficientInstanceCapacity")
        if (
            token in self.refused
        ):  # an answer without instances consumed the token: it is given again for ever
            return self._refuse(token, self.refused[token])
        if self.errors and token not in self.fleets:
            return self._refuse(token, self.errors.pop(0))
        if token in self.fleets:
            assert self.requests[token] == request, "IdempotentParameterMismatch"
        else:
            asked = int(request["TargetCapacitySpecification"]["TotalTargetCapacity"])
            count = min(self.parts.pop(0), asked) if self.parts else asked
            first = len(self.machines)
            made = tuple(f"i-{number:04d}" for number in range(first, first + count))
            self.fleets[token], self.requests[token] = made, request
            group = request["LaunchTemplateConfigs"][0]["Overrides"][0].get("Placement", {}).get("GroupName")
            assert group is None or group in self.groups, "no such placement group"
            tags = {tag["Key"]: tag["Value"] for tag in request["TagSpecifications"][0]["Tags"]}
            earlier = [one for one in self.machines.values() if one.attempt < int(tags["attempt"])]
            assert all(self._shown(one).state == "terminated" for one in earlier), "two live attempts"
            market = request["TargetCapacitySpecification"]["DefaultTargetCapacityType"]
            for number, instance_id in enumerate(made, first):
                self.machines[instance_id] = DescribedInstance(
                    instance_id=instance_id,
                    attempt=int(tags["attempt"]),
                    instance_type="g5.12xlarge",
                    market=market.replace("-", "_"),
                    availability_zone=zone,
                    state="pending",
                    launched_at=self.clock,
                    private_address=f"127.1.{number // 250}.{1 + number % 250}",
                    fleet=f"fleet-{len(self.fleets)}",
                )
        said = self.answers.pop(0) if self.answers else None
        answer = said or self._whole(self.requests[token], self.fleets[token])
        self.side_effect("create_fleet", before=False)
        return answer

    def make_placement_group(self, *, name: str) -> None:
        self.side_effect("make_placement_group", before=True)
        self.groups.add(name)
        self.side_effect("make_placement_group", before=False)

    def delete_placement_group(self, *, name: str) -> None:
        self.side_effect("delete_placement_group", before=True)
        assert not self.alive(), "it is in use"
        self.groups.discard(name)
        self.side_effect("delete_placement_group", before=False)

    def _whole(self, request: Mapping[str, Any], made: tuple[str, ...]) -> FleetAnswer:
        asked = int(request["TargetCapacitySpecification"]["TotalTargetCapacity"])
        return read_answer({"Instances": [{"InstanceIds": list(made)}]}, asked)

    def _refuse(self, token: str, code: str) -> FleetAnswer:
        self.refused[token] = code
        answer = read_answer({"Instances": [], "Errors": [{"ErrorCode": code, "ErrorMessage": "no"}]})
        self.side_effect("create_fleet", before=False)
        return answer

    def instances(self, *, run_id: str) -> tuple[DescribedInstance, ...]:
        self.advance()
        return tuple(self._shown(machine) for machine in self.machines.values())

    def run_of(self, *, instance_id: str) -> str | None:
        if instance_id not in self.machines:
            return None
        return next(key.split("/")[1] for key in self.objects.stored if key.endswith("/run.json"))

    def terminate(self, *, instance_ids: tuple[str, ...]) -> None:
        self.side_effect("terminate", before=True)
        for instance_id in instance_ids:
            self.end(instance_id, "Client.UserInitiatedShutdown")
        self.side_effect("terminate", before=False)

    def scheduled(self, *, name: str) -> datetime | None:
        return self.schedules.get(name)

    def arm_sweep(self, *, name: str, run_id: str, at: datetime) -> None:
        self._arm("arm_sweep", name, at)

    def arm_kill(self, *, name: str, instance_ids: tuple[str, ...], at: datetime) -> None:
        self._arm("arm_kill", name, at)

    def delete_schedule(self, *, name: str) -> None:
        self.side_effect("delete_schedule", before=True)
        self.schedules.pop(name, None)
        self.side_effect("delete_schedule", before=False)

    def alive(self) -> list[str]:
        return [
            name
            for name, machine in self.machines.items()
            if self._shown(machine).state in ("pending", "running")
        ]

    def end(self, instance_id: str, reason: str) -> None:
        if instance_id in self.machines:
            self.ended.setdefault(instance_id, (self.clock, reason))

    def advance(self) -> None:
        """Let the nodes do what they do by now."""
        for machine in self.machines.values():
            if self._shown(machine).state == "running":
                self._node(machine)

    def _arm(self, name: str, schedule: str, at: datetime) -> None:
        self.side_effect(name, before=True)
        self.schedules[schedule] = armed_for(at)
        self.side_effect(name, before=False)

    def _shown(self, machine: DescribedInstance) -> DescribedInstance:
        if machine.instance_id in self.ended:
            began, reason = self.ended[machine.instance_id]
            state = "terminated" if self.clock >= began + SHUTTING_DOWN else "shutting-down"
            return replace(machine, state=state, reason=reason)
        return replace(machine, state="running" if self.clock >= machine.launched_at + PENDING else "pending")

    def _node(self, machine: DescribedInstance) -> None:
        run_id = next(key.split("/")[1] for key in self.objects.stored if key.endswith("/run.json"))
        began = machine.launched_at + PENDING
        start = self._start(run_id, machine)
        if start is None or machine.instance_id not in start.instances:
            return  # it waits for its own id
        after, reason = self.losses.get(machine.attempt, (timedelta.max, ""))
        if after < timedelta.max and self.clock >= began + after:
            self.end(machine.instance_id, reason)
            return
        if self.early and self.clock >= began + self.early:
            self._leave_early(run_id, machine, start)
        stop = self.node_stops and stop_key(run_id, machine.attempt) in self.objects.stored
        over = self.node_works and self.clock >= began + self.work
        if machine.instance_id in self.silent:
            return
        if self.node_beats and self.beats.get(machine.instance_id) != self.clock:
            self.beats[machine.instance_id] = self.clock
            self._beat(run_id, machine, began)
        if stop or over:
            self._report(run_id, machine, began, "done" if over else "stopped")
            self.end(machine.instance_id, "Client.InstanceInitiatedShutdown")

    def _start(self, run_id: str, machine: DescribedInstance) -> StartFile | None:
        stored = self.objects.stored.get(start_key(run_id, machine.attempt))
        return start_in(stored[-1].body, run_id, machine.attempt) if stored else None

    def _leave_early(self, run_id: str, machine: DescribedInstance, start: StartFile) -> None:
        """Upload the first model that is left, once, and a snapshot with one file of CHECKPOINTS."""
        keys = keys_of(run_id, machine)
        if keys.snapshot(1) in self.objects.stored:
            return
        left = [symbol for symbol in ("BTC-USD", "ETH-USD") if symbol not in start.pieces]
        for symbol in left[:1]:
            self.objects.write(f"{keys.models}lstm_{symbol}_1m.safetensors", b"weights", sha256=SHA256)
        body = f"state of {machine.instance_id}".encode()
        write_snapshot(self.objects, keys, 1, {"a/state.pt": body})

    def _beat(self, run_id: str, machine: DescribedInstance, began: datetime) -> None:
        lease = {
            "instance_id": machine.instance_id,
            "at": iso(self.clock),
            "lease_until": iso(self.clock + LEASE),
        }
        self.objects.write(keys_of(run_id, machine).lease, json.dumps(lease).encode())
        self.objects.write(keys_of(run_id, machine).progress, progress_since(began))

    def _report(self, run_id: str, machine: DescribedInstance, began: datetime, state: str) -> None:
        models, start = [], self._start(run_id, machine)
        assert start is not None
        for symbol in ("BTC-USD", "ETH-USD") if state == "done" else ("BTC-USD",):
            if symbol in start.pieces:
                continue
            key = f"{keys_of(run_id, machine).models}lstm_{symbol}_1m.safetensors"
            self.objects.write(key, b"weights", sha256=SHA256)
            version = self.objects.stored[key][-1].version_id
            models.append(
                {**named(symbol), "family": "lstm", "key": key, "version_id": version, "sha256": SHA256}
            )
        phases = {
            "boot": began,
            "stage": began + timedelta(seconds=10),
            "train": began + timedelta(seconds=30),
        }
        phases |= {"upload": self.clock - timedelta(seconds=2), "end": self.clock}
        result = {
            "state": state,
            "models": models,
            "phases": {name: iso(instant) for name, instant in phases.items()},
            "data": {
                "files": [{"file": "raw/a.parquet", "bars": 5}],
                "bars": 5,
                "holes": 0,
                "synthetic": False,
            },
        }
        self.objects.write(keys_of(run_id, machine).result, json.dumps(result).encode())


@pytest.fixture
def make_cloud(make_record: Callable[..., RunRecord]) -> Callable[..., tuple[MemoryCloud, RunRecord]]:
    """Return a fresh cloud that holds one starting run, and the run's record."""

    def build(**fields: Any) -> tuple[MemoryCloud, RunRecord]:
        record = make_record(**fields)
        cloud = MemoryCloud(record.created_at)
        begin_run(cloud.objects, record)
        cloud.calls.clear()
        return cloud, record

    return build


@pytest.fixture
def killed() -> type[BaseException]:
    return CallerKilled
