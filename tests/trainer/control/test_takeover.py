"""The takeover of a prepare run's files, whose node runs a script of the user's: nothing that can't be
verified.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.manifests import manifest
from tests.records import intent
from tests.trainer.control.conftest import MemoryObjects
from trainer.base.errors import DataError
from trainer.base.strict_json import Unsound
from trainer.control import takeover
from trainer.control.settle import Settled, settle_run
from trainer.control.takeover import take_over
from trainer.launch.inputs import list_inputs
from trainer.runs.attempts import Attempt
from trainer.runs.keys import NodeKeys
from trainer.runs.manifest import ManifestInput
from trainer.runs.record import RunRecord
from trainer.runs.record_json import to_json
from trainer.runs.reports import read_result
from trainer.runs.store import manifest_key

FILE, BODY = "BTC-USD_1m_2026.parquet", b"bars of a week"
SHA256 = hashlib.sha256(BODY).hexdigest()
INDEX = {
    "timeframe": "1m",
    "synthetic": False,
    "further": [],
    "holds": [
        {"symbol": "BTC-USD", "bars": 10_080, "first": "2026-11-15T00:00:00Z", "last": "2026-11-21T23:59:00Z"}
    ],
}


class PreparedRun:
    """A prepare run that has ended, with what its node left in a bucket."""

    def __init__(self, objects: MemoryObjects, record: RunRecord) -> None:
        (self.keys,) = record.nodes
        self.objects, self.record = objects, record
        self.files: list[dict[str, Any]] = []
        self.pins: list[ManifestInput] = []
        self.unchecked: list[str] = []
        objects.write(self.keys.result, b"{}")

    def add(self, file: str = FILE, body: bytes = BODY, *, checksum: str | None = None) -> None:
        """Put a file where a node puts it, and report it."""
        sha256 = hashlib.sha256(body).hexdigest()
        self.write(f"{self.keys.files}{file}", body, sha256 if checksum is None else checksum)
        self.index(sha256)
        self.files.append({"file": file, "sha256": sha256, "bytes": len(body), "added": True})

    def index(self, sha256: str = SHA256, **changed: Any) -> None:
        self.objects.write(f"{self.keys.index}{sha256}.json", json.dumps(INDEX | changed).encode())

    def write(self, key: str, body: bytes, checksum: str = "") -> str:
        self.objects.write(key, body)
        self.objects.stored[key][-1] = replace(
            self.objects.stored[key][-1], checksum=checksum, sha256=checksum
        )
        return self.objects.stored[key][-1].version_id

    def there_before(
        self, file: str = FILE, body: bytes = BODY, *, indexed: bool = False, **reported: Any
    ) -> None:
        """Put a file in the set as `aws s3 cp` does, and report that the node looked at it."""
        version = self.write(f"raw/main/{file}", body)
        key, path = f"raw/main/{file}", f"data/{file}"
        self.pins.append(ManifestInput(path=path, key=key, version_id=version, sha256="", bytes=1))
        self.unchecked += [] if indexed else [file]
        pinned = manifest(inputs=tuple(self.pins), documents={"unchecked.json": self.unchecked})
        self.objects.write(manifest_key(self.record.run_id), to_json(pinned))
        sha256 = hashlib.sha256(body).hexdigest()
        self.index(sha256)
        self.files.append({"file": file, "sha256": sha256, "bytes": len(body), "added": False} | reported)

    def taken(self) -> str:
        body = json.dumps({"state": "done", "files": self.files}).encode()
        files = read_result(body, models_prefix=self.keys.models).files
        return take_over(self.objects, self.record, {"files": files})

    @property
    def set(self) -> list[str]:
        return [key for key in self.objects.stored if key.startswith("raw/")]

    def refused(self, why: str) -> None:
        """Check that nothing of it is taken, with this reason."""
        before, index = self.set, [key for key in self.objects.stored if key.startswith("raw-index/")]
        with pytest.raises((DataError, Unsound), match=why):
            self.taken()
        assert (
            self.set == before
            and [key for key in self.objects.stored if key.startswith("raw-index/")] == index
        )


@pytest.fixture
def run(make_cloud: Callable[..., Any], make_record: Callable[..., RunRecord]) -> PreparedRun:
    record = make_record(
        work="prepare",
        leaves="candles",
        job={"name": "weekly", "data": {"set": "main", "symbols": [], "stale": "train"}},
    )
    launch = intent(instance_ids=("i-1",))
    cloud, _ = make_cloud()
    return PreparedRun(cloud.objects, replace(record, attempts=(Attempt(number=1, launches=(launch,)),)))


def test_new_files_join_the_set_once(run: PreparedRun) -> None:
    run.add()
    run.index(file="another.parquet", note="whatever else a node writes")
    run.add("ETH-USD_1m_2026.parquet", b"other bars")
    assert run.taken() == "2 new files, 20,160 bars"
    assert run.taken() == "2 new files, 20,160 bars"
    assert run.set == [f"raw/main/{FILE}", "raw/main/ETH-USD_1m_2026.parquet"]
    first, second = list_inputs(run.objects, "main")
    assert first.key == f"raw/main/{FILE}"
    assert first.sha256 == SHA256
    assert first.bytes == len(BODY)
    assert first.summary["holds"] == INDEX["holds"]
    assert first.summary.keys() == {*INDEX, "file", "bytes", "sha256", "told"}
    assert (first.summary["file"], first.summary["sha256"]) == (FILE, SHA256)
    assert all(len(items) == 1 for key, items in run.objects.stored.items() if key.startswith("raw/"))
    assert second.summary


def test_new_values_of_a_side_series_join_the_set(run: PreparedRun) -> None:
    run.add("fear.side.2026-11.csv", b"time,value")
    run.index(hashlib.sha256(b"time,value").hexdigest(), timeframe="", holds=[], further=["value"])
    assert run.taken() == "1 new file, 0 bars" and run.set == ["raw/main/fear.side.2026-11.csv"]
    run.add("BTC-USD_1m_2027.parquet", b"more")
    run.index(hashlib.sha256(b"more").hexdigest(), holds=[])
    run.refused("no data check wrote it")


def test_an_index_entry_is_of_what_the_job_tells(run: PreparedRun) -> None:
    job = {**run.record.job, "data": {**run.record.job["data"], "columns": ["time=at:s", "funding"]}}
    run.record = replace(run.record, job=job)
    run.add()
    run.index(told=["time=at:ms"])  # whatever the node says
    run.taken()
    assert not list_inputs(run.objects, "main")[0].summary
    (item,) = list_inputs(run.objects, "main", ["time=at:s"])
    assert item.summary["told"] == ["time=at:s"]


def test_files_of_other_means_are_found_by_hash_from_then_on(run: PreparedRun) -> None:
    run.there_before()
    assert list_inputs(run.objects, "main")[0].summary == {}
    assert run.taken() == "1 checked"
    (item,) = list_inputs(run.objects, "main")
    assert (item.sha256, item.summary["holds"]) == (SHA256, INDEX["holds"])


def test_no_file_is_no_change(run: PreparedRun) -> None:
    assert run.taken() == "no new files" and run.set == []


@pytest.mark.parametrize(
    "file",
    [
        "../../retrains/weekly.json",
        "/etc/passwd",
        "a/b.parquet",
        "..",
        ".hidden.parquet",
        "a\\b.csv",
        "a\n.csv",
        "x" * 201,
    ],
)
def test_a_name_that_leads_elsewhere_is_no_result(run: PreparedRun, file: str) -> None:
    run.add()
    run.files[0]["file"] = file
    run.refused("file")


@pytest.mark.parametrize(
    ("reported", "why"),
    [
        ({"sha256": "ab" * 32}, "index entry|sha256"),
        ({"sha256": ""}, "no sha256"),
        ({"sha256": "../../x"}, "sha256"),
        ({"bytes": 13}, "13 were reported"),
        ({"bytes": 0}, "bytes"),
        ({"bytes": 6 * 2**30}, "bytes"),
        ({"file": "another.parquet"}, "not in the bucket"),
        ({"added": False}, "no such file to check"),
    ],
)
def test_a_report_that_the_bucket_does_not_bear_out_is_refused(
    run: PreparedRun, reported: dict[str, Any], why: str
) -> None:
    run.add()
    run.files[0] |= reported
    run.objects.write(manifest_key(run.record.run_id), to_json(manifest()))
    run.refused(why)


def test_the_hash_is_s3s_own_and_not_the_writers_word(run: PreparedRun) -> None:
    run.add(checksum="")
    key = f"{run.keys.files}{FILE}"
    run.objects.stored[key][-1] = replace(run.objects.stored[key][-1], sha256=SHA256)  # as its metadata says
    run.refused("its sha256 is unknown to S3")
    run.write(key, b"other bars too", hashlib.sha256(b"other bars too").hexdigest())
    run.refused("was reported")


@pytest.mark.parametrize(
    "holds",
    [
        [{"symbol": "../../x", "bars": 1, "first": "", "last": ""}],
        [{"symbol": "BTC-USD", "bars": -1, "first": "", "last": ""}],
        [{"symbol": "BTC-USD", "bars": "many", "first": "", "last": ""}],
        [],
        "BTC-USD",
    ],
)
def test_an_index_entry_that_no_data_check_wrote_is_refused(run: PreparedRun, holds: Any) -> None:
    run.add()
    run.index(holds=holds)
    run.refused("index entry .* can't be used")


@pytest.mark.parametrize("body", [b"", b"[1]", b"{" * 100_000, b'{"holds": 1e999}'])
def test_an_index_entry_that_is_none_is_refused(run: PreparedRun, body: bytes) -> None:
    run.add()
    run.objects.write(f"{run.keys.index}{SHA256}.json", body)
    run.refused("index entry .* can't be used")


def test_a_file_of_the_set_is_never_replaced(run: PreparedRun) -> None:
    run.write(f"raw/main/{FILE}", b"bars that somebody trusts")
    run.add("ETH-USD_1m_2026.parquet", b"other bars")
    run.add()
    run.refused("the set has a file of that name, with other bytes")
    (there,) = run.objects.stored[f"raw/main/{FILE}"]
    assert there.body == b"bars that somebody trusts"


def test_a_false_hash_of_a_file_that_the_set_had_is_found_out(run: PreparedRun) -> None:
    run.there_before(sha256="ab" * 32)
    run.index("ab" * 32)
    run.refused("was reported")


def test_a_file_too_large_to_hash_is_uploaded_again(
    run: PreparedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.control.takeover.MOST_HASHED_BYTES", 1)
    run.there_before()
    run.refused("was not hashed .* Upload it again with aws s3 cp --checksum-algorithm SHA256")


def test_a_file_that_was_indexed_before_is_none_to_look_at(run: PreparedRun) -> None:
    run.there_before(indexed=True)
    run.refused("no such file to check")


def test_limits_hold_before_anything_is_read(run: PreparedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run.add()
    run.add("ETH-USD_1m_2026.parquet", b"other bars")
    monkeypatch.setattr(takeover, "MOST_ADDED_FILES", 1)
    run.refused("1 files of each kind and 2 GiB are the most")
    monkeypatch.undo()
    monkeypatch.setattr(takeover, "MOST_ADDED_BYTES", 20)
    run.refused("the prepare run reports 2 files")
    monkeypatch.undo()
    monkeypatch.setattr(takeover, "MOST_INDEX_BYTES", 2 * len(json.dumps(INDEX)) - 1)
    run.refused("entries take more than")


def test_two_files_of_one_name_are_no_result(run: PreparedRun) -> None:
    run.add()
    run.files *= 2
    run.refused("names a file twice")


def test_what_another_instance_wrote_is_not_read(run: PreparedRun) -> None:
    run.add()
    stranger = NodeKeys(role_id="AROA1", instance_id="i-2", run_id=run.record.run_id, attempt=1)
    for key in list(run.objects.stored):
        if key.startswith(run.keys.folder):
            run.objects.stored[key.replace(run.keys.folder, stranger.folder)] = run.objects.stored.pop(key)
    run.refused("is gone")


def test_a_prepare_run_that_lost_its_machine_goes_on(make_cloud: Callable[..., Any]) -> None:
    """Control replaces the machine, and the set gets what the second one left, once."""
    job = {"name": "weekly", "data": {"set": "main", "stale": "skip"}}
    cloud, record = make_cloud(driver="control", work="prepare", leaves="candles", pieces=(), job=job)
    cloud.losses = {1: (timedelta(seconds=90), "Server.InternalError")}
    cloud.node_works = False

    def settled() -> Settled:
        cloud.sleep(120)
        return settle_run(cloud, record.run_id, starts="control")

    first = settled().look.record
    lost = PreparedRun(cloud.objects, first)
    lost.add(body=b"half of them")  # it had begun to send them
    del cloud.objects.stored[lost.keys.result]
    while len(cloud.machines) < 2:
        settled()
    second = settled().look.record
    assert (second.state, second.attempt.number if second.attempt else 0) == ("running", 2)
    left = PreparedRun(cloud.objects, second)
    left.add()
    cloud.objects.write(left.keys.result, json.dumps({"state": "done", "files": left.files}).encode())
    cloud.end("i-0001", "Client.InstanceInitiatedShutdown")
    while (closed := settled()).receipt is None:
        pass
    receipt = closed.receipt
    assert (receipt["state"], receipt["error"]) == ("done", None)
    assert [attempt["cause"] for attempt in receipt["attempts"]] == ["lost", ""]
    assert take_over(cloud.objects, closed.look.record, receipt) == "1 new file, 10,080 bars"
    assert cloud.objects.body(f"raw/main/{FILE}") == BODY and len(cloud.fleets) == 2


def test_an_unreadable_manifest_of_checked_files_takes_nothing(run: PreparedRun) -> None:
    run.there_before()
    for body in (b"{}", b'{"format": 5}', b"spoiled"):  # the second: of an earlier version
        run.objects.write(manifest_key(run.record.run_id), body)
        with pytest.raises(DataError, match="cannot read the manifest of the prepare run"):
            run.taken()
    del run.objects.stored[manifest_key(run.record.run_id)]
    with pytest.raises(DataError, match="cannot read the manifest of the prepare run"):
        run.taken()
