"""Run records by hand: what the tests of runs, control and the verbs start from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests import records
from tests.pieces import named
from tests.records import NOON, created, launched, rung
from tests.sessions import forget_sessions
from trainer.aws.access import Access
from trainer.aws.objects import Objects, open_objects
from trainer.aws.stack_outputs import StackOutputs
from trainer.data.read.candles import Candles
from trainer.data.read.shapes import FIELDS
from trainer.data.timeframes import step_of
from trainer.runs.attempts import Rung
from trainer.runs.keys import NodeKeys
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.record import RunRecord
from trainer.runs.reports import NodeResult
from trainer.runs.store import create_record, receipt_key
from trainer.store.card import METADATA_KEY, Card, CardSeries
from trainer.targets.direction import Direction

if TYPE_CHECKING:
    from trainer.rehearsal.server import EmbeddedAws


@pytest.fixture(scope="session")
def applied(aws_server: EmbeddedAws) -> Access:
    """An account with the Pulumi program applied, for the tests that launch nothing and change nothing: they
    share it.
    """
    access = aws_server.account()
    aws_server.apply_program(access)
    return access


MONDAY = 1_704_067_200_000_000_000  # 2024-01-01T00:00:00Z, where made candles begin


@pytest.fixture(scope="session")
def make_record() -> Callable[..., RunRecord]:
    """Return the function that builds a run's record."""
    return records.make_record


@pytest.fixture(scope="session")
def rungs_of() -> Callable[..., tuple[Rung, ...]]:
    """Return a function that builds a ladder of a stack's first two zones: `rungs_of(access, outputs)`."""

    def build(access: Access, outputs: StackOutputs) -> tuple[Rung, ...]:
        image = access.client("ssm").get_parameter(Name=outputs.image_parameter)["Parameter"]["Value"]
        made_from = {"launch_template_id": outputs.launch_template, "image_id": image}
        return tuple(
            replace(rung(zone=zone), subnet_id=outputs.subnets[zone], **made_from)
            for zone in sorted(outputs.subnets)[:2]
        )

    return build


def _bucket(aws: EmbeddedAws, access: Access, name: str) -> str:
    """Make a bucket with versions, without a socket."""
    call = partial(aws.call, aws.cloud(access).account, "s3")
    call("CreateBucket", {"Bucket": name})
    versions = {"Bucket": name, "VersioningConfiguration": {"Status": "Enabled"}}
    call("PutBucketVersioning", versions)
    return name


@pytest.fixture
def bucket(aws_server: EmbeddedAws, access: Access) -> str:
    """A bucket of the test's own, with versions."""
    return _bucket(aws_server, access, f"mayfly-test-{str(access.access_key)[4:16]}")


