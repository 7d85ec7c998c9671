"""Several nodes of one attempt: how they learn of each other, and what it means to lose one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests import records
from tests.pieces import named
from tests.records import DEADLINE, at, described, launched, make_record, seen
from trainer.control.reported import joined
from trainer.runs.actions import ArmKill, Close, DeleteTokens, Store, Terminate, Wait, WriteIds
from trainer.runs.node_ends import node_ends
from trainer.runs.nodes import joined_heartbeat, owner_of
from trainer.runs.observation import DescribedInstance, ModelSeen, NodeSeen, Observation
from trainer.runs.receipt import make_receipt, scripts_of
from trainer.runs.reconcile import reconcile
from trainer.runs.record import RunRecord
from trainer.runs.reports import UNFINISHED, Heartbeat, NodeResult

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


def beat(number: int, seconds: float, phase: str = "train", **fields: Any) -> Heartbeat:
    at_then = at(seconds)
    own = {"instance_id": f"i-{number}", "at": at_then, "lease_until": at_then + timedelta(seconds=150)}
    return Heartbeat(**{**own, "phase": phase, **fields})


def told(number: int, seconds: float = 100, **fields: Any) -> NodeSeen:
    """Return a node that reported last at an instant, of its own clock and of S3's."""
    own = {"heartbeat": beat(number, seconds), "heard_at": at(seconds)}
    return NodeSeen(**{"instance_id": f"i-{number}", **own, **fields})


def ended(state: str = "done", at_second: float = 100, **fields: Any) -> dict[str, Any]:
    return {"result": NodeResult(state=state, phases={"end": at(at_second)}, **fields)}


def look(record: RunRecord, *nodes: NodeSeen, instances: tuple[DescribedInstance, ...] = ALL) -> Observation:
    return replace(joined(record, nodes), instances=instances, stop_written=True)


def decided(record: RunRecord, observed: Observation, second: float = 100) -> tuple[RunRecord, Any]:
    """Return the record as a look leaves it, until nothing is due or the attempt has ended."""
    now = at(second)
    for _ in range(9):
        actions = reconcile(record, observed, now)
        if not isinstance(actions[0], Store) or record.state != "running":
            return record, actions[0]
        record = actions[0].record
    raise AssertionError("it never settles")


TAKEN = {"state": "terminated", "reason": "Server.SpotInstanceTermination"}
ONE_GONE = (instance(1, **TAKEN), instance(2), instance(3))  # node 1: the head is i-2
HEAD_GONE = (instance(1), instance(2, **TAKEN), instance(3))
WORKING = (told(2), told(1), told(3))


def test_a_lost_node_ends_nothing_while_the_head_lives() -> None:
    progress = {"BTC-USD": {"state": "done"}, "ETH-USD": {"state": "failed"}}
    nodes = (told(2), told(1, heartbeat=beat(1, 100, progress=progress)), told(3))
    record, action = decided(three(), look(three(), *nodes, instances=ONE_GONE))
    assert record.state == "running" and isinstance(action, Wait)
    (end,) = [one for one in node_ends(record, look(record, *nodes, instances=ONE_GONE), at(100)) if one.line]
    assert (end.node, end.instance_id, end.state) == (1, "i-1", "lost")
    assert (end.models, end.failed) == (1, 1), "by its last report"
    assert end.line.startswith("node 1 is lost: instance i-1 was ended from outside (Server.SpotInstance")


def test_losing_the_head_ends_the_attempt() -> None:
    record, action = decided(three(), look(three(), *WORKING, instances=HEAD_GONE))
    assert record.state == "recovering" and isinstance(action, Terminate)
    assert action.instance_ids == ("i-1", "i-3")  # the others go before the next attempt begins
    assert record.attempt is not None and record.attempt.error is not None
    assert record.attempt.error["what"].startswith("node 0: instance i-2 was ended from outside")


