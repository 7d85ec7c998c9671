"""Records, receipts, index, entries and publications with any one field lost or replaced: refused in one
line, or as good as sound. Whatever reads them ends with an error of ours at worst.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from tests.jobs import job_of
from tests.records import launched
from tests.retrains import RETRAINS
from tests.trainer.aws.test_stack_outputs import OUTPUTS
from tests.trainer.control.test_takeover import PreparedRun
from tests.trainer.retrains.test_decision import PUBLISHED
from trainer.base.errors import ConfigError, TrainerError
from trainer.cli.verbs.receipts import receipts_table
from trainer.cli.verbs.status import _detail, _shown, runs_shown, runs_table
from trainer.cli.views.drawing import drawn
from trainer.cli.views.receipt import receipt_view
from trainer.control.drive import drive, step
from trainer.control.learn import learn_boot
from trainer.control.retrain import advance
from trainer.control.retrain_home import RetrainHome
from trainer.control.settle import settle_all, settle_run
from trainer.retrains.entries import ScheduledRun, entry_key, prepare_run_id_of, run_id_of
from trainer.retrains.published import published_key, read_published, verified_job
from trainer.retrains.summary import end_summary, scheduled_summary
from trainer.runs.index import INDEX_KEY
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.record import RunRecord
from trainer.runs.record_json import to_json
from trainer.runs.reports import read_result
from trainer.runs.store import receipt_key, record_key
from trainer.runs.stored_receipt import read_receipt

AT = datetime.fromisoformat("2026-11-22T03:00:00Z")
LOST: Any = object()
OTHERS = (LOST, None, "", "../x", -1, 1e308, True, [], [None], {}, {"": None})


def forged(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield the document with each of its parts, at any depth, lost or of another type."""
    for path in _paths(document):
        for other in OTHERS:
            changed = copy.deepcopy(document)
            parent = changed
            for key in path[:-1]:
                parent = parent[key]
            if other is LOST:
                del parent[path[-1]]
            else:
                parent[path[-1]] = other
            yield f"{'.'.join(map(str, path))} -> {'lost' if other is LOST else other!r}", changed


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    )
    for key, item in pairs:
        yield (*path, key)
        yield from _paths(item, (*path, key))


def hold(cloud: Any, key: str, read: Callable[[], object]) -> None:
    """Read each forgery of a stored document; only errors of ours may come."""
    before = {name: list(items) for name, items in cloud.objects.stored.items()}
    clock, problems = cloud.clock, {}
    for what, document in forged(json.loads(cloud.objects.body(key))):
        cloud.objects.write(key, json.dumps(document).encode())
        try:
            with suppress(TrainerError):
                read()
        except Exception as error:  # that is what is looked for
            problems[what] = repr(error)[:200]
        cloud.objects.stored = {name: list(items) for name, items in before.items()}
        cloud.clock = clock
    assert not problems


def look(cloud: Any, run_id: str) -> None:
    """Do with a run what control, status and receipts do."""
    drawn(runs_table(runs_shown(cloud)[0]))
    settle_all(cloud, starts="control")
    settled = settle_run(cloud, run_id)
    drawn(_detail(_shown(settled, cloud.now()), 0))
    show(cloud, run_id)


def show(cloud: Any, run_id: str) -> None:
    receipt = read_receipt(cloud.objects, run_id)
    if receipt is not None:
        drawn(receipt_view(receipt, 30))
        drawn(receipts_table([receipt]))
        learn_boot(cloud.objects, receipt)
        end_summary(receipt)
        entry = ScheduledRun(retrain="weekly", scheduled_at=AT, began_at=AT, updated_at=AT, state="done")
        scheduled_summary(entry, None, receipt, receipt, 0.0)


