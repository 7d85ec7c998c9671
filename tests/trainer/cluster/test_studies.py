"""Studies of a search by hand-made events: who begins, who ends early, who wins."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pieces import piece
from tests.queues import QueueOfNode, Time, hand_out_of
from trainer.cluster.hand_out import SILENT_SECONDS
from trainer.cluster.proposals import propose
from trainer.cluster.studies import StudyPieces, failed_trial, trial_done
from trainer.cluster.waiting import SharedPieces
from trainer.job.job import Job
from trainer.job.pieces import pieces_of as job_pieces
from trainer.job.pieces import queue as queue_of_pieces
from trainer.job.pieces.piece import Piece
from trainer.job.reading import parse_job
from trainer.job.trials import TrialEnd
from trainer.train.workers.carried import Carried

ANY: dict[str, Any] = {"held": (), "staged": (), "elsewhere": ()}
SIZES = {"model.hidden": [4, 8], "train.learning_rate": [0.1, 0.2]}
RATE = {"train.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}


def job_over(over: Any = SIZES, **keys: Any) -> Job:
    return parse_job({}, {"search.over": over, **{f"search.{key}": value for key, value in keys.items()}})


def pieces_of(job: Job, *symbols: str) -> list[Piece]:
    made = []
    for symbol in symbols or ("A",):
        model = piece(symbol)
        model = replace(model, study=model.name)
        trials = enumerate(job.search.trial_values, 1)
        made += [model, *(replace(model, name=f"{model.name}_t{n}", title=f"{symbol} t{n}", trial=n, values=values)
                          for n, values in trials)]  # fmt: skip
    return made


class Stage:
    """Studies, and the events that they emit."""

    def __init__(self, job: Job, *symbols: str, known: Any = None, is_open: Any = lambda: True) -> None:
        self.events: list[dict[str, Any]] = []
        self.studies = StudyPieces(job, self.events.append, known=known or {}, is_open=is_open)
        self.studies.open(pieces_of(job, *symbols))

    def take(self, shape: str = "") -> Piece:
        taken = self.studies.take(**ANY, shape=shape)
        assert taken is not None
        return taken

    def end(self, one: Piece, score: float | None, end: str = "done") -> None:
        ended = TrialEnd(trial=one.trial, values=one.values, end=end, score=score, epochs=3)
        self.studies.hear(trial_done(one, ended))

    def epoch(self, one: Piece, epoch: int, loss: float) -> bool:
        event = {"event": "epoch", "model": one.name, "epoch": epoch, "validation_loss": loss}
        return list(self.studies.hear(event)) == [one.name]


def test_the_best_trial_gives_the_model_values_not_its_score():
    stage = Stage(job_over(method="grid"), "A", "B")
    next_ones = stage.studies.ahead(2, held=(), elsewhere=())
    assert [one.source for one in next_ones] == ["A", "B"], "read ahead"
    taken = [stage.take() for _ in range(8)]
    assert all(one.trial for one in taken) and stage.studies.take(**ANY) is None
    of_a = [one for one in taken if one.study == taken[0].study]
    for one, score in zip(of_a, (0.5, 0.2, None, 0.2), strict=True):
        stage.end(one, score, "done" if score else "failed")
    model = stage.take()
    best = min(of_a[1::2], key=lambda one: one.trial)
    assert (model.trial, model.values) == (0, best.values)
    assert [end.score for end in model.trials] == [0.2, 0.2, 0.5, None]
    assert stage.events[-1]["event"] == "searched" and stage.events[-1]["tried"] == 4
    assert stage.studies.take(**ANY) is None, "the other study goes on"


def test_a_look_ahead_does_not_sort_all_trials(monkeypatch: pytest.MonkeyPatch):
    stage = Stage(job_over(RATE, trials=2_000, method="random"), "A", "B")
    ordered, order = list[str](), queue_of_pieces._order

    def noted(one: Piece) -> tuple[float, str]:
        ordered.append(one.name)
        return order(one)

    monkeypatch.setattr(queue_of_pieces, "_order", noted)
    first = stage.take()
    assert stage.studies.ahead(4, held={first.source}, elsewhere=()) == [], "its own trials come next"
    assert len(ordered) < 500


def test_a_pruned_trial_wins_only_if_no_other_ended():
    stage = Stage(job_over(RATE, trials=2))
    one, other = stage.take(), stage.take()
    stage.end(one, 0.1, "pruned")
    stage.end(other, 0.3)
    assert stage.take().values == other.values


def test_a_model_without_a_score_fails_with_the_reason():
    stage = Stage(job_over(RATE, trials=2))
    for one in (stage.take(), stage.take()):
        failure = {"event": "model_failed", **one.identity, "reason": "the loss is not finite", "worker": 1}
        stage.studies.hear(failed_trial(one, failure))
    assert not stage.studies.is_over(has_devices=True)
    ((model, reason),) = stage.studies.look(is_busy=False)
    assert model.trial == 0 and reason == "none of its 2 trials has a score: the loss is not finite"
    assert stage.studies.is_over(has_devices=True)


def test_a_thousand_proposals_that_make_no_sense_are_one_reason(monkeypatch: pytest.MonkeyPatch):
    sizes = {"model.heads": [8], "model.width": [36, 44]}
    job = parse_job(
        {},
        {"model.name": "transformer", "search.over": sizes, "search.method": "tpe", "search.trials": 1_200},
    )
    values = (("model.heads", 8), ("model.width", 36))
    monkeypatch.setattr("trainer.cluster.studies.propose", lambda search, **known: values)
    stage = Stage(job)
    assert stage.studies.take(**ANY) is None
    ((_, reason),) = stage.studies.look(is_busy=False)
    assert reason.startswith("none of its 1,200 trials has a score: ")


def test_a_worker_with_models_gets_trials_of_their_shape_alone():
    stage = Stage(job_over(method="grid"))
    first = stage.take()
    same = stage.take(first.shape)
    assert same.shape == first.shape and same.values != first.values
    assert stage.studies.take(**ANY, shape=first.shape) is None
    assert stage.take().shape != first.shape


def test_after_1_3_and_9_epochs_only_the_best_third_goes_on():
    stage = Stage(job_over(RATE, trials=7))
    trials = [stage.take() for _ in range(7)]
    ends = [stage.epoch(one, 1, loss) for one, loss in zip(trials, (5, 6, 4, 3, 4.5, 2, 9), strict=True)]
    assert ends == [False, True, False, False, True, False, True]
    assert not stage.epoch(trials[0], 2, 9.0), "no rung"
    assert not stage.epoch(trials[5], 3, 3.0) and stage.epoch(trials[0], 3, 7.0), "the least loss until then"
    calm = Stage(job_over(method="grid"))
    assert not any(calm.epoch(calm.take(), 1, loss) for loss in (1.0, 9.0))


def test_a_trial_from_a_checkpoint_is_not_judged_and_sets_no_bar():
    stage = Stage(job_over(RATE, trials=3))
    first, second, third = (stage.take() for _ in range(3))
    assert not stage.epoch(first, 1, 5.0) and not stage.epoch(first, 2, 4.0)
    assert not stage.epoch(second, 5, 0.1) and not stage.epoch(second, 9, 9.0)
    assert not stage.epoch(third, 1, 4.5), "0.1 was no first epoch's"
    assert not stage.epoch(first, 2, 4.0) and stage.epoch(first, 3, float("nan")) is False


SCRIPT = {"script": {"command": "run"}, "machine": {"max_duration": "1h"}}
OF_SCRIPT = {"over": {"rate": {"low": 0.1, "high": 0.9}}, "trials": 4, "score": "auc:max"}


def of_a_script(known: Any = None, **keys: Any) -> tuple[StudyPieces, list[Piece]]:
    job = parse_job({**SCRIPT, "search": {**OF_SCRIPT, **keys}}, {})
    pieces = list(job_pieces(job, (), timeframe=""))
    studies = StudyPieces(job, lambda event: None, known=known or {})
    studies.open([one for one in pieces if one.name not in (known or {})])
    return studies, pieces


def taken(studies: StudyPieces) -> Piece:
    one = studies.take(**ANY)
    assert one is not None
    return one


def ended(studies: StudyPieces, one: Piece, end: str, score: float | None = None, **why: Any) -> None:
    studies.hear(trial_done(one, TrialEnd(trial=one.trial, values=one.values, end=end, score=score), **why))


def test_a_scripts_one_study_is_decided_by_its_score():
    studies, pieces = of_a_script(prune="halving")
    assert [taken(studies) for _ in range(4)] == pieces and studies.is_over(has_devices=True)

    def report(one: Piece, number: int, score: float) -> bool:
        told = {"event": "script", "model": one.name, "report": number, "score": score}
        assert not studies.hear(
            {"event": "epoch", "model": one.name, "epoch": number, "validation_loss": 9.0}
        )
        return list(studies.hear(told)) == [one.name]

    assert [report(one, 1, score) for one, score in zip(pieces, (0.5, 0.4, 0.6, 0.55), strict=True)] == [
        *(False, True, False, True),
    ]
    assert not studies.hear({"event": "script", "model": pieces[0].name, "score": 0.0}), (
        "of no training's first"
    )
    for one in pieces:
        ended(studies, one, "done", 0.5)
    assert studies.is_over(has_devices=True) and not studies.flaw and studies.look(is_busy=False) == []


def test_a_scripts_search_without_a_score_has_the_first_reason():
    studies, _ = of_a_script(trials=2)
    ended(studies, taken(studies), "failed", reason="no data")
    again = taken(studies)
    ended(studies, again, "failed")
    assert studies.flaw == "none of its 2 trials has a score: no data"
    studies.put(again)
    assert taken(studies) == again, "its device is out of service"
    ended(studies, again, "done", 0.1)
    assert not studies.flaw


def test_ends_of_earlier_attempts_count_for_a_scripts_proposals():
    _, pieces = of_a_script(method="tpe", trials=12)
    known = {
        one.name: TrialEnd(
            trial=one.trial, values=(("rate", 0.1 + one.trial / 20),), end="done", score=one.trial
        )
        for one in pieces[:11]
    }
    proposed = [
        taken(of_a_script(known, method="tpe", trials=12, score=f"auc:{end}")[0]) for end in ("max", "min")
    ]
    assert {one.title for one in proposed} == {"t12"}
    most, least = (dict(one.values)["rate"] for one in proposed)
    assert most > least, "towards the better end"


def test_trials_that_may_not_begin_any_more_are_left_out():
    is_open = iter([True, *[False] * 9])
    stage = Stage(job_over(RATE, trials=3), "A", "B", is_open=lambda: next(is_open))
    first = stage.take()
    second = stage.take()
    assert {first.study, second.study} == {one.name for one in pieces_of(job_over(RATE)) if not one.trial} | {
        second.study
    }
    assert first.study != second.study, "each study has one trial"
    left = [event["end"] for event in stage.events]
    assert left == ["left_out"] * 4 and len(stage.studies.unbegun) == 4
    stage.end(first, 0.5)
    assert stage.take().trial == 0 and stage.events[-1]["tried"] == 1


def test_what_ended_before_counts_and_does_not_begin_again():
    job = job_over(RATE, trials=3)
    model, one, other, last = pieces_of(job)
    known = {trial.name: TrialEnd(trial=trial.trial, values=trial.values, end="done", score=score)
             for trial, score in ((one, 0.4), (last, 0.1))}  # fmt: skip
    stage = Stage(job, known=known)
    assert stage.take() == other and stage.studies.take(**ANY) is None
    stage.end(other, 0.2)
    assert stage.take().values == last.values
    done = {**known, other.name: TrialEnd(trial=2, values=other.values, end="done", score=0.05)}
    assert Stage(job, known=done).take().values == other.values


class Machines:
    """Two machines that share studies, the second one's words and what it left in S3."""

    def __init__(self, job: Job, folder: Path, *symbols: str) -> None:
        self.time, self.carried = Time(), folder / "carried.json"
        pieces = pieces_of(job, *symbols)
        studies = [one for one in pieces if not one.trial]
        self.hand_out = hand_out_of(studies, self.time)
        self.events: list[list[dict[str, Any]]] = [[], []]
        self.queues = [QueueOfNode(self.hand_out, node) for node in (0, 1)]
        self.nodes = []
        for queue, events in zip(self.queues, self.events, strict=True):
            carried = Carried(self.carried, events.append, search=job.search, clock=self.time)
            shared = SharedPieces(queue, events.append, carried)  # type: ignore[arg-type]
            self.nodes.append(StudyPieces(job, events.append, known={}, shared=shared))
        for node in self.nodes:
            node.open(pieces)

    def end(self, node: int, one: Piece, score: float | None) -> None:
        """Let a piece end on a node, as a supervisor tells it."""
        if one.trial:
            known = TrialEnd(trial=one.trial, values=one.values, end="done", score=score, epochs=3)
            self.nodes[node].hear(trial_done(one, known))
        self.nodes[node].done(one.name)

    def lose(self) -> None:
        """Let the second machine be silent for too long."""
        self.time.now += SILENT_SECONDS + 1
        self.nodes[0].look(is_busy=True)

    def answer(self, study: Piece, left: str, *ended: dict[str, Any]) -> None:
        """Answer what the second machine left of a study."""
        self.carried.write_text(json.dumps({study.study: {"left": left, "ended": ended}}))
        self.time.now += 1
        for node in self.nodes[: 1 + self.queues[0].others]:
            node.look(is_busy=False)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Callable[..., Machines]]:
    made: list[Machines] = []

    def make(*symbols: str, **search: Any) -> Machines:
        made.append(Machines(job_over(**{"method": "grid", **search}), tmp_path, *symbols))
        return made[-1]

    yield make
    for one in made:
        for queue in one.queues:
            os.close(queue.handle)


