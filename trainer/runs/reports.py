"""Reports of a node, read strictly and within bounds: progress while it works, its result at the end.

Owns the limits, which `node.report` keeps to. A malformed report raises `Unsound` and counts as missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainer.base.strict_json import MOST_NAME, MOST_TEXT, Fields, Unsound, read_object
from trainer.base.symbols import MOST_CANDLE_FILES, file_flaw, folders_of, path_flaw
from trainer.job.model_names import ENDS as ENDS_OF_TRIALS
from trainer.job.model_names import MODEL_SUFFIX, is_model_file
from trainer.runs.keys import of_experiment
from trainer.runs.lease import Lease
from trainer.runs.samples import NodeSample, read_sample
from trainer.targets.described import check_metrics

MOST_PROGRESS_BYTES = 512 * 1024  # 500 models take 97 KB (measured 2026-11-22)
MOST_RESULT_BYTES = 80 * 1024 * 1024  # a model with its metrics takes 4 KB, and there may be MOST_MODELS
MOST_SHOWN = 2_000  # models whose progress is reported; `models_total` and `models_done` count all
MOST_MODELS = 20_000  # of one run
MOST_LISTED = 2 * MOST_MODELS  # keys of them: each has its card beside it
MOST_TITLE = MOST_NAME + 40  # of a piece: a symbol with fold and seed
MOST_PHASES = 8
MOST_NAMED = 6  # failed pieces, in a message
MOST_FILES = 20_000
MOST_ADDED_FILES, MOST_ADDED_BYTES = 1_000, 2 * 2**30  # that a prepare run adds to a set
MOST_FILE_SIZE = 5 * 2**30  # of one PutObject, and one CopyObject
MOST_COUNT = 10**12  # of steps, bars and the like
SHA256 = "[0-9a-f]{64}"
NODE_STATES = ("done", "failed", "stopped", "expired", "interrupted")
# why a node did not make a piece, in its result: it ended before it could
UNFINISHED = ("stopped before it was done", "the run ended before it was done")
MODEL_STATES = ("waiting", "training", "scoring", "done", "failed")
INPUT_COUNTS = ("s3_files", "s3_bytes", "cache_files", "cache_bytes", "cache_added", "cache_refused")
CHECKPOINT_COUNTS = ("snapshots", "objects", "bytes")
MOST_SENT = 10**15  # of each, and of inputs: a terabyte every two minutes for a day, or 64 machines of 15 TB
BETTER = ("min", "max")  # end of a metric
UNITS = ("windows", "chunks", "steps")
MOST_OUTPUTS = 10_000  # files that a script leaves on one node
MOST_KEPT = 50_000  # of those in the lists of a whole run: of all its nodes and attempts
MOST_OUTPUTS_BYTES = 16 * 1024 * 1024  # of their list; a file takes 400 bytes
MOST_VALUES = 16  # of a script's piece, by name
MOST_NOTES = 40  # lines about a script's files; its events, its score and its first try may have one each
# last lines of a log and their characters, in a receipt; together less than MOST_TEXT
LAST_LINES, MOST_LINE = (20, 190)
# of a boot: fetched, installed, started, torch imported the first time, devices tested
NODE_STEPS = ("code", "environment", "agent", "import", "smoke")
MOST_BOOT_SECONDS = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Heartbeat(Lease):
    """The last report of one node at work: its lease, its phase, and the progress of its models."""

    phase: str = ""
    phases: Mapping[str, datetime] = field(default_factory=dict)  # when each phase began
    progress: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by piece
    models_total: int = 0
    models_done: int = 0
    retries: int = 0  # of models whose worker died
    rate: float | None = None  # of all workers together, in `unit` a second
    unit: str = "windows"  # or chunks
    message: str = ""
    sample: NodeSample | None = None  # of its hardware; None before the first
    data: Mapping[str, Any] = field(default_factory=dict)  # what it read, counted; {} before it has
    durable: Mapping[str, Any] = field(default_factory=dict)  # its newest checkpoints in S3; {}: none


@dataclass(frozen=True, kw_only=True)
class NodeResult:
    """A node's result.json: the end of its work, as the node reports it."""

    state: str
    exit_code: int = 0
    error: Mapping[str, Any] | None = None
    models: tuple[Mapping[str, Any], ...] = ()
    failed: tuple[Mapping[str, Any], ...] = ()
    retries: int = 0
    phases: Mapping[str, datetime] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    # seconds of its steps, and whether the image was baked
    boot: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)  # files and bytes from S3 and from the cache
    devices: Mapping[str, Any] = field(default_factory=dict)
    python_packages: str = ""
    files: tuple[Mapping[str, Any], ...] = ()  # candle files that a refresh added or checked
    scripts: tuple[Mapping[str, Any], ...] = ()  # ends of pieces that the agent started
    checkpoints: Mapping[str, Any] = field(default_factory=dict)  # sent to S3: counts, and their dollars


