"""Choose models to delete by a rule, and delete them: never one that something still needs.

Kept are the models of open runs, of the runs that these continue, and of the newest runs with models; those
that are or were in production; those of a retrain that the gate may still score, on bars that have not come;
and those that a record or receipt of these runs, or a kept model's card, names by hash: the model that it
began with, an encoder. (A held-out twin, and the networks of a mean, are in the file of their model.) What
can't be read is kept. A receipt stays, and lists what a run made; `models
list` shows what is there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainer.aws.objects import Objects, Stored, given
from trainer.base.errors import TrainerError
from trainer.job.model_names import MODEL_SUFFIX
from trainer.runs.outcome import EXIT_CODES
from trainer.runs.store import manifest_key, receipt_key, record_key, run_ids
from trainer.store.card import MOST_HEADER_BYTES
from trainer.store.decisions import decisions_key
from trainer.store.listing import FETCHED_AT_ONCE, Model, headed, models_of_run
from trainer.store.production import PRODUCTION, RETRAINS, production_name

LEAST_AGE = timedelta(days=2)  # a retrain's models are scored within hours
KEPT_RUNS = 10
DELETED_AT_ONCE = 20  # models between two looks for new runs and promotions, which list both
OPEN, NEWEST, WAITING, NEWER, IN_PRODUCTION, NAMED, UNREAD = (
    "of runs that are open",
    "of the newest runs",
    "that wait for newer bars, by which the gate decides",
    "newer than the rule's age",
    "that are or were in production",
    "that a kept model's card, or a run, names",
    "that can't be read",
)
InUse = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]  # ids of runs; keys and versions of production
_SHA256 = re.compile(rb"[0-9a-f]{64}")  # in a header, also of a card that this version can't read


@dataclass(frozen=True, kw_only=True)
class PruneRule:
    """Models to delete: older than an age, and of none of the newest runs. `shadows`: retrains with the gate
    `shadow`.
    """

    older_than: timedelta
    keep_runs: int = KEPT_RUNS
    shadows: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """One model's object; of a run's own, or of a retrain's permanent copy."""

    key: str
    version_id: str
    sha256: str
    bytes: int
    modified_at: datetime
    run_id: str
    is_open: bool  # its run has not ended, or one that has not continues it
    versions: tuple[str, ...]  # all of its object, and markers of deletions

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
    in_use: InUse

    @property
    def bytes(self) -> int:
        """Return how many bytes the models to delete have."""
        return sum(model.bytes for model in self.chosen)


def plan_pruning(objects: Objects, rule: PruneRule, now: datetime) -> Pruning:
    """Return what the rule deletes now. Reads receipts, records of open runs, heads, and the cards of kept
    models.
    """
    in_use = _in_use(objects)
    stored, open_runs, problems = _stored(objects, in_use[0])
    with_models = sorted({model.run_id for model in stored} & {*in_use[0]})
    newest = set(with_models[-rule.keep_runs :] if rule.keep_runs else ())
    produced = _in_production(objects, in_use)
    named = _named_by_runs(objects, open_runs | newest)
    undecided = _undecided(objects, rule.shadows)

    def reason(model: StoredModel) -> str:
        if model.is_open:
            return OPEN
        if model.run_id in newest:
            return NEWEST
        if model.key.startswith(undecided):
            return WAITING
        if model.modified_at > now - max(rule.older_than, LEAST_AGE):
            return NEWER
        if not model.sha256 or model.version_id not in model.versions:
            return UNREAD
        if model.sha256 in produced:
            return IN_PRODUCTION
        return NAMED if model.sha256 in named else ""

    reasons: dict[str, str] = {}
    for model in stored:  # several runs may list one, of which they continue each other
        reasons[model.key] = reasons.get(model.key) or reason(model)
    _keep_named(objects, stored, reasons, in_use)
    chosen = {model.key: model for model in stored if not reasons[model.key]}
    return Pruning(
        chosen=tuple(sorted(chosen.values(), key=lambda model: (model.run_id, model.key))),
        kept=Counter(why for why in reasons.values() if why),
        problems=problems,
        in_use=in_use,
    )


