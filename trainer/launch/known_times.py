"""Durations of a script in earlier runs of the same files, command, variables and data on the same type.

Of a script over values, the mean duration of a value and each value's share of it. Without an earlier run its
duration is not estimated; `max_duration` and the budget end it in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from trainer.aws.objects import Objects
from trainer.aws.place import Place
from trainer.base.errors import TrainerError
from trainer.machines.rates import EARLIER_RUN, Rate
from trainer.runs.index import read_index
from trainer.runs.receipt import Receipt, is_whole
from trainer.runs.stored_receipt import read_receipt

RECEIPTS_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class KnownTimes:
    """Measured speed of the same script: pieces a second by instance type, on one place, and each piece's
    share of the mean.
    """

    rates: Mapping[str, Rate] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)  # by piece, in the last run on any type


def known_times(objects: Objects, names: Iterable[str], sha256: str, place: Place) -> KnownTimes:
    """Return how long the same script took in its last runs, by the pieces that were done. Left out are
    receipts that can't be read, and runs that began with what an earlier machine or run had left.

    `names`: the names in the ids of its runs, that is of its job and its retrain.
    """
    parts = [f"-{name}-" for name in names]
    ended = [run_id for run_id in read_index(objects).ended if any(part in run_id for part in parts)]
    with ThreadPoolExecutor(RECEIPTS_AT_ONCE) as pool:
        receipts = [
            receipt for receipt in pool.map(lambda run_id: _receipt(objects, run_id), ended) if receipt
        ]
    rates: dict[str, Rate] = {}
    shares: dict[str, float] = {}
    for receipt in receipts:
        seconds, is_part = _seconds_of(receipt, sha256), len(receipt["attempts"]) > 1 or receipt["parent"]
        if not seconds or is_part or not receipt["instances"] or receipt["place"] != place.name:
            continue
        mean = sum(seconds.values()) / len(seconds)
        basis = f"{EARLIER_RUN} {receipt['created_at'][:10]}"
        rates[receipt["instances"][-1]["instance_type"]] = Rate(per_second=1 / mean, basis=basis)
        shares = {piece: value / mean for piece, value in seconds.items()}
    return KnownTimes(rates=rates, shares=shares)


def _seconds_of(receipt: Receipt, sha256: str) -> dict[str, float]:
    """Return the seconds of each piece that was done, if the receipt is of this script."""
    is_single = [item["sha256"] for item in receipt["scripts"]] == [sha256]
    if is_single and receipt["state"] == "done":  # one piece: its train phase, with what was sent during it
        return {receipt["scripts"][0]["piece"]: max(1.0, receipt["seconds"]["train"])}
    return {
        item["piece"]: max(1.0, item["seconds"])
        for item in receipt["scripts"]
        if is_whole(item) and item["sha256"] == sha256
    }


def _receipt(objects: Objects, run_id: str) -> Receipt | None:
    try:
        return read_receipt(objects, run_id)
    except TrainerError:
        return None
