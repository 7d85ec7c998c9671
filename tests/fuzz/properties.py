"""What must hold for any node JSON, receipt, record and job file: it is read, or it is one error of ours. By hypothesis.

`tests/fuzz/test_properties.py` runs each a little, `scripts/fuzz --minutes 60` for as long as asked.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.pieces import named
from trainer.cli import receipts as receipts_table
from trainer.cli import status
from trainer.cli.output import one_line, table
from trainer.cli.receipt_view import receipt_lines
from trainer.control.progress import Step, progress_of
from trainer.errors import UsageError
from trainer.job import job_from, job_from_json, parse_assignments, with_keys
from trainer.runs.lease import read_lease, silent
from trainer.runs.observation import Observation
from trainer.runs.reading import Unsound
from trainer.runs.receipt import make_receipt
from trainer.runs.reconcile import reconcile
from trainer.runs.record import Attempt, InstanceSeen, Launch, Rung, RunRecord, record_from_json, to_json
from trainer.runs.reports import heartbeat, read_result
from trainer.runs.stored_receipt import receipt_from_json

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
RUN = "20261120-120000-crypto-k3v9"
PREFIX = f"models/experiments/{RUN}/1/"
NASTY = (
    *(
        "",
        "..",
        "/etc/passwd",
        ".bashrc",
        "\x1b[31m",
        "a\x00b",
        "\u202e",
        "\ud800",
        "x" * 5000,
        "-1",
        "NaN",
        "1e999",
        "\n",
        "{}",
    ),
    *("9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "2026-11-20T12:00:00", "2026-13-45T99:99:99Z"),
    *(0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**26, 10**4000, 0.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf")),
    *(None, True, False, [], {}, [[]], {"": {}}, {"about": {}}, {"about": {"headline": 1, "metrics": 2, "table": 3}}),
)
VALUES = st.one_of(
    st.sampled_from(NASTY),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=12,
    ),
)


def changed(document: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return documents that differ from a good one in a few places: another value, a key more, a key less."""
    return st.lists(st.tuples(st.randoms(use_true_random=False), VALUES, st.sampled_from("=-+")), max_size=4).map(
        lambda changes: _change(copy.deepcopy(document), changes)
    )


def _change(document: dict[str, Any], changes: list[Any]) -> dict[str, Any]:
    for random, drawn, how in changes:
        value = copy.deepcopy(drawn)
        places = list(_places(document))
        if not places:
            break
        parent, key = random.choice(places)
        if how == "-" and isinstance(parent, dict):
            del parent[key]
        elif how == "+" and isinstance(parent, dict):
            parent[str(value)[:40]] = value
        else:
            parent[key] = value
    return document


def _places(value: Any) -> Any:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(pairs):
        yield value, key
        yield from _places(item)


