"""The start file: ours is read as written, and every crafted one is one error."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.pieces import named
from trainer.base.strict_json import Unsound
from trainer.runs.reports import MOST_MODELS, MOST_RESULT_BYTES
from trainer.runs.snapshots import SnapshotFile
from trainer.runs.start_file import MOST_START_BYTES, CarriedObject, StartFile, read_start, start_to_json
from trainer.runs.store import carried_key, start_key

RUN, HASH, OTHER = "20261121-080000-r-1", "ab" * 32, "cd" * 32
EARLIER = f"models/experiments/AROA:i-1/{RUN}/1/"
MODEL = {
    **named("AAA"),
    "family": "lstm",
    "target": "direction",
    "key": f"{EARLIER}lstm-direction_AAA_1d.safetensors",
    "version_id": "v1",
    "sha256": HASH,
    "metrics": {},
}
SCRIPT = {
    **named("BBB"),
    "values": {"symbol": "BBB"},
    "sha256": "",
    "done": True,
    "exit_code": 0,
    "starts": 1,
    "best": {},
    "seconds": 3.0,
    "last_lines": [],
    "notes": [],
}
OUTPUT = {"file": "a/b.csv", "key": f"{EARLIER}out/{HASH}", "version_id": "v2", "sha256": HASH, "bytes": 5}
OBJECT = CarriedObject(sha256=HASH, size=10, key=carried_key(RUN, 2, HASH), version_id="v3")
FILE = SnapshotFile(path="a/.metadata", size=4, sha256=OTHER, object=HASH, offset=6)
START = StartFile(
    run_id=RUN,
    attempt=2,
    finished=(MODEL, SCRIPT),
    outputs=(OUTPUT,),
    objects=(OBJECT,),
    files=(FILE,),
    instances=("i-2",),
    failed=({**named("CCC"), "reason": "killed twice"},),
)


def read(body: bytes) -> StartFile:
    return read_start(body, run_id=RUN, attempt=2)


def test_a_start_file_holds_the_models_of_the_largest_run():
    """A machine that is lost with the last of 20,000 models left: the next one begins with all others."""
    metrics = {"test": {f"score {number}": number / 7 for number in range(125)}}
    models = tuple(
        {**MODEL, **named(f"S{number}"), "key": f"{EARLIER}lstm-direction_S{number}_1d.safetensors"}
        | {"metrics": metrics}
        for number in range(100)
    )
    body = start_to_json(replace(START, finished=models))
    told = len(json.dumps(models)) / len(models)
    assert 3_900 < told < 4_200, "as a model takes in a result"
    assert len(body) / len(models) * MOST_MODELS < MOST_START_BYTES
    assert told * MOST_MODELS < 1.05 * MOST_RESULT_BYTES
    assert len(read(body).models) == 100


def test_a_start_file_is_read_as_it_was_written():
    assert read(start_to_json(START)) == START
    assert START.pieces == ("AAA", "BBB") and START.over == ("AAA", "BBB", "CCC")
    assert [len(START.models), len(START.scripts)] == [1, 1]
    assert start_key(RUN, 2) == f"runs/{RUN}/attempts/2/start.json"


def test_several_nodes_know_each_other_by_their_order():
    two = replace(START, instances=("i-2", "i-1"), addresses=("10.0.0.4", "10.0.0.9"))
    assert read(start_to_json(two)) == two
    cluster = two.cluster_of("i-1")
    assert cluster is not None and (cluster.node, cluster.head, cluster.address) == (
        1,
        "10.0.0.4",
        "10.0.0.9",
    )
    assert two.cluster_of("i-3") is None and START.cluster_of("i-2") is None
    assert b"addresses" not in start_to_json(START)  # one node's file is as it was


def test_the_first_attempt_begins_with_nothing():
    empty = StartFile(run_id=RUN, attempt=1)
    assert read_start(start_to_json(empty), run_id=RUN, attempt=1) == empty


@pytest.mark.parametrize(
    ("crafted", "says"),
    [
        ({"format": 2}, "format 2"),
        ({"attempt": 1}, "not that of attempt 2"),
        ({"run_id": "another"}, "not that of attempt 2"),
        ({"instances": ["x"]}, "instances"),
        ({"instances": [""]}, "no instance"),
        ({"instances": ["i-2", "i-2"]}, "instance twice"),
        ({"addresses": ["10.0.0.1", "10.0.0.2"]}, "one address for each instance"),
        ({"instances": ["i-1", "i-2"], "addresses": ["10.0.0.1", "10.0.0.1"]}, "address twice"),
        ({"addresses": ["8.8.8.8"]}, "not the address of a private network"),
        ({"addresses": ["x"]}, "not an IPv4 address"),
        ({"finished": [MODEL, MODEL]}, "piece twice"),
        ({"failed": [{**named("AAA"), "reason": "x"}]}, "piece twice"),
        ({"failed": [{**named("CCC"), "reason": 5}]}, "reason"),
        ({"finished": [{**MODEL, "key": "models/production/lstm_A_1d.safetensors"}]}, "not a model's"),
        ({"finished": [{**MODEL, "key": f"{EARLIER}out/{HASH}"}]}, "not a model's"),
        ({"finished": [{**SCRIPT, "done": False}]}, "not done"),
        ({"outputs": [{**OUTPUT, "key": f"runs/{RUN}/run.json"}]}, "not that of its hash"),
        ({"objects": [{**vars(OBJECT), "key": carried_key(RUN, 1, HASH)}]}, "attempt's copy"),
        ({"objects": [{**vars(OBJECT), "version_id": ""}]}, "in a version"),
        ({"objects": [vars(OBJECT), vars(OBJECT)]}, "object twice"),
        ({"objects": []}, "outside the objects"),
        ({"files": [{**vars(FILE), "offset": 7}]}, "outside the objects"),
        ({"files": [{**vars(FILE), "path": "../x"}]}, "can't be used"),
        ({"files": [{**vars(FILE), "path": "/x"}]}, "can't be used"),
        ({"files": [vars(FILE), vars(FILE)]}, "file twice"),
        ({"files": [vars(FILE), {**vars(FILE), "path": "a"}]}, "file and a folder"),
    ],
)
def test_a_crafted_start_file_is_one_error(crafted: dict[str, object], says: str):
    body = json.dumps({**json.loads(start_to_json(START)), **crafted}).encode()
    with pytest.raises(Unsound, match=says):
        read(body)


def test_every_field_of_another_type_is_refused():
    for key in ("finished", "outputs", "objects", "files", "instances"):
        with pytest.raises(Unsound):
            read(json.dumps({**json.loads(start_to_json(START)), key: 7}).encode())


def test_ids_are_added_without_changing_the_rest():
    before = replace(START, instances=())
    assert replace(read(start_to_json(before)), instances=("i-2",)) == START
