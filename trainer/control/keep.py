"""Copy the models of a finished retrain to their permanent keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from trainer.aws.objects import Objects
from trainer.store.production import keep

COPIES_AT_ONCE = 10


def keep_models(objects: Objects, receipt: Mapping[str, Any], *, retrain: str) -> None:
    """Keep every model of a receipt. Idempotent. Raises TrainerError if S3 fails: the next call continues."""
    models: Sequence[Mapping[str, Any]] = receipt["models"]
    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        list(pool.map(partial(keep, objects, retrain=retrain, run_id=str(receipt["run_id"])), models))