def heartbeat(lease: Lease, progress: bytes = b"") -> Heartbeat:
    """Join a lease and the node's progress object (b"" if there is none). Raises Unsound."""
    fields = read_object(progress or b"{}", most_bytes=MOST_PROGRESS_BYTES, name="the progress")
    return Heartbeat(
        **vars(lease),
        phase=fields.text("phase", ""),
        phases=fields.instants("phases", most=MOST_PHASES),
        progress={name: _model_progress(model) for name, model in fields.tables("progress", most=MOST_SHOWN)},
        models_total=fields.whole("models_total", 0, most=MOST_MODELS),
        models_done=fields.whole("models_done", 0, most=MOST_MODELS),
        retries=fields.whole("retries", 0, most=MOST_COUNT),
        rate=fields.number("rate", least=0),
        unit=fields.choice("unit", UNITS, "windows"),
        message=fields.text("message", "", most=MOST_TEXT),
        sample=read_sample(fields.table("sample")),
        data=read_data(fields.table("data")),
        durable=read_durable(fields.table("durable")),
    )


def share_done(pieces: Iterable[Mapping[str, Any]], total: int) -> float:
    """Return the share of a training that is done, 0 to 1: steps of the pieces that train, and the pieces
    that have ended.

    `total` counts the run's models, of which `pieces` may name fewer.
    """
    shares = [piece_share(piece) for piece in pieces]
    return min(1.0, sum(shares) / max(1, total, len(shares)))


def piece_share(piece: Mapping[str, Any]) -> float:
    """Return the share of one piece that is done, 0 to 1."""
    if piece.get("state") in ("scoring", "done", "failed"):  # it may have stopped early
        return 1.0
    epochs, steps = piece.get("epochs") or 0, piece.get("steps") or 0
    if not epochs or not steps:
        return 0.0
    return min(
        1.0, max(0.0, (max(1, piece.get("epoch") or 1) - 1 + (piece.get("step") or 0) / steps) / epochs)
    )


def share_reported(progress: bytes) -> float:
    """Return the share of a training that is done by its node's progress object. Raises Unsound."""
    fields = read_object(progress, most_bytes=MOST_PROGRESS_BYTES, name="the progress")
    pieces = (_model_progress(model) for _, model in fields.tables("progress", most=MOST_SHOWN))
    return share_done(pieces, fields.whole("models_total", 0, most=MOST_MODELS))


def read_durable(fields: Fields) -> dict[str, Any]:
    """Return number and age of the newest checkpoints in S3, and how much was sent; {} if there are none."""
    if not fields.values:
        return {}
    return {
        "number": fields.whole("number", most=MOST_COUNT),
        "at": fields.instant("at"),
        "lag_seconds": fields.value("lag_seconds").number(least=0, most=MOST_COUNT),
        **{name: fields.whole(name, 0, most=MOST_SENT) for name in CHECKPOINT_COUNTS},
    }


def sent_by(body: bytes) -> dict[str, Any]:
    """Return the counts of checkpoints that a node sent, by its progress alone; {} if that says nothing."""
    try:
        fields = read_object(body, most_bytes=MOST_PROGRESS_BYTES, name="the progress")
        durable = read_durable(fields.table("durable"))
    except Unsound:
        return {}
    return {name: durable[name] for name in CHECKPOINT_COUNTS} if durable else {}


def read_result(body: bytes, *, models_prefix: str, names: Collection[str] = ()) -> NodeResult:
    """Read a node's result, whose models lie directly under `models_prefix`. Raises Unsound for a malformed
    one.

    `names`: the models that the run was launched for. Output files that are kept by their hash are read by
    `read_outputs`, since a node that was ended leaves their list, but no result.
    """
    fields = read_object(body, most_bytes=MOST_RESULT_BYTES, name="the result")
    models = tuple(read_model(item, models_prefix) for item in fields.rows("models", most=MOST_MODELS))
    made = {model["key"].removeprefix(models_prefix).removesuffix(MODEL_SUFFIX) for model in models}
    if others := sorted(made.difference(names)):
        raise Unsound(f"the result has the model {others[0][:120]!r}, which the run was not launched for")
    return NodeResult(
        state=fields.choice("state", NODE_STATES),
        exit_code=fields.whole("exit_code", 0, most=255),
        error=read_error(fields),
        models=models,
        failed=tuple(read_failed(item) for item in fields.rows("failed", most=MOST_MODELS)),
        retries=fields.whole("retries", 0, most=MOST_COUNT),
        phases=fields.instants("phases", most=MOST_PHASES),
        data=read_data(fields.table("data")),
        boot=read_boot(fields.table("boot")),
        inputs=read_inputs(fields.table("inputs")),
        devices=read_devices(fields.table("devices")),
        python_packages=fields.text("python_packages", ""),
        files=read_candle_files(fields),
        scripts=read_scripts(fields),
        checkpoints=read_checkpoints(fields.table("checkpoints")),
    )


