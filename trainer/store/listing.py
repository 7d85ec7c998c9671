"""The models of a bucket: list them with versions and scores, and download one with its hash checked.

Experiments are read through the receipts of their runs, which name the attempt whose keys count; for a run
without a receipt S3 is listed. Production models have no receipt: the objects themselves are listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from trainer.aws.objects import Objects, Stored, given
from trainer.base.errors import ConfigError, ConnectionFailed, DataError, TrainerError, UsageError, nearest
from trainer.base.files import whole_file
from trainer.base.instants import from_iso
from trainer.base.text import some_of
from trainer.job.model_names import MODEL_SUFFIX, is_model_file, read_name
from trainer.runs.keys import EXPERIMENTS, NodeKeys, of_experiment
from trainer.runs.outcome import EXIT_CODES
from trainer.runs.record import RunRecord
from trainer.runs.reports import MOST_LISTED, MOST_MODELS
from trainer.runs.store import find_run, read_record, run_ids
from trainer.runs.stored_receipt import read_receipt
from trainer.store.card import MOST_HEADER_BYTES, Card, header_bytes, read_card
from trainer.store.comparison import Side
from trainer.store.production import PRODUCTION, production_name, production_names

MOST_MODEL_BYTES = 8 * 2**30  # of a model that is downloaded
FETCHED_AT_ONCE = 8
_WHOLE_ID = re.compile(r"\d{8}-\d{6}-[\w.-]+", re.ASCII)  # as `runs.record.new_run_id` makes one

# Of a model's object, to read its card: about 10 KB; a longer header costs a second request.
FIRST_BYTES = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class Model:
    """One model object. `name` is as in `job/model_names.py`. An experiment has a `run_id`, a production
    model a `group` (`store.production`).
    """

    name: str
    stage: Literal["experiment", "production"]
    run_id: str
    key: str
    version_id: str
    sha256: str
    family: str
    piece: str  # display name of its piece; empty for a production model without a card
    series: tuple[str, ...]
    created_at: datetime
    stored_after: datetime  # at most the time of its upload, from which experiments expire
    fold: int = 1
    seed: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    synthetic: bool | None = None  # whether it was trained on generated bars; None if unknown
    state: str = ""  # of its run; empty for a production model
    group: str = ""  # the retrain or data set of a production model
    judgement: dict[str, Any] | None = None  # among the models of its run (`targets/marks.py`)

    @property
    def full_name(self) -> str:
        """Return RUN/NAME or, for a production model, GROUP/NAME."""
        return f"{self.run_id or self.group}/{self.name}"

    def expires(self, experiment_days: int) -> date | None:
        """Return the first day on which S3 may remove it; None if it does not expire, or if the stack sets no
        days (0).
        """
        return None if self.stage == "production" else expiry(self.stored_after, experiment_days)


def expiry(stored_after: datetime, experiment_days: int) -> date | None:
    """Return the first day on which S3 may remove what a run stored; None if the stack sets no days (0)."""
    return (stored_after + timedelta(days=experiment_days)).date() if experiment_days else None


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Models, and the errors of the runs whose models could not be listed, by run."""

    models: tuple[Model, ...]
    problems: dict[str, TrainerError]


def list_models(objects: Objects) -> Listing:
    """Return every model of the bucket: production first, then experiments, the newest run first, each by
    name.
    """
    production, experiments = _production(objects), _experiments(objects)
    judged = {model.sha256: model.judgement for model in experiments.models if model.judgement}
    known = (replace(model, judgement=judged.get(model.sha256)) for model in production)
    return replace(experiments, models=(*known, *experiments.models))


def _production(objects: Objects, name_or_key: str = "") -> list[Model]:
    """Return the production models, all or those that a name or a key may mean."""
    meant = [
        item
        for item in objects.list(prefix=PRODUCTION)
        if (name := production_name(item.key)) and name_or_key in ("", item.key, name, name.partition("/")[2])
    ]
    with ThreadPoolExecutor(max_workers=FETCHED_AT_ONCE) as pool:
        return list(pool.map(partial(_model, objects, stage="production"), meant))


def _experiments(objects: Objects) -> Listing:
    """Return the models of all runs that are still in the bucket."""
    problems: dict[str, TrainerError] = {}

    def of_run(run_id: str) -> list[Model]:
        try:
            return sorted(models_of_run(objects, run_id), key=lambda model: model.name)
        except TrainerError as error:
            problems[run_id] = error
            return []

    with ThreadPoolExecutor(max_workers=FETCHED_AT_ONCE) as pool:
        models = list(chain.from_iterable(pool.map(of_run, reversed(run_ids(objects)))))
    # A receipt names what its run made, also what has expired or was deleted since.
    there = {item.key for item in objects.list(prefix=EXPERIMENTS)}
    return Listing(models=tuple(model for model in models if model.key in there), problems=problems)


