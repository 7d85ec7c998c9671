"""Permanent models: copies of a retrain's models, and production models under stable names, replaced by
compare-and-swap.

A production model's name is GROUP/NAME: its group is the retrain that made it, or the data set that it was
trained on, so that two retrains of one symbol keep a model each. Production has no pointer beside the object;
S3's versions are its history. A model is promoted only if its bytes have the hash of its receipt and a card
of its own name, so a reader never sees a partial or unverified model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from trainer.aws.objects import Conflict, Objects, Stored
from trainer.base.errors import ConfigError, DataError, UsageError, nearest
from trainer.job.model_names import MODEL_SUFFIX, is_model_file
from trainer.store.card import read_card

PRODUCTION, RETRAINS = "models/production/", "models/retrains/"
MOST_PROMOTED_BYTES = 400 * 2**20  # that control reads into memory to verify it
_GROUP = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")  # a name of a retrain or of a data set
TRIES = 5  # tries, against other writers of the same production model


def keep(objects: Objects, model: Mapping[str, Any], *, retrain: str, run_id: str) -> str:
    """Copy a model of a receipt to its permanent key, once, and return the key."""
    key = kept_key(model, retrain=retrain, run_id=run_id)
    with suppress(Conflict):  # an earlier call
        objects.copy(source=str(model["key"]), version_id=str(model["version_id"]), key=key, create=True)
    return key


def kept_key(model: Mapping[str, Any], *, retrain: str, run_id: str) -> str:
    """Return the permanent key of a retrain's model."""
    return f"{RETRAINS}{retrain}/{run_id}/{file_of(model)}"


def champion_of(objects: Objects, model: Mapping[str, Any], *, group: str) -> Stored | None:
    """Return the production model that a model would replace; None if there is none yet."""
    return objects.head(key=f"{PRODUCTION}{group}/{file_of(model)}")


def replace_champion(
    objects: Objects, model: Mapping[str, Any], *, group: str, version_id: str
) -> Stored | None:
    """Put a model, by key, version and hash, in the place of the production model of this version ('': of
    none); return what is there then, or None if that is another model.

    Idempotent. Raises ConfigError for a model that can't be verified.
    """
    champion = champion_of(objects, model, group=group)
    if champion is not None and champion.sha256 == model["sha256"]:
        return champion
    if (champion.version_id if champion else "") != version_id:
        return None
    _verify(objects, model, objects.head(key=str(model["key"]), version_id=str(model["version_id"])))
    with suppress(Conflict):
        objects.copy(
            source=str(model["key"]),
            version_id=str(model["version_id"]),
            key=f"{PRODUCTION}{group}/{file_of(model)}",
            if_match=champion.etag if champion else "",
            create=champion is None,
            sha256=str(model["sha256"]),
        )
    champion = champion_of(objects, model, group=group)
    return champion if champion and champion.sha256 == model["sha256"] else None


def promote(objects: Objects, model: Mapping[str, Any], *, group: str) -> bool:
    """Put a model of a receipt in production under its group's stable name; return False if it is already
    there.

    Raises UsageError for a group of no valid name, ConfigError for a model that can't be verified, or if
    others replaced it each time.
    """
    if not _GROUP.fullmatch(group):
        do = "Take the name of a retrain or of a data set, such as main."
        raise UsageError(f"'{group}' is not a group of production models", do=do)
    stored = objects.head(key=str(model["key"]), version_id=str(model["version_id"]))
    _verify(objects, model, stored)
    key = f"{PRODUCTION}{group}/{file_of(model)}"
    for tried in range(TRIES):
        champion = objects.head(key=key)
        if champion is not None and champion.sha256 == model["sha256"]:
            return tried > 0  # botocore repeats a copy whose answer is lost, and that meets a conflict
        replaces = champion.etag if champion else ""
        try:
            objects.copy(
                source=str(model["key"]),
                version_id=str(model["version_id"]),
                key=key,
                if_match=replaces,
                create=not replaces,
            )
        except Conflict:
            continue
        return True
    raise ConfigError(
        f"cannot promote {file_of(model)}",
        why="others replaced it each time",
        do="Check what else promotes it.",
    )


def production_name(key: str) -> str:
    """Return the GROUP/NAME of a production key; '' for one that is no model's."""
    group, _, file = key.removeprefix(PRODUCTION).partition("/")
    is_model = key.startswith(PRODUCTION) and _GROUP.fullmatch(group) and is_model_file(file)
    return f"{group}/{file.removesuffix(MODEL_SUFFIX)}" if is_model else ""


def production_names(objects: Objects) -> tuple[str, ...]:
    """Return the names of all production models, sorted."""
    return tuple(name for item in objects.list(prefix=PRODUCTION) if (name := production_name(item.key)))