def read_checkpoints(fields: Fields) -> dict[str, Any]:
    """Return the counts of what was sent of CHECKPOINTS; {} if nothing was reported."""
    if not fields.values:
        return {}
    return {name: fields.whole(name, most=MOST_SENT) for name in CHECKPOINT_COUNTS}


def read_candle_files(fields: Fields) -> tuple[dict[str, Any], ...]:
    """Return the field `files`: candle files of a data set by name, of which none occurs twice. Raises
    Unsound.

    Names have no folders, so that no key made of one leads elsewhere.
    """
    files = []
    for item in fields.rows("files", most=MOST_FILES):
        name = item.text("file", most=MOST_TEXT)
        if why := file_flaw(name):
            raise Unsound(f"{item.name}.file can't be used: {why}")
        if not item.text("sha256"):
            raise Unsound(f"{item.name} has no sha256")
        files.append(
            {
                "file": name,
                "sha256": item.text("sha256", pattern=SHA256),
                "bytes": item.whole("bytes", least=1, most=MOST_FILE_SIZE),
                "added": bool(item.truth("added")),
            }
        )
    if len({item["file"] for item in files}) < len(files):
        raise Unsound("the result names a file twice")
    return tuple(files)


def read_outputs(fields: Fields, *, prefix: str = "", name: str = "files") -> tuple[dict[str, Any], ...]:
    """Return a field: a script's output files by relative path, each under its hash. Raises Unsound.

    `prefix`: of their keys; "": of any attempt of any run, as those of several attempts are.
    """
    files: dict[str, dict[str, Any]] = {}
    for item in fields.rows(name, most=MOST_OUTPUTS if prefix else MOST_KEPT):
        path, sha256 = item.text("file", most=MOST_TEXT), item.value("sha256").sha256()
        if why := path_flaw(path):
            raise Unsound(f"{item.name}.file can't be kept: {why}")
        key = item.text("key", most=1024)
        made = (of_experiment(key) or (0, 0, ""))[2]
        if key != f"{prefix}{sha256}" if prefix else made != f"out/{sha256}":
            raise Unsound(f"{item.name}.key is not that of its hash")
        files[path] = {
            "file": path,
            "key": key,
            "version_id": item.text("version_id", most=1024),
            "sha256": sha256,
            "bytes": item.whole("bytes", most=MOST_FILE_SIZE),
        }
    if both := sorted(folders_of(files) & files.keys()):
        raise Unsound(f"{both[0][:120]!r} is both a file and a folder")
    return tuple(files.values())


def read_scripts(fields: Fields, name: str = "scripts") -> tuple[dict[str, Any], ...]:
    """Return a field: how each script, or trial, of a run ended. Raises Unsound."""
    return tuple(map(script_entry, fields.rows(name, most=MOST_MODELS)))


def script_entry(item: Fields) -> dict[str, Any]:
    """Return how a piece that the agent started ended. Raises Unsound."""
    return {
        **read_identity(item),
        "values": {
            name: value.text() for name, value in item.table("values", most=MOST_VALUES).entries().items()
        },
        "sha256": item.text("sha256", "", pattern=SHA256),
        "done": bool(item.truth("done")),
        "exit_code": item.value("exit_code").whole(least=-255, most=255),
        "starts": item.whole("starts", most=1_000),
        "best": _read_best(item.table("best", most=3)),
        "seconds": item.number("seconds", least=0) or 0.0,
        "last_lines": [
            line.text(most=MOST_LINE) for line in item.value("last_lines", []).items(most=LAST_LINES)
        ],
        "notes": [line.text(most=MOST_TEXT) for line in item.value("notes", []).items(most=MOST_NOTES + 3)],
        **(_trial(item) if item.values.get("trial") is not None else {}),
    }


def _trial(item: Fields) -> dict[str, Any]:
    """Return what the end of a trial of a search has besides."""
    return {
        "trial": item.whole("trial", least=1, most=MOST_MODELS),
        "end": item.choice("end", ENDS_OF_TRIALS),
        "epochs": item.whole("epochs", most=MOST_COUNT),
    }


