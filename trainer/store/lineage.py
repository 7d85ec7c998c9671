"""The lineage of models: the run that made them, and by its manifest the code, lock, job, data versions,
seeds and image. Reads only.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from trainer.aws.objects import Objects
from trainer.base.errors import ConfigError, DataError, UsageError
from trainer.base.strict_json import Unsound
from trainer.base.text import counted, some_of
from trainer.runs.manifest import Manifest, ManifestInput, read_manifest
from trainer.runs.record import RunRecord
from trainer.runs.store import find_run, manifest_key, read_record, run_ids
from trainer.store.card import Card
from trainer.store.listing import FETCHED_AT_ONCE, Model, card_of, find_model, models_of_run
from trainer.store.trained import trained_of

LOCK = "trainer/node/requirements.lock"  # in the code of a run
MOST_CODE_BYTES = 256 << 20
MOST_LOCK_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """A run and what it depended on; `document` is its manifest as JSON, `models` those asked about."""

    record: RunRecord
    manifest: Manifest
    document: Mapping[str, Any]
    models: tuple[Model, ...]

    @property
    def run_id(self) -> str:
        """Return its id."""
        return self.record.run_id


def past_run(objects: Objects, name: str, *, one: bool = False) -> PastRun:
    """Return the run of a name, with all of its models, or the run that made the model of a name; `one`:
    this, or a run's only model. Raises UsageError for neither, and ConfigError for a run whose manifest can't
    be read.
    """
    run_id = "" if "/" in name else find_run(objects, name)
    whole = bool(run_id) and run_id in run_ids(objects)
    models = models_of_run(objects, run_id) if whole else (find_model(objects, name),)
    if one and len(models) != 1:
        do = f"Name one of them, such as {models[0].full_name}." if models else "Name another."
        raise UsageError(f"run {run_id} has {counted(len(models), 'model')}", do=do)
    run_id = run_id if whole else _run_of(objects, models[0])
    record, _ = read_record(objects, run_id)
    body = (stored := objects.get(key=manifest_key(run_id))) and stored.body
    if not body:
        raise ConfigError(f"the manifest of run {run_id} is gone", do="Name another run.")
    try:
        manifest = read_manifest(body)
    except Unsound as error:
        do = "Use the Mayfly that launched it."
        raise ConfigError(f"cannot read the manifest of run {run_id}", why=str(error), do=do) from error
    return PastRun(record=record, manifest=manifest, document=json.loads(body), models=models)


def _run_of(objects: Objects, model: Model) -> str:
    """Return the run that made a model: of a production model the one with a model of its bytes."""
    if model.run_id:
        return model.run_id
    for run_id in reversed(run_ids(objects)):
        if any(one.sha256 == model.sha256 for one in models_of_run(objects, run_id)):
            return run_id
    why = "no run of this bucket has a model of its bytes"
    raise UsageError(f"{model.full_name} has no run", why=why, do="Name a model of a run.")


def card_of_model(objects: Objects, model: Model) -> Card:
    """Return the card of a model. Raises DataError if the model is gone, or is none of ours."""
    card = card_of(objects, key=model.key, version_id=model.version_id)
    if card is None:
        why = f"{model.key}, version {model.version_id}, can't be had"
        raise DataError(f"{model.full_name} is gone", why=why, do="mayfly models list shows others.")
    return card


def code_of(objects: Objects, manifest: Manifest) -> bytes:
    """Return the code of a run, a wheel, checked by its hash. Raises ConfigError if it is gone or damaged."""
    key, sha256 = manifest.code.get("key", "code/?.whl"), manifest.code.get("sha256", "")
    head = objects.head(key=key)
    if head is None or head.size > MOST_CODE_BYTES:
        do = "Restore it from a backup of the bucket, or train again."
        raise ConfigError(f"the code of run {manifest.run_id} is gone", why=f"there is no {key}", do=do)
    stored = objects.get(key=key, version_id=head.version_id)
    if stored is None or hashlib.sha256(stored.body).hexdigest() != sha256:
        what, why = f"the code of run {manifest.run_id} is damaged", f"{key} has another hash"
        raise ConfigError(what, why=why, do="Restore an earlier version of it.")
    return stored.body


def lock_of(code: bytes) -> str:
    """Return the lock in a run's code. Raises ConfigError if it has none."""
    try:
        with zipfile.ZipFile(io.BytesIO(code)) as wheel, wheel.open(LOCK) as file:
            return file.read(MOST_LOCK_BYTES).decode()
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"the run's code has no {LOCK}", why=str(error), do="Name another run.") from error


def refuse_deleted(objects: Objects, inputs: Iterable[ManifestInput]) -> None:
    """Raise DataError if a version that a run read is not in the bucket any more."""
    listed = list(inputs)

    def there(item: ManifestInput) -> bool:
        return objects.head(key=item.key, version_id=item.version_id) is not None

    with ThreadPoolExecutor(max_workers=FETCHED_AT_ONCE) as pool:
        gone = [item for item, is_there in zip(listed, pool.map(there, listed), strict=True) if not is_there]
    if gone:
        versions = some_of([f"{item.key} ({item.version_id or 'its only one'})" for item in gone], 3)
        what = (
            f"{counted(len(gone), 'version')} that the run read {'is' if len(gone) == 1 else 'are'} deleted"
        )
        raise DataError(what, why=versions, do="Train it again on the data of now.")


def lineage_of(past: PastRun, model: Model, card: Card, *, lock_here: Callable[[], str]) -> dict[str, Any]:
    """Return what a model was made of, by kind. `lock_here` returns the hash of this checkout's lock."""
    manifest = past.manifest
    machines = {seen.instance_type for seen in past.record.instances} or {past.record.host}
    try:
        trained = vars(trained_of(card))
        known = {name: value for name, value in trained.items() if name not in ("model", "piece", "losses")}
    except DataError:  # an earlier version made it
        known = {}
    return {
        "model": {"name": model.full_name, "sha256": model.sha256, "created_at": card.created_at},
        "run": {"run_id": past.run_id, "place": past.record.place, "attempts": len(past.record.attempts)},
        "code": {**manifest.code, "training_sha256": card.code_sha256, "mayfly": card.mayfly},
        "lock": {"sha256": manifest.lock_sha256, "is_here": manifest.lock_sha256 == lock_here()},
        "own_files": {table: own["sha256"] for table, own in card.own_files.items()},
        "job": dict(manifest.job),
        "data": [
            {name: getattr(item, name) for name in ("path", "key", "version_id", "sha256", "bytes")}
            for item in manifest.inputs
        ],
        "parent": dict(card.parent),
        "seed": card.seed,
        "fold": card.fold,
        "image": dict(manifest.image),
        "machines": sorted(machines - {""}),
        "trained": known,
    }
