"""What a run's work has to be after every schedule: models, files and checkpoints that were reported are there, by
machines whose word counts, and nothing is made twice. Each promise is a function that returns its violations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator

from tests.chaos.ending import Ending
from tests.chaos.run import PARENT_SECONDS, RUN, model_name, parent_model
from trainer.runs.keys import of_experiment
from trainer.store.production import PRODUCTION


def models_are_kept(end: Ending) -> Iterator[str]:
    """A model that was reported is in the receipt, and is the object that was reported."""
    if end.receipt is None or end.record is None:
        return
    models = {item["key"]: item for item in end.receipt["models"]}
    for item in models.values():
        stored = end.bucket.newest(item["key"], item["version_id"])
        spoilt = end.record.outcome == "failed" and "not what the node reported" in str(end.record.error)
        if stored is None and not spoilt:
            yield f"the receipt has the model {item['key']}, which is not in S3"
        elif stored is not None and stored.metadata.get("sha256") != item["sha256"]:
            yield f"the receipt has the model {item['key']} with another hash"
    kept = {item["piece"]: item for item in models.values()}
    for machine in end.workers() if end.sim.record.leaves == "models" else ():
        for task, at in machine.uploaded.items():
            name, entry = model_name(task), machine.reports[task]
            if machine.spoils or machine.alive:
                continue
            if task not in kept:
                yield f"{name} was reported by {machine.instance.id}, and the receipt does not have it"
                continue
            known_first = end.first_of(task, before=at)
            if kept[task]["key"] != entry["key"] and known_first is None and end.begun_after(at):
                yield f"{name} of {machine.instance.id} was replaced by {kept[task]['key']}"


def outputs_are_kept(end: Ending) -> Iterator[str]:
    """What a script left before its machine ended is in the receipt, and is the object that its node listed, unless the
    machine made one of its objects unreadable: then the run is not done.
    """
    if end.receipt is None or end.sim.record.leaves != "files":
        return
    files = {item["file"]: item for item in end.receipt["files"]}
    for item in files.values():
        stored = end.bucket.newest(item["key"], item["version_id"])
        if stored is None or hashlib.sha256(stored.body).hexdigest() != item["sha256"]:
            yield f"the receipt has the file {item['file']}, and S3 does not"
    done = {item["piece"] for item in end.receipt["scripts"] if item["done"]}
    for task in done if end.receipt["state"] == "done" else ():
        if f"{task}.txt" not in files:
            yield f"done, and the file that {task} left is not in the receipt"
    for machine in end.workers():
        for task in machine.uploaded if not (machine.alive or machine.spoils) else ():
            if task not in done or f"{task}.txt" not in files:
                yield f"{task} was done by {machine.instance.id}, and the receipt says {done}, {sorted(files)}"


def late_words_change_nothing(end: Ending) -> Iterator[str]:
    """What a machine writes after the next attempt's start file was written is not in the receipt."""
    if end.receipt is None:
        return
    begun = {one.attempt: end.start_written(one.attempt) for one in end.workers()}
    for item in (*end.receipt["models"], *(one for one in end.receipt["files"] if "key" in one)):
        made = of_experiment(item["key"])
        stored = end.bucket.newest(item["key"], item["version_id"])
        later = [at for number, at in begun.items() if made and made[0] == RUN and number > made[1]]
        if stored is not None and later and stored.at > min(later):
            yield f"the receipt has {item['key']}, which was written after the next attempt had begun"


def manifests_follow_their_data(end: Ending) -> Iterator[str]:
    """Every object of a checkpoint's manifest is in S3 when the manifest is written."""
    for machine in end.sim.machines.values():
        prefix = machine.keys.checkpoints
        for key, versions in end.bucket.objects.items():
            if not key.startswith(prefix) or "/data/" in key:
                continue
            for item in json.loads(versions[0].body)["objects"]:
                data = end.bucket.newest(machine.keys.snapshot_data(item["slot"]), item["version_id"])
                if data is None or data.number > versions[0].number:
                    yield f"{key} was written before its data"
            if len(versions) > 1:
                yield f"{key} was written over"


