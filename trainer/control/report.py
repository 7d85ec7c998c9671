"""The report of a closed run, stored beside its receipt: read what it shows, within bounds, and write it.

Whoever closes a run leaves its report, after the record is closed: no run waits for it, and a part that
can't be had is left out. Commands make one that is missing, and add what came later: the gate's decisions.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from trainer.aws.objects import Conflict, Objects, Stored, given
from trainer.base.errors import ConnectionFailed, TrainerError, UsageError
from trainer.base.instants import utc_now
from trainer.base.strict_json import Unsound
from trainer.base.text import counted
from trainer.control.cloud import Cloud
from trainer.control.observe import reports
from trainer.control.reported import at_once, part_of
from trainer.job.reading import job_from
from trainer.launch.work import Score
from trainer.retrains.entries import retrain_of
from trainer.runs.manifest import Manifest, read_manifest
from trainer.runs.receipt import Receipt
from trainer.runs.record import RunRecord
from trainer.runs.report.curves import RunCurves, curves_of
from trainer.runs.report.data import Seen, report_data
from trainer.runs.report.models import InProduction, ReadCard, first, number
from trainer.runs.report.page import MOST_PAGE_BYTES, data_of, page
from trainer.runs.store import manifest_key, report_key
from trainer.runs.stored_receipt import read_receipt
from trainer.runs.timeline import Reports
from trainer.store.decisions import GateDecision, read_decisions
from trainer.store.listing import card_of
from trainer.store.production import PRODUCTION, file_of, production_name
from trainer.store.scores import ASKED_FILE, Asked, asked_from

MOST_EVENT_BYTES = 32 * 2**20  # that are folded into curves: control has a gigabyte of memory
MOST_PARTS = 20_000
MOST_CARDS = 60  # of the best models
MOST_CHAMPIONS = 2_000  # objects that are listed to find models of other groups
MOST_ATTEMPTS = 60
SECONDS = 20.0  # for all parts of events, unless these are very many, and for all cards
T = TypeVar("T")


def leave_report(cloud: Cloud, record: RunRecord) -> None:
    """Store the report of a run that this caller closed. Never fails: a run has ended without one."""
    try:
        if (receipt := read_receipt(cloud.objects, record.run_id)) is not None:
            made, is_whole = make_report(cloud, record, receipt)
            if is_whole:
                _store(cloud.objects, record.run_id, made)
    except (TrainerError, Unsound):
        return
    except Exception:  # a fault of ours about a page: the run is settled all the same
        traceback.print_exc()


def report_of(cloud: Cloud, record: RunRecord, receipt: Receipt) -> bytes:
    """Return the report of a closed run: the stored one, drawn anew, or one that is made and stored now, with
    the gate's decisions. Raises UsageError if what it shows is too large for a page, TrainerError if S3 can't
    be read.
    """
    decided = _decided(cloud.objects, record)
    stored = given(partial(cloud.objects.get, key=report_key(record.run_id), first_bytes=2 * MOST_PAGE_BYTES))
    with suppress(Unsound):
        if stored is not None:
            return page({**data_of(stored.body, record.run_id), **decided})
    try:
        made, is_whole = make_report(cloud, record, receipt)
        shown = page({**data_of(made, record.run_id), **decided})
    except Unsound as error:
        do = f"mayfly receipts {record.run_id} prints it."
        raise UsageError(f"{record.run_id} has no report", why=str(error), do=do) from error
    with suppress(TrainerError):  # a reader may not write
        if is_whole:
            _store(cloud.objects, record.run_id, made)
    return shown


def make_report(cloud: Cloud, record: RunRecord, receipt: Receipt) -> tuple[bytes, bool]:
    """Return the page of a closed run by what S3 has of it, and whether S3 could be asked for every part:
    another page is not stored, since a later one may have more. Raises Unsound if it is too large.
    """
    missing: dict[str, str] = {}
    objects, is_whole = cloud.objects, True

    def read(part: str, of: Callable[[], T], instead: T) -> T:
        try:
            return of()
        except (TrainerError, Unsound) as error:
            nonlocal is_whole
            is_whole = is_whole and not isinstance(error, ConnectionFailed)
            missing[part] = f"Not shown: {error}"
            return instead

    manifest = read("manifest", lambda: _manifest(objects, record), None)
    asked = read("scored", lambda: _scoring(record, manifest), None)
    seen = Seen(
        manifest=manifest,
        scored=_scored(asked) if asked else "",
        reports=read("reports", lambda: _reports(cloud, record), {}),
        curves=read("curves", lambda: _curves(objects, record), None),
        cards=read("cards", lambda: _cards(objects, receipt), {}),
        production=read("production", lambda: _production(objects, record, receipt), {}),
        missing=missing,
    )
    return page(report_data(receipt, record, seen)), is_whole


def _store(objects: Objects, run_id: str, made: bytes) -> None:
    with suppress(Conflict):  # another caller made it
        objects.put(key=report_key(run_id), body=made, create=True)


def _manifest(objects: Objects, record: RunRecord) -> Manifest | None:
    stored = objects.get(key=manifest_key(record.run_id))
    return read_manifest(stored.body) if stored is not None else None


def _scoring(record: RunRecord, manifest: Manifest | None) -> Asked | None:
    """Return what a score run scores; None for other work, or without a manifest. Raises Unsound."""
    if record.work != Score.name or manifest is None:
        return None
    return asked_from(manifest.documents.get(ASKED_FILE))


def _scored(asked: Asked) -> str:
    """Return what is scored as text."""
    beside = sum(piece.of("champion") is not None for piece in asked.pieces)
    production = f"{beside or 'none'} against production"
    newer = ", on newer bars alone" if any(piece.since for piece in asked.pieces) else ""
    return f"{counted(len(asked.pieces), 'model')} of {_trained(asked)}, {production}{newer}"


def _trained(asked: Asked) -> str:
    """Return the run whose models are scored, by the permanent key of one: '' without any."""
    keys = (model.key for piece in asked.pieces if (model := piece.of("challenger")))
    return next((key.split("/")[-2] for key in keys if "/" in key), "")


def _reports(cloud: Cloud, record: RunRecord) -> Reports:
    if len(record.attempts) > MOST_ATTEMPTS:
        raise Unsound(f"the run has {len(record.attempts)} attempts")
    return reports(cloud, record)


def _curves(objects: Objects, record: RunRecord) -> RunCurves:
    """Return the curves of the events of every attempt. Raises Unsound if these are too large."""
    listed = [(node, part) for node, prefix in _places(record) for part in _parts(objects, prefix)]
    size = sum(part.size for _, part in listed)
    if size > MOST_EVENT_BYTES or len(listed) > MOST_PARTS:
        raise Unsound(f"the events have {size / 1e6:,.0f} MB; mayfly pull has the curves")
    bodies = at_once(listed, lambda one: part_of(objects, one[1]), "parts of events", seconds=SECONDS)
    named = zip((node for node, _ in listed), bodies, strict=True)
    return curves_of(named, begin=record.preflight_at, end=record.closed_at or utc_now())


def _places(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield the name of each node of each attempt, and the prefix of its events."""
    for nodes in record.nodes_by_attempt:
        for place, keys in enumerate(nodes):
            yield f"node {place}" if len(nodes) > 1 else "", keys.metrics


