"""Checkpoints: a resumed run ends as one that was never interrupted, and only a whole and fitting one is
resumed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from tests.jobs import job_keys, job_of, with_settings
from trainer.job.job import Job
from trainer.train.checkpoint import _NOT_THE_MODEL, CheckpointWriter, fingerprint, forget, newest, write
from trainer.train.loop import Run, train
from trainer.train.packs.pack import Member, ModelState, Pack, SequentialPack, loss_for
from trainer.train.packs.stacked import Fused, Streams
from trainer.train.predict.readers import Inputs, WindowReader

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
MARK = "the same job, data and code"


class Killed(Exception):
    """What happens to a worker."""


class Worker:
    """A roster of two runs. One that dies after a number of steps writes a checkpoint of each run after every
    step.
    """

    def __init__(self, folder: Path, *, dies_after: int | None = None, mark: str = MARK) -> None:
        self.folder, self.dies_after, self.mark = folder, dies_after, mark
        self.steps = 0
        self.done: dict[str, Run] = {}
        self.resumed: list[str] = []
        self._waiting = [_run(0), _run(1)]

    def arrivals(self, free: int, *, wait: bool) -> list[Run]:
        joined, self._waiting = self._waiting[:free], self._waiting[free:]
        for run in joined:
            if (found := newest(self.folder, run.member.name, self.mark)) is not None:
                found.put_into(run)
                self.resumed.append(run.member.name)
        return joined

    def checkpoint(self, run: Run, state: ModelState, *, snapshot_seconds: float) -> None:
        if self.dies_after is None:
            return
        write(self.folder, run, state, self.mark)
        self.steps += 1
        if self.steps == self.dies_after:
            raise Killed

    def finished(self, run: Run, model: nn.Module) -> None:
        self.done[run.member.name] = run


def _run(number: int) -> Run:
    generator = torch.Generator().manual_seed(number)
    rows_TF = torch.randn(180 + 60 * number, 4, generator=generator)
    labels_TK = (rows_TF[:, 1:2] > 0).float()
    member = Member(
        name=f"m{number}", rows_TF=rows_TF, labels_TK=labels_TK, mean_F=torch.zeros(4), std_F=torch.ones(4)
    )
    last = len(rows_TF) - 60
    bars = torch.arange(last, last + 40) + JOB.model.lookback - 1
    inputs = Inputs(rows_TF=rows_TF, mean_F=member.mean_F, std_F=member.std_F)
    reader = WindowReader(inputs, bars_seen=JOB.model.bars_seen)

    def validate(model: nn.Module) -> float:
        return float(
            loss_for(JOB)(
                torch.from_numpy(reader.outputs(model, bars.numpy())), labels_TK[bars].double()
            ).mean()
        )

    return Run(
        member=member,
        title=f"S{number}",
        reads=torch.arange(last),
        validate=validate,
        learning_rate=JOB.train.learning_rate,
    )


def _train(
    worker: Worker, form: Callable[[Sequence[Member], Job], Pack], places: int, job: Job = JOB
) -> Worker:
    ticks = iter(range(10**6))  # every look at the clock is a second later, so a checkpoint is always due
    train(
        worker,
        lambda members: form(members, job),
        job,
        lambda event: None,
        places=places,
        clock=lambda: next(ticks),
    )
    return worker


@pytest.mark.parametrize(
    ("strategy", "dies_after", "places", "ema"),
    [
        (SequentialPack, 1, 1, 0.0),
        (SequentialPack, 23, 1, 0.95),
        (SequentialPack, 40, 2, 0.0),
        (SequentialPack, 41, 2, 0.95),
        (Fused, 41, 2, 0.95),
        (Streams, 41, 2, 0.0),
    ],
)
def test_a_resumed_run_ends_bit_by_bit_like_one_that_was_never_interrupted(
    tmp_path, strategy, dies_after, places, ema
):
    job = with_settings(JOB, ema=ema)
    whole = _train(Worker(tmp_path / "whole"), strategy, places, job)
    with pytest.raises(Killed):
        _train(Worker(tmp_path / "cut", dies_after=dies_after), strategy, places, job)
    resumed = _train(Worker(tmp_path / "cut"), strategy, places, job)
    assert resumed.resumed
    for name, run in whole.done.items():
        assert resumed.done[name].history == run.history
        assert resumed.done[name].best_epoch == run.best_epoch
        found = resumed.done[name].best_weights
        assert all(torch.equal(weight, found[part]) for part, weight in run.best_weights.items())


@pytest.mark.parametrize("later", [SequentialPack, Fused, Streams])
def test_another_strategy_and_pack_continue_a_checkpoint_to_float_tolerance(tmp_path, later):
    whole = _train(Worker(tmp_path / "whole"), SequentialPack, 1)
    with pytest.raises(Killed):
        _train(Worker(tmp_path / "cut", dies_after=25), Fused, 2)
    resumed = _train(Worker(tmp_path / "cut"), later, 2)
    for name, run in whole.done.items():
        for expected, found in zip(run.history, resumed.done[name].history, strict=True):
            assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_file_is_what_safetensors_itself_reads(tmp_path, dtype):
    weights = {
        "a": torch.randn(3, 5, dtype=dtype),
        "turned": torch.randn(4, 2, dtype=dtype).T,
        "one": torch.randn(1, dtype=dtype),
    }
    weights["shared"] = weights["a"][1:]
    state = ModelState(weights=weights, exp_avg=weights, exp_avg_sq=weights, updates=1, batches=1)
    place = write(tmp_path, _run(0), state, MARK)
    found = safetensors.torch.load_file(place / "data.safetensors")
    for part in ("weights", "exp_avg", "exp_avg_sq"):
        assert all(torch.equal(found[f"{part}.{name}"], weight) for name, weight in weights.items())
    assert newest(tmp_path, "m0", MARK) is not None


def test_a_spoilt_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    with pytest.raises(Killed):
        _train(Worker(tmp_path, dies_after=9), SequentialPack, 1)
    places = sorted((tmp_path / "m0").iterdir())
    assert len(places) == 2  # older ones are dropped
    newer, older = (newest(tmp_path, "m0", MARK), None)
    content = bytearray((places[-1] / "data.safetensors").read_bytes())
    content[-1] ^= 1
    (places[-1] / "data.safetensors").write_bytes(bytes(content))
    older = newest(tmp_path, "m0", MARK)
    assert newer is not None and older is not None
    assert older.state.batches == newer.state.batches - 1
    (places[-1] / "data.safetensors").write_bytes(bytes(content[:100]))
    (places[0] / "manifest.json").write_text("{")
    assert newest(tmp_path, "m0", MARK) is None


def test_a_checkpoint_without_its_manifest_does_not_exist(tmp_path):
    with pytest.raises(Killed):
        _train(Worker(tmp_path, dies_after=1), SequentialPack, 1)
    (place,) = (tmp_path / "m0").iterdir()
    assert json.loads((place / "manifest.json").read_text())["format"] == 2
    (place / "manifest.json").unlink()
    assert newest(tmp_path, "m0", MARK) is None


def test_a_checkpoint_of_another_job_is_not_resumed(tmp_path):
    with pytest.raises(Killed):
        _train(Worker(tmp_path, dies_after=5), SequentialPack, 1)
    assert newest(tmp_path, "m0", "another job") is None
    assert _train(Worker(tmp_path, mark="another job"), SequentialPack, 1).resumed == []


def test_checkpoints_of_another_job_that_came_farther_do_not_push_out_those_of_this_one(tmp_path):
    with pytest.raises(Killed):
        _train(Worker(tmp_path, dies_after=9), SequentialPack, 1)
    with pytest.raises(Killed):
        _train(Worker(tmp_path, dies_after=3, mark="another job"), SequentialPack, 1)
    found = newest(tmp_path, "m0", "another job")
    assert (
        found is not None and found.state.batches == 3 + 1
    )  # the first look at the clock starts the interval
    assert len(list((tmp_path / "m0").iterdir())) == 2


def test_a_fingerprint_follows_what_makes_the_model_and_not_what_makes_it_fast():
    data = {"close": b"1234"}
    mark = fingerprint(JOB, data=data, code_sha256="c")
    for fast in (
        {"strategy": "fused", "pack": 4},
        {"budget": 5.0},
        {"retries": 3},
        {"symbols": ("A",)},
        {"gpu_profile": "l4-24gb"},
    ):
        assert mark == fingerprint(with_settings(JOB, **fast), data=data, code_sha256="c"), fast
    others = [
        fingerprint(with_settings(JOB, folds=2), data=data, code_sha256="c"),
        fingerprint(with_settings(JOB, test_fraction=0.2), data=data, code_sha256="c"),
        fingerprint(with_settings(JOB, horizon=3), data=data, code_sha256="c"),
        fingerprint(with_settings(JOB, hidden=7), data=data, code_sha256="c"),
        fingerprint(with_settings(JOB, seed=1), data=data, code_sha256="c"),
        fingerprint(with_settings(JOB, ema=0.9), data=data, code_sha256="c"),
        fingerprint(JOB, data={"close": b"1235"}, code_sha256="c"),
        fingerprint(JOB, data=data, code_sha256="d"),
    ]
    assert len({mark, *others}) == 9
    assert {key for key, _, _ in job_keys(JOB)} >= _NOT_THE_MODEL


def test_a_file_of_the_users_own_counts_by_its_hash_and_its_settings_and_not_by_its_place():
    own = job_of(model="a/net.py:Net", **{"model.sha256": "1" * 64, "model.hidden": 3})
    mark = fingerprint(own, data={}, code_sha256="c")
    model = own.own_files["model"]
    same = [model.with_file("b/net.py"), model.with_copy(Path("c.py"))]
    assert {fingerprint(own.with_own_files({"model": one}), data={}, code_sha256="c") for one in same} == {
        mark
    }
    others = [
        replace(model, sha256="2" * 64),
        replace(model, class_name="Other"),
        replace(model, arguments='{"hidden": 4}'),
    ]
    marks = {fingerprint(own.with_own_files({"model": one}), data={}, code_sha256="c") for one in others}
    assert len({mark, *marks}) == 4


def test_the_writer_works_beside_the_training_and_says_what_a_checkpoint_cost(tmp_path):
    events: list[dict[str, Any]] = []
    run = _run(0)
    state = SequentialPack([run.member], JOB).snapshot(0)
    writer = CheckpointWriter(tmp_path / "checkpoints", events.append)
    writer.submit(run, state, MARK, snapshot_seconds=0.001)
    writer.flush()
    (event,) = events
    assert (
        event["event"] == "checkpoint" and event["write_seconds"] > 0 and event["snapshot_seconds"] == 0.001
    )
    assert (tmp_path / "checkpoints" / event["folder"] / "manifest.json").exists()
    forget(tmp_path / "checkpoints", "m0")
    assert not (tmp_path / "checkpoints").exists()


def test_models_that_are_due_together_are_written_beside_the_training_and_one_twice_waits_for_its_first(
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
        writer.submit(run, pack.snapshot(number), MARK, snapshot_seconds=0.0)
    assert not events
    threading.Timer(0.01, disk_is_free.set).start()
    writer.submit(runs[0], replace(pack.snapshot(0), batches=1), MARK, snapshot_seconds=0.0)
    assert [event["model"] for event in events][:1] == ["m0"]  # memory holds one state of a model at most
    writer.flush()
    assert [event["model"] for event in events] == ["m0", "m1", "m0"]
    assert all(event["waited_seconds"] >= 0 for event in events)


def test_a_disk_that_refuses_costs_the_checkpoint_and_is_told(tmp_path):
    events: list[dict[str, Any]] = []
    (tmp_path / "file").touch()
    run = _run(0)
    writer = CheckpointWriter(tmp_path / "file", events.append)
    writer.submit(run, SequentialPack([run.member], JOB).snapshot(0), MARK, snapshot_seconds=0.0)
    writer.flush()
    assert [event["event"] for event in events] == ["checkpoint_failed"]
