"""What a simulation puts into the product's modules: its clock, no threads, files in memory, and less to compute."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import cache, lru_cache
from typing import Any

from tests.chaos.aws import Aws
from tests.chaos.schedule import Schedule
from tests.chaos.sender import files_in_memory
from trainer.base.strict_json import Fields, read_object
from trainer.control import carry as carry_module
from trainer.control import cloud as cloud_module
from trainer.control import reported as reported_module
from trainer.control import settle as settle_module
from trainer.control import tokens as tokens_module
from trainer.control.functions import sweep as sweep_module
from trainer.node import snapshots as sender_module
from trainer.runs import capacity as capacity_module
from trainer.runs import index as index_module
from trainer.runs import record_json as record_json_module
from trainer.runs import reports as reports_module
from trainer.runs import snapshots as snapshots_module
from trainer.runs import start_file as start_module
from trainer.runs import store as store_module
from trainer.runs.record import RunRecord
from trainer.runs.record_json import record_from_json
from trainer.store import production as production_module

POOLED = (carry_module, settle_module, tokens_module)  # which ask several things at once


class InLine:
    """The pool of threads that ask several things at once, in the caller's own thread and in order."""

    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> InLine:
        return self

    def __exit__(self, *_: object) -> None: ...

    def shutdown(self, **_: Any) -> None: ...

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*arguments))
        return future

    def map(self, call: Callable[..., Any], *items: Any, timeout: float | None = None) -> Iterator[Any]:
        return map(call, *items)


def in_line(asks: Sequence[Callable[[], Any]], *, most: int) -> list[Future[Any]]:
    """Return what `begin_calls` does, called in the caller's own thread and in order."""
    return [InLine().submit(ask) for ask in asks]


@cache
def record_at_once(body: bytes) -> RunRecord:
    """Read a record that nobody wrote in this schedule."""
    return record_from_json(body)


class Records:
    """The records of a schedule by number: their JSON, which takes a fifth of its time, is tested elsewhere."""

    def __init__(self) -> None:
        self._known: list[RunRecord] = []
        self._checked = 0  # of them

    def write(self, record: Any) -> bytes:
        if not isinstance(record, RunRecord):
            return record_json_module.to_json(record)
        self._known.append(record)
        return b"record %d" % (len(self._known) - 1)

    def read(self, body: bytes) -> RunRecord:
        if not body.startswith(b"record "):
            return record_at_once(body)
        number = int(body[7:])
        for record in self._known[self._checked : number + 1]:
            record_json_module._check_consistency(record)
            self._checked += 1
        return self._known[number]


@lru_cache(maxsize=2048)
def read_at_once(body: bytes, **bounds: Any) -> Fields:
    """Read a JSON object that was read before."""
    return read_object(body, **bounds)


READERS = (capacity_module, index_module, reports_module, snapshots_module, start_module)
# What the product looks up in its modules -> what a simulation puts there, unless a mutation has.
_parsed = lru_cache(maxsize=2048)(parsedate_to_datetime)


def _replaced(aws: Aws, records: Records) -> list[tuple[Any, str, Any]]:
    """Return what a simulation replaces in the product's modules: clocks, pools of threads, files, and what
    only takes time.
    """
    return [
        (cloud_module, "utc_now", aws.callers_now),
        (cloud_module, "parsedate_to_datetime", _parsed),
        (store_module, "record_from_json", records.read),
        (store_module, "to_json", records.write),
        (sender_module, "utc_now", lambda: aws.now),
        (sender_module, "open_inside", files_in_memory),
        (production_module, "_verify", lambda *_: None),  # the simulated models have no card
        (snapshots_module, "PACK_BYTES", 1),  # so that each file is an object
        *((module, "ThreadPoolExecutor", InLine) for module in POOLED),
        (reported_module, "begin_calls", in_line),
        *((module, "read_object", read_at_once) for module in READERS),
    ]


@contextmanager
def simulated(aws: Aws, records: Records) -> Iterator[None]:
    """Give the product's modules the simulator's clock, and its pools no threads."""
    before = []
    for module, name, wrong in _replaced(aws, records):
        now = getattr(module, name)
        if _USUAL[module.__name__, name] is now:  # else it is mutated
            before.append((module, name, now))
            setattr(module, name, wrong)
    sweep_module.print = lambda *_: None  # type: ignore[attr-defined]  # its log
    loggers = [logging.getLogger(name) for name in ("trainer.node", "trainer.control")]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        del sweep_module.print  # type: ignore[attr-defined]
        for logger in loggers:
            logger.disabled = False
        for module, name, usual in before:
            setattr(module, name, usual)


_USUAL = {
    (module.__name__, name): getattr(module, name)
    for module, name, _ in _replaced(Aws(Schedule()), Records())
}