def production_histories(objects: Objects) -> dict[str, tuple[Stored, ...]]:
    """Return every version of each production model, the newest first, by name, from one listing."""
    found: dict[str, list[Stored]] = {}
    for one in objects.history(prefix=PRODUCTION):
        if name := production_name(one.key):
            found.setdefault(name, []).append(one)
    return {
        name: tuple(one for one in versions if not one.deleted)
        for name, versions in found.items()
        if not versions[0].deleted
    }


def versions_of(objects: Objects, full_name: str) -> tuple[Stored, ...]:
    """Return every version of the production model of a GROUP/NAME, the newest first."""
    return objects.versions(key=f"{PRODUCTION}{full_name}{MODEL_SUFFIX}")


def production_versions(objects: Objects, name: str) -> tuple[Stored, ...]:
    """Return every version of a production model, the newest first.

    A name without its group is accepted if one group alone has it. Raises UsageError for any other.
    """
    names = production_names(objects)
    meant = [one for one in names if name in (one, one.partition("/")[2])]
    if not meant:
        do = nearest(name, names) or "mayfly models production lists them."
        raise UsageError(f"there is no production model '{name}'", do=do)
    if len(meant) > 1:
        why, do = f"{', '.join(meant)} have it", f"Name one, such as {meant[0]}."
        raise UsageError(f"production model '{name}' is not the only one of its name", why=why, do=do)
    return versions_of(objects, meant[0])


def roll_back(objects: Objects, name: str, *, version_id: str = "") -> tuple[Stored, Stored]:
    """Replace the newest version of a production model by an older one; return (replaced, restored).

    Default: the newest version with other bytes. Raises UsageError if there is none, or another writer was
    faster.
    """
    current, *older = production_versions(objects, name)
    wanted = chosen_version(objects, current, older, version_id)
    if wanted is None:
        why = f"it has no older version {version_id}" if version_id else "it has no older version"
        raise UsageError(
            f"cannot roll '{name}' back", why=why, do=f"mayfly models production {name} shows its versions."
        )
    try:
        objects.copy(source=current.key, version_id=wanted.version_id, key=current.key, if_match=current.etag)
    except Conflict as error:  # also of this call itself, which botocore repeats if its answer is lost
        there = objects.head(key=current.key)
        meant = objects.head(key=current.key, version_id=wanted.version_id)
        if there is None or meant is None or not there.sha256 or there.sha256 != meant.sha256:
            raise UsageError(
                f"'{name}' was replaced at the same moment", do="Look again, then roll back."
            ) from error
    return current, wanted


def chosen_version(
    objects: Objects, current: Stored, older: Sequence[Stored], version_id: str = ""
) -> Stored | None:
    """Return the older version with this id, or the newest with other bytes; None if there is none."""
    if version_id:
        return next((one for one in older if one.version_id == version_id), None)
    return next((one for one in older if not same_bytes(objects, one, current)), None)


def same_bytes(objects: Objects, one: Stored, other: Stored) -> bool:
    """Return whether two listed versions have the same bytes. Their ETags can't tell: in a bucket with a KMS
    key they are no hash of the bytes (S3 API reference, "Object", looked up 2026-11-28).
    """
    return one.size == other.size and sha256_of(objects, one) == sha256_of(objects, other)


def sha256_of(objects: Objects, listed: Stored) -> str:
    """Return the hash of a listed version: S3's own, else the writer's, else that of its bytes."""
    head = objects.head(key=listed.key, version_id=listed.version_id)
    known = head.sha256 if head else ""
    return known or objects.digest(key=listed.key, version_id=listed.version_id)


def _verify(objects: Objects, model: Mapping[str, Any], stored: Stored | None) -> None:
    """Raise ConfigError unless the object has the receipt's bytes and the card of its own name."""
    name, what = file_of(model).removesuffix(MODEL_SUFFIX), f"cannot verify {model['key']}"
    do = "It stays an experiment; train it again."
    if stored is None or stored.size > MOST_PROMOTED_BYTES:
        size = f"it has {stored.size:,} bytes, more than {MOST_PROMOTED_BYTES:,}" if stored else ""
        raise ConfigError(what, why=size or "it is not there", do=do)
    read = objects.get(key=str(model["key"]), version_id=str(model["version_id"]))
    if read is None or hashlib.sha256(read.body).hexdigest() != model["sha256"]:
        raise ConfigError(what, why="its bytes have another sha256 than its receipt says", do=do)
    try:
        card = read_card(read.body)
    except DataError as error:
        raise ConfigError(what, why=str(error), do=do) from error
    if card.knows_later_bars:
        why = "k folds trained it on bars after its test span, so its scores are not a forecast's"
        raise ConfigError(what, why=why, do="Train it with data.split = walk.")
    if card.model != name:
        raise ConfigError(what, why=f"its card is of {card.model}", do=do)


def file_of(model: Mapping[str, Any]) -> str:
    """Return the file name of a model, the last part of its key."""
    return str(model["key"]).rsplit("/", 1)[-1]