def test_one_model_ends_with_any_of_its_nodes() -> None:
    record, _ = decided(three(one_model=True), look(three(), *WORKING, instances=ONE_GONE))
    assert record.state == "recovering" and record.lost[0].cause == "lost"
    assert record.lost[0].error is not None and record.lost[0].error["what"].startswith("node 1: ")


@pytest.mark.parametrize(("behind", "state"), [(49, "running"), (51, "recovering")])
def test_a_silent_node_among_others_is_lost_within_a_minute(behind: float, state: str) -> None:
    """By S3's clock, whatever the nodes' own clocks say; the lease alone would take three minutes."""
    nodes = (told(2, 200), told(1, 200, heard_at=at(200 - behind)), told(3, 200))
    record, _ = decided(three(one_model=True), look(three(), *nodes), 200)
    assert record.state == state
    shared, _ = decided(three(), look(three(), *nodes), 200)
    assert shared.state == "running"
    lost = [end.node for end in node_ends(shared, look(shared, *nodes), at(200)) if end.state == "lost"]
    assert lost == ([1] if state == "recovering" else [])


def test_a_silent_head_is_lost_but_none_if_s3_fails_all() -> None:
    nodes = (told(2, 100), told(1, 151), told(3, 151))
    assert decided(three(), look(three(), *nodes), 152)[0].state == "recovering"
    assert decided(three(), look(three(), *(told(n, 100) for n in (2, 1, 3))), 200)[0].state == "running"
    late = look(three(), *(told(n, 100) for n in (2, 1, 3)))
    assert decided(three(), late, 281)[0].state == "recovering"  # their leases are over


def test_the_last_node_at_work_is_lost_by_the_clock() -> None:
    """The others have ended, so that none of them is heard any more."""
    every = tuple(MODELS.values())
    nodes = (told(2, **ended(models=every[:1])), told(1, 100), told(3, **ended()))
    assert decided(three(), look(three(), *nodes), 150)[0].state == "running"
    lost, _ = decided(three(), look(three(), *nodes), 151)
    assert lost.state == "recovering" and lost.lost[0].error is not None
    assert lost.lost[0].error["what"] == "node 1: the node fell silent"
    # It had uploaded what it held: nothing is missing.
    held = (nodes[0], replace(nodes[1], left=("ETH-USD",)), nodes[2])
    done, _ = decided(three(), look(three(), *held), 151)
    assert done.outcome == "done"
    gone = tuple(replace(one, state="terminated", terminated_at=at(200)) for one in done.instances)
    ends = node_ends(replace(done, state="closed", instances=gone), joined(done, held), at(300))
    assert [end.state for end in ends] == ["done", "lost", "done"]


def test_a_node_that_still_boots_is_judged_by_its_boot_alone() -> None:
    """Its bootstrap renews the lease at another pace than an agent."""
    nodes = (told(2, 300), told(1, 240, heartbeat=beat(1, 240, phase="")), told(3, 300))
    assert decided(three(one_model=True), look(three(), *nodes), 300)[0].state == "running"
    never = (told(2, 910), NodeSeen(instance_id="i-1"), told(3, 910))
    record, _ = decided(three(one_model=True), look(three(), *never), 910)
    assert record.state == "recovering"
    assert (
        record.lost[0].error is not None and record.lost[0].error["what"] == "node 1: the node never reported"
    )


def test_a_node_lost_before_all_are_named_ends_the_attempt() -> None:
    record = three(launch={"kill_armed_at": None})
    observed = look(record, *(NodeSeen(instance_id=f"i-{n}") for n in (2, 1, 3)), instances=ONE_GONE)
    lost, _ = decided(record, observed, 60)
    assert lost.state == "recovering"
    assert [(end.models, end.failed) for end in node_ends(lost, observed, at(60))] == [(0, 0)] * 3


PIECES = {name: named(name) for name in ("BTC-USD", "ETH-USD")}
MODELS = {
    name: {**PIECES[name], "family": "lstm", "target": "", "version_id": f"v-{name}", "sha256": "ab" * 32}
    | {"key": f"models/experiments/AROA1:{node}/r/1/lstm_{name}_1m.safetensors", "metrics": {}}
    for name, node in (("BTC-USD", "i-2"), ("ETH-USD", "i-1"))
}


