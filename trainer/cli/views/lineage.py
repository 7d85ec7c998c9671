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


def lineage_view(lineage: Mapping[str, Any], *, where: str = "") -> RenderableType:
    """Return the blocks of a lineage, as `store.lineage.lineage_of` has it. `where`: flags of the command
    that makes the model again.
    """
    return Blocks(_blocks(lineage, where))


def _blocks(lineage: Mapping[str, Any], where: str) -> Iterator[tuple[str, RenderableType]]:
    model, run, code, lock = (lineage[name] for name in ("model", "run", "code", "lock"))
    yield "model", Inline([model["name"], _short(model["sha256"]), f"made {model['created_at']}"])
    yield "run", Inline([run["run_id"], run["place"], counted(run["attempts"], "attempt")])
    yield (
        "code",
        Inline([code.get("key", "-"), f"of training {_short(code['training_sha256'])}", code["mayfly"]]),
    )
    here = "that of this checkout" if lock["is_here"] else "another than this checkout's"
    yield "lock", Inline([_short(lock["sha256"]), here])
    if lineage["own_files"]:
        yield "own files", Inline(f"{table} {_short(sha)}" for table, sha in lineage["own_files"].items())
    yield "job", Inline(_settings(lineage["job"]))
    if chosen := (lineage["trained"] or {}).get("values"):  # by its search
        yield "search", Inline(f"{key} {_value(value)}" for key, value in chosen.items())
    yield "data", _data(lineage["data"])
    if lineage["parent"]:
        yield "starts from", Inline([lineage["parent"]["model"], _short(lineage["parent"]["sha256"])])
    yield "seed", Inline([str(lineage["seed"]), f"fold {lineage['fold']}"])
    if image := [value for value in lineage["image"].values() if value]:
        yield "image", Inline(image)
    if trained := lineage["trained"]:
        yield "machine", Inline([*lineage["machines"], *_machine(trained)])
        yield "steps", Inline(_steps(trained))
    else:
        yield (
            "machine",
            Inline([*lineage["machines"], "its card does not say more: an earlier version made it"]),
        )
    yield "again", f"mayfly models reproduce {model['name']} --steps 32{where}"


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


def _machine(trained: Mapping[str, Any]) -> Iterator[str]:
    yield from (str(trained[name]) for name in ("device", "chip", "instructions"))
    yield f"driver {trained['driver']}" if trained["driver"] else ""
    yield f"{trained['ranks']} ranks" if trained["ranks"] != 1 else ""
    yield counted(trained["threads"], "thread")
    yield f"torch {trained['torch']}"
    yield str(trained["precision"])
    yield "deterministic kernels" if trained["deterministic"] else ""


def _steps(trained: Mapping[str, Any]) -> Iterator[str]:
    yield f"{trained['steps_of_epoch']:,} an epoch, of batch {trained['batch']:,}"
    yield str(trained["strategy"])
    others = len(trained["mates"]) - 1
    yield f"in a pack with {counted(others, 'other')}" if others > 0 else ""
    yield f"slices of {trained['micro_batch']:,}"
    yield "activation checkpointing" if trained["activation_checkpointing"] else ""


def _short(sha256: Any) -> str:
    return str(sha256)[:SHORT]