def prune(
    objects: Objects,
    pruning: Pruning,
    rule: PruneRule,
    now: datetime,
    *,
    deleted: Callable[[StoredModel], None] = lambda _: None,
) -> None:
    """Delete the models that were chosen: all versions of each, and the card beside it. If a run was opened
    or a model promoted since the last look, one for each DELETED_AT_ONCE models, the rule decides again, and
    nothing is deleted that was not chosen before.

    Done twice, or broken off, it does no harm. Raises PermissionDenied without the right.
    """
    still, chosen = pruning, set(pruning.chosen)
    for place, model in enumerate(pruning.chosen):
        if place % DELETED_AT_ONCE == 0 and _in_use(objects) != still.in_use:
            still = plan_pruning(objects, rule, now)
            chosen.intersection_update(still.chosen)
        if model not in chosen:
            continue
        beside = f"{model.key.removesuffix(MODEL_SUFFIX)}.json"
        for item in objects.history(prefix=beside):
            if item.key == beside:
                objects.delete(key=beside, version_id=item.version_id)
        for version_id in (*(one for one in model.versions if one != model.version_id), model.version_id):
            objects.delete(key=model.key, version_id=version_id)
        deleted(model)


def _in_use(objects: Objects) -> InUse:
    """Return the runs, and all versions of production models, of deleted ones too: each may be restored."""
    history = objects.history(prefix=PRODUCTION)
    versions = [(one.key, one.version_id) for one in history if not one.deleted and production_name(one.key)]
    return run_ids(objects), tuple(versions)


def _stored(
    objects: Objects, runs: Sequence[str]
) -> tuple[list[StoredModel], set[str], dict[str, TrainerError]]:
    """Return the models of runs, and the permanent copies of retrains, that are in the bucket; the runs that
    are open, or may be; and those that can't be read.
    """
    problems: dict[str, TrainerError] = {}

    def models_of(run_id: str) -> Sequence[Model]:
        try:
            return models_of_run(objects, run_id)
        except TrainerError as error:
            problems[run_id] = error
            return ()

    with ThreadPoolExecutor(max_workers=FETCHED_AT_ONCE) as pool:
        made = dict(zip(runs, pool.map(models_of, runs), strict=True))
    made = {run_id: models for run_id, models in made.items() if run_id not in problems}
    known = {*runs}
    open_runs = {run_id for run_id, models in made.items() if _is_open(objects, run_id, models)} | {*problems}
    open_runs |= _continued(objects, open_runs, runs)
    there = _history(objects, "models/experiments/")
    stored = [
        _model(there[one.key], one.version_id, one.sha256, run_id, is_open=run_id in open_runs)
        for run_id, models in made.items()
        for one in models
        if one.key in there
    ]
    copies = {key: found for key, found in _history(objects, RETRAINS).items() if key.endswith(MODEL_SUFFIX)}
    for key, head in _heads(objects, [(key, "") for key in copies]):
        run_id = (key.removeprefix(RETRAINS).split("/") + [""])[1]
        is_open = run_id in open_runs or run_id not in known  # then no receipt says that it has ended
        stored.append(_model(copies[key], head.version_id, head.sha256, run_id, is_open=is_open))
    return stored, open_runs, problems


def _model(
    history: Sequence[Stored], version_id: str, sha256: str, run_id: str, *, is_open: bool
) -> StoredModel:
    return StoredModel(
        key=history[0].key,
        version_id=version_id,
        sha256=sha256,
        bytes=sum(one.size for one in history),
        modified_at=history[0].modified_at,
        run_id=run_id,
        is_open=is_open,
        versions=tuple(one.version_id for one in history),
    )