def bodies(document: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Return what may lie in the place of a document: it, changed; any JSON; any bytes; brackets without end."""
    written = (changed(document) | VALUES).map(lambda value: json.dumps(value).encode())
    brackets = st.integers(1, 100_000).map(lambda count: b'{"a":' * count)
    return st.one_of(written, written, st.binary(max_size=200), brackets)


RUNG = Rung(
    instance_type="g6.xlarge",
    availability_zone="us-east-1a",
    subnet_id="subnet-1",
    market="on_demand",
    price_usd_per_hour=0.8,
    on_demand_usd_per_hour=0.8,
    gpu_count=1,
    launch_template_id="lt-1",
    image_id="ami-1",
)
LAUNCH = Launch(
    rung=0, token="t", deadline=NOON + timedelta(hours=1), intended_at=NOON, outcome="created", instance_ids=("i-1",)
)
RECORD = RunRecord(
    run_id=RUN,
    project="mayfly",
    stack="dev",
    owner="me",
    rehearsal=False,
    bucket="b",
    job={"name": "crypto", "data": {"symbols": ["A", "B"]}},
    ladder=(RUNG,),
    bundle_key="code/x.whl",
    bundle_sha256="x",
    budget_usd=0.0,
    estimated_usd=1.0,
    preflight_at=NOON,
    created_at=NOON,
    deadline=NOON + timedelta(hours=1),
    state="running",
    attempts=(Attempt(number=1, launches=(LAUNCH,), created_at=NOON),),
    instances=(
        InstanceSeen(
            instance_id="i-1",
            attempt=1,
            instance_type="g6.xlarge",
            market="on_demand",
            availability_zone="us-east-1a",
            state="running",
            launched_at=NOON,
            running_seen_at=NOON,
        ),
    ),
)
LEASE = {"instance_id": "i-1", "at": "2026-11-20T12:00:00Z", "lease_until": "2026-11-20T12:01:30Z"}
PROGRESS = {
    "phase": "train",
    "phases": {"boot": "2026-11-20T12:00:00Z"},
    "progress": {"A": {"state": "training", "epoch": 1, "epochs": 15, "step": 1, "steps": 9, "loss": 0.7}},
    "models_total": 2,
    "models_done": 1,
    "rate": 5.0,
    "unit": "windows",
    "message": "",
}
ABOUT = {
    "headline": "auc",
    "metrics": {"auc": {"title": "AUC", "better": "higher", "unit": ""}},
    "table": [{"title": "AUC", "value": ["auc"], "beside": ["baselines", "logistic", "auc"]}],
}
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
            "sha256": "ab" * 32,
            "metrics": {"about": ABOUT, "test": {"auc": 0.5, "baselines": {"logistic": {"auc": 0.5}}}},
        }
    ],
    "failed": [{**named("B"), "reason": "r"}],
    "retries": 1,
    "phases": {"boot": "2026-11-20T12:00:00Z", "end": "2026-11-20T12:10:00Z"},
    "data": {"files": [{"file": "a", "bars": 5}], "bars": 5, "holes": 0, "synthetic": False},
    "devices": {"expected": 1, "found": 1, "kind": "cuda", "note": ""},
    "python_packages": "node lock",
    "tuned": {"l4": {"a shape": {"pack": 1}}},
}
JOB: dict[str, Any] = {
    "name": "crypto",
    "data": {"symbols": ["A"], "timeframe": "1m", "folds": 2, "test_fraction": 0.1},
    "model": {"name": "tcn", "width": 64},
    "target": {"name": "direction", "horizon": 5},
    "train": {"epochs": 3, "batch": 256, "learning_rate": 0.001},
    "machine": {"instance": ["g6.xlarge"], "budget": 5.0, "max_duration": "2h"},
}


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
    shown = status._of_progress(progress_of(look, NOON), NOON)
    _printable([*status._lines(shown), *table([status._row(shown)])])
    reconcile(RECORD, look.observed, NOON)


@given(bodies(RESULT))
def result_makes_a_receipt_that_is_readable_or_is_refused(body: bytes) -> None:
    try:
        result = read_result(body, models_prefix=PREFIX)
    except Unsound:
        return
    observed = Observation(result=result, models=())
    reconcile(RECORD, observed, NOON)
    receipt = make_receipt(RECORD.ended("failed", None, NOON), observed)
    _shown(json.dumps(receipt).encode())


def _good_receipt() -> dict[str, Any]:
    result = read_result(json.dumps(RESULT).encode(), models_prefix=PREFIX)
    return make_receipt(RECORD.ended("failed", None, NOON), Observation(result=result))


@given(bodies(_good_receipt()))
def receipt_is_shown_or_refused(body: bytes) -> None:
    try:
        receipt_from_json(body, RUN)
    except Unsound:
        return
    _shown(body)


def _shown(body: bytes) -> None:
    receipt = receipt_from_json(body, RUN)
    _printable(
        [*receipt_lines(receipt), *table([receipts_table._row(receipt)]), *table([status._row(status._of_receipt(receipt))])]
    )


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
    for read in (job_from, lambda it: job_from_json(json.dumps(it)), lambda it: with_keys(it, parse_assignments([text]))):
        try:
            read(tables)
        except UsageError as error:
            assert "\n" not in one_line(str(error))


def _printable(lines: list[str]) -> None:
    assert all(one_line(line).isprintable() for line in lines)


PROPERTIES: tuple[Callable[[], None], ...] = (
    lease_is_read_or_refused,
    progress_is_shown_or_refused,
    result_makes_a_receipt_that_is_readable_or_is_refused,
    receipt_is_shown_or_refused,
    record_is_decided_on_or_refused,
    job_is_read_or_refused,
)