def models_of_run(objects: Objects, run_id: str) -> tuple[Model, ...]:
    """Return the models of one run, of the attempts that its record names. Raises TrainerError if they can't
    be read.
    """
    receipt = read_receipt(objects, run_id)
    if receipt is not None:
        return tuple(_from_receipt(receipt))
    try:
        record, _ = read_record(objects, run_id)
    except UsageError:
        return ()  # keys without a record belong to no run
    every = [record.as_of(attempt.number) for attempt in record.attempts] or [record]
    stored = [item for attempt in every for item in stored_models(objects, attempt)]
    first = {
        item.key.rpartition("/")[2]: item for item in reversed(stored)
    }  # a finished one is never replaced
    stored = [item for item in stored if first[item.key.rpartition("/")[2]] is item]
    return tuple(_model(objects, one, stage="experiment", run=record) for one in stored)


def stored_models(objects: Objects, record: RunRecord) -> list[Stored]:
    """Return the models of a run's pieces that lie directly in its nodes' folders."""
    return [item for keys in record.nodes for item in models_in(objects, record, keys)][:MOST_MODELS]


def models_in(objects: Objects, record: RunRecord, keys: NodeKeys) -> list[Stored]:
    """Return the models of a run's pieces that lie directly in the folder of one of its nodes."""
    files = {f"{piece.model}{MODEL_SUFFIX}" for piece in record.pieces}
    listed = objects.list(prefix=keys.models, most=MOST_LISTED)
    return [item for item in listed if item.key.removeprefix(keys.models) in files]


def find_model(objects: Objects, name_or_key: str, *, stage: Literal["", "experiment"] = "") -> Model:
    """Return the model of a key, of `RUN/NAME` or `GROUP/NAME`, or of a name: production's, else that of the
    newest finished run. `stage`: "experiment" leaves production out.

    RUN is any name that `find_run` takes. Raises UsageError if there is none, only in unfinished runs, or in
    production under several groups; ConnectionFailed if it may be of a run that could not be read.
    """
    if model := _of_named_run(objects, name_or_key):
        return model
    production = _production(objects, name_or_key) if stage != "experiment" else []
    if len(production) > 1:
        every = [model.full_name for model in production]
        why, do = f"{', '.join(every)} are in production", f"Name one, such as {every[0]}."
        raise UsageError(f"model '{name_or_key}' is not the only one of its name", why=why, do=do)
    if production:
        return production[0]
    listing = _experiments(objects)
    names = {name: model for model in reversed(listing.models) for name in (model.key, model.full_name)}
    run, slash, name = name_or_key.partition("/")
    if slash and name_or_key not in names and not name_or_key.startswith("models/"):
        name_or_key = f"{find_run(objects, run)}/{name}"
    if name_or_key in names:
        return names[name_or_key]
    for problem in listing.problems.values():
        if isinstance(problem, ConnectionFailed):  # the model may be of that run
            raise problem
    named = [model for model in listing.models if model.name == name_or_key]
    if finished := [model for model in named if model.state in EXIT_CODES]:
        return max(finished, key=lambda model: model.created_at)
    if named:
        do = f"Wait for its end, or name it {named[0].full_name}."
        raise UsageError(
            f"no finished run has model '{name_or_key}'", why=f"run {named[0].run_id} has not ended", do=do
        )
    known = {model.name for model in listing.models}
    known |= {one.partition("/")[2] for one in production_names(objects)} if stage != "experiment" else set()
    hint = nearest(name_or_key, known) or "mayfly models list shows them."
    raise UsageError(f"no model '{name_or_key}' in the bucket", do=hint)


def _of_named_run(objects: Objects, name_or_key: str) -> Model | None:
    """Return the model of an experiment's key, or of RUN/NAME with a run's whole id, without a look at other
    runs; None if that is not enough.
    """
    of_key = of_experiment(name_or_key)
    run_id, slash, _ = (of_key[0], "/", "") if of_key else name_or_key.partition("/")
    if not slash or not _WHOLE_ID.fullmatch(run_id):
        return None
    with suppress(TrainerError):
        for model in models_of_run(objects, run_id):
            if name_or_key in (model.key, model.full_name) and objects.head(key=model.key) is not None:
                return model
    return None


def side_of(objects: Objects, name: str) -> Side:
    """Return what a name means to a comparison: a run with the cards of all its models, or one model with its
    card. Raises UsageError for neither, and for models that are gone.
    """
    run_id, chosen = named_models(objects, name)
    with ThreadPoolExecutor(max_workers=FETCHED_AT_ONCE) as pool:
        cards = list(pool.map(lambda one: card_of(objects, key=one.key, version_id=one.version_id), chosen))
    receipt = read_receipt(objects, chosen[0].run_id) if chosen[0].run_id else None
    spent, took = (receipt["dollars"]["spent_high"], receipt["seconds"]["total"]) if receipt else (None, None)
    gone = [model.name for model, card in zip(chosen, cards, strict=True) if card is None]
    if len(gone) == len(cards):
        why = f"{some_of(gone, 3)} expired, or were deleted"
        raise UsageError(f"{name} has no models any more", why=why, do="mayfly models list shows others.")
    known = tuple(card for card in cards if card is not None)
    return Side(
        name=run_id or chosen[0].full_name, cards=known, dollars=spent, seconds=took, gone=tuple(gone)
    )