def test_machines_share_whole_studies(machines):
    both = machines("A", "B", "C")
    head, other = both.nodes
    mine = [head.take(**ANY) for _ in range(4)]
    theirs = [other.take(**ANY) for _ in range(4)]
    assert [{one.study for one in taken} for taken in (mine, theirs)] == [{mine[0].study}, {theirs[0].study}]
    assert mine[0].study != theirs[0].study and [one.trial for one in mine] == [1, 2, 3, 4]
    for number, one in enumerate(mine):
        both.end(0, one, 0.5 - number / 10)
    model = head.take(**ANY)
    assert (model.name, model.values, len(model.trials)) == (mine[0].study, mine[3].values, 4)
    third = head.take(**ANY)
    assert third.trial and third.study not in (mine[0].study, theirs[0].study), "while its model trains"
    both.end(0, model, 0.0)
    rest = [third, *(head.take(**ANY) for _ in range(3))]
    for one in rest:
        both.end(0, one, 0.5)
    last = head.take(**ANY)
    both.end(0, last, 0.0)
    assert head.take(**ANY) is None and not head.is_over(has_devices=True), "the other one is not done"
    here = {one.name for one in (*mine, model, *rest, last)}
    assert head.elsewhere(here) == {theirs[0].study, *(one.name for one in theirs)}
    for one in theirs:
        both.end(1, one, 0.1)
    both.end(1, other.take(**ANY), 0.0)
    head.look(is_busy=False)
    assert head.is_over(has_devices=True) and other.is_over(has_devices=True)


