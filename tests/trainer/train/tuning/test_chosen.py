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
from trainer.machines.measurements import OPEN, keep_here, known_here, shape_of
from trainer.store.card import read_card
from trainer.train.checkpoint import write
from trainer.train.inputs.survey import Survey
from trainer.train.loop import Run
from trainer.train.packs.sequential import SequentialPack
from trainer.train.tuning.chosen import Chosen, Site, choose_settings, placed, run_estimate
from trainer.train.tuning.timing import Candidate, Timing, make_members
from trainer.train.tuning.tune import Tuning, entry_of
from trainer.train.workers.assignment import WorkerSettings
from trainer.train.workers.smaller import remembered, smaller, with_job

CPU = Site(kind="cpu", profile=choose("cpu", None), workers=2)
WINDOWS, BARS = {"train": 300_000, "validation": 50_000, "test": 50_000}, 430_000
FUSED = Timing(candidate=Candidate(strategy="fused", pack=16, micro_batch=256), windows_per_second=900_000.0)


def plain(micro_batch: int, *, memory_gib: float = 0.0, **keys: Any) -> Timing:
    """Return the timing of plain modules in slices."""
    candidate = Candidate(strategy="sequential", pack=1, micro_batch=micro_batch, **keys)
    return Timing(candidate=candidate, windows_per_second=9_000.0, memory_per_model_gib=memory_gib)


def gpu(profile: str, memory_gib: float, **keys: Any) -> Site:
    choice = Choice(profile=named_profile(profile), why="", memory_gib=memory_gib)
    return Site(kind="cuda", profile=choice, **{"workers": 1, **keys})


def settings_of(chosen: Chosen) -> tuple[str, int, int]:
    """Return the strategy, the models at a time and the size of a slice."""
    return chosen.job.expert.strategy, chosen.job.expert.pack, chosen.job.expert.micro_batch


def batch_of(chosen: Chosen) -> tuple[int, str]:
    """Return the batch and its source."""
    return chosen.job.train.batch, chosen.choice["from"]["batch"]


SLICES, H200 = plain(64), gpu("h200", 140.0)
LARGE = plain(64, batch=1024)


def surveyed(job: Job, *, models: int = 4, windows: dict[str, int] = WINDOWS) -> Survey:
    visits = job.train.epochs * windows["train"]
    size = {"estimate": visits, "bars": BARS, "windows": windows["train"]}
    return Survey(pieces=tuple(piece(f"C{n}", **size) for n in range(models)), data={"timeframe": "1m"})


class Choosing:
    """One choice with a tuner that answers as it is told; what it was asked and what was said is kept."""

    def __init__(self, out: Path, *timings: Timing, failure: str = "") -> None:
        self.out, self.tuning = out, Tuning(timings=timings, failure=failure)
        self.asked: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def __call__(self, job: Job, site: Site = CPU, found: Survey | None = None) -> Chosen:
        def run(job: Job, **how: Any) -> Tuning:
            self.asked.append(how)
            self.timed = job
            return self.tuning

        known = {"surveyed": found or surveyed(job), "checkpoints": self.out / "checkpoints"}
        return choose_settings(job, site=site, **known, emit=self.events.append, run=run)


def test_a_long_run_tunes_itself_and_a_short_one_takes_defaults(tmp_path):
    choosing = Choosing(tmp_path, SLICES)
    chosen = choosing(Job())
    assert settings_of(chosen) == ("sequential", 1, 64)
    assert chosen.choice["from"] == {**dict.fromkeys(OPEN, "tuned here"), "batch": "job"}
    # Three candidates, 3 s each.
    assert choosing.asked == [{"device": "cpu", "seconds": 9.0, "batch_limit": 2048}]
    assert [event["event"] for event in choosing.events] == ["tuning", "tuned"]
    assert (choosing.events[0]["seconds"], choosing.events[1]["limit_seconds"]) == (9.0, 9.0)
    assert choosing.events[1]["entry"] == entry_of(SLICES) and choosing.events[1]["failure"] == ""

    short = Choosing(tmp_path, SLICES)
    chosen = short(job_of(epochs=1), found=surveyed(job_of(epochs=1), models=1))
    assert not short.asked and not short.events
    assert settings_of(chosen) == ("sequential", 1, CPU_SLICE)
    assert set(chosen.choice["from"].values()) == {"default", "job"}


