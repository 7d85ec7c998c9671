"""The rules of the training loop, on a pack with given losses and on real ones."""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.jobs import job_of, with_settings
from tests.nightly import others_nightly
from tests.trainer.train.rosters import Roster, run_of_noise
from trainer.job.job import Job
from trainer.models.tcn.network import Tcn
from trainer.train import loop
from trainer.train.loop import MAX_LOWERED, train
from trainer.train.observing.pace import PROGRESS_AT_ONCE
from trainer.train.packs.pack import Member, ModelState
from trainer.train.packs.sequential import SequentialPack
from trainer.train.packs.stacked import Fused, Streams
from trainer.train.run import FIRST_STEPS, MAX_SKIPPED_STEPS, Run, steps_of
from trainer.train.schedule import rate_factor

pytestmark = pytest.mark.slow

WINDOWS = 40


class Constant(nn.Module):
    """A model whose logit is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.logit: torch.Tensor
        self.register_buffer("logit", torch.zeros(1))

    def forward(self, x_TBF: torch.Tensor) -> torch.Tensor:
        return self.logit.expand(x_TBF.shape[1], 1)


class Scripted:
    """A pack of one whose logit after each step is given, and whose losses may be broken."""

    def __init__(self, logits: Sequence[float], *, broken: bool = False) -> None:
        self.module, self._logits, self._broken = Constant(), list(logits), broken
        self.visited: list[torch.Tensor] = []
        self.learning_rates: list[float] = []

    def step(self, active: Sequence[bool], starts: Sequence[torch.Tensor]) -> torch.Tensor:
        self.visited.append(starts[0])
        with torch.no_grad():
            self.module.logit.fill_(self._logits.pop(0) if self._logits else 0.0)
        return torch.tensor([math.nan if self._broken else 0.5])

    def model(self, member: int) -> nn.Module:
        return self.module

    def told(self, member: int) -> dict[str, float]:
        return {}

    def set_learning_rate(self, member: int, learning_rate: float) -> None:
        self.learning_rates.append(learning_rate)

    def snapshot(self, member: int) -> ModelState:
        return ModelState(
            weights=self.module.state_dict(), exp_avg={}, exp_avg_sq={}, updates=0, batches=len(self.visited)
        )

    def restore(self, member: int, state: ModelState) -> None:
        self.module.load_state_dict(dict(state.weights))


def _run(windows: int = WINDOWS, **keys: Any) -> tuple[Run, Job]:
    """Return a run of a job whose labels are all 1, so that a higher logit is a lower validation loss."""
    job = job_of(**{"lookback": 2, "batch": WINDOWS, **keys})
    run = run_of_noise(0, job, windows=windows)
    run.member.labels_TK.fill_(1.0)
    return run, job


def _train(pack: Scripted, **settings: Any) -> tuple[Run, list[dict[str, Any]]]:
    run, job = _run(**settings)
    events: list[dict[str, Any]] = []
    Roster(run).train(lambda members, job: pack, job, events.append)
    return run, events


def test_training_stops_when_patience_is_exhausted():
    # The third epoch is the best: see `_run`.
    run, events = _train(Scripted([1, 2, 3, 2.5, 2.9, 9]), epochs=10, patience=2)
    assert run.epoch == 5 and run.best_epoch == 3
    assert run.best_weights["logit"].item() == 3
    assert [event["epoch"] for event in events if event["event"] == "epoch"] == [1, 2, 3, 4, 5]


def test_the_last_epoch_ends_training_with_the_best_weights():
    run, _ = _train(Scripted([1, 3, 2]), epochs=3, patience=3)
    assert (run.epoch, run.best_epoch, run.failure) == (3, 2, "")


def test_a_trial_trains_by_its_own_job():
    """Its batch, schedule and patience are the values that are tried; the pack has the job of all trials."""
    run, job = _run(epochs=3, patience=1, learning_rate=0.8)
    own = with_settings(job, batch=10, patience=3, warmup_steps=4)
    run.member = replace(run.member, job=own)
    pack = Scripted([5] * 4 + [1] * 8)
    Roster(run).train(lambda members, job: pack, job, lambda event: None)
    assert [len(starts) for starts in pack.visited] == [10] * 12
    assert pack.learning_rates == pytest.approx([0.2, 0.4, 0.6] + [0.8] * 9)


def test_every_epoch_visits_every_window_once_in_another_order():
    pack = Scripted([1, 2, 3])
    _train(pack, epochs=2)
    orders = [torch.cat(pack.visited[:1]), torch.cat(pack.visited[1:2])]
    assert all(torch.equal(order.sort().values, torch.arange(WINDOWS)) for order in orders)
    assert not torch.equal(orders[0], orders[1])


def test_an_epoch_has_its_steps_and_the_next_other_windows():
    pack = Scripted([1, 2, 3])
    run, events = _train(pack, epochs=2, batch=5, steps_per_epoch=3)
    assert len(pack.visited) == 6 and run.epoch == 2
    first, second = (torch.cat(pack.visited[at : at + 3]) for at in (0, 3))
    assert len(first.unique()) == len(second.unique()) == 15
    assert set(first.tolist()) != set(second.tolist())
    assert {event["steps"] for event in events if event["event"] == "progress"} <= {3}
    longer = Scripted([1])
    _train(longer, epochs=1, batch=5, steps_per_epoch=99)
    assert len(longer.visited) == WINDOWS // 5  # no window twice


def test_broken_losses_lower_the_rate_and_then_fail_the_model():
    pack = Scripted([], broken=True)
    run, _ = _train(pack, batch=1, learning_rate=0.8)
    assert list(dict.fromkeys(pack.learning_rates)) == [0.8, 0.4, 0.2, 0.1] and MAX_LOWERED == 3
    assert "not finite" in run.failure and len(pack.visited) == (MAX_SKIPPED_STEPS + 1) * (MAX_LOWERED + 1)


def test_an_epoch_without_a_step_lowers_the_rate():
    pack = Scripted([], broken=True)
    run, events = _train(pack, epochs=100, patience=100, learning_rate=0.8)  # one step an epoch
    assert list(dict.fromkeys(pack.learning_rates)) == [0.8, 0.4, 0.2, 0.1]
    assert len(pack.visited) == MAX_LOWERED + 1
    assert "not finite" in run.failure and not run.history
    assert not [event for event in events if event["event"] == "epoch"]


def test_progress_is_reported_about_once_a_second():
    ticks, events = iter(range(1000)), list[dict[str, Any]]()
    run, job = _run(batch=10, epochs=1)
    train(Roster(run), lambda members: Scripted([]), job, events.append, clock=lambda: next(ticks) * 0.5)
    progress = [event for event in events if event["event"] == "progress"]
    assert 0 < len(progress) < 4
    assert progress[0]["steps"] == 4 and progress[0]["epochs"] == 1
    assert progress[0]["rate"] > 0 and progress[0]["unit"] == "windows"


def test_two_of_many_models_report_progress_a_second():
    ticks, told = itertools.count(), list[str]()
    job = job_of(lookback=2, batch=5, hidden=2, layers=1, epochs=1)
    runs = [run_of_noise(number, job, windows=60) for number in range(5)]

    def report(event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            told.append(event["model"])

    def form(members: Sequence[Member]) -> SequentialPack:
        return SequentialPack(members, job)

    train(Roster(*runs), form, job, report, places=5, clock=lambda: float(next(ticks)))
    assert told[:7] == ["m0", "m1", "m2", "m3", "m4", "m0", "m1"]
    assert len(told) <= PROGRESS_AT_ONCE * next(ticks)


def _real_run(number: int, job: Job) -> Run:
    """Return a run over noise, each number with another length, so that runs end at different steps."""
    return run_of_noise(number, job, windows=90 + 40 * number)


REAL_JOB = job_of(hidden=4, lookback=8, batch=16, epochs=2, learning_rate=1e-2)


def _histories(
    form: Any, places: int, job: Job = REAL_JOB
) -> tuple[dict[str, list[dict[str, Any]]], list[int]]:
    """Train five runs; return each one's losses, and how many models each pack that was formed had."""
    sizes = []

    def counted(members: Sequence[Member], job: Job) -> Any:
        sizes.append(len(members))
        return form(members, job)

    roster = Roster(*(_real_run(number, job) for number in (2, 0, 4, 1, 3)))
    roster.train(counted, job, places=places)
    return {name: run.history for name, run in roster.done.items()}, sizes


