"""Choose models to delete by a rule, and delete them: never one that something still needs.

Kept are the models of open runs and of the newest ones, those that are or were in production, and those that
a kept model's card names by hash: its held-out twin, the model that it began with, an encoder. What can't be
read is kept. A receipt stays, and lists what a run made; `models list` shows what is there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainer.base.errors import TrainerError
from trainer.job.model_names import MODEL_SUFFIX
from trainer.runs.outcome import EXIT_CODES
from trainer.runs.store import Objects, Stored, run_ids
from trainer.store.card import MOST_HEADER_BYTES
from trainer.store.listing import FETCHED_AT_ONCE, headed, models_of_run
from trainer.store.production import PRODUCTION, RETRAINS, production_name

LEAST_AGE = timedelta(days=2)  # a retrain's models are scored within hours
KEPT_RUNS = 10
OPEN, NEWEST, NEWER, IN_PRODUCTION, NAMED, UNREAD = (
    "of runs that are open",
    "of the newest runs",
    "newer than the rule's age",
    "that are or were in production",
    "that a kept model's card names",
    "that can't be read",
)
_SHA256 = re.compile(rb"[0-9a-f]{64}")  # in a header, also of a card that this version can't read


@dataclass(frozen=True, kw_only=True)
class PruneRule:
    """Models to delete: older than an age, and of none of the newest runs."""

    older_than: timedelta
    keep_runs: int = KEPT_RUNS


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """One model's object; of a run's own, or of a retrain's permanent copy."""

    key: str
    version_id: str
    sha256: str
    bytes: int
    modified_at: datetime
    run_id: str
    is_open: bool  # its run has not ended

    @property
    def name(self) -> str:
        """Return its name, without folder and suffix."""
        return self.key.rpartition("/")[2].removesuffix(MODEL_SUFFIX)


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """A dry run: the models to delete, the oldest run first; how many are kept and why; runs that could not
    be read.
    """

    chosen: tuple[StoredModel, ...]
    kept: Mapping[str, int]
    problems: Mapping[str, TrainerError]

    @property
    def bytes(self) -> int:
        """Return how many bytes the models to delete have."""
        return sum(model.bytes for model in self.chosen)


def plan_pruning(objects: Objects, rule: PruneRule, now: datetime) -> Pruning:
    """Return what the rule deletes now. Reads receipts, heads, and the cards of kept models."""
    runs = run_ids(objects)
    stored, problems = _stored(objects, runs)
    newest = set(runs[-rule.keep_runs :] if rule.keep_runs else ())
    produced = _in_production(objects)

    def reason(model: StoredModel) -> str:
        if model.is_open:
            return OPEN
        if model.run_id in newest:
            return NEWEST
        if model.modified_at > now - max(rule.older_than, LEAST_AGE):
            return NEWER
        if not model.sha256 or not model.version_id:
            return UNREAD
        return IN_PRODUCTION if model.sha256 in produced else ""

    reasons = {model.key: reason(model) for model in stored}
    _keep_named(objects, stored, reasons)
    chosen = [model for model in stored if not reasons[model.key]]
    return Pruning(
        chosen=tuple(sorted(chosen, key=lambda model: (model.run_id, model.key))),
        kept=Counter(why for why in reasons.values() if why),
        problems=problems,
    )


def prune(
    objects: Objects,
    models: Iterable[StoredModel],
    *,
    deleted: Callable[[StoredModel], None] = lambda _: None,
) -> None:
    """Delete models, each with the card beside it. Done twice, or broken off, it does no harm. Raises
    PermissionDenied without the right.
    """
    for model in models:
        beside = f"{model.key.removesuffix(MODEL_SUFFIX)}.json"
        for item in objects.versions(key=beside):
            objects.delete(key=beside, version_id=item.version_id)
        objects.delete(key=model.key, version_id=model.version_id)
        deleted(model)


def _stored(objects: Objects, runs: Sequence[str]) -> tuple[list[StoredModel], dict[str, TrainerError]]:
    """Return the models of runs, and the permanent copies of retrains, that are in the bucket."""
    there = {item.key: item for item in objects.list(prefix="models/experiments/")}
    problems: dict[str, TrainerError] = {}
    stored, open_runs = list[StoredModel](), set[str]()

    def add(item: Stored, version_id: str, sha256: str, run_id: str) -> None:
        stored.append(
            StoredModel(
                key=item.key,
                version_id=version_id,
                sha256=sha256,
                bytes=item.size,
                modified_at=item.modified_at,
                run_id=run_id,
                is_open=run_id in open_runs,
            )
        )

    for run_id in runs:
        try:
            models = models_of_run(objects, run_id)
        except TrainerError as error:
            problems[run_id] = error
            continue
        open_runs |= {run_id} if any(model.state not in EXIT_CODES for model in models) else set()
        for model in models:
            if (item := there.get(model.key)) is not None:
                add(item, model.version_id, model.sha256, run_id)
    open_runs |= {*problems}
    copies = [item for item in objects.list(prefix=RETRAINS) if item.key.endswith(MODEL_SUFFIX)]
    with ThreadPoolExecutor(max_workers=FETCHED_AT_ONCE) as pool:
        heads = list(pool.map(lambda item: objects.head(key=item.key), copies))
    for item, head in zip(copies, heads, strict=True):
        run_id = (item.key.removeprefix(RETRAINS).split("/") + [""])[1]
        if head is not None:
            open_runs |= {run_id} - {*runs}  # no receipt says that it has ended
            add(item, head.version_id, head.sha256, run_id)
    return stored, problems


def _in_production(objects: Objects) -> set[str]:
    """Return the hashes of all versions of production models: any of them may be restored."""
    keys = [item.key for item in objects.list(prefix=PRODUCTION) if production_name(item.key)]
    versions: list[Stored] = [one for key in keys for one in objects.versions(key=key)]
    with ThreadPoolExecutor(max_workers=FETCHED_AT_ONCE) as pool:
        heads = pool.map(lambda one: objects.head(key=one.key, version_id=one.version_id), versions)
        return {head.sha256 for head in heads if head is not None}


def _keep_named(objects: Objects, stored: Sequence[StoredModel], reasons: dict[str, str]) -> None:
    """Keep what the cards of kept models name, and what their cards name in turn."""
    by_hash = {model.sha256: model for model in stored if model.sha256}
    cards = [(model.key, model.version_id) for model in stored if reasons[model.key]]
    cards += [(item.key, "") for item in objects.list(prefix=PRODUCTION) if production_name(item.key)]
    while cards:
        with ThreadPoolExecutor(max_workers=FETCHED_AT_ONCE) as pool:
            read = list(pool.map(lambda one: headed(objects, key=one[0], version_id=one[1]), cards))
        cards = []
        texts = [stored.body[:MOST_HEADER_BYTES] for stored in read if stored is not None]
        for named in {sha256.decode() for text in texts for sha256 in _SHA256.findall(text)}:
            model = by_hash.get(named)
            if model is not None and not reasons[model.key]:
                reasons[model.key] = NAMED
                cards.append((model.key, model.version_id))
