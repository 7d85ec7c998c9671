"""Properties of any node JSON, receipt, record, plan, card and job file: it is read, or it is one error. By
hypothesis.

`tests/fuzz/test_properties.py` runs each a little, `scripts/fuzz --minutes 60` for as long as asked.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.candles import fewest
from tests.fuzz import bucket, candle_files, cards, data_files
from tests.fuzz.drawn import bodies, changed, is_shown
from tests.pieces import named
from tests.records import RUN, launched, make_record, piece, seen
from tests.trainer.control.conftest import MemoryCloud
from trainer.attach.host_keys import KINDS, parse_host_keys
from trainer.bars.document import read_plan
from trainer.base.errors import ConfigError, DataError, UsageError
from trainer.base.strict_json import Unsound, read_object
from trainer.base.symbols import path_flaw
from trainer.cli.parts import RunEvents
from trainer.cli.verbs import receipts as receipts_table
from trainer.cli.verbs import retrains, status
from trainer.cli.views.curves import curves_view
from trainer.cli.views.drawing import drawn
from trainer.cli.views.progress import picture
from trainer.cli.views.receipt import receipt_view
from trainer.control.progress import Step, progress_of
from trainer.job.model_names import is_model_file
from trainer.job.reading import job_from, job_from_json, load_job, parse_job
from trainer.launch.inputs import Input, choose, read_summary
from trainer.retrains.entries import ScheduledRun, entry_key, read_entry, run_id_of
from trainer.retrains.summary import scheduled_summary
from trainer.runs.lease import read_lease, silent
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.reconcile import reconcile
from trainer.runs.record_json import record_from_json, to_json
from trainer.runs.reports import heartbeat, read_outputs, read_result
from trainer.runs.snapshots import read_snapshot, snapshot_to_json
from trainer.runs.stored_receipt import receipt_from_json
from trainer.runs.training_events import EventReader
from trainer.train.observing.observe import points_of

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
PREFIX = f"models/experiments/AROA1:i-1/{RUN}/1/"
RECORD = make_record(
    pieces=(piece("A", model="lstm-direction_A_1m"), piece("B", model="lstm-direction_B_1m")),
    state="running",
    attempts=launched(),
    instances=(seen("running", running_seen_at=NOON),),
)
NAMES = [one.model for one in RECORD.pieces]
LEASE = {"instance_id": "i-1", "at": "2026-11-20T12:00:00Z", "lease_until": "2026-11-20T12:01:30Z"}
GPU = {"gpu": 0, "name": "NVIDIA L4", "use_percent": 97.0, "memory_used_mib": 20000.0, "power_watts": 70.5}
CPU = {"cores": 4, "use_percent": 25.0, "memory_used_mib": 2000.0, "memory_mib": 16000.0}
PROGRESS = {
    "phase": "train",
    "phases": {"boot": "2026-11-20T12:00:00Z"},
    "progress": {"A": {"state": "training", "epoch": 1, "epochs": 15, "step": 1, "steps": 9, "loss": 0.7}},
    "models_total": 2,
    "models_done": 1,
    "rate": 5.0,
    "unit": "windows",
    "message": "",
    "sample": {"at": "2026-11-20T12:00:00Z", "gpus": [GPU], "cpu": CPU, "note": ""},
    "data": {"bars": 5, "holes": 0, "synthetic": False},
    "durable": {"number": 3, "at": "2026-11-20T12:00:00Z", "lag_seconds": 41.5},
}
HOST_KEYS = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMSgeomQf8pgcv7CaIctmEu4kjdKdJLiEOwutp8jvpwM root@ip-10\n"
HASH = "ab" * 32
ABOUT = {
    "headline": "auc",
    "proper": ["auc"],
    "metrics": {"auc": {"title": "AUC", "better": "higher", "unit": ""}},
    "table": [{"title": "AUC", "value": ["auc"], "beside": ["baselines", "logistic", "auc"]}],
}
TRADED = ("net", "gross", "turnover", "exposure", "hold", "sharpe", "skew", "kurtosis", "fee", "slippage")
TEST = {
    "auc": 0.5,
    "n": 500,
    "cells": 30,
    "baselines": {"logistic": {"auc": 0.5}},
    "better": {"logistic": {"auc": {"gain": 0.01, "error": 0.02, "freedom": 5}}},
    "trading": {"bars": 500, **dict.fromkeys(TRADED, 0.1)},
}
SCRIPT = {**named("A"), "sha256": HASH, "exit_code": -9, "starts": 2, "seconds": 1.5}
SCRIPT |= {"last_lines": ["l"], "notes": ["n"], "done": True, "values": {"lr": "0.1"}}
SCRIPT |= {"best": {"metric": "mse", "value": 0.5, "better": "min"}}
RESULT = {
    "state": "failed",
    "exit_code": 100,
    "error": {"code": 100, "what": "w", "why": "y", "do": "d"},
    "models": [
        {
            **named("A"),
            "family": "lstm",
            "target": "direction",
            "key": f"{PREFIX}lstm-direction_A_1m.safetensors",
            "version_id": "v",
            "sha256": HASH,
            "metrics": {"about": ABOUT, "test": TEST},
        }
    ],
    "failed": [{**named("B"), "reason": "r"}],
    "retries": 1,
    "phases": {"boot": "2026-11-20T12:00:00Z", "end": "2026-11-20T12:10:00Z"},
    "data": {"files": [{"file": "a", "bars": 5}], "bars": 5, "holes": 0, "synthetic": False},
    "devices": {"expected": 1, "found": 1, "kind": "cuda", "note": ""},
    "python_packages": "node lock",
    "files": [{"file": "A_1m.csv", "sha256": HASH, "bytes": 5, "added": True}],
    "scripts": [
        SCRIPT,
        {**SCRIPT, **named("C")},
        {**SCRIPT, **named("A 1"), "trial": 1, "end": "done", "epochs": 3},
    ],
    "checkpoints": {"snapshots": 1, "objects": 2, "bytes": 3, "usd": 0.1},
}
OUTPUT = {"file": "a/m.pt", "key": f"{PREFIX}out/{HASH}", "version_id": "v", "sha256": HASH, "bytes": 5}
JOB: dict[str, Any] = {
    "name": "crypto",
    "data": {"symbols": ["A"], "timeframe": "1m", "folds": 2, "test_fraction": 0.1},
    "model": {"name": "tcn", "width": 64},
    "target": {"name": "direction", "horizon": 5},
    "train": {"epochs": 3, "batch": 256, "learning_rate": 0.001},
    "machine": {"instance": ["g6.xlarge"], "budget": 5.0, "max_duration": "2h"},
}


EVENT = {"time": "2026-11-20T12:00:00.000+00:00", "model": "lstm-direction_BTC-USD_1m", "piece": "BTC-USD"}
EPOCH = {"event": "epoch", **EVENT, "epoch": 1, "train_loss": 0.7, "validation_loss": 0.6}
COUNTS = {"step": 3, "steps": 9, "loss": 0.7, "rate": 5.5}
SCRIPT_STEP = {"event": "script", **EVENT, **COUNTS, "values": {"a b/c": 0.5}}
STEP = {"event": "progress", **EVENT, "epoch": 1, "epochs": 2, **COUNTS, "worker": 0}
DONE = {"event": "model_done", **EVENT, "metrics": {"test": {"auc": 0.53}, "validation": {"auc": 0.5}}}


@given(bodies(LEASE))
def lease_is_read_or_refused(body: bytes) -> None:
    try:
        lease = read_lease(body, NOON)
    except Unsound:
        return
    assert silent(launched_at=NOON, lease_until=lease.lease_until, now=NOON + timedelta(hours=1))


@given(bodies(PROGRESS))
def progress_is_shown_or_refused(body: bytes) -> None:
    lease = read_lease(json.dumps(LEASE).encode(), NOON)
    try:
        beat = heartbeat(lease, body)
    except Unsound:
        return
    look = Step(record=RECORD, observed=Observation(heartbeat=beat), actions=(), moved=False)
    progress = progress_of(look, NOON)
    shown = status._of_progress(progress, NOON)
    table = status.runs_table([shown])
    for view in (status._detail(shown, 0), table, picture(progress, seconds=9)):
        _printable(drawn(view, width=80).splitlines())
    reconcile(RECORD, look.observed, NOON)


@given(st.integers(0, len(HOST_KEYS)), st.integers(0, 9), st.binary(max_size=40))
def host_keys_pin_a_machine_or_nothing(at: int, gone: int, new: bytes) -> None:
    for key in parse_host_keys(HOST_KEYS[:at] + new + HOST_KEYS[at + gone :]):
        assert key.kind in KINDS and key.blob[4 : 4 + len(key.kind)] == key.kind.encode()


@given(bodies(RESULT))
def result_makes_a_receipt_that_is_readable_or_is_refused(body: bytes) -> None:
    try:
        result = read_result(body, models_prefix=PREFIX, names=NAMES)
    except Unsound:
        return
    observed = Observation(result=result, models=())
    reconcile(RECORD, observed, NOON)
    for leaves in ("models", "candles", "files"):
        record = replace(RECORD, leaves=leaves)
        _shown(json.dumps(make_receipt(record.ended("failed", None, NOON), observed)).encode())


def _good_receipt() -> dict[str, Any]:
    result = read_result(json.dumps(RESULT).encode(), models_prefix=PREFIX, names=NAMES)
    return make_receipt(RECORD.ended("failed", None, NOON), Observation(result=result))


def _good_script_receipt() -> dict[str, Any]:
    result = read_result(json.dumps({**RESULT, "models": []}).encode(), models_prefix=PREFIX, names=())
    ended = replace(RECORD, work="script", leaves="files").ended("done", None, NOON)
    return make_receipt(ended, Observation(result=result, outputs=(OUTPUT,)))


@given(bodies({"files": [OUTPUT]}))
def output_files_are_listed_or_refused(body: bytes) -> None:
    try:
        files = read_outputs(read_object(body, most_bytes=10**6, name="the list"), prefix=f"{PREFIX}out/")
    except Unsound:
        return
    for file in files:
        assert not path_flaw(file["file"]) and file["key"] == f"{PREFIX}out/{file['sha256']}"


SNAPSHOT = {
    "format": 1,
    "run_id": RUN,
    "attempt": 1,
    "number": 1,
    "at": "2026-11-20T12:00:00Z",
    "objects": [{"sha256": HASH, "size": 9, "version_id": "v"}],
    "files": [
        {"path": f"a/{name}", "size": 4, "sha256": 32 * name, "object": HASH, "offset": offset}
        for name, offset in (("0a", 0), ("0b", 5))
    ],
}


@given(bodies(SNAPSHOT))
def snapshot_is_read_or_refused(body: bytes) -> None:
    try:
        snapshot = read_snapshot(body, run_id=RUN, attempt=1, number=1)
    except Unsound:
        return
    assert read_snapshot(snapshot_to_json(snapshot), run_id=RUN, attempt=1, number=1) == snapshot
    sizes = {one.sha256: one.size for one in snapshot.objects}
    for file in snapshot.files:
        assert not path_flaw(file.path, hidden=True)
        assert 0 <= file.offset <= file.offset + file.size <= sizes[file.object]


@given(st.one_of(bodies(_good_receipt()), bodies(_good_script_receipt())))
def receipt_is_shown_or_refused(body: bytes) -> None:
    try:
        receipt_from_json(body, RUN)
    except Unsound:
        return
    _shown(body)


def _shown(body: bytes) -> None:
    receipt = receipt_from_json(body, RUN)
    for width in (60, 200):
        views = [
            receipt_view(receipt, 30),
            receipts_table.receipts_table([receipt]),
            status.runs_table([status._of_receipt(receipt)]),
        ]
        _printable([line for view in views for line in drawn(view, width=width).splitlines()])


@given(bodies(json.loads(to_json(RECORD))))
def record_is_decided_on_or_refused(body: bytes) -> None:
    try:
        record = record_from_json(body)
    except Unsound:
        return
    for observed in (Observation(), Observation(may_start=False)):
        reconcile(record, observed, NOON)
    make_receipt(record, Observation(), outcome="unconfirmed")


@given(changed(JOB), st.text(max_size=30))
def job_is_read_or_refused(tables: dict[str, Any], text: str) -> None:
    for read in (job_from, lambda it: job_from_json(json.dumps(it)), lambda it: parse_job(it, {}, [text])):
        try:
            read(tables)
        except UsageError as error:
            assert is_shown(str(error))


WORDS = (
    *("name", "data", "model", "train", "script", "machine", "budget", "symbols", "a", '"é"', "''"),
    *(
        "=",
        "=",
        ".",
        ".",
        "[",
        "]",
        "[[",
        "]]",
        "{",
        "}",
        ",",
        "\n",
        "\n",
        " ",
        "#",
        '"',
        '"""',
        "\\u0000",
        "\x00",
    ),
    *(
        "1",
        "-1",
        "1e999",
        "nan",
        "true",
        "1979-05-27",
        "07:32:00",
        "9" * 5000,
        "a." * 40,
        "[" * 2000,
        "\ufeff",
    ),
)
TOML = 'name = "a"\n[data]\nsymbols = ["A"]\n[model]\nname = "tcn"\n[machine]\nbudget = 5.0\n'


