"""Several nodes of one attempt: how they learn of each other, and what it means to lose one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests import records
from tests.records import DEADLINE, at, described, launched, make_record, seen
from trainer.runs.actions import ArmKill, Close, DeleteTokens, Store, Wait, WriteIds
from trainer.runs.observation import DescribedInstance, Observation
from trainer.runs.reconcile import reconcile
from trainer.runs.record import RunRecord

IDS = ("i-2", "i-1", "i-3")  # as CreateFleet answered
ADDRESSES = ("10.0.0.2", "10.0.0.1", "10.0.0.3")


def instance(number: int, state: str = "running", **changed: Any) -> DescribedInstance:
    address = f"10.0.0.{number}" if state in ("pending", "running") else ""
    return described(state, **{"instance_id": f"i-{number}", "private_address": address, **changed})


def three(**fields: Any) -> RunRecord:
    """Return a running run of three nodes that share pieces, node 0 first: i-2, i-1, i-3."""
    launch = records.created(instance_ids=IDS, **fields.pop("launch", {"kill_armed_at": at(6)}))
    instances = tuple(seen("running", instance_id=f"i-{number}") for number in (1, 2, 3))
    own = {"attempts": launched(launch), "state": "running", "num_nodes": 3, "instances": instances}
    return make_record(**{**own, **fields})


ALL = tuple(instance(number) for number in (1, 2, 3))


def settled(record: RunRecord, observed: Observation, now: Any) -> tuple[RunRecord, tuple[Any, ...]]:
    """Return the record once no store is due, and the actions then."""
    for _ in range(9):
        actions = reconcile(record, observed, now)
        if not isinstance(actions[0], Store):
            return record, actions
        record = actions[0].record
    raise AssertionError("it never settles")


def test_nodes_are_named_once_all_have_an_address() -> None:
    record = three(launch={"kill_armed_at": None})
    for shown in ((instance(1), instance(2)), (*ALL[:2], replace(ALL[2], private_address=""))):
        _, actions = settled(record, Observation(instances=shown), at(30))
        kill, wait = actions
        assert kill == ArmKill(attempt=1, instance_ids=IDS, at=DEADLINE) and isinstance(wait, Wait)
    kill, ids, store = settled(record, Observation(instances=ALL), at(30))[1]
    assert ids == WriteIds(attempt=1, instance_ids=IDS, addresses=ADDRESSES)
    assert store.record.last_launch.kill_armed_at == at(30)


def test_tokens_are_deleted_before_a_run_closes() -> None:
    ended = tuple(seen(instance_id=f"i-{number}") for number in (1, 2, 3))
    record = three(state="ending", outcome="done", ending_at=at(300), instances=ended)
    gone = Observation(instances=tuple(instance(n, "terminated") for n in (1, 2, 3)), models=())
    tokens, close = settled(record, gone, at(400))[1]
    assert tokens == DeleteTokens(nodes=record.nodes) and isinstance(close, Close)
    one = replace(record, attempts=launched(records.created()), instances=ended[:1])
    assert [type(action) for action in settled(one, gone, at(400))[1]] == [Close]
