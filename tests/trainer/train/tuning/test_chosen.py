"""The choice of training settings: precedence of sources, when to run a trial, and the events. No trial
runs here.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.jobs import job_of, sets
from tests.pieces import piece
from tests.trainer.train.rosters import MADE, always
from trainer.base.errors import UsageError
from trainer.job.job import Job
from trainer.machines.chips import named_profile
from trainer.machines.choice import Choice, choose
from trainer.machines.kernels import CPU_SLICE
from trainer.machines.shapes import OPEN, shape_of
from trainer.store.card import read_card
from trainer.train.checkpoint import write
from trainer.train.inputs.survey import Survey
from trainer.train.packs.sequential import SequentialPack
from trainer.train.run import Run
from trainer.train.tuning.chosen import Chosen, Site, choose_settings, largest_batch, placed
from trainer.train.tuning.timing import Timing, make_members
from trainer.train.tuning.trial import TRIAL_SECONDS, Trial, entry_of
from trainer.train.workers.assignment import WorkerSettings
from trainer.train.workers.smaller import smaller, with_job

CPU = Site(kind="cpu", profile=choose("cpu", None), workers=2)
WINDOWS, BARS = {"train": 300_000, "validation": 50_000, "test": 50_000}, 430_000
FUSED = Timing(strategy="fused", pack=16, micro_batch=256, windows_per_second=9e5, memory_per_model_gib=0.1)


def gpu(profile: str, memory_gib: float, **keys: Any) -> Site:
    choice = Choice(profile=named_profile(profile), why="", memory_gib=memory_gib)
    return Site(kind="cuda", profile=choice, **{"workers": 1, **keys})


def settings_of(chosen: Chosen) -> tuple[str, int, int]:
    """Return the strategy, the models at a time and the size of a slice."""
    return chosen.job.expert.strategy, chosen.job.expert.pack, chosen.job.expert.micro_batch


def batch_of(chosen: Chosen) -> tuple[int, str]:
    """Return the batch and its source."""
    return chosen.job.train.batch, chosen.choice["from"]["batch"]


PLAIN, H200 = Timing(strategy="sequential", pack=1, micro_batch=64), gpu("h200", 140.0)
LARGE = replace(FUSED, pack=4, batch=1024, micro_batch=1024)


def surveyed(job: Job, *, models: int = 4, windows: dict[str, int] = WINDOWS) -> Survey:
    visits = job.train.epochs * windows["train"]
    size = {"estimate": visits, "bars": BARS, "windows": windows["train"]}
    return Survey(pieces=tuple(piece(f"C{n}", **size) for n in range(models)), data={"timeframe": "1m"})


class Choosing:
    """One choice with a trial that answers as it is told; what it was asked and what was said is kept."""

    def __init__(self, out: Path, *timings: Timing, failure: str = "") -> None:
        self.out, self.trial = out, Trial(timings=timings, failure=failure)
        self.asked: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def __call__(self, job: Job, site: Site = CPU, found: Survey | None = None) -> Chosen:
        def run(job: Job, **how: Any) -> Trial:
            self.asked.append(how)
            self.timed = job
            return self.trial

        known = {"surveyed": found or surveyed(job), "checkpoints": self.out / "checkpoints"}
        return choose_settings(job, site=site, **known, emit=self.events.append, run=run)


def test_every_training_on_a_gpu_begins_with_a_trial(tmp_path):
    choosing, short = Choosing(tmp_path, FUSED), job_of(epochs=1)
    chosen = choosing(short, H200, surveyed(short, windows={**WINDOWS, "train": 6_500}))
    assert settings_of(chosen) == ("fused", 16, 256)
    assert chosen.choice["from"] == {**dict.fromkeys(OPEN, "tuned here"), "batch": "job"}
    assert choosing.asked == [{"device": "cuda", "seconds": TRIAL_SECONDS, "batch_limit": 64}]
    tuning, tuned = choosing.events
    assert (tuning["event"], tuned["event"], tuned["failure"]) == ("tuning", "tuned", "")
    assert tuned["entry"] == entry_of(FUSED) and tuned["timings"] == [FUSED.to_dict()]


@pytest.mark.parametrize(("models", "workers", "at_a_time"), [(1, 1, 1), (4, 1, 4), (20, 4, 5), (40, 1, 32)])
def test_a_trial_times_as_many_models_as_a_gpu_has(tmp_path, models, workers, at_a_time):
    choosing, site = Choosing(tmp_path, FUSED), replace(H200, workers=workers)
    choosing(Job(), site, surveyed(Job(), models=models))
    assert choosing.timed.expert.pack == at_a_time
    assert choosing.events[1]["shape"] == shape_of(choosing.timed)


def test_a_trial_times_as_many_models_as_fit_by_the_formula(tmp_path):
    choosing = Choosing(tmp_path, FUSED)
    choosing(Job(), gpu("l4", 3.0), surveyed(Job(), models=40))
    assert 1 <= choosing.timed.expert.pack < 8
    choosing(job_of(pack=3), gpu("l4", 22.0), surveyed(Job(), models=40))
    assert choosing.timed.expert.pack == 3


@pytest.mark.parametrize(("job", "site", "tries"), [
    (Job(), H200, True),
    (Job(), CPU, False),
    (job_of(tune="always"), CPU, True),
    (job_of(tune="never"), H200, False),
    (job_of(tune="never", strategy="streams"), H200, True),
    (job_of(strategy="sequential"), H200, False),
    (job_of(model="tcn"), H200, False),
    (job_of(distributed="always"), replace(H200, workers=4, together=True), False),
    (job_of(batch=0), H200, True),
    (job_of(batch=0), CPU, False),
])  # fmt: skip
def test_a_trial_runs_where_there_is_something_to_compare(tmp_path, job, site, tries):
    choosing = Choosing(tmp_path, FUSED)
    choosing(job, site)
    assert bool(choosing.asked) is tries


@pytest.mark.parametrize(("model", "site", "expected"), [
    ("mlp", H200, "fused"), ("mlp", CPU, "fused"), ("lstm", H200, "fused"), ("lstm", CPU, "sequential"),
])  # fmt: skip
def test_agents_are_one_program_without_a_trial(tmp_path, model, site, expected):
    job = job_of(model=model, target="position")
    choosing = Choosing(tmp_path, PLAIN)
    chosen = choosing(job, site)
    assert not choosing.asked and chosen.job.expert.strategy == expected
    assert chosen.choice["from"]["strategy"] == "default"
    assert (chosen.job.expert.pack > 1) == (expected == "fused")
    plain = Choosing(tmp_path)(job_of(model=model, target="position", strategy="sequential"), site)
    assert plain.job.expert.strategy == "sequential"


def test_on_a_cpu_slices_are_the_default(tmp_path):
    chosen = Choosing(tmp_path)(Job())
    assert settings_of(chosen) == ("sequential", 1, CPU_SLICE)
    assert set(chosen.choice["from"].values()) == {"default", "job"}
    own = Choosing(tmp_path)(job_of(micro_batch=32))
    assert own.job.expert.micro_batch == 32 and own.choice["from"]["micro_batch"] == "job"


@pytest.mark.parametrize("failure", ["its process ended with exit code -9", "it was not done after 60 s"])
def test_a_failed_trial_leaves_the_defaults(tmp_path, failure):
    choosing = Choosing(tmp_path, failure=failure)
    chosen = choosing(Job(), H200)
    assert (chosen.job.expert.strategy, choosing.events[-1]["failure"]) == ("sequential", failure)
    assert choosing.events[-1]["entry"] is None and "tuned here" not in chosen.choice["from"].values()


def test_a_trials_strategy_is_taken_as_far_as_it_fits(tmp_path):
    assert settings_of(Choosing(tmp_path, FUSED)(Job(), H200)) == ("fused", 16, 256)
    tight = Choosing(tmp_path, FUSED)(Job(), gpu("h200", 3.0))
    assert 1 <= tight.job.expert.pack < 16 and tight.choice["from"]["pack"] == "memory"
    large = replace(FUSED, memory_per_model_gib=1.5)  # beside its bars
    assert Choosing(tmp_path, large)(Job(), gpu("l4", 22.0)).job.expert.pack < 13


def test_a_tcns_slices_follow_the_formula(tmp_path):
    job = job_of(model="tcn", batch=350, tune="never")
    whole = Choosing(tmp_path)(job, H200)
    assert settings_of(whole)[1:] == (1, 350) and whole.choice["from"]["micro_batch"] == "default"
    l4 = gpu("l4", 22.0)
    sliced = Choosing(tmp_path)(job, l4)
    assert 1 < sliced.job.expert.micro_batch < 350 and not sliced.job.expert.activation_checkpointing
    assert sliced.choice["from"]["micro_batch"] == "memory"


def test_a_jobs_gpu_strategy_must_first_agree_on_this_chip(tmp_path):
    job = job_of(strategy="fused", tune="never", epochs=1)
    good = Choosing(tmp_path, FUSED)
    chosen = good(job, H200, surveyed(job, models=1))
    assert (len(good.asked), chosen.job.expert.strategy, chosen.choice["from"]["strategy"]) == (
        1,
        "fused",
        "job",
    )
    bad = Choosing(tmp_path, failure="no strategy can train this job here (its losses differ by 1.0e-01)")
    chosen = bad(job, H200, surveyed(job, models=1))
    assert (chosen.job.expert.strategy, chosen.choice["from"]["strategy"]) == ("sequential", "default")
    assert "losses differ" in bad.events[-1]["failure"]


def test_an_auto_batch_is_the_trials_else_256_within_the_limit(tmp_path):
    auto = job_of(batch=0)
    assert batch_of(Choosing(tmp_path, LARGE)(auto, H200)) == (1024, "tuned here")
    assert batch_of(Choosing(tmp_path)(auto)) == (256, "default")
    few = surveyed(auto, windows={"train": 6_500, "validation": 1_000, "test": 1_000})
    assert largest_batch(auto, CPU, few) == 64
    chosen = Choosing(tmp_path)(auto, found=few)
    assert batch_of(chosen) == (64, "default") and chosen.job.expert.micro_batch == 64  # a hundred steps


def checkpoint(out: Path, chosen: Chosen) -> None:
    (member,) = make_members(1, job_of(hidden=4, lookback=6), torch.device("cpu"))
    pack = SequentialPack([member], job_of(hidden=4, lookback=6))
    reads = torch.arange(9)
    run = Run(member=member, title="C0", reads=reads, validation=always(0.0), learning_rate=1e-3)
    write(out / "checkpoints", run, pack.snapshot(0), MADE, choice=chosen.choice)


def test_a_resumed_training_keeps_its_checkpoints_settings(tmp_path):
    auto = job_of(batch=0)
    first = Choosing(tmp_path, LARGE)(auto, H200)
    checkpoint(tmp_path, first)
    again = Choosing(tmp_path)
    assert again(auto, H200) == first and not again.asked
    other = Choosing(tmp_path, PLAIN)
    assert other(job_of(hidden=32, batch=128), H200).job.expert.strategy == "sequential" and other.asked
    # On another chip the batch, which is the model's, stands; the rest is that chip's.
    elsewhere = Choosing(tmp_path, FUSED)(auto, gpu("l4", 22.0))
    assert elsewhere.job.train.batch == 1024 and settings_of(elsewhere)[0] == "fused"
    checkpoint(tmp_path, Chosen(job=first.job, choice={**first.choice, "torch": "1.0"}))
    # Of another torch nobody knows whether the strategy agrees with plain modules.
    newer = Choosing(tmp_path, failure="no time")
    assert newer(auto, H200).job.expert.strategy == "sequential" and newer.asked


def test_a_checkpoints_batch_for_more_data_is_not_kept(tmp_path):
    auto = job_of(batch=0)
    checkpoint(tmp_path, Choosing(tmp_path, LARGE)(auto, H200))
    few = surveyed(auto, windows={**WINDOWS, "train": 6_700})
    assert batch_of(Choosing(tmp_path)(auto, H200, few)) == (64, "memory")


@pytest.mark.nightly
@pytest.mark.slow
def test_the_chosen_auto_batch_is_in_event_and_card(tmp_path, write_candles, python):
    write_candles(tmp_path, "SIG-USD", bars=4000)
    command = [*python, "-m", "trainer.train", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    command += ["--events", str(tmp_path / "events"), "--device", "cpu", "--epochs", "1"]
    command += sets("train.batch=auto", "expert.tune=never", "model.hidden=4", "model.lookback=6")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "events" / "events.jsonl").read_text().splitlines()
    (choice,) = [event["choice"] for event in map(json.loads, lines) if event["event"] == "started"]
    training = read_card(tmp_path / "out" / "lstm-direction_SIG-USD_1m.safetensors").training
    assert training["batch"] == choice["batch"] == training["choice"]["batch"] == 16
    assert choice["from"]["batch"] == "default" and training["choice"]["micro_batch"] == 16
    assert (training["strategy"], training["pack"], training["micro_batch"]) == ("sequential", 1, 16)


def test_a_damaged_checkpoint_is_ignored(tmp_path):
    place = tmp_path / "checkpoints" / "lstm_C0_1m" / "000000000001"
    place.mkdir(parents=True)
    for text in ("{", "{}", '{"choice": {}}', '{"choice": {"shape": 3}}'):
        (place / "manifest.json").write_text(text)
        assert Choosing(tmp_path)(job_of(tune="never")).job.expert.micro_batch == CPU_SLICE


def test_a_tcn_is_chosen_in_chunks(tmp_path):
    chosen = Choosing(tmp_path)(job_of(model="tcn", batch=8, tune="never"), H200)
    assert chosen.job.train.batch == 8 and settings_of(chosen) == ("sequential", 1, 8)


A_YEAR = 525_600  # minutes


def place(job: Job, memory_gib: float = 22.35, *, tuned: Job | None = None, workers_per_gpu: int = 1) -> Job:
    site = gpu("l4", memory_gib, workers=workers_per_gpu, workers_per_gpu=workers_per_gpu)
    return placed(job, site, tuned=tuned or job, bars=A_YEAR)


def test_a_gpu_trains_as_many_models_as_fit():
    alone = place(Job())
    assert (alone.expert.pack, alone.expert.micro_batch, alone.train.batch) == (7, 0, 256)
    assert 1 <= place(Job(), 3.0, workers_per_gpu=2).expert.pack < alone.expert.pack
    sliced = place(job_of(batch=16_384), 3.0)
    assert 0 < sliced.expert.micro_batch < sliced.train.batch == 16_384
    assert place(job_of(pack=3)).expert.pack == 3


def test_tuned_settings_are_taken_as_far_as_they_fit():
    tuned = job_of(strategy="fused", pack=32, micro_batch=128)
    assert place(Job(), 141.0, tuned=tuned) == tuned
    small = place(Job(), 3.0, tuned=tuned)
    assert (small.expert.strategy, small.expert.micro_batch) == ("fused", 128) and 1 <= small.expert.pack < 32
    assert place(job_of(pack=2), 3.0, tuned=job_of(pack=2, micro_batch=128)).expert.pack == 2


def test_ranks_divide_only_a_model_that_fits_no_gpu(tmp_path):
    job = job_of(model="tcn", width=2048, batch=64, tune="never", distributed="always")

    def chosen(memory_gib: float) -> Chosen:
        ranks = gpu("a100_40gb", memory_gib, workers=8, together=True)
        return Choosing(tmp_path)(job, ranks, surveyed(job, models=1))

    roomy, tight = chosen(40.0), chosen(8.0)
    assert not roomy.sharded and roomy.choice["layout"] == "ddp"
    assert roomy.job.expert.micro_batch <= 8  # a rank's share of 64
    assert tight.sharded and tight.choice["layout"] == "fsdp" and tight.job.train.batch == 64
    with pytest.raises(UsageError, match="does not fit on each of 8 NVIDIA A100"):
        chosen(2.0)
    assert "layout" not in Choosing(tmp_path)(job_of(tune="never")).choice


def test_a_shape_that_ran_out_of_memory_has_less_in_its_choice(tmp_path):
    first = Choosing(tmp_path)(job_of(tune="never"), gpu("l4", 22.35))
    assert settings_of(first) == ("sequential", 7, 256)
    settings = WorkerSettings(
        job=first.job, data=None, out=tmp_path, checkpoints=tmp_path, choice=first.choice
    )  # type: ignore[arg-type]
    less = smaller(first.job, models=7)
    assert less is not None
    choice = with_job(settings, less).choice
    assert (choice["pack"], choice["from"]["pack"]) == (3, "memory")
    assert {name for name, source in choice["from"].items() if source == "memory"} == {"pack"}