@given(
    st.one_of(st.lists(st.sampled_from(WORDS), max_size=30).map("".join), st.text(max_size=60)),
    st.integers(0, len(TOML)),
)
def job_file_is_read_or_refused(text: str, at: int) -> None:
    with tempfile.TemporaryDirectory(prefix="mayfly-fuzz-") as place:
        path = Path(place, "job.toml")
        path.write_bytes((TOML[:at] + text + TOML[at:]).encode(errors="surrogatepass"))
        try:
            parse_job(load_job(path), {}, [f"data.exclude={text}"])
        except UsageError as error:
            assert is_shown(str(error))


BARS = {"train": 40, "validation": 10, "test": 10}
FOLD = {"train": [0, 60], "validation": [65, 80], "test": [85, 100], "bars": BARS, "ties": 0, "chunks": 0}
PLAN: dict[str, Any] = {
    "format": 2,
    "made_for": {"data": {"bars": 0, "columns": []}, "model": {"reads": "windows"}, "target": JOB["target"]},
    "timeframe": "1m",
    "inputs": ["log_return"],
    "synthetic": False,
    "notes": ["A: odd"],
    "files": [{"file": "A_1m.parquet", "bytes": 9, "sha256": "ab" * 32, "bars": 100, "symbols": ["A"]}],
    "symbols": {
        "A": {
            "files": ["A_1m.parquet"],
            "rows": 100,
            "bars": 100,
            "first": "2026-11-20T12:00:00Z",
            "last": "2026-11-20T13:39:00Z",
            "sha256": "cd" * 32,
            "calendar": "24x7",
            "holes": [[5, 6], [9, 12]],
            "target": {"horizon": 5},
            "horizon_bars": 5,
            "folds": [FOLD],
        }
    },
    "refused": {"B": {"bars": 3, "what": "w", "why": "y", "do": "d"}},
}