def test_a_lost_machines_study_goes_on_with_its_known_ends(machines):
    both = machines("A", "B")
    mine = [both.nodes[0].take(**ANY) for _ in range(4)]
    first, second, third, _ = theirs = [both.nodes[1].take(**ANY) for _ in range(4)]
    ends = [TrialEnd(trial=one.trial, values=one.values, end="done", score=score, epochs=3).to_dict()
            for one, score in ((first, 0.7), (second, 0.1))]  # fmt: skip
    both.lose()
    assert both.nodes[0].take(**ANY) is None
    assert both.events[0][-1] == {
        **both.events[0][-1],
        "event": "taken_over",
        "model": first.study,
        "node": 1,
    }
    wrong = {**ends[0], "trial": third.trial}  # the values of another
    both.answer(first, "checkpoint", *ends, wrong)
    again = [both.nodes[0].take(**ANY) for _ in range(2)]
    assert [one.name for one in again] == [one.name for one in theirs[2:]]
    for one in again:
        both.end(0, one, 0.4)
    model = both.nodes[0].take(**ANY)
    assert (model.values, [one.trial for one in model.trials]) == (second.values, [2, 3, 4, 1])
    assert both.events[0][-1]["tried"] == 4, "each counts once"
    here = {one.name for one in (*mine, *again, model)}
    assert {first.name, second.name} <= both.nodes[0].elsewhere(here)


