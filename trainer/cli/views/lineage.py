"""The lineage of a model: what it was made of, in one look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from trainer.cli.output import counted
from trainer.cli.views.table import Blocks, FittedTable, Inline
from trainer.data.table import DataSettings
from trainer.job.train import ExpertSettings, TrainSettings

MOST_FILES = 12  # that are shown
MOST_VALUE = 40  # letters of a setting
SHORT = 12  # digits of a hash


def lineage_view(lineage: Mapping[str, Any]) -> RenderableType:
    """Return the blocks of a lineage, as `store.lineage.lineage_of` has it."""
    return Blocks(_blocks(lineage))


def _blocks(lineage: Mapping[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    model, run, code, lock = (lineage[name] for name in ("model", "run", "code", "lock"))
    yield "model", Inline([model["name"], _short(model["sha256"]), f"made {model['created_at']}"])
    yield "run", Inline([run["run_id"], run["place"], counted(run["attempts"], "attempt")])
    yield "code", Inline([code["key"], f"of training {_short(code['training_sha256'])}", code["mayfly"]])
    here = "that of this checkout" if lock["is_here"] else "another than this checkout's"
    yield "lock", Inline([_short(lock["sha256"]), here])
    if lineage["own_files"]:
        yield "own files", Inline(f"{table} {_short(sha)}" for table, sha in lineage["own_files"].items())
    yield "job", Inline(_settings(lineage["job"]))
    yield "data", _data(lineage["data"])
    if lineage["parent"]:
        yield "starts from", Inline([lineage["parent"]["model"], _short(lineage["parent"]["sha256"])])
    yield "seed", Inline([str(lineage["seed"]), f"fold {lineage['fold']}"])
    if lineage["image"]["id"]:
        yield "image", Inline([lineage["image"]["id"], lineage["image"]["line"]])
    yield "machine", Inline(_machine(lineage["machine"]))
    yield "steps", Inline(_steps(lineage["steps"]))
    yield "again", f"mayfly models reproduce {model['name']} --steps 32"


def _settings(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings of model and target, and those of data, training and steps that are no defaults."""
    defaults = {"data": DataSettings(), "train": TrainSettings(), "expert": ExpertSettings()}
    for table in ("model", "target", *defaults):
        usual = vars(defaults[table]) if table in defaults else {}
        values = job.get(table)
        for key, value in values.items() if isinstance(values, Mapping) else ():
            plain = list(usual[key]) if isinstance(usual.get(key), tuple) else usual.get(key)
            if value and value != plain:
                yield f"{table}.{key} {_value(value)}"


def _value(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= MOST_VALUE else f"{text[: MOST_VALUE - 3]}..."


def _data(files: Sequence[Mapping[str, Any]]) -> RenderableType:
    rows = [
        {
            "file": str(file["key"]),
            "version": str(file["version_id"])[:SHORT] or "-",
            "sha256": _short(file["sha256"]) or "-",
            "bytes": f"{file['bytes']:,}",
        }
        for file in files[:MOST_FILES]
    ]
    if (more := len(files) - MOST_FILES) > 0:
        rows.append({"file": f"and {more:,} more", "version": "-", "sha256": "-", "bytes": "-"})
    return FittedTable(rows, right=("bytes",), leaving=("bytes",)) if rows else "none"


def _machine(machine: Mapping[str, Any]) -> Iterator[str]:
    yield from machine["types"]
    yield from (str(machine[name] or "") for name in ("device", "chip", "instructions"))
    yield f"driver {machine['driver']}" if machine["driver"] else ""
    yield f"{machine['ranks']} ranks" if machine["ranks"] != 1 else ""
    yield f"{machine['threads']} threads" if machine["threads"] not in (None, 1) else "1 thread"
    yield f"torch {machine['torch']}"
    yield str(machine["precision"] or "")
    yield "deterministic kernels" if machine["deterministic"] else ""


def _steps(steps: Mapping[str, Any]) -> Iterator[str]:
    yield f"{steps['steps']} of batch {steps['batch']} in {steps['epochs_run']} epochs"
    yield str(steps["strategy"])
    mates = steps["mates"] or ()
    yield f"{len(mates)} in its pack" if len(mates) > 1 else "alone in its pack"
    yield f"slices of {steps['micro_batch']}"
    yield "activation checkpointing" if steps["activation_checkpointing"] else ""


def _short(sha256: Any) -> str:
    return str(sha256)[:SHORT]