def _history(objects: Objects, prefix: str) -> dict[str, list[Stored]]:
    """Return the versions of the objects that are there, and markers of deletions, newest first, by key."""
    found: dict[str, list[Stored]] = {}
    for one in objects.history(prefix=prefix):
        found.setdefault(one.key, []).append(one)
    return {key: history for key, history in found.items() if not history[0].deleted}


def _undecided(objects: Objects, shadows: Sequence[str]) -> tuple[str, ...]:
    """Return the folders of retrains' models that the gate may still score: of the runs after the last one
    that it decided about.
    """
    runs, decided = dict[str, set[str]](), dict[str, str]()
    for key in _history(objects, RETRAINS) if shadows else ():
        retrain, run_id, *_ = f"{key.removeprefix(RETRAINS)}/".split("/")
        if retrain in shadows:
            runs.setdefault(retrain, set()).add(run_id)
            if key == decisions_key(retrain, run_id):
                decided[retrain] = max(decided.get(retrain, ""), run_id)
    return tuple(
        f"{RETRAINS}{retrain}/{run_id}/"
        for retrain, its in runs.items()
        for run_id in its
        if run_id > decided.get(retrain, "")
    )


def _is_open(objects: Objects, run_id: str, models: Sequence[Model]) -> bool:
    if models:
        return any(model.state not in EXIT_CODES for model in models)
    return objects.head(key=receipt_key(run_id)) is None


def _continued(objects: Objects, open_runs: Iterable[str], runs: Sequence[str]) -> set[str]:
    """Return the runs that records of open ones name: what those have finished is theirs, too."""
    texts = _texts(objects, [record_key(run_id) for run_id in open_runs])
    return {run_id for run_id in runs if any(run_id.encode() in text for text in texts)}


def _named_by_runs(objects: Objects, runs: Iterable[str]) -> set[str]:
    """Return the hashes in the manifests, records and receipts of runs, among them of the models that they
    begin with.
    """
    keys = [key(run_id) for run_id in runs for key in (manifest_key, record_key, receipt_key)]
    return {found.decode() for text in _texts(objects, keys) for found in _SHA256.findall(text)}


def _texts(objects: Objects, keys: Sequence[str]) -> list[bytes]:
    with ThreadPoolExecutor(max_workers=FETCHED_AT_ONCE) as pool:
        read = pool.map(lambda key: given(lambda: objects.get(key=key)), keys)
        return [stored.body for stored in read if stored is not None]


def _heads(objects: Objects, places: Iterable[tuple[str, str]]) -> list[tuple[str, Stored]]:
    """Return key and head of the objects at keys and versions ('': the newest) that are there."""
    with ThreadPoolExecutor(max_workers=FETCHED_AT_ONCE) as pool:
        heads = pool.map(lambda one: (one[0], objects.head(key=one[0], version_id=one[1])), places)
        return [(key, head) for key, head in heads if head is not None]


def _in_production(objects: Objects, in_use: InUse) -> set[str]:
    """Return the hashes of all versions of production models."""
    return {head.sha256 for _, head in _heads(objects, in_use[1])}


def _keep_named(
    objects: Objects, stored: Sequence[StoredModel], reasons: dict[str, str], in_use: InUse
) -> None:
    """Keep what the cards of kept and of production models name, and what their cards name in turn."""
    by_hash: dict[str, list[StoredModel]] = {}
    for model in stored:
        by_hash.setdefault(model.sha256, []).append(model)
    cards = [(model.key, model.version_id) for model in stored if reasons[model.key]]
    cards += in_use[1]
    while cards:
        with ThreadPoolExecutor(max_workers=FETCHED_AT_ONCE) as pool:
            read = list(pool.map(lambda one: headed(objects, key=one[0], version_id=one[1]), cards))
        cards = []
        texts = [stored.body[:MOST_HEADER_BYTES] for stored in read if stored is not None]
        for named in {sha256.decode() for text in texts for sha256 in _SHA256.findall(text)}:
            for model in by_hash.get(named, ()):
                if not reasons[model.key]:
                    reasons[model.key] = NAMED
                    cards.append((model.key, model.version_id))