def test_machines_share_studies_whose_trials_are_proposed(machines):
    both = machines("A", "B", method="tpe", trials=3, prune="never")
    mine = [both.nodes[0].take(**ANY) for _ in range(2)]
    first = both.nodes[1].take(**ANY)
    assert first is not None and {one.study for one in mine} == {mine[0].study} != {first.study}
    both.end(0, both.nodes[0].take(**ANY), 0.5)
    both.lose()
    assert both.nodes[0].take(**ANY) is None
    end = TrialEnd(trial=1, values=first.values, end="done", score=0.7, epochs=3).to_dict()
    both.answer(first, "checkpoint", end)
    again = both.nodes[0].take(**ANY)
    assert (again.study, again.trial) == (first.study, 2), "the values of the first are known by its end"


def test_a_model_made_on_a_lost_machine_is_not_searched_again(machines):
    both = machines("A", "B")
    mine = [both.nodes[0].take(**ANY) for _ in range(4)]
    theirs = both.nodes[1].take(**ANY)
    both.lose()
    assert both.nodes[0].take(**ANY) is None
    both.answer(theirs, "made")
    assert both.nodes[0].take(**ANY) is None
    for one in mine:
        both.end(0, one, 0.4)
    both.end(0, both.nodes[0].take(**ANY), 0.0)
    assert both.nodes[0].is_over(has_devices=True)


