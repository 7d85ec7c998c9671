"""The instances of an account that its server remembers."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from trainer.base.instants import utc_now
from trainer.rehearsal import memory
from trainer.rehearsal.memory import InstanceLog
from trainer.rehearsal.world import Instance, World


def instance(number: int) -> Instance:
    description: dict[str, Any] = {"InstanceId": f"i-{number:017x}", "LaunchTime": utc_now()}
    known: Any = {"reservation_id": "r-1", "user_data": b"#!/bin/sh\n", "shutdown_behavior": "terminate"}
    return Instance(description=description, running_at=utc_now(), **known)


def test_only_instances_that_changed_are_made_into_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server saves ten times a second, under its account's lock; AWS shows those of an hour."""
    made, log, one, other = list[str](), InstanceLog(tmp_path), instance(1), instance(2)
    to_json = memory._to_json

    def noted(item: Instance) -> str:
        made.append(item.id)
        return to_json(item)

    monkeypatch.setattr(memory, "_to_json", noted)
    for _ in range(3):
        log.save(one)
        log.save(other)
    assert made == [one.id, other.id]
    one.terminated_at, one.reason = utc_now() - timedelta(seconds=1), ("Client.Stopped", "by its user")
    log.save(one)
    log.save(other)
    assert made == [one.id, other.id, one.id]
    world = World()
    assert InstanceLog(tmp_path).restore(world, utc_now()) == []
    assert world.instances[one.id] == one and world.instances[other.id].reason != one.reason
