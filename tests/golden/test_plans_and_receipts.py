"""A dry run as text and as JSON, the plan that a launch prints, and receipts as text and as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import RenderableType

from tests.jobs import job_of, with_settings
from tests.pieces import named
from tests.planned import offers_of, plan_of, plan_script
from tests.records import at, created, seen
from trainer.aws.place import ACCOUNT, PLACES
from trainer.cli.verbs import launch as launch_verb
from trainer.cli.views.drawing import drawn
from trainer.cli.views.plan import plan_view, script_view
from trainer.cli.views.receipt import receipt_view
from trainer.job.reading import job_from
from trainer.launch.inputs import ChosenCandles
from trainer.launch.known_times import KnownTimes
from trainer.launch.plan import LaunchPlan
from trainer.machines.planner import workload
from trainer.machines.rates import EARLIER_RUN, Rate
from trainer.machines.storage import storage_cost
from trainer.runs.attempts import Attempt
from trainer.runs.observation import Observation
from trainer.runs.outcome import ending_of
from trainer.runs.receipt import make_receipt
from trainer.runs.record import RunRecord
from trainer.runs.reports import NodeResult
from trainer.targets.direction import Direction

Golden = Callable[[str, str], None]
NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
CANDLES = ChosenCandles(timeframe="1m", bars={"BTC-USD": 3_700_000, "ETH-USD": 3_200_000}, synthetic=False)
JOBS = {
    "on-demand": job_of(
        symbols=("BTC-USD", "ETH-USD"), instance=("g5.12xlarge", "g6.xlarge", "p5.4xlarge"), budget=40.0
    ),
    "spot": job_of(
        symbols=("BTC-USD", "ETH-USD"),
        columns="funding_rate",
        instance=("g6.xlarge",),
        market="spot",
        max_duration="2h",
    ),
    "rehearsal": job_of(symbols=("BTC-USD", "ETH-USD"), instance=("p3.8xlarge",), epochs=1),
    "pooled": job_of(symbols=("BTC-USD", "ETH-USD"), pooled=True, instance=("g6.12xlarge",), folds=2),
    "tcn": job_of(symbols=("BTC-USD", "ETH-USD"), model="tcn", instance=("g6.12xlarge",)),
    "panel": job_of(
        symbols=("BTC-USD", "ETH-USD"),
        panel=True,
        model="transformer",
        preset="large",
        batch=64,
        instance=("g4dn.xlarge", "g4dn.12xlarge", "p4d.24xlarge"),
    ),
}


STORED = {"pooled": "efs-cache"}
WIDTHS = (60, 80, 120)


def at_each_width(view: RenderableType) -> str:
    """Return what terminals of each width show."""
    return "".join(f"{f'| {width} columns':-<{width}}\n{drawn(view, width=width)}" for width in WIDTHS)


def plan(name: str) -> LaunchPlan:
    job, zones = JOBS[name], ("us-east-1a", "us-east-1b")
    offers = offers_of(
        *job.machine.instance,
        zones={machine: zones for machine in job.machine.instance if machine != "p5.4xlarge"},
        spot_usd_per_hour={("g6.xlarge", zone): 0.31 for zone in zones} if name == "spot" else {},
    )
    return plan_of(
        job,
        workload(job, CANDLES.bars),
        offers,
        place=PLACES.get(name, ACCOUNT),
        storage=storage_cost(STORED.get(name, "s3"), throughput="elastic", input_bytes=1_200_000_000),
    )


@pytest.mark.parametrize("name", JOBS)
def test_a_dry_run(name: str, golden: Golden, capsys: pytest.CaptureFixture[str]) -> None:
    made = plan(name)
    work: Any = SimpleNamespace(job=JOBS[name])
    account: Any = SimpleNamespace(outputs=SimpleNamespace(stack="dev"))
    told = (work, made, account, CANDLES.to_dict())
    print(at_each_width(plan_view(made, JOBS[name], CANDLES)))
    launch_verb._print_notes(argparse.Namespace(json=False), *told, [])
    golden(f"dry-run-{name}", capsys.readouterr().out)
    if name == "on-demand":  # the one document that pins its keys
        launch_verb._print_notes(argparse.Namespace(json=True), *told, ["a note"])
        golden(f"dry-run-{name}-json", capsys.readouterr().out)


def test_a_dry_run_of_a_script(golden: Golden, capsys: pytest.CaptureFixture[str]) -> None:
    machine = {"instance": ["g6.xlarge", "g6.12xlarge"], "max_duration": "2h"}
    job = job_from(
        {
            "name": "net",
            "script": {"command": "torchrun train.py", "requirements": "r.txt"},
            "machine": machine,
        }
    )
    offers = offers_of(*job.machine.instance)
    data = {"files": 3, "bytes": 1_500_000, "script_files": {"r.txt": "", "train.py": ""}}
    known = KnownTimes(rates={"g6.xlarge": Rate(per_second=1 / 600, basis=f"{EARLIER_RUN} 2026-11-19")})
    for times in (KnownTimes(), known):
        made = plan_script(job, offers, known=times, input_bytes=1_500_000)
        print(at_each_width(script_view(made, job, data)))
    golden("dry-run-script", capsys.readouterr().out)
    over = {"symbol": ["BTC-USD", "ETH-USD"], "seed": list(range(7))}
    of_values = with_settings(
        job, **{"script.over": over, "script.gpus": 0.5, "script.command": "python a.py $MAYFLY_VALUE_SEED"}
    )
    made = plan_script(of_values, offers, known=known, input_bytes=1_500_000)
    with_packages = with_settings(
        job, **{"script.secrets": ["WANDB_API_KEY"], "script.requirements": "net.requirements.txt"}
    )
    names = ["lightning==2.6.6", "torchmetrics==1.9.0", "tqdm==4.70.1", "wandb==0.24.1"]
    of_the_image = {
        "packages": names,
        "from": "requirements.txt",
        "python": "3.13",
        "of_the_image": ["torch>=2"],
    }
    made_alone = plan_script(job, offers, known=known, input_bytes=1_500_000)
    told = at_each_width(script_view(made_alone, with_packages, {**data, "packages": of_the_image}))
    golden("dry-run-script-packages", told)
    golden("dry-run-script-over", at_each_width(script_view(made, of_values, data)))


def record(make_record: Callable[..., RunRecord], **fields: Any) -> RunRecord:
    """Return a run that was launched at noon and whose instance ended six minutes later."""
    launch = created(deadline_cause="budget")
    instance = seen(
        launched_at=at(10),
        running_seen_at=at(40),
        terminated_at=fields.pop("terminated_at", at(400)),
        reason=fields.pop("reason", ""),
    )
    known = {
        "state": "closed",
        "attempts": (Attempt(number=1, launches=(launch,), created_at=at(10)),),
        "instances": (instance,),
        "ending_at": at(390),
        "closed_at": at(450),
    }
    return make_record(**(known | fields))


def result(**fields: Any) -> NodeResult:
    starts = {"boot": 60, "stage": 70, "train": 100.5, "upload": 370.25, "end": 380}
    model = {
        **named("BTC-USD"),
        "family": "lstm",
        "target": "",
        "key": "models/experiments/r/1/lstm_BTC-USD_1m.safetensors",
    }
    logistic = {"auc": 0.5102, "log_loss": 0.6927}
    test = {
        "accuracy": 0.5213,
        "base_rate": 0.5021,
        "auc": 0.53,
        "mcc": 0.04,
        "log_loss": 0.6912,
        "brier": 0.249,
    }
    gain = {"gain": 0.0015, "error": 0.0004, "freedom": 16, "low": 0.0007, "high": 0.0023}
    more = {**gain, "gain": 0.0031, "low": 0.0023, "high": 0.0039}
    gains = {
        "logistic": {"log_loss": gain, "brier": gain},
        "base_rate": {"log_loss": more, "brier": more},
    }
    test |= {"n": 6_000, "cells": 250, "cell": "1 day", "first": "2026-03-01", "last": "2026-11-05"}
    scores = {
        "about": Direction().about(),
        "test": {**test, "baselines": {"logistic": logistic}, "better": gains},
    }
    known = {
        "state": "done",
        "models": ({**model, "version_id": "v", "sha256": "s", "metrics": scores},),
        "phases": {name: NOON + timedelta(seconds=seconds) for name, seconds in starts.items()},
        "data": {"files": [{"file": "a.parquet", "bars": 5000}], "bars": 5000, "holes": 1, "synthetic": True},
        "boot": {
            "code": 2.0,
            "environment": 31.0,
            "agent": 3.0,
            "import": 14.0,
            "smoke": 9.0,
            "baked": False,
        },
    }
    return NodeResult(**(known | fields))


FAILED = {**named("ETH-USD"), "reason": "its worker was killed by signal 9"}
ENDS: dict[str, tuple[dict[str, Any], NodeResult | None]] = {
    "done": ({}, result()),
    "failed": ({}, result(state="failed", exit_code=100, failed=(FAILED,), retries=1)),
    "expired": ({"terminated_at": NOON + timedelta(hours=1)}, None),
    "stopped": ({"stop_requested_at": NOON + timedelta(seconds=200)}, result(state="stopped", exit_code=130)),
    "interrupted": ({"reason": "Server.SpotInstanceTermination"}, None),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_receipt(name: str, golden: Golden, make_record: Callable[..., RunRecord]) -> None:
    fields, found = ENDS[name]
    ended, observed = record(make_record, **fields), Observation(result=found, left=())
    decided = ending_of(ended, observed, NOON + timedelta(hours=2))
    assert decided is not None and decided.outcome == name
    receipt = make_receipt(ended, observed, outcome=decided.outcome, error=decided.error)
    golden(f"receipt-{name}", at_each_width(receipt_view(receipt, 0)))
    if name == "done":
        golden(f"receipt-{name}-json", json.dumps(receipt, indent=2))
