"""The start file of the next attempt: the newest snapshot that verifies, and finished work that S3 holds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.pieces import named
from tests.records import at, created, piece, seen
from tests.trainer.control.conftest import SHA256, MemoryObjects, write_snapshot
from trainer.aws.objects import Conflict, SpoiledObject
from trainer.base.errors import ConfigError
from trainer.base.instants import iso
from trainer.base.strict_json import Unsound
from trainer.control.carry import carry, write_ids
from trainer.control.observe import left_behind
from trainer.runs.attempts import Attempt
from trainer.runs.keys import NodeKeys
from trainer.runs.record import RunRecord
from trainer.runs.reports import CHECKPOINT_COUNTS
from trainer.runs.spending import checkpoints_sent
from trainer.runs.start_file import StartFile, read_start, start_to_json
from trainer.runs.store import RecordMissing, carried_key, start_key

OLD, NEW = b"weights after an hour", b"weights after two hours"


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def attempt(number: int) -> Attempt:
    launch = created(instance_ids=(f"i-{number}",), token=f"t{number}")
    return Attempt(number=number, launches=(launch,), created_at=at(5), ended_at=at(60), cause="lost")


@pytest.fixture
def lost(make_cloud):
    """A run whose first machine is gone, its objects, and the keys of that machine."""
    cloud, record = make_cloud(state="recovering", attempts=(attempt(1),), instances=(seen(),))
    carry(cloud.objects, record, 1)
    return cloud.objects, record, record.nodes[0]


def start_of(objects: MemoryObjects, record: RunRecord, number: int = 2) -> StartFile:
    body = objects.body(start_key(record.run_id, number))
    return read_start(body, run_id=record.run_id, attempt=number)


def carried(objects: MemoryObjects, record: RunRecord, number: int = 2) -> StartFile:
    carry(objects, record, number)
    return start_of(objects, record, number)


def write_model(
    objects: MemoryObjects, keys: NodeKeys, symbol: str = "BTC-USD", **changed: Any
) -> dict[str, Any]:
    """Upload a model, and return its entry in a result."""
    key = f"{keys.models}lstm_{symbol}_1m.safetensors"
    objects.write(key, b"weights", sha256=SHA256)
    version = objects.stored[key][-1].version_id
    identity = {"piece": symbol, "kind": "symbol", "series": [symbol], "fold": 1, "seed": 0}
    return {**identity, "family": "lstm", "key": key, "version_id": version, "sha256": SHA256, **changed}


def test_a_first_attempt_begins_with_nothing(lost):
    objects, record, _ = lost
    assert start_of(objects, record, 1) == StartFile(run_id=record.run_id, attempt=1)


def test_the_newest_snapshot_is_copied_for_the_next_attempt(lost):
    objects, record, keys = lost
    write_snapshot(objects, keys, 1, {"a.pt": OLD})
    write_snapshot(objects, keys, 2, {"a.pt": NEW, "b/.metadata": OLD})
    start = carried(objects, record)
    assert {file.path: file.sha256 for file in start.files} == {
        "a.pt": digest(NEW),
        "b/.metadata": digest(OLD),
    }
    for item in start.objects:
        assert item.key == carried_key(record.run_id, 2, item.sha256)
        copy = objects.get(key=item.key, version_id=item.version_id)
        assert digest(copy.body) == item.sha256


def spoil_manifest(objects: MemoryObjects, keys: NodeKeys) -> None:
    objects.write(keys.snapshot(2), b"{}")


def spoil_data(objects: MemoryObjects, keys: NodeKeys) -> None:
    del objects.stored[keys.snapshot_data(20)]


def spoil_hash(objects: MemoryObjects, keys: NodeKeys) -> None:
    """Leave other bytes under a hash that the node claims: the copy's own hash is S3's."""
    stored = objects.stored[keys.snapshot_data(20)]
    stored[-1] = replace(stored[-1], body=b"w" * len(NEW))


def spoil_size(objects: MemoryObjects, keys: NodeKeys) -> None:
    stored = objects.stored[keys.snapshot_data(20)]
    stored[-1] = replace(stored[-1], size=1)


def archive(objects: MemoryObjects, keys: NodeKeys) -> None:
    """Let S3 describe the data, and not copy it."""
    copy = objects.copy

    def refused(*, source: str, **asked: Any) -> None:
        if source == keys.snapshot_data(20):
            raise SpoiledObject(f"cannot copy {source}", why="ObjectNotInActiveTierError")
        copy(source=source, **asked)

    objects.copy = refused  # type: ignore[method-assign]


@pytest.mark.parametrize("spoil", [spoil_manifest, spoil_data, spoil_hash, spoil_size, archive])
def test_the_newest_snapshot_that_verifies_wins(lost, spoil):
    objects, record, keys = lost
    write_snapshot(objects, keys, 1, {"a.pt": OLD})
    write_snapshot(objects, keys, 2, {"a.pt": NEW})
    spoil(objects, keys)
    assert [file.sha256 for file in carried(objects, record).files] == [digest(OLD)]


def test_an_object_whose_slot_has_another_is_read_by_its_version(lost):
    objects, record, keys = lost
    write_snapshot(objects, keys, 1, {"a.pt": OLD})
    write_snapshot(objects, keys, 2, {"a.pt": NEW})
    objects.write(keys.snapshot_data(20), b"of a later try", sha256=digest(b"of a later try"))
    assert [file.sha256 for file in carried(objects, record).files] == [digest(NEW)]


def test_a_finished_models_checkpoint_stays_where_it_is(lost):
    objects, record, keys = lost
    name = "lstm_BTC-USD_1m"
    write_snapshot(objects, keys, 1, {f"{name}/10/data": OLD, "lstm_ETH-USD_1m/20/data": NEW})
    objects.write(keys.result, json.dumps({"state": "done", "models": [write_model(objects, keys)]}).encode())
    start = carried(objects, record)
    assert [file.path for file in start.files] == ["lstm_ETH-USD_1m/20/data"]
    assert [item.sha256 for item in start.objects] == [digest(NEW)]
    assert objects.body(keys.snapshot_data(10)) == OLD


def test_what_all_attempts_sent_is_counted(lost):
    objects, record, keys = lost
    counts = {"snapshots": 3, "objects": 4, "bytes": 500}
    durable = {"number": 3, "at": "2026-11-20T12:00:00Z", "lag_seconds": 1.0, **counts}
    objects.write(keys.progress, json.dumps({"durable": durable}).encode())
    assert carried(objects, record).sent == counts
    instances = (seen(), seen(instance_id="i-2", attempt=2))
    record = replace(record, attempts=(*record.attempts, attempt(2)), instances=instances)
    (second,) = record.nodes
    assert second != keys
    result = {"state": "failed", "checkpoints": counts}
    objects.write(second.result, json.dumps(result).encode())
    assert carried(objects, record, 3).sent == {"snapshots": 6, "objects": 8, "bytes": 1000}


def test_an_attempt_without_a_snapshot_passes_its_start_on(lost):
    objects, record, keys = lost
    write_snapshot(objects, keys, 1, {"a.pt": OLD})
    write_model(objects, keys)
    first = carried(objects, record)
    record = replace(record, attempts=(*record.attempts, attempt(2)))
    second = carried(objects, record, 3)
    assert second.files == first.files and second.finished == first.finished
    assert [item.key for item in second.objects] == [carried_key(record.run_id, 3, digest(OLD))]


def test_what_a_lost_machine_writes_later_changes_nothing(lost):
    objects, record, keys = lost
    write_snapshot(objects, keys, 1, {"a.pt": OLD})
    before = carried(objects, record)
    write_snapshot(objects, keys, 2, {"a.pt": NEW})
    write_model(objects, keys)
    assert carried(objects, record) == before


def test_models_without_a_result_count_as_s3_has_them(lost):
    objects, record, keys = lost
    write_model(objects, keys)
    objects.write(f"{keys.models}lstm_OTHER_1m.safetensors", b"weights", sha256=SHA256)
    (model,) = carried(objects, record).models
    assert (model["piece"], model["sha256"]) == ("BTC-USD", SHA256)


def test_models_of_a_result_count_only_as_reported(lost):
    objects, record, keys = lost
    sound, other = write_model(objects, keys), write_model(objects, keys, "ETH-USD", sha256="cd" * 32)
    result = {"state": "interrupted", "models": [sound, other]}
    objects.write(keys.result, json.dumps(result).encode())
    assert [model["piece"] for model in carried(objects, record).models] == ["BTC-USD"]


def test_a_result_that_can_not_be_read_carries_no_model(lost):
    objects, record, keys = lost
    write_model(objects, keys)
    objects.write(keys.result, b"[]")
    assert carried(objects, record).models == ()


def test_pieces_of_a_script_count_once_their_files_are_listed(lost):
    objects, record, keys = lost
    record = replace(record, leaves="files")
    key = f"{keys.outputs}{SHA256}"
    objects.write(key, b"csv", sha256=SHA256)
    stored = objects.stored[key][-1] = replace(objects.stored[key][-1], checksum=SHA256)
    entry = {"file": "a.csv", "key": key, "version_id": stored.version_id, "sha256": SHA256, "bytes": 3}
    end = {
        "piece": "BTC-USD",
        "kind": "values",
        "series": [],
        "fold": 1,
        "seed": 0,
        "exit_code": 0,
        "starts": 1,
    }
    ends = [{**end, "done": True}, {**end, "piece": "ETH-USD", "done": False}]
    objects.write(keys.output_index, json.dumps({"files": [entry], "scripts": ends}).encode())
    start = carried(objects, record)
    assert [item["piece"] for item in start.scripts] == ["BTC-USD"]
    assert [item["file"] for item in start.outputs] == ["a.csv"]


def test_trials_of_a_lost_machine_do_not_begin_again(lost):
    objects, record, keys = lost
    trials = tuple(piece("BTC-USD", model=f"m_t{n}", piece=f"BTC-USD t{n}", kind="trial") for n in (1, 2, 3))
    record = replace(record, pieces=(*record.pieces, *trials))
    told = {"trial": 1, "values": {"train.ema": "0.9"}, "end": "done", "epochs": 3, "starts": 1}
    best = {"metric": "validation_loss", "value": 0.25, "better": "min"}
    end = {**trials[0].identity, **told, "done": True, "exit_code": 0, "best": best}
    failed = {**end, **trials[1].identity, "trial": 2, "end": "failed", "best": {}}
    objects.write(keys.output_index, json.dumps({"files": [], "scripts": [end, failed]}).encode())
    start = carried(objects, record)
    assert start.over == ("BTC-USD t1", "BTC-USD t2") and start.models == ()
    known = {"piece": "BTC-USD t1", "trial": 1, "values": told["values"], "end": "done", "epochs": 3}
    assert start.trials == (
        {**known, "score": 0.25},
        {**known, "piece": "BTC-USD t2", "trial": 2, "end": "failed", "score": None},
    )
    again = replace(record, attempts=(*record.attempts, attempt(2)))
    assert carried(objects, again, 3).trials == start.trials, "also if the second machine reports nothing"


def test_a_malformed_list_of_trials_counts_as_none(lost):
    objects, record, keys = lost
    trial = piece("BTC-USD", model="m_t1", piece="BTC-USD t1", kind="trial")
    end = {**trial.identity, "trial": 1, "end": "won", "epochs": 1, "done": True, "exit_code": 0, "starts": 1}
    objects.write(keys.output_index, json.dumps({"scripts": [end]}).encode())
    assert carried(objects, replace(record, pieces=(*record.pieces, trial))).over == ()


@pytest.mark.parametrize("parent", ["", "20261101-120000-crypto-p4r3"])
def test_a_start_file_that_names_another_runs_model_is_refused(lost, parent):
    objects, record, keys = lost
    stranger = replace(keys, run_id="20261102-120000-crypto-0th3")
    stored, finished = objects.stored[start_key(record.run_id, 1)][-1], write_model(objects, stranger)
    forged = StartFile(run_id=record.run_id, attempt=1, finished=(finished,))
    objects.put(key=stored.key, body=start_to_json(forged), if_match=stored.etag)
    with pytest.raises(ConfigError, match=f"it names '{stranger.models}.* not of "):
        carry(objects, replace(record, parent=parent, parent_counts="all" if parent else ""), 2)
    carry(objects, replace(record, parent=stranger.run_id, parent_counts="all"), 2)
    assert start_of(objects, record).finished[0]["key"] == finished["key"]


def test_of_two_callers_the_first_start_file_counts(lost):
    objects, record, keys = lost
    write_snapshot(objects, keys, 1, {"a.pt": OLD})
    real_put = objects.put

    def put(*, key: str, body: bytes, if_match: str = "", create: bool = False) -> str:
        if key == start_key(record.run_id, 2):  # another caller, between this one's copies and its file
            objects.put = real_put
            carry(objects, record, 2)
        return real_put(key=key, body=body, if_match=if_match, create=create)

    objects.put = put
    carry(objects, record, 2)
    assert len(objects.stored[start_key(record.run_id, 2)]) == 1
    assert all(len(versions) == 1 for key, versions in objects.stored.items() if key.startswith("resumed/"))


def report(objects: MemoryObjects, keys: NodeKeys, **told: Any) -> None:
    """Leave a node's last lease, and its progress with one piece."""
    now = objects.cloud.now()
    lease = {"instance_id": keys.instance_id, "at": iso(now), "lease_until": iso(now)}
    piece = {"state": "training", "epochs": 9, "steps": 10, "step": 3, **told}
    objects.write(keys.lease, json.dumps(lease).encode())
    objects.write(keys.progress, json.dumps({"progress": {"BTC-USD": piece}}).encode())


