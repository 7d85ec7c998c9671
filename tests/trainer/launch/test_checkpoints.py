"""What checkpoints in S3 cost, in a plan: computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.jobs import job_of
from tests.planned import offers_of, plan_of, plan_script
from trainer.cli.views.drawing import drawn
from trainer.cli.views.plan import plan_view, script_view
from trainer.job.job import Job
from trainer.job.reading import job_from
from trainer.launch.checkpoints import CheckpointCost
from trainer.launch.inputs import ChosenCandles
from trainer.launch.known_times import KnownTimes
from trainer.machines.planner import workload
from trainer.runs.snapshots import TRAINING_SECONDS, affordable_bytes, hourly_usd
from trainer.train.machine_file import MOST_CHECKPOINT_SECONDS

BARS = {"BTC-USD": 200_000}
LARGE = {"model": "transformer", "width": 1024, "blocks": 12, "heads": 16}


def cost_of(job: Job, **more: Any) -> tuple[CheckpointCost | None, str]:
    """Return the cost, and its line in the plan."""
    made = plan_of(job, workload(job, BARS), offers_of(*job.machine.instance), **more)
    text = drawn(plan_view(made, job, ChosenCandles(bars=BARS, timeframe="1m", synthetic=False)), width=200)
    return made.checkpoints, next((line for line in text.splitlines() if "Checkpoints:" in line), "")


def test_two_minutes_make_a_checkpoint_and_the_look_finding_it() -> None:
    assert MOST_CHECKPOINT_SECONDS == TRAINING_SECONDS == 96


def test_an_hours_dollars_are_requests_and_two_days_storage() -> None:
    # 1.8 GB every two minutes: 54 GB, two days of a month's $0.023 each, and 60 requests
    usd = hourly_usd(puts=2, size=1_800_000_000, seconds=120)
    assert usd == pytest.approx(54 * 0.023 * 2 / 30.4 + 60 * 0.005 / 1000, rel=1e-6) and 0.081 < usd < 0.083
    assert hourly_usd(puts=2, size=affordable_bytes(8.0, puts=2, seconds=120), seconds=120) == pytest.approx(
        0.08
    )
    assert affordable_bytes(0.0, puts=2, seconds=120) == 0


def test_small_models_cost_next_to_nothing() -> None:
    job = job_of(instance=("g6.xlarge",))
    cost, line = cost_of(job)
    assert cost is not None and cost.seconds == 96 and 0 < cost.bytes < 2_000_000
    assert cost.share < 0.01 and not cost.is_over and "more than 1%" not in line
    assert cost.usd_per_hour == pytest.approx(hourly_usd(puts=9, size=cost.bytes, seconds=96))


def test_a_large_model_writes_within_1_percent_of_its_time() -> None:
    """By hand: 2.4 GB at $0.023 a GB-month for two days are $0.0037, a hundredth of 28 minutes at $0.80."""
    cost, line = cost_of(job_of(instance=("g6.xlarge",), **LARGE))
    assert cost is not None and 2.4e9 < cost.bytes < 2.5e9
    assert cost.share == pytest.approx(0.01) and cost.usd_per_hour == pytest.approx(0.008048)
    dollars = cost.bytes / 1e9 * 0.023 * 2 / 30.4 + (8 + math.ceil(cost.bytes / 2**26)) * 0.005 / 1000
    assert cost.seconds == pytest.approx(3600 * dollars / 0.008048, rel=0.01) and 1700 < cost.seconds < 1800
    assert cost.lost_seconds == pytest.approx(1.25 * cost.seconds)
    assert "MB to S3 at least every 2" in line and "1.00% of the machine's price" in line
    assert ", the most allowed; a lost machine may cost 36m" in line and line.endswith("of training.")
    often, line = cost_of(job_of(instance=("g6.xlarge",), checkpoint_seconds=30, **LARGE))
    assert line.endswith("; that is more than 1%, as the job's train.checkpoint_seconds has it.")
    assert often is not None and often.lost_seconds == pytest.approx(30 + cost.seconds / 4), "a look"


def test_more_models_than_train_at_a_time_cost_no_more() -> None:
    job = job_of(instance=("g6.xlarge",), pack=2)
    known = offers_of("g6.xlarge")
    few, many = (
        plan_of(job, workload(job, {f"S{number}": 200_000 for number in range(count)}), known).checkpoints
        for count in (2, 40)
    )
    assert few is not None and many is not None and few.bytes == many.bytes


def test_a_job_that_writes_oftener_pays_for_it() -> None:
    seldom, _ = cost_of(job_of(instance=("g6.xlarge",)))
    often, line = cost_of(job_of(instance=("g6.xlarge",), checkpoint_seconds=10))
    assert seldom is not None and often is not None and "every 10s" in line
    assert often.usd_per_hour == pytest.approx(9.6 * seldom.usd_per_hour)


def test_a_run_without_checkpoints_has_no_such_line() -> None:
    assert cost_of(job_of(instance=("g6.xlarge",), checkpoint_seconds=0), keeps_checkpoints=False) == (
        None,
        "",
    )


def test_a_script_hears_what_it_may_write() -> None:
    machine = {"instance": ["g6.xlarge"], "max_duration": "2h"}
    job = job_from({"name": "net", "script": {"command": "python train.py"}, "machine": machine})
    made = plan_script(job, offers_of("g6.xlarge"), known=KnownTimes(), input_bytes=0)
    cost = made.checkpoints
    assert cost is not None and (cost.bytes, cost.usd_per_hour, cost.share) == (0, 0, 0)
    data = {"files": 0, "bytes": 0, "script_files": {"train.py": ""}}
    text = drawn(script_view(made, job, data), width=200)
    assert f"to S3 at least every 2m; up to {cost.affordable_bytes / 1e6:,.0f} MB of them" in text
    assert cost.to_dict()["affordable_bytes"] == cost.affordable_bytes > 100_000_000
