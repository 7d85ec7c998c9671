"""The training loop of a pack: batches in order, epochs, validation, early stopping, best weights; models
join and leave.

Owns the order of events in one worker's training, and the rule for losses that are not finite. It knows
neither files nor processes: `piece` brings data and writes models, `workers/worker` brings the models to
train, `workers/supervisor` runs the processes.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn

from trainer.job.job import Job
from trainer.train.evaluate.epoch_scores import Validated
from trainer.train.notice import STOP, Heard
from trainer.train.observing.pace import Pace, report_progress
from trainer.train.off_device import read
from trainer.train.orders import Orders
from trainer.train.packs.pack import Member, ModelState, Pack, fresh_state
from trainer.train.packs.tensors import put_tensors, tensors_of
from trainer.train.run import FIRST_STEPS, MOST_MATES, Run, rate_of

# The rule for losses that are not finite: such a step is skipped. More than ten in one epoch, or all of them,
# and the model goes back to its best weights with half the learning rate, three times at most; then it has
# failed.
MAX_LOWERED = 3
UNREAD_STEPS = FIRST_STEPS

Report = Callable[[dict[str, Any]], None]
Total = Callable[[torch.Tensor], torch.Tensor]  # losses (S, M) of S steps on this rank -> of whole batches


class Roster(Protocol):
    """Source of the runs to train, and the receiver of those that stopped."""

    def arrivals(self, free: int, *, wait: bool, make_room: Callable[[], None]) -> Sequence[Run]:
        """Return up to `free` runs to join. With `wait`, wait for one; an empty result then means that no
        more will come.

        Call `make_room` before anything of theirs goes to the device: it frees the pack, with the rows of
        runs that are over.
        """

    def checkpoint(self, run: Run, state: ModelState, *, snapshot_seconds: float) -> None:
        """Store a checkpoint. `run` and `state` are copies that nothing else changes."""

    def finished(self, run: Run, model: nn.Module) -> None:
        """Receive a run that has stopped, and its module with its best weights. `run.failure` is empty unless
        it failed.
        """

    def stopped(self, runs: Sequence[Run]) -> None:
        """Receive the runs that a notice stopped, once their last checkpoints were given to `checkpoint`."""


def train(
    roster: Roster,
    form: Callable[[Sequence[Member]], Pack],
    job: Job,
    report: Report,
    *,
    places: int = 1,
    clock: Callable[[], float] = time.monotonic,
    total: Total = lambda losses_SM: losses_SM,
    heard: Heard = lambda: "",
    interval: Callable[[], float] | None = None,
) -> None:
    """Train the runs of the roster, `places` models at a time, until it has no more, or `heard` says STOP.

    A free place is offered to the roster at once. Remaining models move into a new pack, made by `form`, when
    others join and when at most half of the pack is left; their results do not change. Reports `progress`
    of two runs, in turn, about once a second and `epoch` after each epoch of each model. `total` adds up the
    losses of ranks. `interval` returns the seconds between checkpoints, without it the job's; 0: none.
    """
    pace, unread = Pace(clock), _Unread(total)
    place = _Place(form, unread)
    while True:
        # Members of the next step.
        if free := places - place.training:
            place.join(roster.arrivals(free, wait=not place.training, make_room=place.make_room))
        pack, runs = place.pack, place.runs
        if pack is None or not place.training:
            return
        # The step. Its losses stay on the device until they are needed.
        step = _step(pack, runs, job)
        unread.add(step)
        pace.count(sum(step.windows))
        due = pace.due()
        if due or unread.is_due or any(run.active and run.epoch_is_over for run in runs):
            unread.count(runs)
            _tell_first_steps(runs, report)
        if due:
            report_progress(runs, job, pace, report)
        _end_epochs(pack, runs, roster, job, report)
        # Checkpoints that are due, or that a notice asks for.
        word = heard()
        if seconds := job.train.checkpoint_seconds if interval is None else interval():
            _checkpoint(pack, runs, roster, seconds, clock(), unread, at_once=bool(word))
        if word == STOP:
            roster.stopped([run for run in runs if run.active])
            return
        del pack, runs  # only `place` holds them: it frees them before others are loaded


class _Place:
    """The runs in training and their pack."""

    def __init__(self, form: Callable[[Sequence[Member]], Pack], unread: _Unread) -> None:
        self.runs: list[Run] = []
        self.pack: Pack | None = None
        self._form, self._unread = form, unread
        self._states: list[ModelState] | None = None  # of the runs that go on, while there is no pack

    @property
    def training(self) -> int:
        """Return how many runs have not stopped."""
        return sum(run.active for run in self.runs)

    def make_room(self) -> None:
        """Free the pack, and the runs that are over with their rows; those that go on keep their states.

        Others are loaded, and a pack is formed, only after that: a full device holds one.
        """
        if self._states is not None:
            return
        self._unread.count(self.runs)
        stay = [(number, run) for number, run in enumerate(self.runs) if run.active]
        self._states = [self.pack.snapshot(number) for number, _ in stay] if self.pack is not None else []
        had_device = len(self.runs) == 1 and self.runs[0].member.rows_TF.device.type != "cpu"
        self.runs, self.pack = [run for _, run in stay], None
        if had_device:
            # A network in cycles, as torch's weight norm makes, would keep its weights and gradients there.
            # It takes 0.1 s: too long for each of many small models, whose packs have none.
            gc.collect()

    def join(self, arrived: Sequence[Run]) -> None:
        """Form a new pack if others join, if room was made for them, or if at most half of it is left."""
        is_half_empty = 0 < self.training <= len(self.runs) // 2
        if not arrived and self._states is None and not is_half_empty:
            return
        self.make_room()
        self.runs += arrived
        self.pack = _formed(self.runs, self._states or [], self._form) if self.runs else None
        self._states = None


def _formed(
    runs: Sequence[Run], states: Sequence[ModelState], form: Callable[[Sequence[Member]], Pack]
) -> Pack:
    """Return a pack of all runs: first those that continue, restored from `states`, then those that join."""
    pack = form([run.member for run in runs])
    names = [run.member.name for run in runs]
    for number, run in enumerate(runs):
        run.mates = tuple(dict.fromkeys((*run.mates, *names)))[:MOST_MATES]
        if number < len(states):
            pack.restore(number, states[number])
        elif run.resume is not None:
            pack.restore(number, run.resume)
            run.order, run.resume = _order(run), None
        else:
            run.best_weights = tensors_of(pack.model(number))
            _begin_epoch(run)
    return pack


def _begin_epoch(run: Run) -> None:
    run.order = _order(run)
    run.position, run.loss_sum, run.loss_windows, run.skipped = 0, 0.0, 0, 0


def _order(run: Run) -> torch.Tensor:
    """Return the starts of the epoch's windows in visiting order, for an agent with those of the next ones
    beside them; on the device, so that a step copies nothing there.
    """
    member, device = run.member, run.reads.device
    if run.orders is None:
        windows, model = len(run.reads), member.draws_as
        run.orders = Orders(
            windows,
            most=run.num_windows,
            seed=member.seed,
            model=model,
            device=device,
            episodes=run.episodes,
        )
    return run.reads[run.orders.of(run.epoch)]


@dataclass(frozen=True, kw_only=True)
class _Losses:
    """Losses (M,) of one step, still on the device, and the number of windows of each model (0: inactive)."""

    losses_M: torch.Tensor
    windows: list[int]


def _step(pack: Pack, runs: Sequence[Run], job: Job) -> _Losses:
    """Take one step of every active run."""
    active = [run.active for run in runs]
    batches = [_next_batch(run, job) for run in runs]
    for number, run in enumerate(runs):
        if run.active:
            pack.set_learning_rate(number, rate_of(run, run.member.job or job))
    losses_M = pack.step(active, batches)
    for run, batch in zip(runs, batches, strict=True):
        run.position += len(batch)
    return _Losses(losses_M=losses_M, windows=[len(batch) for batch in batches])


def _next_batch(run: Run, job: Job) -> torch.Tensor:
    if not run.active:
        return run.order[:0]
    return run.order[run.position : run.position + (run.member.job or job).reads_of_step]


class _Unread:
    """Losses of the latest steps, still on the device. Reading them makes the host wait for a GPU, and ranks
    for each other.
    """

    def __init__(self, total: Total) -> None:
        self._total, self._steps = total, list[_Losses]()

    def add(self, step: _Losses) -> None:
        self._steps.append(step)

    @property
    def is_due(self) -> bool:
        """Return whether to read now: every UNREAD_STEPS steps, and on a CPU after a skipped step, which all
        ranks see.
        """
        last = self._steps[-1]
        if len(self._steps) >= UNREAD_STEPS or last.losses_M.device.type != "cpu":
            return len(self._steps) >= UNREAD_STEPS
        losses = zip(last.losses_M.tolist(), last.windows, strict=True)
        return any(windows and math.isnan(loss) for loss, windows in losses)

    def count(self, runs: Sequence[Run]) -> None:
        """Add the losses to their runs."""
        if not self._steps:
            return
        losses_SM = self._total(torch.stack([step.losses_M for step in self._steps]))
        for step, losses in zip(self._steps, losses_SM.tolist(), strict=True):
            for run, loss, windows in zip(runs, losses, step.windows, strict=True):
                if windows and not run.epoch and len(run.first_steps) < FIRST_STEPS:
                    run.first_steps.append({"loss": loss})
                if windows and math.isfinite(loss):
                    run.loss_sum += loss * windows
                    run.loss_windows += windows
                elif windows:
                    run.skipped += 1
        self._steps.clear()


def _tell_first_steps(runs: Sequence[Run], report: Report) -> None:
    """Report the losses of the first steps of each run, once they are read: nothing is read for them."""
    for run in runs:
        if run.active and not run.told_first and run.knows_first_steps:
            run.told_first = True
            losses = [step["loss"] for step in run.first_steps]
            of = {"fit": run.fit} if run.fit else {}
            report(
                {"event": "first_steps", "model": run.member.name, "piece": run.title, "losses": losses, **of}
            )


def _lower(pack: Pack, number: int, run: Run) -> None:
    """Restart a broken epoch from the best weights with half the learning rate; fail the run after
    MAX_LOWERED restarts.
    """
    if run.lowered == MAX_LOWERED:
        run.active = False
        halved = f"halving the learning rate {MAX_LOWERED} times to {run.learning_rate:g}"
        run.failure = f"the loss is not finite, even after {halved}"
        return
    run.lowered += 1
    run.learning_rate /= 2
    pack.restore(number, fresh_state(run.best_weights, like=pack.snapshot(number)))
    _begin_epoch(run)


def _validated(pack: Pack, runs: Sequence[Run]) -> dict[int, tuple[nn.Module, Validated]]:
    """Validate the runs whose epoch has ended; return their networks, too, by number.

    The networks run one after another without a wait, and all outputs are read at once. A refit has nothing
    to validate on: its last weights are the best.
    """
    ended = [n for n, run in enumerate(runs) if run.active and run.epoch_is_over and not run.is_broken]
    if not ended:
        return {}
    models = {number: pack.model(number) for number in ended}
    known = {n: validation for n in ended if (validation := runs[n].validation) is not None}
    made = [validation.outputs(models[n]) for n, validation in known.items()]
    found = {n: Validated(loss=-float(runs[n].epoch)) for n in ended}
    for (n, validation), outputs_NO in zip(known.items(), read(made) if made else (), strict=True):
        found[n] = validation.judged(outputs_NO)
    return {n: (models[n], found[n]) for n in ended}


def _end_epochs(pack: Pack, runs: Sequence[Run], roster: Roster, job: Job, report: Report) -> None:
    """End the epochs that are over or broken, and give the runs that stop with them to the roster."""
    validated = _validated(pack, runs)
    for number, run in enumerate(runs):
        if not run.active:
            continue
        if run.drop and run.best_epoch:
            run.active, run.dropped = False, True
        elif run.is_broken:
            _lower(pack, number, run)
        elif number in validated:
            _end_epoch(run, *validated[number], pack.told(number), job, report)
        if not run.active:
            model = pack.model(number)
            put_tensors(model, run.best_weights)
            roster.finished(run, model)


def _end_epoch(
    run: Run, model: nn.Module, validated: Validated, more: Mapping[str, float], job: Job, report: Report
) -> None:
    """Keep the weights if they are the best, and start the next epoch or stop."""
    member, train_loss = run.member, run.loss_sum / run.loss_windows
    run.epoch += 1
    losses = {"epoch": run.epoch, "train_loss": train_loss}
    if run.validation is not None:
        losses["validation_loss"] = validated.loss
    run.history.append({**losses, **validated.scores, **more})
    told = {**run.history[-1], **({"score": validated.score} if validated.score else {})}
    told["epoch"] += run.epochs_before
    told |= {"fit": run.fit} if run.fit else {}
    report({"event": "epoch", "model": member.name, "piece": run.title, **told})
    if validated.loss < run.best_loss:
        run.best_loss, run.best_epoch, run.best_weights = validated.loss, run.epoch, tensors_of(model)
        run.best_outputs = validated.outputs_NO
    job = run.member.job or job
    last_epoch = run.last_epoch or job.train.epochs
    if run.epoch >= last_epoch or run.epoch - run.best_epoch >= job.train.patience:
        run.active = False
        run.failure = "" if math.isfinite(run.best_loss) else "the validation loss was never finite"
        return
    _begin_epoch(run)


def _checkpoint(
    pack: Pack,
    runs: Sequence[Run],
    roster: Roster,
    seconds: float,
    now: float,
    unread: _Unread,
    *,
    at_once: bool,
) -> None:
    """Give the roster a copy of every active run whose last checkpoint is `seconds` old, or of all `at_once`.
    The first interval starts when the run joins.
    """
    for number, run in enumerate(runs):
        if run.saved_at == -math.inf:
            run.saved_at = now
        if run.active and (at_once or now - run.saved_at >= seconds):
            unread.count(runs)
            run.saved_at = now
            began = time.perf_counter()
            state = pack.snapshot(number)
            copied = replace(run, history=list(run.history), first_steps=list(run.first_steps))
            roster.checkpoint(copied, state, snapshot_seconds=time.perf_counter() - began)