def test_work_done_and_repeated_goes_from_attempt_to_attempt(lost):
    objects, record, keys = lost
    report(objects, keys, epoch=3, began=0)
    start = carried(objects, record)
    assert (start.reached, start.steps_twice) == ({"BTC-USD": 23}, 0)
    second = replace(record, attempts=(attempt(1), attempt(2)), instances=(seen(), seen(attempt=2)))
    report(objects, second.nodes[0], epoch=2, began=4)
    third = carried(objects, second, 3)
    assert (third.reached, third.steps_twice) == ({"BTC-USD": 23}, 9)  # 4 to 13
    report(objects, keys, epoch=9, began=0)  # a late word of the first machine
    assert carried(objects, second, 3) == third
    # A third attempt that launched nothing began with nothing that counts.
    report(objects, second.nodes[0], epoch=3, began=1)
    del objects.stored[start_key(record.run_id, 3)]
    never = replace(second, attempts=(*second.attempts, Attempt(number=3, cause="lost")))
    fourth = carried(objects, never, 4)
    assert (fourth.reached, fourth.steps_twice) == ({"BTC-USD": 23}, 22)


def tell(objects: MemoryObjects, keys: NodeKeys, second: float, **states: str) -> None:
    """Write the lease and the progress of a node; S3 dates them."""
    objects.cloud.clock = at(second)
    lease = {"at": iso(at(second)), "lease_until": iso(at(second + 60)), "instance_id": keys.instance_id}
    objects.write(keys.lease, json.dumps(lease).encode())
    told = {piece.replace("_", "-"): {"state": state} for piece, state in states.items()}
    sent = {"number": 1, "at": iso(at(second)), "lag_seconds": 0, "snapshots": 2, "objects": 3, "bytes": 10}
    progress = {"phase": "train", "models_total": 2, "progress": told, "durable": sent}
    objects.write(keys.progress, json.dumps(progress).encode())


