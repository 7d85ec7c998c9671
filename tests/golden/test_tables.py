"""Tables and the live view as terminals of 60, 80 and 120 columns show them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from tests.golden.test_plans_and_receipts import at_each_width, record, result
from tests.trainer.cli.views.test_curves import epochs
from tests.trainer.cli.views.test_progress import TRAIN
from tests.trainer.cli.views.test_watch import SEEN
from tests.trainer.node.test_sampling import A10G, CPU
from trainer.cli.parts import RunEvents
from trainer.cli.verbs import receipts, status
from trainer.cli.views.curves import curves_view
from trainer.cli.views.models import models_table
from trainer.cli.views.progress import phase_ended, picture
from trainer.cli.views.table import lines
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.record import RunRecord
from trainer.runs.samples import NodeSample
from trainer.store.listing import Model

Golden = Callable[[str, str], None]
NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
# As long as ids are, but none: tests/golden/conftest.py would shorten those, and columns with them.
RUN, INSTANCE = "20261120-120000-cryptos-k3v99", "i-0123456789abcdefg"
SAMPLE = NodeSample(at=NOON - timedelta(seconds=4), gpus=(A10G,), cpu=CPU)
RUNNING = replace(
    TRAIN,
    run_id=RUN,
    elapsed_seconds=75.0,
    instances=(replace(SEEN, instance_id=INSTANCE),),
    sample=SAMPLE,
)


def receipt_of(make_record: Callable[..., RunRecord]) -> dict[str, Any]:
    ended = replace(record(make_record), run_id=RUN)
    receipt = make_receipt(ended, Observation(result=result()), outcome="done")
    receipt["instances"][0]["instance_id"] = INSTANCE
    return receipt


def test_the_live_view(golden: Golden) -> None:
    capacity = phase_ended("capacity", 1.0, [INSTANCE, "us-east-1a", "g5.12xlarge", "on-demand"])
    view = lines(
        phase_ended("preflight", 7.0), capacity, picture(RUNNING, seconds=30.0, hint="Ctrl-C: end or leave")
    )
    golden("live-view", at_each_width(view))


def test_status(golden: Golden, make_record: Callable[..., RunRecord]) -> None:
    items = [status._of_receipt(receipt_of(make_record)), status._of_progress(RUNNING, NOON)]
    golden("status", at_each_width(status.runs_table(items)))
    golden("status-of-one-run", at_each_width(status._detail(items[1], 0)))


def test_receipts(golden: Golden, make_record: Callable[..., RunRecord]) -> None:
    golden("receipts", at_each_width(receipts.receipts_table([receipt_of(make_record)])))


def test_models(golden: Golden, make_record: Callable[..., RunRecord]) -> None:
    (scored,) = receipt_of(make_record)["models"]
    model = Model(
        name="lstm-direction_BTC-USD_1m",
        stage="experiment",
        run_id=RUN,
        key="k",
        version_id="3fb1a59c77aa",
        sha256="ab" * 32,
        family="lstm",
        piece="BTC-USD",
        series=("BTC-USD",),
        created_at=NOON,
        metrics=scored["metrics"],
        judgement=scored["judgement"],
        synthetic=True,
        stored_after=NOON - timedelta(hours=1),
    )
    golden("models-list", at_each_width(models_table([model], 180)))


def test_learning_curves(golden: Golden) -> None:
    events = RunEvents(events=[*epochs(0.69, 0.66, 0.65, 0.67), *epochs(0.69, 0.68, piece="ETH-USD")])
    golden("logs-metrics", at_each_width(curves_view(events.epochs, last=3)))
