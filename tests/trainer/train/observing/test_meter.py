"""The meter of a training, and its results in one file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.jobs import job_of
from trainer.machines.chips import named_profile
from trainer.train.machine_file import LOOK_SECONDS, CheckpointInterval, MachineFacts
from trainer.train.observing.events import duration, line_of
from trainer.train.observing.meter import Meter, Repeats, meter_for, peak_memory_gib, with_memory
from trainer.train.observing.observe import points_of
from trainer.train.observing.results import FILE, TrainingResults

PROGRESS = {
    "event": "progress",
    "model": "m",
    "piece": "P",
    "epoch": 1,
    "epochs": 2,
    "step": 3,
    "steps": 10,
    "loss": 0.5,
    "rate": 1000.0,
    "unit": "windows",
    "learning_rate": 3e-4,
    "eta_seconds": 190.0,
}


def test_mfu_and_dollars_follow_from_rate_formula_peak_and_price():
    now = 100.0
    meter = Meter(
        flops_per_read=2e9,
        peak_flops=8e12,
        usd_per_hour=36.0,
        paid_seconds=100.0,
        began=50.0,
        clock=lambda: now,
    )
    read = meter.read(dict(PROGRESS))
    assert (read["mfu"], read["usd"]) == (0.25, 1.5)  # 1,000 x 2e9 of 8e12; 150 s at a cent each
    assert meter.read({"event": "epoch"}) == {"event": "epoch"}
    line = line_of({**read, "memory_gib": 12.34})
    words = "loss 0.5000  1,000 windows/s  rate 3.00e-04  MFU 25.0%  12.3 GiB  $1.50  at most 3 min 10 s left"
    assert line == f"P  epoch 1/2  step 3/10  {words}"
    _, step, scalars = points_of(read)
    assert step == 3
    assert scalars["step/mfu"] == 0.25
    assert scalars["step/usd"] == 1.5
    assert scalars["step/learning_rate"] == 3e-4


def test_unknown_figures_are_left_out_of_progress():
    job = job_of(model="lstm")
    at_a_desk = meter_for(
        job, named_profile("cpu"), torch.float32, MachineFacts(), devices=2, clock=lambda: 0.0
    )
    read = at_a_desk.read(dict(PROGRESS))
    assert "mfu" not in read and "usd" not in read and at_a_desk.usd is None
    assert "MFU" not in line_of(read) and "$" not in line_of(read)


def test_the_peak_is_that_of_all_devices_in_the_jobs_precision():
    job, profile = job_of(model="transformer", preset="tiny"), named_profile("a100_40gb")
    meters = {
        dtype: meter_for(job, profile, dtype, MachineFacts(), devices=8, clock=lambda: 0.0)
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    }
    half, full = profile.peak_tflops["bf16"] * 8e12, profile.peak_tflops["fp32"] * 8e12
    assert [meter.peak_flops for meter in meters.values()] == [half, half, full]
    assert meters[torch.bfloat16].flops_per_read == job.cost.flops > 0


def test_progress_has_the_memory_of_its_process():
    assert 0.01 < peak_memory_gib("cpu") < 100
    assert with_memory(dict(PROGRESS), "cpu")["memory_gib"] > 0
    assert with_memory({"event": "epoch"}, "cpu") == {"event": "epoch"}


@pytest.mark.parametrize(("seconds", "words"), [(12, "12 s"), (250, "4 min 10 s"), (11_529, "3 h 12 min")])
def test_a_duration_is_printed_in_its_two_largest_units(seconds, words):
    assert duration(seconds) == words


def test_results_are_one_file_of_every_model(tmp_path: Path):
    ticks = iter((0.0, 12.5))
    results = TrainingResults("job", MachineFacts(instance_type="p4d.24xlarge"), clock=lambda: next(ticks))
    models = [{"model": name, "piece": name.upper()} for name in ("m", "n")]
    epoch = {"event": "epoch", "model": "m", "train_loss": 0.4, "validation_loss": float("nan")}
    links = {
        "event": "links",
        "model": "m",
        "bus_gb_per_s": 221.0,
        "expected_gb_per_s": 230.0,
        "devices": [{"name": "A100"}],
    }
    for event in (
        {"event": "started", "models": models, "device": "cuda", "workers": 8, "choice": {}},
        links,
        {**PROGRESS, "mfu": 0.41, "memory_gib": 12.0},
        {**epoch, "epoch": 1},
        {**epoch, "epoch": 2},
        {"event": "retry", "model": "m", "reason": "rank 3 was killed"},
        {**epoch, "epoch": 2, "train_loss": 0.3},  # it went on in the second epoch
        {
            "event": "model_done",
            "model": "m",
            "file": "m.safetensors",
            "sha256": "abc",
            "metrics": {"auc": 0.6},
        },
        {"event": "model_failed", "model": "n", "reason": "no memory"},
    ):
        results(event)
    results.write(tmp_path, usd=1.23456)
    read = json.loads((tmp_path / FILE).read_text())
    assert (read["seconds"], read["usd"], read["retries"], read["instance_type"]) == (
        12.5,
        1.2346,
        1,
        "p4d.24xlarge",
    )
    done, failed = read["models"]
    assert (done["state"], done["sha256"], done["mfu"], done["links"]["bus_gb_per_s"]) == (
        "done",
        "abc",
        0.41,
        221.0,
    )
    assert [(one["epoch"], one["train_loss"], one["validation_loss"]) for one in done["history"]] == [
        (1, 0.4, None),
        (2, 0.3, None),
    ]
    assert (failed["state"], failed["reason"], failed["history"]) == ("failed", "no memory", [])


def test_steps_computed_twice_are_those_since_the_checkpoint():
    repeats = Repeats()

    def told(kind: str, **fields: int) -> object:
        return repeats.read({"event": kind, "model": "m", **fields}).get("lost_steps", "none")

    assert told("resumed", step=40) is None  # steps that another machine took are not known here
    assert told("progress", epoch=2, steps=30, step=25) == told("checkpoint") == told("retry") == "none"
    assert told("model_started") == "none"  # its checkpoint is still to be read
    assert told("resumed", step=50) == 5
    assert told("resumed", step=50) == 0  # it died again before it was heard of


def test_all_steps_are_computed_twice_without_a_checkpoint():
    repeats = Repeats()
    started, progress = {"event": "model_started", "model": "m"}, {**PROGRESS, "step": 7}
    assert repeats.read(started) == started and repeats.read(progress) == progress
    assert repeats.read({**started, "model": "n"}) == {**started, "model": "n"}
    assert repeats.read(started) == {**started, "lost_steps": 7}
    assert repeats.read(started) == started


@pytest.mark.parametrize(
    ("machine", "of_job", "seconds"),
    [
        ({}, 3600, 3600),  # a desk
        ({"instance_type": "g5.xlarge"}, 3600, 96),
        ({"instance_type": "g5.xlarge"}, 60, 60),
        ({"instance_type": "g5.xlarge", "checkpoint_seconds": 15}, 60, 15),
        ({"instance_type": "g5.xlarge", "checkpoint_seconds": 300}, 600, 300),  # two minutes cost over 1 %
        ({"instance_type": "g5.xlarge", "checkpoint_seconds": 300}, 120, 300),
        ({"instance_type": "g5.xlarge", "checkpoint_seconds": 300}, 60, 60),  # at its price
        ({"instance_type": "g5.xlarge", "checkpoint_seconds": 15}, 0, 0),  # the job wants none
    ],
)
def test_an_instance_writes_a_checkpoint_every_two_minutes(machine, of_job, seconds):
    assert MachineFacts(**machine).seconds_between(of_job) == seconds


def test_the_interval_follows_the_machine_file_while_it_trains(tmp_path):
    now, path = [0.0], tmp_path / "machine.json"
    interval = CheckpointInterval(path, 60, clock=lambda: now[0])
    assert interval() == 60 and CheckpointInterval(None, 60)() == 60
    for written, seconds in (
        ({"instance_type": "g5.xlarge", "checkpoint_seconds": 17}, 17),
        ({"instance_type": "g5.xlarge", "checkpoint_seconds": -1}, 17),
        ({"instance_type": "g5.xlarge"}, 60),
    ):
        path.write_text(json.dumps(written))
        before = interval()
        now[0] += LOOK_SECONDS / 2
        assert interval() == before, "it is not read at each step"
        now[0] += LOOK_SECONDS / 2
        assert interval() == seconds
