"""Who trains what next."""

from __future__ import annotations

import random

import pytest

from trainer.train.task import Task
from trainer.train.workers.task_queue import TaskQueue


def _task(symbol: str, estimate: int, seed: int = 0) -> Task:
    return Task(symbol=symbol, family="lstm", timeframe="1m", estimate=estimate, seed=seed, several=True)


def test_the_longest_goes_first():
    queue = TaskQueue([_task("A", 10), _task("B", 30), _task("C", 20)])
    assert [queue.take().symbol for _ in range(3)] == ["B", "C", "A"]
    assert len(queue) == 0
    with pytest.raises(IndexError):
        queue.take()


def test_a_worker_stays_with_a_symbol_that_it_holds_while_that_is_nearly_the_longest():
    queue = TaskQueue([_task("A", 100), _task("B", 95), _task("B", 50, seed=1)])
    assert queue.take(held={"B"}).symbol == "B"
    assert queue.take(held={"B"}).symbol == "A"  # the other of B is half as long: it can wait


def test_a_worker_gets_what_was_staged_for_it_after_what_it_holds():
    tasks = [_task("A", 100), _task("B", 95), _task("C", 91)]
    assert TaskQueue(tasks).take(held={"B"}, staged="C").symbol == "B"
    assert TaskQueue(tasks).take(held={"X"}, staged="C").symbol == "C"


def test_symbols_of_other_workers_are_left_to_them_while_others_are_as_long():
    tasks = [_task("A", 100), _task("A", 100, seed=1), _task("B", 95)]
    assert TaskQueue(tasks).take(elsewhere={"A"}).symbol == "B"


def test_a_free_worker_takes_what_was_staged_for_a_busy_one_when_nothing_else_is_as_long():
    assert TaskQueue([_task("A", 100), _task("B", 50)]).take(elsewhere={"A"}).symbol == "A"


def test_looking_takes_nothing_and_what_is_left_of_a_symbol_is_known():
    queue = TaskQueue([_task("A", 100)])
    assert queue.peek() == queue.take()
    assert not queue.has("A")


def test_seeds_of_a_symbol_go_to_the_worker_that_began_it_and_every_task_is_given_once():
    shuffled = random.Random(0)
    queue = TaskQueue(_task(f"S{number:03d}", 1000 - number % 7, seed) for number in range(40) for seed in range(3))
    holds = dict.fromkeys(range(4), "")
    given, readings = [], 0
    while len(queue):
        worker = shuffled.randrange(4)
        elsewhere = {symbol for other, symbol in holds.items() if other != worker}
        task = queue.take(held={holds[worker]}, elsewhere=elsewhere)
        readings += task.symbol != holds[worker]
        holds[worker] = task.symbol
        given.append(task.model)
    assert len(given) == len(set(given)) == 120
    assert readings <= 40 + 6  # at the end, workers help with each other's symbols