def not_made(*names: str, reason: str = UNFINISHED[1]) -> tuple[dict[str, Any], ...]:
    return tuple({**PIECES[name], "reason": reason} for name in names)


def made(name: str, *missing: str, **fields: Any) -> dict[str, Any]:
    """Return the end of a node that made one model, and lists the others' as not made."""
    return ended(models=(MODELS[name],), failed=not_made(*missing), **fields)


def test_a_run_is_done_by_the_models_of_all_its_nodes() -> None:
    last = told(1, **made("ETH-USD", "BTC-USD", at_second=130))
    nodes = (told(2, **made("BTC-USD", "ETH-USD")), last, told(3, **ended()))
    observed = look(three(), *nodes)
    assert observed.result is not None and observed.result.state == "done" and not observed.result.failed
    assert [model["piece"] for model in observed.result.models] == ["BTC-USD", "ETH-USD"]
    assert observed.result.phases["end"] == at(130), "the run works until its last node has ended"
    assert decided(three(), observed)[0].outcome == "done"


def test_a_done_head_waits_for_what_others_still_upload() -> None:
    nodes = (told(2, **made("BTC-USD", "ETH-USD")), told(1), told(3, **ended()))
    assert decided(three(), look(three(), *nodes))[0].state == "running"
    gone = look(three(), *nodes, instances=ONE_GONE)
    record, _ = decided(three(), gone)
    assert record.state == "recovering"  # ETH-USD went with it
    kept = look(three(), nodes[0], replace(nodes[1], left=("ETH-USD",)), nodes[2], instances=ONE_GONE)
    assert decided(three(), kept)[0].outcome == "done"  # S3 has it


def test_trials_of_a_made_model_are_not_missed() -> None:
    """What they ended with may have gone with a machine after their model was sent."""
    trials = [
        records.piece(symbol, model=f"lstm_{symbol}_1m_t1", piece=f"{symbol} t1", kind="trial")
        for symbol in PIECES
    ]
    record = three()
    record = replace(record, pieces=(*record.pieces, *trials))
    nodes = (told(2, **made("BTC-USD")), told(1), told(3, **ended()))
    lacking = look(record, *nodes, instances=ONE_GONE)
    assert lacking.result is not None
    assert [one["piece"] for one in lacking.result.failed] == ["ETH-USD", "ETH-USD t1"]
    kept = look(record, nodes[0], replace(nodes[1], left=("ETH-USD",)), nodes[2], instances=ONE_GONE)
    assert decided(record, kept)[0].outcome == "done"
    there = ModelSeen(key=str(MODELS["ETH-USD"]["key"]), version_id="v", sha256="ab" * 32)
    receipt = make_receipt(record.ended("done", None, at(99)), replace(kept, models=(there,)))
    assert len(receipt["models"]) == 2 and not receipt["failed"]


def test_a_trial_that_two_nodes_ended_counts_once() -> None:
    told_of = {**PIECES["BTC-USD"], "kind": "trial", "trial": 1, "end": "done", "values": {}, "epochs": 1}
    end = {**told_of, "done": True, "starts": 1, "best": {}}
    twice = Observation(scripts=(end, {**end, "epochs": 3}), nodes=(told(2), told(1)))
    assert len(scripts_of(twice)) == 1
    head = replace(twice, result=NodeResult(state="done"))
    assert len(scripts_of(head)) == 1


def test_a_piece_that_fails_on_one_node_fails_the_run() -> None:
    error = {"code": 100, "what": "1 of 2 models failed", "why": "ETH-USD: loss is NaN", "do": ""}
    failed = ended("failed", error=error, exit_code=100, failed=not_made("ETH-USD", reason="loss is NaN"))
    nodes = (told(2, **made("BTC-USD", "ETH-USD")), told(1, **failed), told(3, **ended()))
    observed = look(three(), *nodes)
    assert observed.result is not None
    assert [(one["piece"], one["reason"]) for one in observed.result.failed] == [("ETH-USD", "loss is NaN")]
    record, _ = decided(three(), observed)
    assert record.outcome == "failed" and record.error is not None and record.error["what"] == error["what"]