def test_a_busy_worker_leaves_the_last_studies_to_other_machines(machines):
    both = machines("A", "B", "C")
    busy = both.nodes[0].take(**ANY)
    for _ in range(3):
        both.nodes[0].take(**ANY)
    assert both.nodes[0].take(**ANY, shape=busy.shape).study != busy.study, "two wait, and there are two"
    for _ in range(3):
        both.nodes[0].take(**ANY)
    assert both.nodes[0].take(**ANY, shape=busy.shape) is None
    assert both.nodes[1].take(**ANY).trial == 1


def test_a_machine_without_devices_gives_its_studies_back(machines):
    both = machines("A", "B")
    head, other = both.nodes
    one = other.take(**ANY)
    both.end(1, one, 0.3)
    assert other.leave_to_others([]) and other.is_over(has_devices=False)
    assert other.elsewhere({one.name}) >= {one.study}
    mine = [head.take(**ANY) for _ in range(4)]
    assert one.study not in {piece.study for piece in mine}
    assert head.take(**ANY) is None and both.events[0][-1]["event"] == "taken_over"
    both.answer(one, "nothing")
    again = head.take(**ANY)
    assert (again.study, again.trial) == (one.study, 1), "what ended there is not known"
    both.end(0, again, 0.5)
    assert head.leave_to_others([])
    other.look(is_busy=False)
    assert other.take(**ANY) is None
    both.answer(mine[0], "nothing")
    assert other.take(**ANY).study == mine[0].study
    assert head.take(**ANY) is None
    both.answer(one, "nothing")
    assert [head.take(**ANY).trial for _ in range(3)] == [2, 3, 4], "its own end is"
    alone = Stage(job_over(method="grid"))
    assert not alone.studies.leave_to_others([])


def test_a_model_without_a_score_is_not_given_to_another_machine(machines):
    both = machines("A")
    head, other = both.nodes
    for one in [head.take(**ANY) for _ in range(4)]:
        both.end(0, one, None)
    assert head.leave_to_others([])
    ((model, reason),) = head.look(is_busy=False)
    assert reason == "none of its 4 trials has a score"
    both.end(0, model, None)
    assert other.take(**ANY) is None and head.is_over(has_devices=False)


needs_optuna = pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="needs optuna")


@needs_optuna
def test_tpe_proposes_by_what_ended_and_what_runs():
    search = job_over({**RATE, **SIZES}, method="tpe", trials=30).search
    space = {**RATE, **SIZES}
    key = "train.learning_rate"

    def near(values: Any) -> float:
        return abs(dict(values)[key] - 0.1) if key in space else 0.0

    ended: list[TrialEnd] = []
    for number in range(1, 15):
        values = propose(search, study="s", trial=number, ended=ended, running={})
        ended.append(TrialEnd(trial=number, values=values, end="done", score=near(values), epochs=1))
    again = propose(search, study="s", trial=14, ended=ended[:13][::-1], running={})
    assert again == ended[13].values, "however the process came here"
    beside = propose(search, study="s", trial=14, ended=ended[:13], running={40: ended[13].values})
    assert set(dict(beside)) == set(space) and json.dumps(dict(beside))


@needs_optuna
def test_tpe_trials_get_their_values_when_they_begin():
    stage = Stage(job_over(RATE, method="tpe", trials=3))
    first, second = stage.take(), stage.take()
    assert first.values and second.values and first.values != second.values
    stage.end(first, 0.5)
    stage.end(second, None, "failed")
    stage.end(third := stage.take(), 0.4)
    assert stage.take().values == third.values