@pytest.fixture
def account(
    aws_server: EmbeddedAws,
    access: Access,
    make_record: Callable[..., RunRecord],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Objects]:
    """An account that AWS's own variables name, with a stack's parameter and a bucket, and in it: a closed
    run with one model, and a run whose launcher died before there was an instance.
    """
    bucket = f"mayfly-{access.access_key[4:16]}" if access.access_key else ""
    outputs = StackOutputs(
        project="mayfly",
        stack="dev",
        region="us-east-1",
        bucket=bucket,
        schedule_group="mayfly-runs",
        instance_role_id="AROA1",
        max_lifetime_minutes=720,
        experiment_days=180,
    )
    _bucket(aws_server, access, bucket)
    parameter = {"Name": "/mayfly/mayfly/dev", "Value": outputs.to_json(), "Type": "String"}
    aws_server.call(aws_server.cloud(access).account, "ssm", "PutParameter", parameter)
    variables = {
        "AWS_ENDPOINT_URL": access.endpoint_url,
        "AWS_ACCESS_KEY_ID": access.access_key,
        "AWS_SECRET_ACCESS_KEY": access.secret_key,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    forget_sessions()  # it keeps the credentials that it found first, and each test has an account of its own
    objects = open_objects(access, bucket)
    _closed_run(objects, access.client("s3"), make_record(bucket=bucket))
    create_record(objects, make_record(bucket=bucket, run_id=OPEN_RUN))
    yield objects
    forget_sessions()


CLOSED_RUN, OPEN_RUN = "20261120-120000-crypto-k3v9", "20261121-120000-crypto-m4w8"
METRICS = {
    "about": Direction().about(),
    "test": {"accuracy": 0.5213, "base_rate": 0.5021, "auc": 0.53, "mcc": 0.04, "log_loss": 0.6912},
}


def weights(model: str = "lstm_BTC-USD_1m", **data: Any) -> bytes:
    """Return a whole model file of no tensors: a safetensors header with a card, with this `data`."""
    lists: dict[str, Any] = {"features": [], "architecture": {}, "training": {}, "data": data}
    names = {"model": model, "family": "lstm", "piece": "BTC-USD", "kind": "symbol", "timeframe": "1m"}
    scaler = {"mean": [], "std": [], "limit": 10.0}
    series = CardSeries(symbol="BTC-USD", calendar="24x7", horizon=5, scaler=scaler, splits={})
    texts = {"features_version": "v1", "code_sha256": "", "created_at": "", "mayfly": "0"}
    card = Card(
        **names,
        **texts,
        **lists,
        series=[series],
        lookback=60,
        target="direction",
        target_settings={},
        metrics=METRICS,
        seed=0,
    )
    header = json.dumps({"__metadata__": {METADATA_KEY: card.to_json()}}).encode()
    return len(header).to_bytes(8, "little") + header


def _closed_run(objects: Objects, s3: Any, record: RunRecord) -> None:
    keys = NodeKeys(role_id="AROA1", instance_id="i-1", run_id=record.run_id, attempt=1)
    key = f"{keys.models}lstm_BTC-USD_1m.safetensors"
    sha256 = hashlib.sha256(weights()).hexdigest()
    stored = s3.put_object(Bucket=record.bucket, Key=key, Body=weights(), Metadata={"sha256": sha256})
    model = {
        **named("BTC-USD"),
        "family": "lstm",
        "target": "",
        "key": key,
        "version_id": stored["VersionId"],
        "sha256": sha256,
    }
    closed = replace(
        record,
        state="closed",
        outcome="done",
        closed_at=NOON + timedelta(minutes=6),
        attempts=launched(created()),
    )
    create_record(objects, closed)
    result = NodeResult(state="done", models=({**model, "metrics": METRICS},))
    objects.put(
        key=receipt_key(record.run_id),
        body=json.dumps(make_receipt(closed, Observation(result=result))).encode(),
    )
    for number, text in enumerate(("booted\nstaged\n", "trained\n"), start=1):
        objects.put(key=f"{keys.log}{number:06d}.log", body=text.encode())


@pytest.fixture
def make_candles() -> Callable[..., Candles]:
    """Build seeded candles: `make_candles(500, drop=[100, 101])` leaves bars out, `close=[...]` sets every
    price of a bar.
    """

    def make(
        num_bars: int = 2000,
        *,
        symbol: str = "AAA",
        timeframe: str = "1m",
        seed: int = 0,
        drop: object = (),
        close: object = None,
    ) -> Candles:
        random = np.random.default_rng(seed)
        timestamp = MONDAY + (step_of(timeframe) or 60_000_000_000) * np.arange(num_bars, dtype=np.int64)
        last = (
            np.asarray(close, dtype=float)
            if close is not None
            else 100 * np.exp(np.cumsum(random.normal(0, 1e-3, num_bars)))
        )
        first = np.concatenate([last[:1], last[:-1]]) if close is None else last
        spread = 1 + (np.abs(random.normal(0, 5e-4, num_bars)) if close is None else 0)
        keep = np.ones(num_bars, dtype=bool)
        keep[list(drop)] = False  # type: ignore[call-overload]
        columns = {
            "open": first,
            "high": np.maximum(first, last) * spread,
            "low": np.minimum(first, last) / spread,
            "close": last,
            "volume": random.lognormal(3, 1, num_bars),
        }
        return Candles(
            symbol=symbol,
            timeframe=timeframe,
            timestamp=timestamp[keep],
            **{name: columns[name][keep] for name in FIELDS},
        )

    return make