def test_a_failed_node_whose_pieces_others_made_fails_nothing() -> None:
    failed = ended("failed", error={"code": 100, "what": "the disk is full"}, failed=not_made("ETH-USD"))
    nodes = (told(2, **ended(models=tuple(MODELS.values()))), told(1, **failed), told(3, **ended()))
    record, _ = decided(three(), look(three(), *nodes))
    assert record.outcome == "done"
    (end,) = [one for one in node_ends(record, look(record, *nodes), at(100)) if one.state == "failed"]
    assert end.node == 1 and end.error is not None and end.error["what"] == "the disk is full"


BROKEN = {"code": 100, "what": "a rank lost its peers"}


def test_a_failure_after_a_lost_node_is_not_the_jobs() -> None:
    """Ranks fail when a peer is gone, before AWS says that it is."""
    nodes = (told(2, **ended("failed", error=BROKEN)), told(1, 99), told(3, **ended("failed", error=BROKEN)))
    record = three(one_model=True)
    assert decided(record, look(record, *nodes))[0].state == "running"
    lost, _ = decided(record, look(record, *nodes, instances=ONE_GONE))
    assert lost.state == "recovering" and lost.lost[0].error is not None
    assert lost.lost[0].error["what"].startswith("node 1: instance i-1")
    # Nothing that its nodes report later makes a failure of the job of it.
    every = (*nodes[:1], told(1, 130, **ended("failed", error=BROKEN)), nodes[2])
    assert decided(lost, look(lost, *every, instances=ONE_GONE), 131)[0].state == "recovering"


def test_a_failure_of_one_model_names_the_node_that_failed_first() -> None:
    own = ended("failed", 95, error={"code": 100, "what": "CUDA out of memory"})
    follows = ended("failed", 99, error=BROKEN)
    record = three(one_model=True)
    nodes = (told(2, **follows), told(1, **own), told(3, **follows))
    failed, _ = decided(record, look(record, *nodes))
    assert (failed.outcome, failed.error and failed.error["what"]) == ("failed", "node 1: CUDA out of memory")
    # One that hangs on holds nobody up.
    hangs = (told(2, 160), nodes[1], told(3, **follows))
    assert decided(record, look(record, *hangs), 160)[0].state == "running"
    hangs = (told(2, 161), nodes[1], told(3, **follows))
    assert decided(record, look(record, *hangs), 161)[0].outcome == "failed"


def test_one_model_is_done_with_its_head() -> None:
    record = three(one_model=True)
    nodes = (told(2, **ended(models=tuple(MODELS.values()))), told(1, **ended()), told(3, 99))
    assert decided(record, look(record, *nodes))[0].state == "running"
    late = (*nodes[:2], told(3, 161))
    assert decided(record, look(record, *late), 161)[0].outcome == "done"
    gone = look(record, *nodes, instances=(instance(1), instance(2), instance(3, **TAKEN)))
    assert decided(record, gone)[0].outcome == "done"


def test_a_stop_ends_all_nodes() -> None:
    stopping = three(stop_requested_at=at(90))
    nodes = tuple(told(n, **ended("stopped")) for n in (2, 1, 3))
    assert decided(stopping, look(stopping, *nodes))[0].outcome == "stopped"
    half = (nodes[0], told(1, 99), nodes[2])
    assert decided(stopping, look(stopping, *half))[0].state == "running"
    assert decided(stopping, look(stopping, *half), 211)[0].outcome == "stopped"


def test_all_nodes_at_the_deadline_expire() -> None:
    over = tuple(instance(n, "terminated", ended_at=DEADLINE) for n in (1, 2, 3))
    record, _ = decided(three(), look(three(), *WORKING, instances=over), 3600)
    assert record.outcome == "expired"


