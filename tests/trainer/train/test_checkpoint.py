"""Checkpoints: a resumed run ends as an uninterrupted one, and only a sound checkpoint of the same job is
resumed.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.disks import refused
from tests.jobs import job_keys, job_of, with_settings
from tests.trainer.train.rosters import MADE, Roster, Strategy, WorkerKilled, run_of_noise
from trainer.base.own_file import OwnFile
from trainer.base.settings import keys_of
from trainer.job.job import Job
from trainer.job.model_settings import NOT_THE_MODEL
from trainer.job.search import SearchSettings
from trainer.train.checkpoint import (
    CheckpointWriter,
    forget,
    made_by,
    newest,
    why_none_continues,
    write,
)
from trainer.train.checkpoint_files import CheckpointManifest
from trainer.train.packs.pack import ModelState
from trainer.train.packs.sequential import SequentialPack
from trainer.train.packs.stacked import Fused, Streams
from trainer.train.run import Run

pytestmark = pytest.mark.slow

# Sixty steps of the shorter model.
JOB = job_of(
    hidden=6,
    lookback=8,
    batch=10,
    epochs=5,
    patience=5,
    learning_rate=1e-2,
    dropout=0.2,
    checkpoint_seconds=1,
)


OTHER = replace(MADE, settings="0" * 64)


def _run(number: int) -> Run:
    return run_of_noise(number, JOB, windows=120 + 60 * number)


def _train(folder: Path, form: Strategy, places: int, job: Job = JOB, **keys: Any) -> Roster:
    """Train two runs, with the checkpoints in this folder."""
    return Roster(_run(0), _run(1), folder=folder, **keys).train(form, job, places=places)


def _killed(
    folder: Path, dies_after: int, form: Strategy = SequentialPack, places: int = 1, **keys: Any
) -> None:
    with pytest.raises(WorkerKilled):
        _train(folder, form, places, dies_after=dies_after, **keys)


@pytest.mark.parametrize(
    ("strategy", "dies_after", "places", "ema"),
    [
        pytest.param(SequentialPack, 1, 1, 0.0, marks=pytest.mark.nightly),
        (SequentialPack, 23, 1, 0.95),
        pytest.param(SequentialPack, 40, 2, 0.0, marks=pytest.mark.nightly),
        pytest.param(SequentialPack, 41, 2, 0.95, marks=pytest.mark.nightly),
        pytest.param(Fused, 41, 2, 0.95, marks=pytest.mark.nightly),
        pytest.param(Streams, 41, 2, 0.0, marks=pytest.mark.nightly),
    ],
)
def test_a_resumed_run_ends_bit_identically(tmp_path, strategy, dies_after, places, ema):
    job = with_settings(JOB, ema=ema)
    whole = _train(tmp_path / "whole", strategy, places, job)
    _killed(tmp_path / "cut", dies_after, strategy, places, job=job)
    resumed = _train(tmp_path / "cut", strategy, places, job)
    assert resumed.resumed
    for name, run in whole.done.items():
        assert resumed.done[name].history == run.history
        assert resumed.done[name].first_steps == run.first_steps
        assert resumed.done[name].best_epoch == run.best_epoch
        found = resumed.done[name].best_weights
        assert all(torch.equal(weight, found[part]) for part, weight in run.best_weights.items())


@pytest.mark.nightly  # its snapshot alone: test_stacked.py
@pytest.mark.parametrize("later", [SequentialPack, Fused, Streams])
def test_another_strategy_continues_a_checkpoint(tmp_path, later):
    whole = _train(tmp_path / "whole", SequentialPack, 1)
    _killed(tmp_path / "cut", 25, Fused, 2)
    resumed = _train(tmp_path / "cut", later, 2)
    for name, run in whole.done.items():
        for expected, found in zip(run.history, resumed.done[name].history, strict=True):
            assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_safetensors_reads_our_file(tmp_path, dtype):
    weights = {
        "a": torch.randn(3, 5, dtype=dtype),
        "turned": torch.randn(4, 2, dtype=dtype).T,
        "one": torch.randn(1, dtype=dtype),
    }
    weights["shared"] = weights["a"][1:]
    state = ModelState(weights=weights, exp_avg=weights, exp_avg_sq=weights, updates=1, batches=1)
    place = write(tmp_path, _run(0), state, MADE, choice={})
    found = safetensors.torch.load_file(place / "data.safetensors")
    for part in ("weights", "exp_avg", "exp_avg_sq"):
        assert all(torch.equal(found[f"{part}.{name}"], weight) for name, weight in weights.items())
    assert newest(tmp_path, "m0", MADE) is not None


def test_a_damaged_checkpoint_is_passed_over_for_the_previous(tmp_path):
    _killed(tmp_path, 9)
    places = sorted((tmp_path / "m0").iterdir())
    assert len(places) == 2  # older ones are dropped
    newer = newest(tmp_path, "m0", MADE)
    content = bytearray((places[-1] / "data.safetensors").read_bytes())
    content[-1] ^= 1
    (places[-1] / "data.safetensors").write_bytes(bytes(content))
    older = newest(tmp_path, "m0", MADE)
    assert newer is not None and older is not None
    assert older.state.batches == newer.state.batches - 1
    (places[-1] / "data.safetensors").write_bytes(bytes(content[:100]))
    (places[0] / "manifest.json").write_text("{")
    assert newest(tmp_path, "m0", MADE) is None


def test_an_older_checkpoint_continues_beside_a_damaged_one(tmp_path):
    _killed(tmp_path, 9)
    (max((tmp_path / "m0").iterdir()) / "manifest.json").write_text("{")
    assert why_none_continues(tmp_path, "m0", MADE) == ""
    assert newest(tmp_path, "m0", MADE) is not None


def test_a_checkpoint_without_its_manifest_does_not_exist(tmp_path):
    _killed(tmp_path, 1)
    (place,) = (tmp_path / "m0").iterdir()
    assert json.loads((place / "manifest.json").read_text())["format"] == 3
    (place / "manifest.json").unlink()
    assert newest(tmp_path, "m0", MADE) is None


def test_a_checkpoint_of_another_job_is_not_resumed(tmp_path):
    _killed(tmp_path, 5)
    assert newest(tmp_path, "m0", OTHER) is None
    assert _train(tmp_path, SequentialPack, 1, with_settings(JOB, epochs=1), made=OTHER).resumed == {}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"torch": "2.99"}, "torch 2.99 wrote it, this is 2.13"),
        ({"precision": "bf16"}, "it was written in bf16, this machine trains in fp32"),
        ({"code": "f" * 64}, "other code of training wrote it (ffffffff, this is cccccccc)"),
        ({"settings": "0" * 64}, "it has other settings of the job"),
        ({"data": "0" * 64, "torch": "3"}, "torch 3 wrote it, this is 2.13; it has other bars"),
    ],
)
def test_the_difference_from_a_checkpoints_writer_is_named(tmp_path, other, words):
    assert why_none_continues(tmp_path, "m0", MADE) == ""
    _killed(tmp_path, 3, made=replace(MADE, **other))
    assert why_none_continues(tmp_path, "m0", MADE) == words
    assert newest(tmp_path, "m0", MADE) is None
    _killed(tmp_path, 1)  # which drops the other's
    assert why_none_continues(tmp_path, "m0", MADE) == ""


def test_later_checkpoints_of_another_job_are_dropped_first(tmp_path):
    _killed(tmp_path, 9)
    _killed(tmp_path, 3, made=OTHER)
    found = newest(tmp_path, "m0", OTHER)
    # The first look at the clock starts the interval.
    assert found is not None and found.state.batches == 3 + 1
    assert len(list((tmp_path / "m0").iterdir())) == 2


def test_a_file_beside_checkpoints_keeps_no_old_one(tmp_path):
    """As a Mac's Finder leaves one in each folder that it has shown."""
    folder = tmp_path / "m0"
    folder.mkdir()
    (folder / ".DS_Store").touch()
    _killed(tmp_path, 4)
    assert len([place for place in folder.iterdir() if place.is_dir()]) == 2