@pytest.mark.parametrize(("models", "workers", "at_a_time"), [(1, 1, 1), (4, 1, 4), (20, 4, 5), (40, 1, 0)])
def test_a_trial_on_a_gpu_times_as_many_models_as_it_has(tmp_path, models, workers, at_a_time):
    choosing, site = Choosing(tmp_path, FUSED), replace(H200, workers=workers)
    choosing(Job(), site, surveyed(Job(), models=models))
    assert choosing.timed == job_of(pack=at_a_time)
    assert choosing.events[1]["shape"] == shape_of(job_of(pack=at_a_time))


@pytest.mark.parametrize(("windows", "job", "tunes"), [
    (1_000_000, Job(), True),
    (100_000, Job(), False),
    (1_000_000, job_of(model="tcn", epochs=1), False),
    (1_000_000, job_of(tune="never"), False),
])  # fmt: skip
def test_models_with_strategies_for_gpus_tune_before_a_run_of_seconds(tmp_path, windows, job, tunes):
    """Plain modules take ten times as long as the estimate says, so a trial of twenty seconds is soon worth it."""
    choosing, job = Choosing(tmp_path, FUSED), job.with_train(epochs=1)
    choosing(job, H200, surveyed(job, windows={**WINDOWS, "train": windows}))
    assert bool(choosing.asked) is tunes


def estimate(job: Job = Job(), rate: float = 2_000.0) -> bool:
    """Return whether a run is estimated by this rate of windows a second."""
    seconds, _ = run_estimate(job, CPU, surveyed(Job()))
    return seconds == pytest.approx(4 * 15 * 300_000 / rate / 2)


def test_a_runs_seconds_follow_from_the_measured_rate(tmp_path):
    assert estimate()
    keep_here("cpu", shape_of(Job()), entry_of(replace(SLICES, windows_per_second=4_000.0)))
    assert estimate(rate=4_000) and not estimate(job_of(hidden=128), rate=4_000)  # another shape
    keep_here("cpu", shape_of(Job()), {**entry_of(SLICES), "windows_per_second": 1e11})
    assert estimate()  # that is absurd
    (tmp_path / "measurements.json").write_text("{")
    assert estimate()


def test_workers_that_share_a_gpu_share_its_rate():
    alone, sharing = (replace(H200, workers=count, workers_per_gpu=count) for count in (1, 2))
    seconds = [run_estimate(Job(), site, surveyed(Job()))[0] for site in (alone, sharing)]
    assert seconds[0] == seconds[1]


def test_a_tcns_run_is_estimated_by_its_bars():
    """The full size on 41,123 bars took 15 to 25 s an epoch on two cores (AMD EPYC, 2026-11-21): no time for
    a tuner.
    """
    job = job_of(model="tcn", epochs=1)
    seconds, _ = run_estimate(
        job, replace(CPU, workers=1), surveyed(job, models=1, windows={**WINDOWS, "train": 25_851})
    )
    assert 5 < seconds < 100


def test_tune_never_and_always_and_a_fixed_job_are_respected(tmp_path):
    never, always, named = (Choosing(tmp_path, SLICES) for _ in range(3))
    never(job_of(tune="never"))
    assert not never.asked
    always(job_of(tune="always", epochs=1, batch=128), found=surveyed(job_of(epochs=1), models=1))
    assert len(always.asked) == 1
    named(job_of(strategy="sequential", pack=1, micro_batch=32))
    assert not named.asked