@pytest.mark.parametrize("ema", [pytest.param(0.0, marks=pytest.mark.nightly), 0.9])
def test_free_places_are_filled_and_thin_packs_compacted(ema):
    job = with_settings(REAL_JOB, ema=ema)
    alone, one_by_one = _histories(SequentialPack, places=1, job=job)
    packed, sizes = _histories(SequentialPack, places=2, job=job)
    assert one_by_one == [1, 1, 1, 1, 1]
    assert sizes == [2, 2, 2, 2, 1]
    # Bit by bit: neither neighbours, nor being moved into another pack, nor the order of the queue changes a
    # model.
    assert packed == alone and len(alone) == 5


def test_a_pruned_trial_ends_and_its_neighbours_keep_their_bits():
    job = with_settings(REAL_JOB, patience=9)
    alone, _ = _histories(SequentialPack, places=1, job=job)
    runs = {f"m{number}": _real_run(number, job) for number in range(3)}
    runs["m1"].job = with_settings(job, learning_rate=1e-4, batch=2 * job.train.batch, epochs=9)

    def prune(event: dict[str, Any]) -> None:
        runs["m1"].drop |= event.get("epoch") == 1 and event["model"] == "m1"

    roster = Roster(*runs.values()).train(SequentialPack, job, prune, places=3)
    pruned = roster.done["m1"]
    assert (pruned.dropped, pruned.epoch, pruned.failure) == (True, 1, "") and pruned.best_epoch == 1
    assert all(not roster.done[name].dropped for name in ("m0", "m2"))
    assert [roster.done[name].history for name in ("m0", "m2")] == [alone["m0"], alone["m2"]]


