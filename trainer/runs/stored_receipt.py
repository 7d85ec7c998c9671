"""Receipts from the bucket: read strictly, with every field checked that is shown or used.

A receipt may be of another version, or forged. `runs.receipt` makes them, `docs/reference.md` describes them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, get_args

from trainer.aws.objects import Objects
from trainer.base.cluster import MOST_NODES
from trainer.base.errors import ConfigError
from trainer.base.strict_json import MOST_TEXT, Fields, Unsound, read_object
from trainer.job.model_names import is_model_file
from trainer.runs.attempts import AttemptEnd
from trainer.runs.boot import STEPS
from trainer.runs.keys import of_experiment
from trainer.runs.node_ends import STATES as NODE_ENDS
from trainer.runs.outcome import EXIT_CODES
from trainer.runs.receipt import FORMAT, PHASES, Receipt
from trainer.runs.record import RUN_ID, WORK
from trainer.runs.record_json import MOST_ANCESTORS, MOST_ATTEMPTS
from trainer.runs.reports import (
    MOST_COUNT,
    MOST_KEPT,
    MOST_MODELS,
    model_entry,
    read_boot,
    read_candle_files,
    read_checkpoints,
    read_data,
    read_error,
    read_failed,
    read_inputs,
    read_outputs,
    read_scripts,
)
from trainer.runs.store import receipt_key
from trainer.targets.marks import judged, verdict

MOST_RECEIPT_BYTES = 128 * 1024 * 1024  # a model with its metrics takes 4 KB
MOST_INSTANCES = 1_000


class UnreadableReceipt(ConfigError):
    """A receipt that this version can't read: another format, or damaged."""


def read_receipt(objects: Objects, run_id: str) -> Receipt | None:
    """Return a closed run's receipt, or None if there is none yet. Raises UnreadableReceipt."""
    stored = objects.get(key=receipt_key(run_id))
    if stored is None:
        return None
    try:
        return receipt_from_json(stored.body, run_id)
    except Unsound as error:
        what = f"cannot read the receipt of run {run_id}"
        raise UnreadableReceipt(what, why=str(error), do="Its earlier versions are in the bucket.") from error


def receipt_from_json(body: bytes, run_id: str) -> Receipt:
    """Read a receipt of a run. Raises Unsound if a field that is shown has the wrong type, or is another
    run's.
    """
    fields = read_object(body, most_bytes=MOST_RECEIPT_BYTES, name="the receipt")
    if fields.values.get("format") != FORMAT:
        found = str(fields.values.get("format"))[:40]
        raise Unsound(f"the receipt has format {found}, this version reads {FORMAT}")
    if fields.text("run_id") != run_id:
        raise Unsound(f"the receipt is that of run {fields.text('run_id')!r}")
    fields.choice("state", tuple(EXIT_CODES))
    fields.instant("created_at")
    if not fields.table("job").values:
        raise Unsound("the receipt has no job")
    parent = fields.text("parent", pattern=RUN_ID)
    names = fields.value("ancestors", []).items(most=MOST_ANCESTORS)
    ancestors = [name.text(pattern=RUN_ID) for name in names]
    own = {run_id, parent, *ancestors} - {""}  # whose keys it may name: what it took over keeps them
    models = judged([_model(item, own) for item in fields.rows("models", most=MOST_MODELS)])
    checked: Receipt = {
        **fields.values,
        "exit_code": fields.whole("exit_code", most=255),
        "error": read_error(fields),
        "deadline": fields.text("deadline", most=40),
        "deadline_cause": fields.text("deadline_cause"),
        "attempts": [_attempt(item) for item in fields.rows("attempts", most=MOST_ATTEMPTS)],
        "instances": [_instance(item) for item in fields.rows("instances", most=MOST_INSTANCES)],
        "nodes": [_node(item) for item in fields.rows("nodes", most=MOST_NODES)],
        "left": [_remains(item) for item in fields.rows("left", most=MOST_INSTANCES)]
        if fields.values.get("left") is not None
        else None,
        "models": models,
        "verdict": verdict(models),
        "failed": [read_failed(item) for item in fields.rows("failed", most=MOST_MODELS)],
        "left_out": [item.text(most=MOST_TEXT) for item in fields.value("left_out").items(most=MOST_MODELS)],
        "parent": parent,
        "ancestors": ancestors,
        "work": fields.text("work", pattern=WORK),
        "files": list(_files(fields, own)),
        "scripts": list(read_scripts(fields)),
        "trials": list(read_scripts(fields, "trials")),
        "retries": fields.whole("retries", 0),
        "steps_twice": None
        if fields.values.get("steps_twice") is None
        else fields.whole("steps_twice", most=MOST_COUNT),
        "seconds": _numbers(fields.table("seconds"), (*PHASES, "total")),
        "boot": read_boot(fields.table("boot"), STEPS),
        "dollars": _dollars(fields.table("dollars")),
        "data": read_data(fields.table("data")),
        "checkpoints": _checkpoints(fields.table("checkpoints")),
        "devices": fields.table("devices").values,
        "inputs": read_inputs(fields.table("inputs")),
        "place": fields.text("place"),
        "host": fields.text("host", ""),
        "note": fields.text("note", "", most=MOST_TEXT),
        "log_tail": fields.text("log_tail", "", most=MOST_TEXT),
    }
    if fields.values.get("closed_at") is not None:
        fields.instant("closed_at")
    return checked