def test_earlier_settings_are_not_measured_again(tmp_path):
    keep_here("cpu", shape_of(Job()), entry_of(SLICES))
    choosing = Choosing(tmp_path)
    chosen = choosing(Job())
    assert not choosing.asked and chosen.job.expert.micro_batch == 64
    assert chosen.choice["from"]["micro_batch"] == "remembered"
    own = choosing(job_of(tune="never", micro_batch=32))
    assert own.job.expert.micro_batch == 32 and own.choice["from"]["micro_batch"] == "job"


@pytest.mark.parametrize("failure", ["its process ended with exit code -9", "it was not done after 60 s"])
def test_a_failed_trial_leaves_the_defaults(tmp_path, failure):
    choosing = Choosing(tmp_path, failure=failure)
    chosen = choosing(job_of(tune="always"), H200)
    assert (chosen.job.expert.strategy, choosing.events[-1]["failure"]) == ("sequential", failure)
    assert choosing.events[-1]["entry"] is None and "tuned here" not in chosen.choice["from"].values()


def test_on_a_gpu_the_tuners_strategy_is_taken_as_far_as_it_fits(tmp_path):
    chosen = Choosing(tmp_path, FUSED)(job_of(tune="always"), H200)
    assert settings_of(chosen) == ("fused", 16, 256)
    chosen = Choosing(tmp_path, FUSED)(job_of(tune="always"), gpu("h200", 3.0))
    assert 1 <= chosen.job.expert.pack < 16 and chosen.choice["from"]["pack"] == "memory"


def test_a_tcns_slices_follow_the_formula_unless_measured(tmp_path):
    job = job_of(model="tcn", batch=350, tune="never")
    whole = Choosing(tmp_path)(job, H200)
    assert settings_of(whole)[1:] == (1, 350) and whole.choice["from"]["micro_batch"] == "default"
    l4 = gpu("l4", 22.0)
    sliced = Choosing(tmp_path)(job, l4)
    assert 1 < sliced.job.expert.micro_batch < 350 and not sliced.job.expert.activation_checkpointing
    assert sliced.choice["from"]["micro_batch"] == "memory"
    keep_here("l4", shape_of(job), entry_of(plain(350, memory_gib=17.0)))
    measured = Choosing(tmp_path)(job, l4)
    assert (measured.job.expert.micro_batch, measured.choice["from"]["micro_batch"]) == (350, "remembered")
    assert measured.choice["memory_per_model_gib"] == 17.0, "for who goes on with it"


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


def test_an_auto_batch_is_the_tuners_else_256_within_the_limit(tmp_path):
    auto = job_of(batch=0)
    assert batch_of(Choosing(tmp_path, LARGE)(auto)) == (1024, "tuned here")
    assert batch_of(Choosing(tmp_path)(job_of(batch=0, tune="never"))) == (256, "default")
    few = surveyed(auto, windows={"train": 6_500, "validation": 1_000, "test": 1_000})
    keep_here("cpu", shape_of(auto), entry_of(LARGE))
    chosen = Choosing(tmp_path)(auto, found=few)
    assert batch_of(chosen) == (64, "memory") and chosen.job.expert.micro_batch == 64  # a hundred steps


def checkpoint(out: Path, chosen: Chosen) -> None:
    (member,) = make_members(1, job_of(hidden=4, lookback=6), torch.device("cpu"))
    pack = SequentialPack([member], job_of(hidden=4, lookback=6))
    reads = torch.arange(9)
    run = Run(member=member, title="C0", reads=reads, validation=always(0.0), learning_rate=1e-3)
    write(out / "checkpoints", run, pack.snapshot(0), MADE, choice=chosen.choice)