def named_models(objects: Objects, name: str) -> tuple[str, tuple[Model, ...]]:
    """Return the id and the models of a run, or "" and the one model of a name. Raises UsageError for
    neither.
    """
    run_id = "" if "/" in name else find_run(objects, name)
    models = models_of_run(objects, run_id) if run_id else ()
    return (run_id, models) if models else ("", (find_model(objects, name),))


def fetch_models(objects: Objects, models: Sequence[Model], into: Path) -> list[Path]:
    """Download models into a folder, several at once; return their paths, in order. Raises ConfigError (bad
    hash).
    """
    with ThreadPoolExecutor(max_workers=FETCHED_AT_ONCE) as pool:
        # Two runs may each have a model of one name.
        folders = [into / str(number) for number, _ in enumerate(models)]
        return list(pool.map(partial(save_model, objects), models, folders))


def save_model(objects: Objects, model: Model, into: Path) -> Path:
    """Write a model, its hash checked, and its card, if any, into a folder, each atomically."""
    name = model.key.rsplit("/", 1)[-1]
    if not is_model_file(name):
        why = "its name is not that of a model's file"
        raise ConfigError(
            f"model {model.key} is not written here", why=why, do="mayfly models list shows others."
        )
    head = objects.head(key=model.key, version_id=model.version_id)
    if head is not None and head.size > MOST_MODEL_BYTES:
        why = f"it has {head.size / 2**30:.1f} GiB, a model at most {MOST_MODEL_BYTES / 2**30:.0f}"
        raise ConfigError(f"model {model.key} is too large", why=why, do="mayfly models list shows others.")
    if head is None:
        raise ConfigError(
            f"model {model.key} is gone",
            why=f"no version {model.version_id}",
            do="mayfly models list shows others.",
        )
    path = into / name
    known: Any = {"key": model.key, "version_id": model.version_id, "size": head.size}
    sha256 = objects.fetch(**known, path=path, sha256=model.sha256)
    if model.sha256 and sha256 != model.sha256:
        why = f"sha256 is {sha256}, it should be {model.sha256}"
        raise ConfigError(
            f"model {model.key} is damaged", why=why, do="Fetch it again, or take another version."
        )
    with suppress(DataError):  # an object that is not a model of ours has no card
        card = read_card(path).to_json(indent=2)
        with whole_file(path.with_suffix(".json")) as partial:
            partial.write_text(card, encoding="utf-8")
    return path


def _model(
    objects: Objects,
    listed: Stored,
    *,
    stage: Literal["experiment", "production"],
    run: RunRecord | None = None,
) -> Model:
    stored = given(lambda: objects.head(key=listed.key)) or listed
    card = card_of(objects, key=listed.key, version_id=stored.version_id)
    name = listed.key.rsplit("/", 1)[-1].removesuffix(MODEL_SUFFIX)
    parts = read_name(name)
    return Model(
        name=name,
        stage=stage,
        run_id=run.run_id if run else "",
        group=production_name(listed.key).partition("/")[0],
        state=run.state if run else "",
        stored_after=listed.modified_at,
        key=listed.key,
        version_id=stored.version_id,
        sha256=stored.sha256,
        family=card.family if card else parts.family,
        piece=card.piece if card else parts.symbol,
        series=card.symbols if card else (parts.symbol,),
        fold=card.fold if card else parts.fold or 1,
        seed=card.seed if card else parts.seed or 0,
        created_at=listed.modified_at,
        metrics=card.metrics if card else {},
        synthetic=card.data.get("synthetic") if card else None,
    )


def _from_receipt(receipt: dict[str, Any]) -> Iterator[Model]:
    created_at = from_iso(receipt.get("closed_at") or receipt["created_at"])
    for made in receipt["models"]:
        yield Model(
            name=made["key"].rsplit("/", 1)[-1].removesuffix(MODEL_SUFFIX),
            stage="experiment",
            run_id=receipt["run_id"],
            state=receipt["state"],
            stored_after=from_iso(receipt["created_at"]),
            key=made["key"],
            version_id=made["version_id"],
            sha256=made["sha256"],
            family=made["family"],
            piece=made["piece"],
            series=tuple(made["series"]),
            fold=made["fold"],
            seed=made["seed"],
            created_at=created_at,
            metrics=made["metrics"],
            judgement=made["judgement"],
            synthetic=receipt["data"]["synthetic"],
        )


def card_of(objects: Objects, *, key: str, version_id: str = "") -> Card | None:
    """Return a model's card, or None for an object that is not a model of ours."""
    stored = headed(objects, key=key, version_id=version_id)
    try:
        return read_card(stored.body) if stored else None
    except DataError:
        return None


def headed(objects: Objects, *, key: str, version_id: str) -> Stored | None:
    """Return a model with its first bytes, its card among them; None if it is gone."""
    stored = given(lambda: objects.get(key=key, version_id=version_id, first_bytes=FIRST_BYTES))
    needed = header_bytes(stored.body) if stored else 0
    if FIRST_BYTES < needed <= MOST_HEADER_BYTES:
        stored = given(lambda: objects.get(key=key, version_id=version_id, first_bytes=needed)) or stored
    return stored