def trial_end(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the end of a trial, of an entry that `script_entry` read, as a training reads it."""
    known = {name: entry[name] for name in ("piece", "trial", "values", "end", "epochs")}
    return {**known, "score": entry["best"].get("value")}


def _read_best(fields: Fields) -> dict[str, Any]:
    """Return a script's headline metric, its best value, and which end is better; {} if it has none."""
    if (value := fields.number("value")) is None:
        return {}
    metric = fields.text("metric", most=MOST_NAME)
    return {"metric": metric, "value": value, "better": fields.choice("better", BETTER)}


def read_error(fields: Fields) -> dict[str, Any] | None:
    """Return the field `error`: an error as `TrainerError.as_dict` writes it, or None."""
    error = fields.table("error")
    if not error.values:
        return None
    texts = {key: error.text(key, "", most=MOST_TEXT) for key in ("what", "why", "do")}
    return {"code": error.whole("code", 100, most=255), **texts}


def read_model(fields: Fields, models_prefix: str) -> dict[str, Any]:
    """Return one reported model. Its key must be a model's file name right under `models_prefix`."""
    key = fields.text("key", most=1024)
    if not key.startswith(models_prefix) or not is_model_file(key.removeprefix(models_prefix)):
        raise Unsound(f"{fields.name}.key is {key[:120]!r}, not a model right under {models_prefix}")
    return model_entry(fields)


def model_entry(fields: Fields) -> dict[str, Any]:
    """Return a model's entry for results and receipts; the caller has checked its key."""
    return {
        **read_identity(fields),
        "family": fields.text("family"),
        "target": fields.text("target", ""),
        "key": fields.text("key", most=1024),
        "version_id": fields.text("version_id", most=1024),
        "sha256": fields.text("sha256", pattern=SHA256),
        "metrics": read_metrics(fields),
    }


def read_failed(fields: Fields) -> dict[str, Any]:
    """Return the piece of a model that was not made, with the reason."""
    return {**read_identity(fields), "reason": fields.text("reason", "", most=MOST_TEXT)}


def read_metrics(fields: Fields) -> dict[str, Any]:
    """Return the field `metrics`. Raises Unsound if it can't be shown."""
    metrics = fields.table("metrics").values
    try:
        check_metrics(metrics)
    except ValueError as error:
        raise Unsound(f"{fields.name}.metrics: {error}") from error
    return dict(metrics)


def read_data(fields: Fields) -> dict[str, Any]:
    """Return what a run read: its files, and the counts over all of them."""
    return {
        "files": [dict(item.values) for item in fields.rows("files", most=MOST_CANDLE_FILES)],
        "bars": fields.whole("bars", 0, most=MOST_COUNT),
        "holes": fields.whole("holes", 0, most=MOST_COUNT),
        "synthetic": fields.truth("synthetic"),
    }


def read_boot(fields: Fields, steps: Collection[str] = NODE_STEPS) -> dict[str, Any]:
    """Return the seconds of a boot's steps, and whether its image had the environment; {} if not reported."""
    if not fields.values:
        return {}
    seconds = {step: round(fields.number(step, least=0, most=MOST_BOOT_SECONDS) or 0.0, 3) for step in steps}
    return {**seconds, "baked": bool(fields.truth("baked"))}


def read_inputs(fields: Fields) -> dict[str, Any]:
    """Return the sources of a node's inputs; {} if not reported."""
    if not fields.values:
        return {}
    counts = {key: fields.whole(key, 0, most=MOST_SENT) for key in INPUT_COUNTS}
    return {**counts, "cache_failed": fields.text("cache_failed", "", most=MOST_TEXT)}


def read_devices(fields: Fields) -> dict[str, Any]:
    """Return the accelerators that a node found; {} if not reported."""
    if not fields.values:
        return {}
    counts = {key: fields.whole(key, 0, most=1024) for key in ("expected", "found")}
    out = [line.text(most=MOST_TEXT) for line in fields.value("out_of_service", []).items(most=1024)]
    texts = {"kind": fields.text("kind", ""), "note": fields.text("note", "", most=MOST_TEXT)}
    return {**counts, **texts, **({"out_of_service": out} if out else {})}


def read_identity(fields: Fields) -> dict[str, Any]:
    """Return the piece of an entry."""
    return {
        "piece": fields.text("piece", most=MOST_TITLE),
        "kind": fields.text("kind"),
        "series": [name.text() for name in fields.value("series").items(most=MOST_MODELS)],
        "fold": fields.whole("fold"),
        "seed": fields.whole("seed"),
    }


def _model_progress(fields: Fields) -> dict[str, Any]:
    """Return one model's progress, without missing fields."""
    progress: dict[str, Any] = {"state": fields.choice("state", MODEL_STATES, "waiting")}
    for key in ("epoch", "epochs", "step", "steps", "began"):
        if fields.values.get(key) is not None:
            progress[key] = fields.whole(key, most=MOST_COUNT)
    for key in ("loss", "train_loss", "validation_loss", "score"):
        if (value := fields.number(key)) is not None:
            progress[key] = value
    return progress