@pytest.mark.parametrize(("places", "ema"), others_nightly([(2, 0.9), (5, 0.0)], lambda pair: pair[0] == 2))
@pytest.mark.parametrize("strategy", others_nightly([Fused, Streams], lambda strategy: strategy is Fused))
def test_refilled_stacked_packs_train_as_sequential_ones(strategy, places, ema):
    job = with_settings(REAL_JOB, ema=ema)
    alone, _ = _histories(SequentialPack, places=1, job=job)
    stacked, sizes = _histories(strategy, places=places, job=job)
    assert sizes[0] == places and sizes[-1] < max(sizes[0], 3)
    for name, history in alone.items():
        for expected, found in zip(history, stacked[name], strict=True):
            assert found == pytest.approx(expected, rel=1e-3)


def test_a_pack_is_freed_before_the_next_is_formed():
    formed: list[weakref.ref[SequentialPack]] = []

    def form(members: Sequence[Member], job: Job) -> SequentialPack:
        assert all(pack() is None for pack in formed)
        pack = SequentialPack(members, job)
        formed.append(weakref.ref(pack))
        return pack

    Roster(*(_real_run(number, REAL_JOB) for number in (2, 0, 1))).train(form, REAL_JOB, places=2)
    assert len(formed) > 1


def test_the_average_is_validated_and_kept():
    job, pack = with_settings(REAL_JOB, epochs=3, ema=0.9), list[SequentialPack]()
    states: list[ModelState] = []

    def form(members: Sequence[Member], job: Job) -> SequentialPack:
        pack.append(SequentialPack(members, job))
        return pack[-1]

    events: list[dict[str, Any]] = []

    def report(event: dict[str, Any]) -> None:
        if event["event"] == "epoch":
            states.append(pack[0].snapshot(0))
        events.append(event)

    (run,) = Roster(_real_run(2, job)).train(form, job, report).done.values()
    kept = states[run.best_epoch - 1]
    assert all(torch.equal(weight, kept.average[name]) for name, weight in run.best_weights.items())
    assert not torch.equal(kept.average["head.weight"], kept.weights["head.weight"])
    plain, _ = _histories(SequentialPack, places=1, job=with_settings(job, ema=0.0))
    told = [(event["train_loss"], event["validation_loss"]) for event in events if event["event"] == "epoch"]
    assert [losses[0] for losses in told] == [event["train_loss"] for event in plain["m2"]]
    assert all(losses[1] != event["validation_loss"] for losses, event in zip(told, plain["m2"], strict=True))


@pytest.mark.parametrize(
    "strategy", others_nightly([SequentialPack, Fused, Streams], lambda strategy: strategy is Fused)
)
def test_broken_steps_are_skipped_and_neighbours_train_on(
    strategy,
):
    job = with_settings(REAL_JOB, batch=8, ema=0.9)
    runs = [_real_run(number, job) for number in range(4)]
    runs[1].member.rows_TF[0:100] = torch.nan  # as no data check would let it pass
    runs[2].member.rows_TF[50] = torch.nan
    by_name = Roster(*runs).train(strategy, job, places=4).done
    stopped, scarred = by_name["m1"], by_name["m2"]
    assert "not finite" in stopped.failure and stopped.lowered == MAX_LOWERED and not stopped.history
    fresh = strategy([stopped.member], job).snapshot(0).weights
    assert all(torch.equal(weight, fresh[name]) for name, weight in stopped.best_weights.items())
    # One row that is NaN breaks the few steps whose windows hold it, and no more.
    assert (scarred.failure, scarred.lowered, scarred.epoch) == ("", 0, job.train.epochs)
    assert 0 < scarred.skipped <= MAX_SKIPPED_STEPS
    for losses in scarred.history:
        assert math.isfinite(losses["train_loss"]) and math.isfinite(losses["validation_loss"])
    alone, _ = _histories(SequentialPack, places=1, job=job)
    for name in ("m0", "m3"):
        if strategy is SequentialPack:
            assert by_name[name].history == alone[name]
        for found, expected in zip(by_name[name].history, alone[name], strict=True):
            assert found == pytest.approx(expected, rel=1e-3)