@given(bodies(PLAN))
def plan_is_read_or_refused(body: bytes) -> None:
    try:
        plan = read_plan(body)
    except DataError as error:
        assert is_shown(str(error))
        return
    assert read_plan(plan.to_bytes()) == plan
    with suppress(DataError):
        plan.check_fits(job := job_from(JOB))
        plan.summary(job)


INDEX = {
    "file": "A_1m.parquet",
    "bytes": 9,
    "sha256": "ab" * 32,
    "timeframe": "1m",
    "synthetic": False,
    "further": ["funding"],
    "holds": [{"symbol": "A", "bars": 100, "first": "2026-11-20T12:00:00Z", "last": "2026-11-20T13:39:00Z"}],
}


@given(st.lists(bodies(INDEX), max_size=3))
def index_entries_are_chosen_from_or_count_as_none(found: list[bytes]) -> None:
    summaries = [read_summary(body) for body in found]
    inputs = [
        Input(key=f"raw/main/{number}.parquet", version_id="v", sha256="ab", bytes=9, summary=summary)
        for number, summary in enumerate(summaries)
    ]
    try:
        choose(inputs, symbols=(), timeframe="", too_few=fewest(9), columns=("funding",))
    except DataError as error:
        assert is_shown(str(error))


@given(st.lists(st.one_of(bodies(EPOCH), bodies(STEP), bodies(SCRIPT_STEP), bodies(DONE)), max_size=3))
def events_are_curves_or_left_out(found: list[bytes]) -> None:
    reader = EventReader()
    events = RunEvents(events=list(reader.read(found)))
    for event in events.events:
        name, _, scalars = points_of(event)
        assert is_model_file(f"{name}.safetensors")
        assert all(isinstance(value, float) for value in scalars.values())
    _printable(drawn(curves_view(events.epochs, last=3), width=80).splitlines())


