"""Helpers: they read and score what a worker would, needed things first, within a bound, and fail aloud."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from tests.jobs import job_of
from tests.pieces import piece_of
from trainer.base.errors import DataError
from trainer.store.weights import load
from trainer.train.hardware import hardware_of
from trainer.train.inputs.source import plan_and_open, read_source
from trainer.train.packs.pack import new_model
from trainer.train.packs.tensors import tensors_of
from trainer.train.piece import Opened, close_piece, ended, open_piece, outputs_of_trained
from trainer.train.workers.assignment import WorkerSettings
from trainer.train.workers.helpers import Helpers, do_tasks, helpers_of
from trainer.train.workers.line import Line

JOB = job_of(target="return", batch=64, lookback=20, hidden=4, folds=2)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: Any, write_candles: Any) -> WorkerSettings:
    folder = tmp_path_factory.mktemp("helped")
    write_candles(folder, "SIG-USD", bars=1800)
    data = plan_and_open(JOB, folder, scratch=folder)
    return WorkerSettings(job=JOB, data=data, out=folder / "out", checkpoints=folder / "checkpoints")


def helped(settings: Any, count: int = 1) -> Helpers:
    """Return helpers that are threads of this process."""
    lines: list[Connection] = []
    for _ in range(count):
        ours, theirs = multiprocessing.Pipe()
        lines.append(ours)
        threading.Thread(target=do_tasks, args=(settings, Line(theirs)), daemon=True).start()
    return Helpers(lines, lambda event: None)


def test_a_helper_reads_the_source_and_its_baselines_bit_for_bit(settings):
    piece = piece_of(JOB, "SIG-USD")
    reading = helped(settings).read(piece)
    foreseen, source = reading.foreseen.result(), reading.source.result()
    plain = read_source(piece, JOB, settings.data)
    assert source.origin.made == plain.origin.made and source.folds.keys() == plain.folds.keys() == {1, 2}
    assert source.folds[1].rows_TF.data_ptr() == source.folds[2].rows_TF.data_ptr(), "folds share rows"
    for fold in source.folds:
        (one,), (other,) = source.folds[fold].series, plain.folds[fold].series
        assert not len(one.candles.open) and len(other.candles.open), "only closes are sent"
        assert (one.candles.close == other.candles.close).all()
        for name in ("rows_TF", "mean_F", "std_F", "reads"):
            assert torch.equal(getattr(one, name), getattr(other, name))
        assert torch.equal(one.train_labels_TK.nan_to_num(-1), other.train_labels_TK.nan_to_num(-1))
        assert all(torch.equal(one.starts[span], other.starts[span]) for span in one.starts)
        (known,), (there,) = plain.baselines(fold), foreseen[fold]
        assert known.keys() == there.keys()
        assert all((known[name] == there[name]).all() for name in known)


def test_a_helper_scores_and_writes_what_the_worker_would(settings, tmp_path):
    piece = piece_of(JOB, "SIG-USD")
    opened: Opened = open_piece(piece, JOB, read_source(piece, JOB, settings.data))
    model = new_model(opened.run.member, JOB)
    opened.run.best_weights, opened.run.best_loss = tensors_of(model), 0.5
    opened = ended(opened, JOB)
    outputs = outputs_of_trained(opened, model, JOB)
    trained = opened.trained()
    assert not len(trained.data.rows_TF) and not len(trained.run.member.rows_TF)
    baselines = opened.source.baselines(piece.fold)
    done = helped(settings).score(trained, baselines, outputs, hardware_of("cpu", "fp32")).result()
    here = close_piece(opened, outputs, JOB, out=tmp_path, hardware=hardware_of("cpu", "fp32"))
    assert done["metrics"] == here["metrics"] and done["piece"] == here["piece"]
    (weights, card), (others, own) = load(settings.out / done["file"]), load(tmp_path / here["file"])
    assert all((weights[name] == others[name]).all() for name in weights)
    assert card.of() == own.of() and card.losses == own.losses and card.trades == own.trades
    assert card.training == own.training and card.data == own.data


class Gate:
    """Tasks that wait to be let go."""

    go, has_begun, begun = threading.Event(), threading.Event(), list[str]()


def waiting(gate: type[Gate], name: str) -> Iterator[str]:
    gate.begun.append(name)
    gate.has_begun.set()
    gate.go.wait()
    yield name


def broken(gate: type[Gate], error: Exception) -> Iterator[str]:
    yield "a part"
    raise error


@pytest.fixture
def gate() -> type[Gate]:
    Gate.go, Gate.has_begun, Gate.begun = threading.Event(), threading.Event(), []
    return Gate


def test_what_is_needed_comes_before_what_is_ahead(gate):
    helpers = helped(gate)
    (first,) = helpers._ask(waiting, "first")
    assert gate.has_begun.wait(60)
    (ahead,), (needed,) = helpers._ask(waiting, "ahead", ahead=True), helpers._ask(waiting, "needed")
    gate.go.set()
    assert [one.result() for one in (first, ahead, needed)] == ["first", "ahead", "needed"]
    assert gate.begun == ["first", "needed", "ahead"]


def test_two_large_sources_are_not_read_at_once(gate):
    helpers = helped(gate, count=2)
    (large,) = helpers._ask(waiting, "large", gib=0.7)
    assert gate.has_begun.wait(60)
    gate.has_begun.clear()
    (other,), (small,) = helpers._ask(waiting, "other", gib=0.7), helpers._ask(waiting, "small", gib=0.3)
    assert gate.has_begun.wait(60)
    assert gate.begun == ["large", "small"], "on both helpers"
    gate.go.set()
    assert (large.result(), small.result(), other.result()) == ("large", "small", "other")


def test_errors_reach_who_asked(gate, capfd):
    helpers = helped(gate)
    part, rest = helpers._ask(broken, DataError("A-USD has 3 bars", do="Bring more."), results=2)
    assert part.result() == "a part"
    with pytest.raises(DataError, match="A-USD has 3 bars. Bring more."):
        rest.result()
    _, rest = helpers._ask(broken, KeyError("close"), results=2)
    with pytest.raises(RuntimeError, match="KeyError: 'close'"):
        rest.result()
    assert "Traceback" in capfd.readouterr().err


def test_a_lost_helper_fails_all_that_is_asked(gate):
    ours, theirs = multiprocessing.Pipe()
    helpers = Helpers([ours], lambda event: None)
    (under_way,), (queued,) = helpers._ask(waiting, "one"), helpers._ask(waiting, "two")
    Line(theirs).receive()
    theirs.close()
    for future in (under_way, queued, *helpers._ask(waiting, "three")):
        with pytest.raises(RuntimeError, match="has ended"):
            future.result()


def test_what_cannot_be_sent_fails_too(gate):
    (result,) = helped(gate)._ask(waiting, lambda: "a function of a test")
    with pytest.raises(RuntimeError, match="pickle"):
        result.result()


@pytest.mark.parametrize(
    ("kind", "workers", "cores", "expected"),
    [
        ("cpu", 8, 8, 0),  # every core trains
        ("cpu", 7, 8, 1),
        ("cpu", 1, 8, 4),
        ("cuda", 8, 192, 4),
        ("cuda", 1, 4, 3),
        ("cuda", 4, 4, 1),
    ],
)
def test_idle_cores_help(kind, workers, cores, expected):
    assert helpers_of(kind=kind, num_workers=workers, cores=cores) == expected


def test_a_source_larger_than_the_bound_is_read_alone(gate):
    helpers = helped(gate)
    gate.go.set()
    (huge,) = helpers._ask(waiting, "huge", gib=7.0)
    assert huge.result() == "huge"


def test_a_source_above_the_bound_is_read_after_small_ones(gate):
    helpers = helped(gate, count=2)
    small = []
    for name, gib in (("a", 0.1), ("b", 0.2)):  # at once, on both helpers
        gate.has_begun.clear()
        small += helpers._ask(waiting, name, gib=gib)
        assert gate.has_begun.wait(60)
    gate.go.set()
    assert {one.result() for one in small} == {"a", "b"}
    (huge,) = helpers._ask(waiting, "huge", gib=7.0)
    assert huge.result(timeout=60) == "huge", "0.1 + 0.2 - 0.1 - 0.2 is more than 0"