def test_an_attempt_without_a_launch_keeps_what_was_sent(lost):
    objects, record, keys = lost
    tell(objects, keys, 50, BTC_USD="training")
    never = replace(record, attempts=(*record.attempts, Attempt(number=2)), instances=(seen(),))
    told = checkpoints_sent(left_behind(objects, never), most_usd=1.0)
    assert {name: told.get(name) for name in CHECKPOINT_COUNTS} == {"snapshots": 2, "objects": 3, "bytes": 10}
    sent = {"snapshots": 4, "objects": 5, "bytes": 20}
    objects.write(keys.result, json.dumps({"state": "interrupted", "checkpoints": sent}).encode())
    told = checkpoints_sent(left_behind(objects, never), most_usd=1.0)
    assert {name: told.get(name) for name in CHECKPOINT_COUNTS} == sent


def test_a_model_that_failed_stays_failed_on_every_machine(lost):
    """Its own bug: machines that are lost give it no further tries."""
    objects, record, keys = lost
    report(objects, keys, state="failed")
    start = carried(objects, record)
    (failed,) = start.failed
    assert (failed["piece"], start.over) == ("BTC-USD", ("BTC-USD",)) and "its log" in failed["reason"]
    second = replace(record, attempts=(attempt(1), attempt(2)), instances=(seen(), seen(attempt=2)))
    assert carried(objects, second, 3).failed == start.failed