def _files(fields: Fields, runs: Collection[str]) -> tuple[dict[str, Any], ...]:
    """Return the candle files of a refresh, or those that a command left, by keys of these runs."""
    first = next(fields.rows("files", most=MOST_KEPT), None)
    if fields.text("work") == "prepare" or (first and first.values.get("key") is None):
        return read_candle_files(fields)
    files = read_outputs(fields)
    for item in files:  # of any of its attempts
        if (of_experiment(item["key"]) or ("",))[0] not in runs:
            raise Unsound(f"the receipt has the file {item['key'][:120]!r}, which is not the run's")
    return files


def _checkpoints(fields: Fields) -> dict[str, Any]:
    counts = read_checkpoints(fields)
    return {**counts, **_numbers(fields, ("usd",))} if counts else {}


def _remains(fields: Fields) -> dict[str, Any]:
    return {name: fields.text(name) for name in ("kind", "id", "state")}


def _attempt(fields: Fields) -> dict[str, Any]:
    """Return an attempt, with every field that is shown checked."""
    for name in ("created_at", "ended_at"):
        if fields.values.get(name) is not None:
            fields.instant(name)
    return {
        **fields.values,
        "number": fields.whole("number", least=1, most=MOST_ATTEMPTS),
        "instances": [item.text() for item in fields.value("instances", []).items(most=MOST_INSTANCES)],
        "cause": fields.choice("cause", get_args(AttemptEnd)),
        "error": read_error(fields),
        **_numbers(fields, ("seconds_low", "seconds_high", "spent_low", "spent_high")),
    }


def _instance(fields: Fields) -> dict[str, Any]:
    names = ("instance_id", "instance_type", "market", "availability_zone", "state")
    texts = {name: fields.text(name) for name in names}
    fields.value("price_usd_per_hour").number(least=0)
    return {**fields.values, **texts, "proof": fields.text("proof", "")}


def _node(fields: Fields) -> dict[str, Any]:
    if fields.values.get("last_report") is not None:
        fields.instant("last_report")
    return {
        "node": fields.whole("node", most=MOST_NODES - 1),
        "instance_id": fields.text("instance_id"),
        "state": fields.choice("state", NODE_ENDS),
        "error": read_error(fields),
        "models": fields.whole("models", most=MOST_MODELS),
        "failed": fields.whole("failed", most=MOST_MODELS),
        "last_report": fields.values.get("last_report"),
    }


def _model(fields: Fields, runs: Collection[str]) -> dict[str, Any]:
    """Return a model. Its key names one of these runs, and a model's file: it is downloaded under the last
    part of its key.
    """
    key = fields.text("key", most=1024)
    made_by, _, file = of_experiment(key) or ("", 0, "")
    if made_by not in runs or not is_model_file(file):
        raise Unsound(f"{fields.name}.key is {key[:120]!r}, not a model of the run")
    return model_entry(fields)


def _dollars(fields: Fields) -> dict[str, float]:
    saved = ("spot_saved_low", "spot_saved_high")  # below zero, spot cost more
    return {
        **_numbers(fields, ("estimated", "spent_low", "spent_high")),
        **{name: fields.number(name) or 0.0 for name in saved},
    }


def _numbers(fields: Fields, names: tuple[str, ...]) -> dict[str, float]:
    return {name: fields.number(name, least=0) or 0.0 for name in names}
