"""A new run that continues one that has ended: what counts of it, what its first attempt begins with, and who is
refused.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.jobs import job_of
from tests.manifests import command, manifest
from tests.records import at, seen
from tests.trainer.control.conftest import MemoryObjects, write_snapshot
from tests.trainer.control.test_carry import NEW, OLD, attempt, digest, start_of, write_model
from trainer.aws.objects import Stored
from trainer.base.errors import UsageError
from trainer.control.carry import carry
from trainer.control.drive import drive
from trainer.control.resume import continued, read_parent, what_counts
from trainer.job.pieces import pieces_of
from trainer.job.reading import job_from
from trainer.job.search import text_of
from trainer.launch.start import recorded
from trainer.runs.index import begin_run
from trainer.runs.keys import NodeKeys
from trainer.runs.manifest import Manifest, ManifestInput, ManifestPiece
from trainer.runs.record import RunRecord
from trainer.runs.record_json import to_json
from trainer.runs.start_file import StartFile
from trainer.runs.store import (
    RecordMissing,
    carried_key,
    manifest_key,
    record_key,
    start_key,
    swap_record,
)
from trainer.runs.stored_receipt import receipt_from_json

CHILD = "20261121-120000-crypto-n3w1"
HERE = {"project": "mayfly", "stack": "dev", "place": "account"}
ERROR = {"code": 105, "what": "its machine was lost", "why": "", "do": ""}
INPUT = ManifestInput(path="data/a.csv", key="raw/main/a.csv", version_id="v1", sha256="1" * 64, bytes=3)


def training(**changed: Any) -> Manifest:
    """Return the manifest of a training."""
    made = command(name="train", title="the trainer", user="agent", network="internet and metadata")
    made = replace(made, tells="events", leaves="models", out_bytes=0)
    fields = {"command": made, "pieces": (), "job": job_of().to_dict(), "inputs": (INPUT,)}
    return manifest(**{**fields, **changed})


def with_setting(key: str, value: Any) -> dict[str, Any]:
    table, _, name = key.partition(".")
    tables = job_of().to_dict()
    return {**tables, table: {**tables[table], name: value}}


@pytest.fixture
def ended(make_cloud):
    """A run that lost its machine and ended, its objects, the keys of its machine, and a record for the next."""
    fields = {"outcome": "interrupted", "error": ERROR, "ending_at": at(70), "closed_at": at(90)}
    cloud, record = make_cloud(state="closed", attempts=(attempt(1),), instances=(seen(),), **fields)
    cloud.objects.write(manifest_key(record.run_id), to_json(training(run_id=record.run_id)))
    carry(cloud.objects, replace(record, attempts=()), 1)
    new = replace(record, run_id=CHILD, state="starting", attempts=(), instances=(), created_at=at(100))
    return (
        cloud,
        record,
        record.nodes[0],
        replace(new, outcome=None, error=None, ending_at=None, closed_at=None),
    )


def resumed(objects: MemoryObjects, new: RunRecord, parent: RunRecord, **changed: Any) -> RunRecord:
    return continued(objects, new, parent, training(run_id=CHILD, **changed))


def first_start(objects: MemoryObjects, record: RunRecord) -> StartFile:
    carry(objects, record, 1)
    return start_of(objects, record, 1)


# --- what a new run begins with


def test_a_new_run_begins_with_what_the_earlier_one_left(ended):
    cloud, parent, keys, new = ended
    model = write_model(cloud.objects, keys)
    write_snapshot(cloud.objects, keys, 1, {"ETH-USD/a.pt": OLD})
    record = resumed(cloud.objects, new, parent)
    assert (record.parent, record.parent_counts) == (parent.run_id, "all")
    start = first_start(cloud.objects, record)
    assert [(entry["piece"], entry["key"]) for entry in start.models] == [("BTC-USD", model["key"])]
    assert [(file.path, file.sha256) for file in start.files] == [("ETH-USD/a.pt", digest(OLD))]
    assert [item.key for item in start.objects] == [carried_key(CHILD, 1, digest(OLD))]


def test_a_third_run_begins_with_what_the_first_left(ended):
    cloud, parent, keys, new = ended
    write_model(cloud.objects, keys)
    write_snapshot(cloud.objects, keys, 1, {"a.pt": OLD})
    second = resumed(cloud.objects, new, parent)
    first = first_start(cloud.objects, second)
    cloud.objects.write(manifest_key(CHILD), to_json(training(run_id=CHILD)))
    begin_run(cloud.objects, replace(second, state="closed", outcome="expired", closed_at=at(200)))
    third = continued(
        cloud.objects, replace(new, run_id=f"{CHILD}-2"), replace(second, outcome="expired"), training()
    )
    start = first_start(cloud.objects, third)
    assert (third.parent, third.ancestors, start.finished) == (CHILD, (parent.run_id,), first.finished)
    assert [item.key for item in start.objects] == [carried_key(third.run_id, 1, digest(OLD))]


def test_an_attempt_that_never_began_hides_nothing(ended):
    cloud, parent, keys, new = ended
    write_model(cloud.objects, keys)
    later = replace(parent, attempts=(*parent.attempts, replace(attempt(2), launches=(), ended_at=None)))
    swap_record(cloud.objects, later, cloud.objects.stored[f"runs/{parent.run_id}/run.json"][-1].etag)
    assert [
        entry["piece"] for entry in first_start(cloud.objects, resumed(cloud.objects, new, later)).models
    ] == ["BTC-USD"]


def test_a_model_that_s3_no_longer_holds_does_not_count(ended):
    cloud, parent, keys, new = ended
    kept, gone = write_model(cloud.objects, keys), write_model(cloud.objects, keys, "ETH-USD")
    record = resumed(cloud.objects, new, parent)
    del cloud.objects.stored[gone["key"]]
    assert [entry["key"] for entry in first_start(cloud.objects, record).models] == [kept["key"]]


def test_the_second_attempt_of_a_new_run_reads_its_own_first(ended):
    cloud, parent, keys, new = ended
    write_model(cloud.objects, keys)
    record = resumed(cloud.objects, new, parent)
    first = first_start(cloud.objects, record)
    carry(cloud.objects, replace(record, attempts=(attempt(1),)), 2)
    assert start_of(cloud.objects, record, 2).finished == first.finished


def script_end(objects: MemoryObjects, keys: NodeKeys) -> Stored:
    """Write a list of outputs whose one value is done, and return its file."""
    sha256 = digest(OLD)
    objects.write(f"{keys.outputs}{sha256}", OLD, sha256=sha256)
    stored = objects.stored[f"{keys.outputs}{sha256}"]
    stored[-1] = replace(stored[-1], checksum=sha256)
    listed = {"file": "a.csv", "key": stored[-1].key, "version_id": stored[-1].version_id}
    end = {"piece": "BTC-USD", "kind": "values", "series": [], "fold": 1, "seed": 0}
    end |= {"exit_code": 0, "starts": 1, "done": True}
    body = {"files": [{**listed, "sha256": sha256, "bytes": len(OLD)}], "scripts": [end]}
    objects.write(keys.output_index, json.dumps(body).encode())
    return stored[-1]


@pytest.mark.parametrize(
    ("mended", "counts", "pieces"), [(False, "all", ["BTC-USD"]), (True, "checkpoints", [])]
)
def test_a_mended_script_has_its_checkpoints_alone(ended, mended, counts, pieces):
    cloud, parent, keys, new = ended
    script_end(cloud.objects, keys)
    write_snapshot(cloud.objects, keys, 1, {"a.pt": OLD})
    parent, new = replace(parent, leaves="files"), replace(new, leaves="files")
    etag = cloud.objects.stored[f"runs/{parent.run_id}/run.json"][-1].etag
    swap_record(cloud.objects, parent, etag)
    cloud.objects.write(manifest_key(parent.run_id), to_json(manifest(command=command(sha256="1" * 64))))
    now = manifest(command=command(sha256=("2" if mended else "1") * 64))
    record = continued(cloud.objects, new, parent, now)
    start = first_start(cloud.objects, record)
    assert (record.parent_counts, list(start.pieces)) == (counts, pieces)
    assert (len(start.files), len(start.outputs)) == (1, 0 if mended else 1)


def test_values_count_only_with_every_file(ended):
    cloud, parent, keys, new = ended
    file = script_end(cloud.objects, keys)
    write_snapshot(cloud.objects, keys, 1, {"a.pt": OLD})
    carry(cloud.objects, replace(parent, leaves="files"), 2)  # lists the file as it is there
    parent = replace(parent, leaves="files", attempts=(attempt(1), attempt(2)))
    swap_record(cloud.objects, parent, cloud.objects.stored[f"runs/{parent.run_id}/run.json"][-1].etag)
    del cloud.objects.stored[file.key]  # its days are over
    start = first_start(
        cloud.objects, replace(new, leaves="files", parent=parent.run_id, parent_counts="all")
    )
    assert (start.finished, start.outputs, len(start.files)) == ((), (), 1)


# --- a run that continues another one, to its receipt


def test_a_run_whose_models_are_all_there_buys_no_machine(ended):
    cloud, parent, keys, new = ended
    models = [write_model(cloud.objects, keys, symbol) for symbol in ("BTC-USD", "ETH-USD")]
    record = resumed(cloud.objects, new, parent)
    begin_run(cloud.objects, record)
    cloud.clock = at(101)
    receipt = drive(cloud, CHILD, poll_seconds=1, sleep=cloud.sleep)
    assert (receipt["state"], receipt["parent"], receipt["instances"]) == ("done", parent.run_id, [])
    assert [model["key"] for model in receipt["models"]] == [model["key"] for model in models]
    body = cloud.objects.body(f"runs/{CHILD}/receipt.json")
    assert receipt_from_json(body, CHILD)["parent"] == parent.run_id


def test_a_new_run_trains_only_what_is_missing(ended):
    cloud, parent, keys, new = ended
    model = write_model(cloud.objects, keys)
    begin_run(cloud.objects, resumed(cloud.objects, new, parent))
    first = f"runs/{parent.run_id}/run.json"  # the world's machines work for the first record in it
    cloud.objects.stored[first] = cloud.objects.stored.pop(first)
    cloud.clock = at(101)
    receipt = drive(cloud, CHILD, poll_seconds=10, sleep=cloud.sleep)
    assert (receipt["state"], len(receipt["instances"])) == ("done", 1)
    assert {entry["piece"]: parent.run_id in entry["key"] for entry in receipt["models"]} == {
        "BTC-USD": True,
        "ETH-USD": False,
    }
    assert receipt["models"][0]["key"] == model["key"]


# --- refusals


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"state": "running", "outcome": None}, "still open"),
        ({"outcome": "done", "work": "script"}, "ended done"),
        ({"stack": "prod"}, "of stack prod of mayfly"),
        ({"project": "other"}, "of stack dev of other"),
        ({"place": "rehearsal"}, "in the place 'rehearsal'"),
    ],
)
def test_a_run_that_can_not_be_continued_is_refused(ended, changed, why):
    cloud, parent, _, _ = ended
    changed = replace(parent, **changed)
    if changed.state == "running":
        changed = replace(changed, attempts=(replace(attempt(1), ended_at=None, cause=""),))
    swap_record(cloud.objects, changed, cloud.objects.stored[f"runs/{parent.run_id}/run.json"][-1].etag)
    with pytest.raises(UsageError, match=why) as refused:
        read_parent(cloud.objects, parent.run_id[:15], **HERE)
    assert "\n" not in str(refused.value)


def test_an_ended_run_is_found_by_a_part_of_its_id(ended):
    cloud, parent, _, _ = ended
    assert read_parent(cloud.objects, parent.run_id[:15], **HERE) == parent


def test_an_unknown_run_is_refused(ended):
    with pytest.raises(UsageError, match="no run 'nope'"):
        read_parent(ended[0].objects, "nope", **HERE)


def test_a_run_that_left_nothing_is_refused(ended):
    cloud, parent, keys, new = ended
    write_snapshot(cloud.objects, keys, 1, {})
    write_snapshot(cloud.objects, keys, 2, {"a.pt": OLD})
    del cloud.objects.stored[keys.snapshot_data(20)]  # its seven days are over
    with pytest.raises(UsageError, match="finished nothing that counts, and S3 has no checkpoints"):
        resumed(cloud.objects, new, parent)


def test_a_snapshot_counts_only_with_every_object(ended):
    """Else a machine is paid for that has nothing to begin with."""
    cloud, parent, keys, new = ended
    write_snapshot(cloud.objects, keys, 1, {"a.pt": OLD, "b.pt": NEW})
    assert resumed(cloud.objects, new, parent).parent == parent.run_id
    del cloud.objects.stored[keys.snapshot_data(11)]
    with pytest.raises(UsageError, match="S3 has no checkpoints of it"):
        resumed(cloud.objects, new, parent)


def test_a_run_without_a_readable_manifest_is_refused(ended):
    cloud, parent, _, new = ended
    cloud.objects.write(manifest_key(parent.run_id), b"{}")
    with pytest.raises(UsageError, match="cannot read the manifest"):
        resumed(cloud.objects, new, parent)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"code": {"key": "code/y.whl", "sha256": "y"}}, "the code .* has changed"),
        ({"lock_sha256": "z"}, "the locked packages have changed"),
        ({"job": with_setting("model.hidden", 7)}, "model.hidden was .*, now '7'"),
        ({"inputs": (replace(INPUT, sha256="2" * 64),)}, "the input data/a.csv has changed"),
        ({"inputs": (replace(INPUT, sha256="", version_id="v2"),)}, "the input data/a.csv has changed"),
        ({"inputs": (INPUT, replace(INPUT, path="data/b.csv"))}, "the input data/b.csv has changed"),
        ({"inputs": ()}, "the input data/a.csv has changed"),
    ],
)
def test_a_training_of_other_models_is_refused(changed, why):
    with pytest.raises(UsageError, match=f"run r1: .*others: {why}"):
        what_counts(training(), training(**changed), "run r1:")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"schedule": "cosine"}, r"now '99', on which the rate of each step depends \(cosine\)"),
        ({"refit": True}, "now '99', and its newest checkpoints are of a later stage"),
        ({"seeds": 2, "ensemble": True}, "now '99', and its newest checkpoints are of a later stage"),
    ],
)
def test_more_epochs_are_refused_with_the_reason(keys, why):
    before, now = (training(job=job_of(**keys, epochs=epochs).to_dict()) for epochs in (7, 99))
    with pytest.raises(UsageError, match=why):
        what_counts(before, now, "run r1:")


def test_more_epochs_go_on_from_a_finished_runs_checkpoints(ended):
    cloud, parent, keys, new = ended
    write_model(cloud.objects, keys)
    write_snapshot(cloud.objects, keys, 1, {"BTC-USD/a.pt": OLD})
    parent = replace(parent, outcome="done", error=None)
    swap_record(cloud.objects, parent, cloud.objects.stored[f"runs/{parent.run_id}/run.json"][-1].etag)
    assert read_parent(cloud.objects, parent.run_id, **HERE) == parent
    with pytest.raises(UsageError, match="nothing of it is left to do.*Raise train.epochs"):
        resumed(cloud.objects, new, parent)
    with pytest.raises(UsageError, match="it may have trained 15 epochs, this job asks for 7"):
        resumed(cloud.objects, new, parent, job=with_setting("train.epochs", 7))
    record = resumed(cloud.objects, new, parent, job=with_setting("train.epochs", 99))
    assert record.parent_counts == "checkpoints"
    start = first_start(cloud.objects, record)
    assert start.models == () and [file.path for file in start.files] == ["BTC-USD/a.pt"]


@pytest.mark.parametrize(
    "changed",
    [
        {"job": with_setting("train.checkpoint_seconds", 7.0)},
        {"job": with_setting("machine.budget", 7.0)},
        {"job": with_setting("expert.pack", 7)},
        {"inputs": (replace(INPUT, key="raw/other/a.csv"),)},
        {"inputs": (replace(INPUT, sha256=""),)},
        {"documents": {"gpu_profiles.json": {"a": 1}}},
    ],
)
def test_what_changes_no_model_may_differ(changed):
    assert what_counts(training(), training(**changed), "") == "all"


def test_a_script_does_not_continue_a_training():
    with pytest.raises(UsageError, match="it ran the trainer, this job runs the script"):
        what_counts(training(), manifest(), "run r1")


def searching(**search: Any) -> Manifest:
    """Return the manifest of a script's search, with its trials as planned."""
    table = {"over": {"rate": [0.1, 0.2]}, "method": "grid", "score": "loss:min", **search}
    script = {"script": {"command": "python train.py"}, "machine": {"max_duration": "1h"}}
    job = job_from({"name": "s", **script, "search": table})
    made = pieces_of(job, (), timeframe="")
    pieces = tuple(
        ManifestPiece(
            **vars(one),
            trial=piece.trial,
            values={key: text_of(value) for key, value in piece.values},
            estimate=1.0,
        )
        for one, piece in zip(recorded(made), made, strict=True)
    )
    return manifest(job=job.to_dict(), pieces=pieces)