def test_a_resumed_training_keeps_its_checkpoints_settings(tmp_path):
    auto = job_of(batch=0)
    first = Choosing(tmp_path, LARGE)(auto)
    checkpoint(tmp_path, first)
    assert known_here("cpu", auto, torch=torch.__version__) is None
    again = Choosing(tmp_path)
    assert again(auto) == first and not again.asked
    other = Choosing(tmp_path, SLICES)
    assert other(job_of(hidden=32, batch=128)).job.expert.micro_batch == 64 and other.asked
    # On another chip the batch, which is the model's, stands; the rest is that chip's.
    elsewhere = Choosing(tmp_path, FUSED)(job_of(batch=0, tune="always"), H200)
    assert elsewhere.job.train.batch == 1024 and settings_of(elsewhere)[:2] == ("fused", 16)
    checkpoint(tmp_path, Chosen(job=first.job, choice={**first.choice, "strategy": "fused", "torch": "1.0"}))
    # Of another torch nobody knows whether the strategy agrees with plain modules.
    newer = Choosing(tmp_path, failure="no time")
    assert newer(job_of(batch=0, tune="always"), CPU).job.expert.strategy == "sequential" and newer.asked


def test_a_checkpoints_batch_for_more_data_is_not_kept(tmp_path):
    auto = job_of(batch=0)
    checkpoint(tmp_path, Choosing(tmp_path, LARGE)(auto))
    few = surveyed(auto, windows={**WINDOWS, "train": 6_700})
    assert batch_of(Choosing(tmp_path)(auto, found=few)) == (64, "memory")


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
    best = plain(4, activation_checkpointing=True)
    chosen = Choosing(tmp_path, best)(job_of(model="tcn", batch=8, tune="always"), H200)
    assert chosen.job.train.batch == 8 and settings_of(chosen) == ("sequential", 1, 4)
    assert chosen.job.expert.activation_checkpointing


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


def test_ranks_are_tuned_by_their_share_of_the_batch(tmp_path):
    ranks = replace(CPU, workers=4, together=True)
    job = job_of(batch=1000, tune="always", distributed="always", strategy="fused")
    choosing = Choosing(tmp_path, SLICES)
    chosen = choosing(job, ranks, surveyed(job, models=1))
    batch, expert = choosing.timed.train.batch, choosing.timed.expert
    assert (batch, expert.strategy, expert.pack) == (250, "sequential", 1)
    assert (chosen.job.train.batch, chosen.job.expert.micro_batch) == (1000, 64)
    assert choosing.events[1]["shape"] == shape_of(choosing.timed) != shape_of(job)
    keep_here(CPU.profile.profile.key, choosing.events[1]["shape"], {**choosing.events[1]["entry"]})
    again = Choosing(tmp_path)
    assert again(job, ranks, surveyed(job, models=1)).job.expert.micro_batch == 64 and not again.asked
    gpus = Site(kind="cuda", profile=H200.profile, workers=4, together=True)
    large = job_of(model="transformer", preset="large", batch=1024, tune="always", distributed="always")
    assert Choosing(tmp_path, SLICES)(large, gpus, surveyed(large, models=1)).job.expert.micro_batch == 64


def test_a_shape_that_ran_out_of_memory_starts_with_less_next_time(tmp_path):
    site, job = gpu("l4", 22.35), job_of(tune="never")
    first = Choosing(tmp_path)(job, site)
    assert settings_of(first) == ("sequential", 7, 256)
    settings = WorkerSettings(
        job=first.job, data=None, out=tmp_path, checkpoints=tmp_path, choice=first.choice
    )  # type: ignore[arg-type]
    less = smaller(first.job, models=7)
    assert less is not None
    told = remembered(with_job(settings, less))
    assert (told["profile"], told["shape"]) == (first.choice["profile"], shape_of(job.with_expert(pack=4)))
    keep_here(told["profile"], told["shape"], told["entry"])
    again = Choosing(tmp_path)(job, site)
    assert settings_of(again) == ("sequential", 3, 256)
    assert again.choice["from"]["pack"] == "remembered"
