"""The tuner: what it times, what it excludes, what it keeps, and what the next run takes from that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trainer.config import Job
from trainer.errors import UsageError
from trainer.train import tune as tuning
from trainer.train.stacked import Fused
from trainer.train.tune import Candidate, Timing, candidates, disagreement, main, make_members, remember, tune, tuned

JOB = Job(hidden=4, lookback=6, batch=32)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def profiles_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAYFLY_PROFILES", str(tmp_path / "profiles" / "gpu_profiles.toml"))
    monkeypatch.setattr(tuning, "ROWS", 500)


def test_on_a_cpu_one_models_slices_are_timed_and_none_is_larger_than_the_batch():
    assert [option.micro_batch for option in candidates(Job(batch=1024), "cpu")] == [64, 128, 256, 1024]
    assert [option.micro_batch for option in candidates(Job(batch=100), "cpu")] == [64, 100]
    assert {(option.strategy, option.pack) for option in candidates(Job(), "cpu")} == {("lanes", 1)}


def test_on_a_gpu_both_strategies_are_timed_with_several_packs_or_the_jobs_own():
    options = candidates(Job(), "cuda")
    assert {option.strategy for option in options} == {"lanes", "streams", "fused"}
    assert {option.pack for option in candidates(Job(pack=6), "cuda") if option.strategy != "lanes"} == {6}


def test_the_fastest_comes_first_and_the_time_is_kept():
    timings = tune(JOB, CPU, seconds=0.2, say=lambda line: None)
    speeds = [timing.windows_per_second for timing in timings]
    assert speeds == sorted(speeds, reverse=True) and speeds[-1] > 0
    assert timings[0].windows_per_second == pytest.approx(timings[0].steps_per_second * JOB.batch)


def test_a_strategy_that_agrees_with_plain_modules_passes_and_one_that_does_not_is_told_by_how_much():
    members = make_members(3, JOB, CPU)
    assert disagreement(Fused(members, JOB), members, JOB) == ""
    broken = Fused(members, JOB)
    broken.set_learning_rate(1, 0.5)
    assert "differ by" in disagreement(broken, members, JOB)


def test_a_strategy_that_disagrees_is_excluded_and_the_log_says_so(monkeypatch):
    options = [Candidate(strategy="lanes", pack=1, micro_batch=32), Candidate(strategy="fused", pack=2, micro_batch=32)]
    monkeypatch.setattr(tuning, "candidates", lambda job, kind: options)
    monkeypatch.setattr(tuning, "disagreement", lambda other, members, job: "its losses differ by 1.0e-01")
    said: list[str] = []
    first, last = tune(JOB, CPU, seconds=0.1, say=said.append)
    assert first.candidate.strategy == "lanes" and last.excluded == "its losses differ by 1.0e-01"
    assert said == ["fused is excluded: its losses differ by 1.0e-01"]


def test_out_of_memory_is_an_answer(monkeypatch):
    made = tuning.form_pack

    def form(members, job):
        if job.micro_batch > 16:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return made(members, job)

    options = [Candidate(strategy="lanes", pack=1, micro_batch=size) for size in (8, 16, 32)]
    monkeypatch.setattr(tuning, "candidates", lambda job, kind: options)
    monkeypatch.setattr(tuning, "form_pack", form)
    timings = tune(JOB, CPU, seconds=0.1, say=lambda line: None)
    assert [timing.excluded for timing in timings] == ["", "", "out of memory"]
    assert timings[-1].candidate.micro_batch == 32


def test_the_next_run_of_this_shape_takes_what_was_measured_and_no_other_does():
    best = Timing(candidate=Candidate(strategy="fused", pack=8, micro_batch=16), windows_per_second=1234.5)
    remember("h200", JOB, best)
    found = tuned(JOB, "h200")
    assert (found.strategy, found.pack, found.micro_batch) == ("fused", 8, 16)
    assert tuned(JOB, "t4") == JOB
    assert tuned(Job(hidden=8), "h200") == Job(hidden=8)
    own = Job(hidden=4, lookback=6, batch=32, strategy="lanes", micro_batch=4, pack=2)
    assert tuned(own, "h200") == own  # what the job names itself stands


def test_a_later_tuning_keeps_what_is_known_of_other_shapes(tmp_path):
    for hidden in (4, 8):
        job = Job(hidden=hidden)
        remember("cpu", job, Timing(candidate=Candidate(strategy="lanes", pack=1, micro_batch=hidden), windows_per_second=1.0))
    assert tuned(Job(hidden=4), "cpu").micro_batch == 4 and tuned(Job(hidden=8), "cpu").micro_batch == 8


def test_only_what_was_measured_of_the_reference_model_is_a_figure_of_the_profile(tmp_path):
    best = Timing(
        candidate=Candidate(strategy="streams", pack=8, micro_batch=256), windows_per_second=2.0, memory_per_model_gib=0.1
    )
    remember("l4", Job(hidden=128), best)
    file = tmp_path / "profiles" / "gpu_measured.json"
    assert not file.exists()
    remember("l4", Job(), best)
    measured = json.loads(file.read_text())["l4"]
    assert (measured["windows_per_second"], measured["models_per_gpu"]) == (2, 8) and "date" in measured
    assert measured["memory_per_model_gib"] > 1.0  # the rows of seven years are added


def test_a_spoilt_file_is_named_with_its_remedy(tmp_path):
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "tuned.json").write_text("{")
    with pytest.raises(UsageError, match=r"tuned\.json.*Delete the file"):
        tuned(JOB, "cpu")


def test_the_command_prints_the_table_for_people_and_the_choice_as_json(capsys):
    assert main(["--device", "cpu", "--seconds", "0.2", "--set", "hidden=4", "--set", "lookback=6", "--set", "batch=32"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["candidate"]["strategy"] == "lanes"
    assert "windows/s" in said.err and "it/s" in said.err and "Most windows a second wins" in said.err
    assert tuned(JOB, "cpu").micro_batch == 32
    assert main(["--set", "hiden=4"]) == 2
    assert main(["--set", "model=tcn"]) == 2