def test_a_fingerprint_depends_on_the_model_and_not_on_its_speed():
    def of(keys: dict[str, Any], data: bytes = b"1234", code: str = "c") -> str:
        return made_by(with_settings(JOB, **keys), data={"close": data}, code_sha256=code).fingerprint

    fast = ({"strategy": "fused", "pack": 4}, {"budget": 5.0}, {"retries": 3}, {"symbols": ("A",)})
    fast = (*fast, {"env": ("NCCL_DEBUG=INFO", "OMP_PROC_BIND=true")}, {"gpu_profile": "l4-24gb"})
    assert {of(keys) for keys in fast} == {of({})}
    assert of({"env": ("NCCL_DEBUG=INFO", "NVIDIA_TF32_OVERRIDE=0")}) != of({})
    others = ({"folds": 2}, {"test_fraction": 0.2}, {"horizon": 3}, {"hidden": 7}, {"seed": 1}, {"ema": 0.9})
    assert len({of({}), of({}, data=b"1235"), of({}, code="d"), *map(of, others)}) == 9
    known = {key for key, _, _ in job_keys(JOB)} | {f"search.{key}" for key in keys_of(SearchSettings)}
    assert known >= NOT_THE_MODEL


def test_an_own_file_counts_by_hash_and_settings_not_by_path():
    own = job_of(model="a/net.py:Net", **{"model.sha256": "1" * 64, "model.hidden": 3})
    model = own.own_files["model"]

    def of(one: OwnFile) -> str:
        return made_by(own.with_own_files({"model": one}), data={}, code_sha256="c").fingerprint

    assert of(model) == of(model.with_file("b/net.py")) == of(model.with_copy(Path("c.py")))
    others = ({"sha256": "2" * 64}, {"class_name": "Other"}, {"arguments": '{"hidden": 4}'})
    assert len({of(model), *(of(replace(model, **keys)) for keys in others)}) == 4