def _parts(objects: Objects, prefix: str) -> tuple[Stored, ...]:
    return objects.list(prefix=prefix, most=MOST_PARTS + 1)


def _cards(objects: Objects, receipt: Receipt) -> dict[str, ReadCard]:
    """Return the cards of the best models by their keys."""
    best = first(receipt["models"], MOST_CARDS)
    found = at_once(
        best, lambda model: _card(objects, model["key"], model["version_id"]), "cards", seconds=SECONDS
    )
    return {str(model["key"]): card for model, card in zip(best, found, strict=True) if card is not None}


def _card(objects: Objects, key: str, version_id: str) -> ReadCard | None:
    card = card_of(objects, key=key, version_id=version_id)
    if card is None:
        return None
    trades = card.trades
    return ReadCard(reliability=card.reliability, begins=trades.get("begins", ()), net=trades.get("net", ()))


def _production(objects: Objects, record: RunRecord, receipt: Receipt) -> dict[str, InProduction]:
    """Return the production models of the names of the best models, by these models' keys: of several groups
    that of the run's retrain or data set.
    """
    listed = objects.list(prefix=PRODUCTION, most=MOST_CHAMPIONS) if receipt["models"] else ()
    if not listed:
        return {}
    group = retrain_of(record.run_id) if record.is_scheduled else job_from(record.job).data.set
    others = {one.key.rpartition("/")[2]: one.key for one in listed}

    def champion(model: Mapping[str, Any]) -> InProduction | None:
        file = file_of(model)
        for key in (f"{PRODUCTION}{group}/{file}", others.get(file, "")):
            if key and (card := card_of(objects, key=key)) is not None:
                return InProduction(name=production_name(key), metrics=card.metrics)
        return None

    best = first(receipt["models"], MOST_CARDS)
    found = at_once(best, champion, "production models", seconds=SECONDS)
    return {str(model["key"]): one for model, one in zip(best, found, strict=True) if one is not None}


def _decided(objects: Objects, record: RunRecord) -> dict[str, Any]:
    """Return the gate's decisions about the models of a scheduled run, or by a score run's scores, as a part
    of its report's data; {} without any that can be read.
    """
    made: Sequence[GateDecision] = ()
    with suppress(TrainerError, Unsound):
        if record.is_scheduled and record.work == Score.name:
            asked = _scoring(record, _manifest(objects, record))
            found = read_decisions(objects, retrain_of(record.run_id), _trained(asked)) if asked else None
            made = [one for one in found or () if one.score_run_id == record.run_id]
        elif record.is_scheduled:
            made = read_decisions(objects, retrain_of(record.run_id), record.run_id) or ()
    return {"gate": [_decision(one) for one in made]} if made else {}


def _decision(one: GateDecision) -> dict[str, Any]:
    over = one.numbers.get("champion")  # on the same bars
    gains = over if isinstance(over, dict) else {}
    return {
        "piece": one.piece,
        "name": one.name,
        "promote": one.promote,
        "reason": one.reason,
        "gain": [number(gains.get(name)) for name in ("gain", "low", "high")],
    }