def test_learning_rates_follow_warm_up_and_schedule():
    pack = Scripted([1, 2, 3])
    run, job = _run(batch=10, epochs=2, warmup_steps=3, schedule="cosine", learning_rate=0.8)
    Roster(run).train(lambda members, job: pack, job)
    steps = 2 * math.ceil(WINDOWS / job.train.batch)
    expected = [0.8 * rate_factor(job, step=step, steps=steps) for step in range(steps)]
    assert pack.learning_rates == expected and expected[:3] == pytest.approx([0.8 / 3, 1.6 / 3, 0.8])
    assert 0 < expected[-1] < 0.1


def test_losses_that_are_read_later_are_counted_the_same(monkeypatch):
    monkeypatch.setattr(loop, "UNREAD_STEPS", 1)
    expected, _ = _histories(SequentialPack, places=2)
    monkeypatch.setattr(loop, "UNREAD_STEPS", 7)
    found, _ = _histories(SequentialPack, places=2)
    assert found == expected


def test_the_first_losses_are_told_without_another_read():
    run, job = _run(batch=1, epochs=2)
    events, reads = list[dict[str, Any]](), list[int]()

    def total(losses_SM: torch.Tensor) -> torch.Tensor:
        reads.append(len(losses_SM))
        return losses_SM

    class Falling(Scripted):
        def step(self, active: Sequence[bool], starts: Sequence[torch.Tensor]) -> torch.Tensor:
            super().step(active, starts)
            return torch.tensor([1.0 / len(self.visited)])

    train(Roster(run), lambda members: Falling([]), job, events.append, clock=lambda: 0.0, total=total)
    assert reads == [32, 8, 32, 8], "those of UNREAD_STEPS and of the ends of epochs"
    (told,) = (event for event in events if event["event"] == "first_steps")
    assert told["losses"] == [step["loss"] for step in run.first_steps]
    assert told["losses"] == [float(torch.tensor(1.0 / number)) for number in range(1, FIRST_STEPS + 1)]
    assert run.mates == (run.member.name,)


def test_a_run_knows_all_that_were_in_a_pack_with_it():
    done = (
        Roster(*(_real_run(number, REAL_JOB) for number in (4, 0, 1)))
        .train(SequentialPack, REAL_JOB, places=2)
        .done
    )
    assert [sorted(done[name].mates) for name in ("m0", "m1", "m4")] == [
        ["m0", "m4"],
        ["m1", "m4"],
        ["m0", "m1", "m4"],
    ]


def test_a_finished_run_has_taken_its_steps_once():
    run, job = _run(batch=10, epochs=2)
    Roster(run).train(lambda members, job: Scripted([1, 2, 3, 4, 5, 6, 7, 8]), job)
    assert run.epoch == 2 and steps_of(run, job) == 8


def test_what_is_over_is_freed_before_others_are_loaded():
    """At most two of a place's rows are held: those in training, and a pack's copy of them."""
    job, held = with_settings(REAL_JOB, epochs=1), list[weakref.ref[Any]]()

    class Loading(Roster):
        def arrivals(self, free: int, *, wait: bool, make_room: Any) -> list[Run]:
            if not self._waiting:
                return []
            make_room()
            alive = [ref for ref in held if ref() is not None]
            assert len(alive) == 2 * (2 - free), "the rows of the one that goes on; packs are gone"
            run = self._waiting.pop(0)()
            held.extend((weakref.ref(run.member.rows_TF), weakref.ref(run.member.labels_TK)))
            return [run]

        def finished(self, run: Run, model: nn.Module) -> None:
            self.done[run.member.name] = run.failure

    def form(members: Sequence[Member]) -> Fused:
        pack = Fused(members, job)
        held_packs.append(weakref.ref(pack))
        assert sum(ref() is not None for ref in held_packs) == 1
        return pack

    held_packs: list[weakref.ref[Fused]] = []
    roster = Loading(*(partial(_real_run, number, job) for number in range(4)))
    train(roster, form, job, lambda event: None, places=2)
    assert roster.done == dict.fromkeys(("m0", "m1", "m2", "m3"), "") and len(held_packs) >= 4


def test_a_networks_cycles_leave_the_device_with_its_pack():
    """torch's weight norm makes some: without a collection, those of several models would lie there."""
    run, _ = _run()
    run.member = replace(run.member, rows_TF=torch.empty(4, 2, device="meta"))
    run.active, was_on = False, gc.isenabled()
    gc.disable()
    try:
        place = loop._Place(lambda members: Scripted([]), loop._Unread(lambda losses: losses))
        pack = Scripted([])
        pack.module = Tcn(features=2, width=4, dilations=[1], dropout=0.0)
        held = [weakref.ref(weight) for weight in pack.module.parameters()]
        place.runs, place.pack = [run], pack
        del pack
        place.make_room()
        assert all(ref() is None for ref in held)
    finally:
        if was_on:
            gc.enable()