TPE = {"method": "tpe", "trials": 4}


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        ({}, {"over": {"rate": [0.2, 0.1]}}, "t1 had rate = 0.1, now rate = 0.2"),
        ({"over": {"rate": [1, 2, 3]}}, {"over": {"rate": [1, 3]}}, "t2 had rate = 2, now rate = 3"),
        (TPE, {**TPE, "over": {"rate": [0.1, 0.3]}}, "search.over has changed"),
        (TPE, {**TPE, "method": "grid", "trials": 0}, "search.method has changed"),
        ({}, {"score": "auc:max"}, "search.score has changed"),
    ],
)
def test_a_search_of_other_trials_is_refused(before, now, why):
    """Trials are told by number: one that ended, or its checkpoints, would be taken for another one's."""
    with pytest.raises(UsageError, match=f"its trials would become others: {why}"):
        what_counts(searching(**before), searching(**now), "run r1:")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({}, {"over": {"rate": [0.1, 0.2, 0.3]}}),
        (TPE, {**TPE, "trials": 9, "within": "1h", "dollars": 3.0, "prune": "halving"}),
    ],
)
def test_a_search_of_more_trials_goes_on(before, now):
    assert what_counts(searching(**before), searching(**now), "") == "all"


def test_a_script_may_begin_or_end_to_search():
    """Trials are named t1, t2, ..., values by themselves: what counts is of the same piece."""
    script = {"script": {"command": "python train.py"}, "machine": {"max_duration": "1h"}}
    plain = manifest(job=job_from({"name": "s", **script}).to_dict())
    assert what_counts(plain, searching(), "") == what_counts(searching(), plain, "") == "all"


def test_a_parent_that_s3_does_not_return_is_asked_for_again(ended):
    """An error of another kind would end the new run before it has a machine."""
    cloud, parent, keys, new = ended
    write_model(cloud.objects, keys)
    record = resumed(cloud.objects, new, parent)
    del cloud.objects.stored[record_key(parent.run_id)]
    with pytest.raises(RecordMissing):
        first_start(cloud.objects, record)


def test_a_first_start_is_written_once(ended):
    cloud, parent, keys, new = ended
    write_model(cloud.objects, keys)
    record = resumed(cloud.objects, new, parent)
    first = first_start(cloud.objects, record)
    write_model(cloud.objects, keys, "ETH-USD")
    assert first_start(cloud.objects, record) == first
    assert len(cloud.objects.stored[start_key(CHILD, 1)]) == 1
