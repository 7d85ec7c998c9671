"""Copy the models of a finished retrain to their permanent keys; promote those that beat their baselines, if
set so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from trainer.base.errors import ConfigError, ConnectionFailed
from trainer.retrains.schedule import BEATS_BASELINES
from trainer.runs.store import Objects
from trainer.store.production import keep, promote

COPIES_AT_ONCE = 10


def keep_models(
    objects: Objects, receipt: Mapping[str, Any], *, retrain: str, rule: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Keep every model of a receipt; return (pieces that were promoted, reasons why others could not be).

    Idempotent. Raises TrainerError if S3 fails: the next call continues.
    """
    models: Sequence[Mapping[str, Any]] = receipt["models"]
    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        list(pool.map(partial(keep, objects, retrain=retrain, run_id=str(receipt["run_id"])), models))
    promoted, notes = [], []
    for model in models if rule == BEATS_BASELINES else ():
        if not model["judgement"] or model["judgement"]["mark"] != "better":
            continue
        try:
            promote(objects, model, group=retrain)
            promoted.append(str(model["piece"]))
        except ConnectionFailed:
            raise
        except ConfigError as error:
            notes.append(str(error))
    return tuple(promoted), tuple(notes)