def production_has_each_once(end: Ending) -> Iterator[str]:
    """A model enters production once, with the bytes of its receipt."""
    known = {item["sha256"] for item in end.receipt["models"]} if end.receipt else set()
    for key, versions in end.bucket.objects.items():
        if not key.startswith(PRODUCTION):
            continue
        made = [one.metadata.get("sha256", "") for one in versions]
        if len(set(made)) < len(made):
            yield f"{key} was promoted {len(made)} times"
        if set(made) - known:
            yield f"{key} has other bytes than the receipt"


def nothing_is_trained_twice(end: Ending) -> Iterator[str]:
    """A model that was in S3 when an attempt's start file was written is not begun again, and one under way goes on
    from the newest whole snapshot: of a machine with an unreadable object, from the one before at least.
    """
    counts = end.sim.schedule.parent
    for machine in end.workers():
        written_at = end.start_written(machine.attempt)
        if counts == "all" and "BTC-USD" in machine.trained:
            yield f"BTC-USD is trained again by {machine.instance.id}: the run's parent had finished it"
        least = (
            min((seconds - PARENT_SECONDS[one] for one, seconds in machine.trained.items()), default=0.0)
            if counts
            else 0.0
        )
        if least < -0.01:
            yield f"{machine.instance.id} begins {-least:.0f} s before the checkpoint of the run's parent"
        earlier = [one for one in end.workers() if one.attempt < machine.attempt]
        for symbol, seconds in machine.trained.items():
            by = [
                one.instance.id
                for one in earlier
                if symbol in one.uploaded and one.uploaded[symbol] < written_at
            ]
            if by and not any(one.spoils for one in earlier):
                yield f"{symbol} is trained again by {machine.instance.id}: {by[0]} had finished it"
            last = next((one.attempt for one in reversed(earlier) if one.snapshots), 0)
            of_last = [one for one in earlier if one.attempt == last]
            whole = [kept for one in of_last for kept in one.snapshots[: -1 if one.life.locked else None]]
            had = max((done.get(symbol, 0.0) for _, done in whole), default=0.0)
            if seconds < had - 0.01:
                yield f"{machine.instance.id} begins {symbol} at {seconds:.0f} s of work; {had:.0f} s were in S3"


def strangers_count_for_nothing(end: Ending) -> Iterator[str]:
    """No object of the receipt is by a machine whose word does not count."""
    if end.receipt is None or end.record is None:
        return
    working = {machine.instance.id for machine in end.workers()}
    for item in end.receipt["models"]:
        owner = item["key"].partition(":")[2].partition("/")[0]
        if owner not in working and item["key"] != parent_model():
            yield f"the receipt has {item['key']} by {owner}, and the run's machines are {sorted(working)}"


def no_symbol_is_missing(end: Ending) -> Iterator[str]:
    """Every symbol is in the receipt: as a model, or as a failure with a reason."""
    if end.receipt is None:
        return
    named = {item["piece"] for item in (*end.receipt["models"], *end.receipt["failed"])}
    named |= {item["piece"] for item in end.receipt["scripts"]}
    for piece in end.sim.record.pieces:
        if piece.piece not in named:
            yield f"{piece.piece} is missing from the receipt"
    made = [*end.receipt["models"], *(item for item in end.receipt["scripts"] if item["done"])]
    if end.receipt["state"] == "done" and len(made) != len(end.sim.record.pieces):
        yield f"done, with {len(made)} of {len(end.sim.record.pieces)} pieces"


def work_counts(end: Ending) -> Iterator[str]:
    """A node that reported to be done, in time and from the run's own instance, makes the run done."""
    if end.receipt is None or end.record is None:
        return
    for machine in end.heads[-1:]:
        name = machine.instance.id
        peers = [one for one in end.workers() if one.attempt == machine.attempt]
        if machine.result is None or any(one.spoils for one in peers):
            continue
        if machine.result["state"] == "done" and end.receipt["state"] != "done":
            yield f"{name} was done, and the receipt says {end.receipt['state']}"
        if machine.result["state"] != "done" and end.receipt["state"] == "done":
            yield f"{name} ended {machine.result['state']}, and the receipt says done"


KEPT: tuple[Callable[[Ending], Iterator[str]], ...] = (
    models_are_kept,
    outputs_are_kept,
    late_words_change_nothing,
    manifests_follow_their_data,
    production_has_each_once,
    nothing_is_trained_twice,
    strangers_count_for_nothing,
    no_symbol_is_missing,
    work_counts,
)