def test_the_writer_reports_the_cost_of_a_checkpoint(tmp_path):
    events: list[dict[str, Any]] = []
    run = _run(0)
    state = SequentialPack([run.member], JOB).snapshot(0)
    writer = CheckpointWriter(tmp_path / "checkpoints", events.append)
    writer.submit(run, state, MADE, snapshot_seconds=0.001)
    writer.flush()
    (event,) = events
    assert (event["event"], event["snapshot_seconds"]) == ("checkpoint", 0.001) and event["write_seconds"] > 0
    assert (tmp_path / "checkpoints" / event["folder"] / "manifest.json").exists()
    forget(tmp_path / "checkpoints", "m0")
    assert (tmp_path / "checkpoints").exists() and not list((tmp_path / "checkpoints").iterdir())


def test_each_model_has_at_most_one_state_waiting_for_the_disk(
    tmp_path,
):
    events: list[dict[str, Any]] = []
    disk_is_free = threading.Event()

    def report(event: dict[str, Any]) -> None:
        assert disk_is_free.wait(60)
        events.append(event)

    runs = [_run(0), _run(1)]
    pack = SequentialPack([run.member for run in runs], JOB)
    writer = CheckpointWriter(tmp_path, report)
    for number, run in enumerate(runs):  # returns at once for both, while the disk is busy with the first
        writer.submit(run, pack.snapshot(number), MADE, snapshot_seconds=0.0)
    assert not events
    threading.Timer(0.01, disk_is_free.set).start()
    writer.submit(runs[0], replace(pack.snapshot(0), batches=1), MADE, snapshot_seconds=0.0)
    assert [event["model"] for event in events][:1] == ["m0"]  # memory holds one state of a model at most
    writer.flush()
    assert [event["model"] for event in events] == ["m0", "m1", "m0"]
    assert all(event["waited_seconds"] >= 0 for event in events)


def test_a_disk_error_costs_the_checkpoint_and_is_reported(tmp_path):
    events: list[dict[str, Any]] = []
    (tmp_path / "file").touch()
    run = _run(0)
    writer = CheckpointWriter(tmp_path / "file", events.append)
    writer.submit(run, SequentialPack([run.member], JOB).snapshot(0), MADE, snapshot_seconds=0.0)
    writer.flush()
    assert [event["event"] for event in events] == ["checkpoint_failed"]


def test_a_refused_checkpoint_leaves_no_data_on_a_full_disk(tmp_path, monkeypatch):
    run = _run(0)
    state = SequentialPack([run.member], JOB).snapshot(0)
    with monkeypatch.context() as full, pytest.raises(OSError, match="No space left"):
        full.setattr(CheckpointManifest, "write", refused)
        write(tmp_path, run, state, MADE, choice={})
    assert not list((tmp_path / "m0").iterdir())
    place = write(tmp_path, run, state, MADE, choice={})
    with monkeypatch.context() as full, pytest.raises(OSError, match="No space left"):
        full.setattr(CheckpointManifest, "write", refused)
        write(tmp_path, run, state, MADE, choice={})
    assert (place / "manifest.json").exists() and newest(tmp_path, "m0", MADE)