def test_a_failure_has_its_reason_by_the_nodes_result(lost):
    objects, record, keys = lost
    report(objects, keys, state="failed")
    told = [
        {**named("BTC-USD"), "reason": "loss is NaN"},
        {**named("ETH-USD"), "reason": "stopped before it was done"},
    ]
    objects.write(keys.result, json.dumps({"state": "interrupted", "failed": told}).encode())
    assert [(one["piece"], one["reason"]) for one in carried(objects, record).failed] == [
        ("BTC-USD", "loss is NaN")
    ]


def test_a_model_that_s3_has_did_not_fail(lost):
    objects, record, keys = lost
    report(objects, keys, state="failed")
    write_model(objects, keys)
    assert (carried(objects, record).failed, carried(objects, record).pieces) == ((), ("BTC-USD",))


def test_a_lost_machines_malformed_progress_counts_as_none(lost):
    objects, record, keys = lost
    report(objects, keys, epoch=-3, began=0)
    assert (carried(objects, record).reached, carried(objects, record).steps_twice) == ({}, 0)


def test_ids_are_added_once_and_kept(lost):
    objects, record, _ = lost
    write_ids(objects, record.run_id, 1, ("i-1",))
    write_ids(objects, record.run_id, 1, ("i-1",))
    assert start_of(objects, record, 1).instances == ("i-1",)
    assert len(objects.stored[start_key(record.run_id, 1)]) == 2


def test_ids_that_lose_a_race_are_written_again_later(lost):
    objects, record, _ = lost
    real_put = objects.put

    def put(**request: Any) -> str:
        objects.put = real_put
        write_ids(objects, record.run_id, 1, ("i-9",))
        return real_put(**request)

    objects.put = put
    with pytest.raises(Conflict):
        write_ids(objects, record.run_id, 1, ("i-1",))


def test_ids_without_a_start_file_are_an_error_of_ours(lost):
    objects, record, _ = lost
    with pytest.raises(RecordMissing, match="attempts/2/start.json is not found now"):
        write_ids(objects, record.run_id, 2, ("i-1",))


def test_a_start_file_of_another_attempt_is_unsound(lost):
    objects, record, _ = lost
    with pytest.raises(Unsound):
        read_start(objects.body(start_key(record.run_id, 1)), run_id=record.run_id, attempt=2)