@pytest.fixture
def ended(make_cloud: Callable[..., Any]) -> tuple[Any, str]:
    cloud, record = make_cloud()
    drive(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    return cloud, record.run_id


@pytest.mark.nightly
def test_a_forged_record_or_receipt_of_a_closed_run(ended: tuple[Any, str]) -> None:
    cloud, run_id = ended
    for key in (record_key(run_id), receipt_key(run_id)):
        hold(cloud, key, lambda: look(cloud, run_id))


@pytest.mark.nightly
def test_a_forged_record_or_index_of_an_open_run(make_cloud: Callable[..., Any]) -> None:
    cloud, record = make_cloud()
    while step(cloud, record.run_id).record.state != "running":
        cloud.sleep(5)
    cloud.sleep(60)
    for key in (record_key(record.run_id), INDEX_KEY):
        hold(cloud, key, lambda: look(cloud, record.run_id))


@pytest.fixture
def scheduled(make_cloud: Callable[..., Any], make_record: Callable[..., RunRecord]) -> Any:
    """Return a scheduled time whose prepare run has ended: it added a file, and checked another."""
    cloud, _ = make_cloud()
    home = RetrainHome(access=None, outputs=replace(OUTPUTS, retrains=RETRAINS), cloud=cloud, publish=print)  # type: ignore[arg-type]
    entry = ScheduledRun(
        retrain="weekly",
        scheduled_at=AT,
        began_at=AT,
        updated_at=AT,
        state="preparing",
        prepare_run_id=prepare_run_id_of("weekly", AT),
    )
    job = {"name": "weekly", "data": {"set": "main", "stale": "skip"}}
    run = PreparedRun(
        cloud.objects,
        make_record(
            run_id=entry.prepare_run_id,
            work="prepare",
            leaves="candles",
            pieces=(),
            job=job,
            attempts=launched(),
            state="closed",
            outcome="done",
            closed_at=AT,
        ),
    )
    run.add()
    run.there_before("ETH-USD_1m.parquet")
    body = json.dumps({"state": "done", "files": run.files}).encode()
    result = read_result(body, models_prefix=run.keys.models)
    receipt = make_receipt(run.record, Observation(result=result, models=()))
    cloud.objects.write(record_key(entry.prepare_run_id), to_json(run.record))
    cloud.objects.write(receipt_key(entry.prepare_run_id), json.dumps(receipt).encode())
    cloud.objects.write(entry_key("weekly", AT), to_json(entry))
    return cloud, home, entry


@pytest.mark.nightly
def test_a_forged_run_before_a_scheduled_one(scheduled: Any) -> None:
    cloud, home, entry = scheduled
    assert "1 new file" in advance(home, entry).refreshed
    cloud.objects.write(entry_key("weekly", AT), to_json(entry))
    for key in (record_key(entry.prepare_run_id), receipt_key(entry.prepare_run_id), entry_key("weekly", AT)):
        hold(cloud, key, lambda: advance(home, entry))


def test_a_run_of_other_work_is_no_prepare_run(scheduled: Any) -> None:
    cloud, home, entry = scheduled
    for key in (record_key(entry.prepare_run_id), receipt_key(entry.prepare_run_id)):
        stored = json.loads(cloud.objects.body(key))
        cloud.objects.write(
            key,
            json.dumps({**stored, "work": "train", **({"files": []} if "files" in stored else {})}).encode(),
        )
        ended = advance(home, entry)
        assert ended.state == "failed" and "is not a prepare run" in str(ended.error)
        cloud.objects.write(key, json.dumps(stored).encode())
        cloud.objects.write(entry_key("weekly", AT), to_json(entry))


def test_a_forged_receipt_of_a_scheduled_run(ended: tuple[Any, str], scheduled: Any) -> None:
    (cloud, run_id), (_, home, entry) = ended, scheduled
    training = replace(entry, state="training", prepare_run_id="", run_id=run_id_of("weekly", AT))
    body = cloud.objects.body(receipt_key(run_id)).replace(run_id.encode(), training.run_id.encode())
    for key, items in list(cloud.objects.stored.items()):  # its models, in the same versions
        cloud.objects.stored[key.replace(run_id, training.run_id)] = items
    cloud.objects.write(receipt_key(training.run_id), body)
    cloud.objects.write(entry_key("weekly", AT), to_json(training))
    home = replace(home, cloud=cloud)
    hold(cloud, receipt_key(training.run_id), lambda: advance(home, training))


def test_a_forged_publication(make_cloud: Callable[..., Any]) -> None:
    cloud, _ = make_cloud()
    jobs = (job_of(name="weekly").to_dict(), script_job())
    for job in jobs:
        publish(cloud, job, script=b"")
        hold(cloud, published_key("weekly"), lambda: read_published(cloud.objects, "weekly"))

        for _, document in forged(job):
            publish(cloud, document, script=b"")
            with suppress(TrainerError):
                verified_job(cloud.objects, read_published(cloud.objects, "weekly")[0])  # type: ignore[index]


def script_job() -> dict[str, Any]:
    return {"name": "weekly", "script": {"command": "python train.py"}, "machine": {"max_duration": "1h"}}


def publish(cloud: Any, job: Any, *, script: bytes) -> None:
    """Publish a job, of a script if there is any of it."""
    body, code = json.dumps(job).encode(), b"code"
    hashes = [hashlib.sha256(item).hexdigest() for item in (body, code, script)]
    keys = [f"code/{hashes[0]}.json", f"code/{hashes[1]}.whl", f"code/{hashes[2]}.json"]
    for key, item in zip(keys, (body, code, script), strict=True):
        cloud.objects.write(key, item)
    published = replace(
        PUBLISHED,
        **dict(
            zip(("job_sha256", "code_sha256", "job_key", "code_key"), (*hashes[:2], *keys[:2]), strict=True)
        ),
        script_key=keys[2] if script else "",
        script_sha256=hashes[2] if script else "",
    )
    cloud.objects.write(published_key("weekly"), to_json(published))


def test_a_published_script_without_its_files_is_refused(make_cloud: Callable[..., Any]) -> None:
    cloud, _ = make_cloud()
    for job, script in ((script_job(), b""), (job_of(name="weekly").to_dict(), b"{}")):
        publish(cloud, job, script=script)
        retrain, _ = read_published(cloud.objects, "weekly")  # type: ignore[misc]
        with pytest.raises(ConfigError, match="cannot read the job of retrain weekly.*script"):
            verified_job(cloud.objects, retrain)