def test_a_nodes_report_bounds_its_own_bill() -> None:
    nodes = (told(2, 100), told(1, 90), told(3, 95))
    record, _ = decided(three(), look(three(), *nodes, instances=HEAD_GONE))
    signed = {one.instance_id: one.signed_at for one in record.instances}
    assert signed == {"i-2": at(100), "i-1": at(90), "i-3": at(95)}


def test_reports_of_several_nodes_are_joined() -> None:
    waiting = {"state": "waiting"}
    first = beat(2, 100, rate=3.0, models_total=2, models_done=1, retries=1, message="from the head")
    first = replace(first, progress={"BTC-USD": {"state": "done"}, "ETH-USD": waiting})
    other = {"BTC-USD": waiting, "ETH-USD": {"state": "training", "step": 5}}
    second = replace(beat(1, 101, rate=2.0, models_total=2, retries=2), progress=other)
    sent = {"number": 4, "at": at(80), "lag_seconds": 9.0, "snapshots": 4, "objects": 8, "bytes": 100}
    second = replace(second, durable=sent)
    first = replace(first, durable={**sent, "at": at(90), "lag_seconds": 3.0, "bytes": 11})
    whole = joined_heartbeat(
        [told(2, heartbeat=first), told(1, heartbeat=second), NodeSeen(instance_id="i-3")]
    )
    assert whole is not None and whole.instance_id == "i-2" and whole.message == "from the head"
    assert (whole.rate, whole.retries, whole.models_total, whole.models_done) == (5.0, 3, 2, 1)
    assert whole.progress == {"BTC-USD": {"state": "done"}, "ETH-USD": {"state": "training", "step": 5}}
    assert whole.durable == {**sent, "lag_seconds": 9.0, "snapshots": 8, "objects": 16, "bytes": 111}


def test_an_ended_head_waits_for_the_others_in_its_upload() -> None:
    over = beat(2, 100, phase="end", phases={"train": at(50), "upload": at(99), "end": at(100)})
    nodes = (told(2, heartbeat=over, **ended()), told(1), told(3, **ended()))
    whole = joined_heartbeat(nodes)
    assert whole is not None and (whole.phase, "end" in whole.phases) == ("upload", False)
    done = joined_heartbeat((nodes[0], nodes[2]))
    assert done is not None and done.phase == "end"


def test_a_piece_belongs_to_the_node_that_worked_on_it_last() -> None:
    lost = replace(beat(1, 60), progress={"BTC-USD": {"state": "training", "step": 90}})
    taker = replace(beat(3, 99), progress={"BTC-USD": {"state": "training", "step": 20}})
    nodes = (told(2), told(1, heartbeat=lost, heard_at=at(60)), told(3, heartbeat=taker, heard_at=at(99)))
    assert (owner_of(nodes, "BTC-USD"), owner_of(nodes, "ETH-USD"), owner_of((), "x")) == (2, 0, 0)
    whole = joined_heartbeat(nodes)
    assert whole is not None and whole.progress["BTC-USD"]["step"] == 20


def test_an_earlier_attempts_nodes_show_until_the_next_has_some() -> None:
    """A stop between two attempts: the receipt is that of the one that was lost."""
    record, _ = decided(three(), look(three(), *WORKING, instances=HEAD_GONE))
    later = replace(record.with_next_attempt(), state="ending", outcome="stopped", ending_at=at(200))
    gone = tuple(replace(one, state="terminated", terminated_at=at(160)) for one in later.instances)
    ends = node_ends(replace(later, instances=gone), joined(later, WORKING), at(300))
    assert [(end.node, end.state) for end in ends] == [(0, "ended"), (1, "ended"), (2, "ended")]
    before = replace(gone[1], terminated_at=at(90), reason="Server.SpotInstanceTermination")
    first = node_ends(replace(later, instances=(gone[0], before, gone[2])), joined(later, WORKING), at(300))
    assert [end.state for end in first] == ["lost", "ended", "ended"]
