"""What the next attempt of several nodes begins with."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.pieces import named
from tests.records import at, created, seen
from tests.trainer.control.conftest import write_snapshot
from tests.trainer.control.test_carry import carried, digest, start_of, tell, write_model
from trainer.control.carry import carry, write_ids
from trainer.runs.attempts import Attempt
from trainer.runs.store import start_key


@pytest.fixture
def lost_nodes(make_cloud):
    """A run of three nodes whose attempt is lost, its objects, and the keys of the nodes: i-2 is the head."""
    launch = created(instance_ids=("i-2", "i-1", "i-3"), token="t1")
    first = Attempt(number=1, launches=(launch,), created_at=at(5), ended_at=at(60), cause="lost")
    gone = tuple(seen(instance_id=f"i-{number}") for number in (1, 2, 3))
    cloud, record = make_cloud(state="recovering", attempts=(first,), instances=gone, num_nodes=3)
    carry(cloud.objects, record, 1)
    return cloud.objects, record, record.nodes


def test_each_piece_goes_on_where_its_last_node_was(lost_nodes):
    objects, record, (head, second, third) = lost_nodes
    tell(objects, head, 50, BTC_USD="training", ETH_USD="waiting")
    tell(objects, second, 20, BTC_USD="waiting", ETH_USD="training")  # lost; the third took over
    tell(objects, third, 55, BTC_USD="waiting", ETH_USD="training")
    btc, eth = (piece.model for piece in record.pieces)
    write_snapshot(objects, head, 1, {f"{btc}/10/a": b"head", f"{eth}/0/a": b"as it began"})
    write_snapshot(objects, second, 4, {f"{eth}/90/a": b"lost", f"{btc}/0/a": b"as it began"})
    write_snapshot(objects, third, 1, {f"{eth}/80/a": b"third, before"})
    write_snapshot(objects, third, 2, {f"{eth}/95/a": b"third"})
    start = carried(objects, record)
    assert {file.path: file.sha256 for file in start.files} == {
        f"{btc}/10/a": digest(b"head"),
        f"{eth}/95/a": digest(b"third"),
    }
    assert len(start.objects) == 2 and start.sent == {"snapshots": 6, "objects": 9, "bytes": 30}
    # A later step of the same training is further, whoever reported last.
    write_snapshot(objects, second, 5, {f"{eth}/96/a": b"lost, late", f"{btc}/0/a": b"as it began"})
    del objects.stored[start_key(record.run_id, 2)]
    assert {file.path for file in carried(objects, record).files} == {f"{btc}/10/a", f"{eth}/96/a"}
    del objects.stored[second.snapshot(5)]
    # One whose snapshot does not verify leaves its piece to the others' copies.
    del objects.stored[third.snapshot_data(20)], objects.stored[third.snapshot_data(10)]
    del objects.stored[start_key(record.run_id, 2)]
    assert {file.path for file in carried(objects, record).files} == {f"{btc}/10/a", f"{eth}/90/a"}


def test_the_parts_of_one_model_come_from_all_nodes(lost_nodes):
    objects, record, (head, second, third) = lost_nodes
    record = replace(record, one_model=True)
    for number, keys in enumerate((head, second, third)):
        write_snapshot(objects, keys, 1, {f"m/10/rank-{number}": b"%d" % number, "m/10/manifest.json": b"{}"})
    files = {file.path: file.sha256 for file in carried(objects, record).files}
    parts = {f"m/10/rank-{number}": digest(b"%d" % number) for number in range(3)}
    assert files == {**parts, "m/10/manifest.json": digest(b"{}")}


def test_parts_of_nodes_that_do_not_fit_together_are_left_out(lost_nodes):
    """A start file that its readers refuse would leave the run in `starting` for good."""
    objects, record, (head, second, third) = lost_nodes
    record = replace(record, one_model=True)
    write_snapshot(objects, head, 1, {"m/10": b"a file", "other/1": b"1"})
    write_snapshot(objects, second, 1, {"m/10/part": b"a folder"})
    write_snapshot(objects, third, 1, {"m/10/more": b"in it"})
    assert {file.path for file in carried(objects, record).files} == {"other/1"}


def test_files_beyond_what_a_start_file_takes_are_left_out(lost_nodes, monkeypatch):
    objects, record, (head, second, third) = lost_nodes
    for module in ("control.carry", "runs.start_file"):
        monkeypatch.setattr(f"trainer.{module}.MOST_FILES", 5)
    for name, keys in (("a", head), ("b", second), ("c", third)):
        write_snapshot(objects, keys, 1, {f"{name}/{number}": name.encode() for number in range(2)})
    paths = {file.path for file in carried(objects, record).files}
    assert paths == {"a/0", "a/1", "b/0", "b/1"}


def test_models_of_all_nodes_are_finished_and_failures_stay(lost_nodes):
    objects, record, (head, second, third) = lost_nodes
    tell(objects, head, 50, BTC_USD="waiting", ETH_USD="waiting")
    tell(objects, third, 50, ETH_USD="failed")
    write_model(objects, second, "BTC-USD")  # it was lost after this
    unfinished = {**named("ETH-USD"), "reason": "the run ended before it was done"}
    failed = {**unfinished, "reason": "loss is NaN"}
    for keys, entries in ((head, [unfinished]), (third, [failed])):
        objects.write(keys.result, json.dumps({"state": "stopped", "failed": entries}).encode())
    start = carried(objects, record)
    assert [model["piece"] for model in start.models] == ["BTC-USD"]
    assert [(one["piece"], one["reason"]) for one in start.failed] == [("ETH-USD", "loss is NaN")]


def test_who_names_the_nodes_gives_their_token_once(lost_nodes):
    objects, record, nodes = lost_nodes
    ids, addresses = record.working_ids, ("10.0.0.2", "10.0.0.1", "10.0.0.3")
    write_ids(objects, record.run_id, 1, ids, addresses, nodes)
    assert start_of(objects, record, 1).addresses == addresses
    assert len({objects.body(keys.token) for keys in nodes}) == 1
    for keys in nodes:  # another caller closed the run
        del objects.stored[keys.token]
    write_ids(objects, record.run_id, 1, ids, addresses, nodes)  # by one that slept since its look
    assert not any(keys.token in objects.stored for keys in nodes)