ENTRY = ScheduledRun(
    retrain="weekly",
    scheduled_at=NOON,
    began_at=NOON,
    updated_at=NOON,
    state="failed",
    run_id=run_id_of("weekly", NOON),
    error={"code": 100, "what": "w", "why": "y", "do": "d"},
    promoted=("A",),
    notes=("n",),
    called_by="request-1",
    called_again=("request-2",),
)


@given(bodies(json.loads(to_json(ENTRY))))
def scheduled_time_is_told_or_refused(body: bytes) -> None:
    objects, key = MemoryCloud(NOON).objects, entry_key("weekly", NOON)
    objects.write(key, body)
    try:
        entry, _ = read_entry(objects, key)
    except ConfigError as error:
        assert is_shown(str(error))
        return
    message = scheduled_summary(entry, None, None, None, 0.0)
    _printable([message.subject, *message.text.splitlines(), *retrains._history_row(entry)])
    json.dumps(retrains._entry(entry))


def _printable(lines: list[str]) -> None:
    assert all(is_shown(line) for line in lines)


PROPERTIES: tuple[Callable[[], None], ...] = (
    lease_is_read_or_refused,
    progress_is_shown_or_refused,
    host_keys_pin_a_machine_or_nothing,
    result_makes_a_receipt_that_is_readable_or_is_refused,
    output_files_are_listed_or_refused,
    snapshot_is_read_or_refused,
    receipt_is_shown_or_refused,
    record_is_decided_on_or_refused,
    job_is_read_or_refused,
    job_file_is_read_or_refused,
    plan_is_read_or_refused,
    index_entries_are_chosen_from_or_count_as_none,
    events_are_curves_or_left_out,
    scheduled_time_is_told_or_refused,
    *bucket.PROPERTIES,
    *cards.PROPERTIES,
    *data_files.PROPERTIES,
    *candle_files.PROPERTIES,
)
