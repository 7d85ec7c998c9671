"""The receipt as text: outcome, time by phase, dollars, machines and the proof of their end, models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from trainer.cli.output import bars_are, counted, duration, money
from trainer.cli.views.table import (
    BAD,
    GOOD,
    STRONG,
    Blocks,
    Cell,
    FittedTable,
    Inline,
    TableColumn,
    lines,
    styled,
)
from trainer.runs.boot import STEPS
from trainer.runs.deadline import CAUSES
from trainer.targets.described import (
    BETTER,
    BEYOND_CHANCE,
    cells,
    gain_over_baselines,
    headline_column,
    titles,
)

MARKS = {"done": ("✓", GOOD), "stopped": ("■", "yellow")}  # of states; any other is a failure
FAILED_MARK = ("✗", BAD)
MOST_SHOWN_FILES, MOST_SHOWN_VALUES, MOST_LAST_LINES = 40, 60, 3  # of a script; --json has all
GAINS = {  # mark and meaning
    BEYOND_CHANCE: ("✓", "better than every baseline on the test span, beyond chance"),
    BETTER: ("+", "better than every baseline on the test span, chance not excluded"),
}
MACHINE = (
    TableColumn(title="instance"),
    TableColumn(title="type", leaves=1),
    TableColumn(title="market", leaves=2),
    TableColumn(title="zone", leaves=3),
    TableColumn(title="end"),
    TableColumn(title="proof", wraps=True),
)
VALUES = (
    TableColumn(title=""),
    TableColumn(title="value"),
    TableColumn(title="end"),
    TableColumn(title="best"),
    TableColumn(title="time", right=True),
    TableColumn(title="starts", right=True, leaves=1),
)


def receipt_view(receipt: dict[str, Any]) -> RenderableType:
    """Return a receipt as labelled blocks."""
    return lines("", Blocks(_entries(receipt)))


def set_by(item: dict[str, Any]) -> str:
    """Return the source of the deadline of a receipt or status document, as text."""
    return f"set by {CAUSES.get(item['deadline_cause'], item['deadline_cause'])}"


def _entries(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    yield from _outcome(receipt)
    yield "", ""
    yield from _time(receipt)
    yield "", ""
    yield from _dollars(receipt)
    yield "", ""
    yield "machine", _machines(receipt["instances"]) if receipt["instances"] else _no_instance(receipt)
    yield "", ""
    yield from _WORK.get(receipt["work"], _outputs)(receipt)
    if receipt.get("log_tail"):
        yield "", ""
        yield "its log", lines(*receipt["log_tail"].splitlines())
    if receipt.get("note"):
        yield "", ""
        yield "note", styled(receipt["note"], "dim")


def _outcome(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    mark, style = MARKS.get(receipt["state"], FAILED_MARK)
    made, failed = len(receipt["models"]), len(receipt["failed"])
    models = counted(made, "model") if not failed else f"{made} of {counted(made + failed, 'model')}"
    if receipt["work"] != "train":
        models = counted(len(receipt["files"]), "file")
    if len(scripts := receipt.get("scripts", ())) > 1:
        done = sum(script["done"] for script in scripts)
        models = f"{done} of {counted(len(scripts), 'value')} · {models}"
    yield (
        "outcome",
        Inline(
            [
                styled(f"{mark} {receipt['state']}", f"{STRONG} {style}"),
                models,
                f"exit code {receipt['exit_code']}",
            ]
        ),
    )
    if error := receipt.get("error"):
        why = f" ({error['why']})" if error.get("why") else ""
        yield "because", f"{error['what']}{why}."
        if error.get("do"):
            yield "", error["do"]
    yield "run", receipt["run_id"]
    if (data := receipt["data"]) and receipt["work"] in ("train", "prepare"):
        bars = (
            f"{data.get('bars', 0):,} bars ({bars_are(data.get('synthetic'))})"
            if data.get("bars")
            else "none read"
        )
        yield "data", Inline([bars, counted(data.get("holes", 0), "hole") if data.get("bars") else ""])
    if inputs := receipt.get("inputs"):
        yield from _cache(inputs)


def _cache(inputs: Mapping[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    """Yield the use of the shared cache, if the stack has one."""
    if inputs["cache_failed"]:
        yield "cache", f"not used, inputs came from S3: {inputs['cache_failed']}"
    elif inputs["cache_files"] or inputs["cache_added"] or inputs["cache_refused"]:
        refused = f"{inputs['cache_refused']} refused and fetched from S3" if inputs["cache_refused"] else ""
        given = f"{inputs['cache_files']} of {counted(inputs['cache_files'] + inputs['s3_files'], 'file')}"
        yield "cache", Inline([f"{given} ({inputs['cache_bytes'] / 1e6:.1f} MB), the rest from S3", refused])


def _time(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    seconds = receipt["seconds"]
    yield "time", f"{duration(seconds['total'])} in all"
    yield "", Inline(f"{phase} {duration(value)}" for phase, value in seconds.items() if phase != "total")
    if boot := receipt.get("boot"):
        image = "a baked image" if boot["baked"] else "AWS's image, not baked"
        yield "boot", Inline([image, *(f"{step} {duration(boot[step])}" for step in STEPS)])
    if (
        "deadline_cause" in receipt
    ):  # format 1 had the run's deadline only, which need not be the one that held
        yield "deadline", f"{receipt['deadline']}, {set_by(receipt)}"


def _dollars(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    dollars = receipt["dollars"]
    if receipt.get("host"):
        yield "dollars", "none by Mayfly"
        return
    estimated = f"estimated {money(dollars['estimated'])}" if dollars["estimated"] else "not estimated"
    yield "dollars", Inline([f"spent {spent(dollars)}", estimated])
    prices = {
        f"{item['instance_type']} {item['market'].replace('_', '-')}: "
        f"{money(item['price_usd_per_hour'])} an hour": (None)
        for item in receipt["instances"]
        if item.get("price_usd_per_hour") is not None
    }
    for price in prices:
        yield "", price


def spent(dollars: dict[str, float]) -> str:
    """Return a run's cost: its low and high bound, or one number if both read the same."""
    low, high = money(dollars["spent_low"]), money(dollars["spent_high"])
    return low if low == high else f"{low} to {high}"


def _no_instance(receipt: dict[str, Any]) -> str:
    return f"{receipt['host']}: yours, no instance" if receipt.get("host") else "none was started"


def _machines(instances: list[dict[str, Any]]) -> FittedTable:
    return FittedTable(MACHINE, map(_machine, instances))


def _machine(instance: dict[str, Any]) -> list[Cell]:
    proof, market = instance["proof"], instance["market"].replace("_", "-")
    mark, style = MARKS["done"] if proof else FAILED_MARK
    end = Text.assemble((f"{mark} ", style), styled(instance["state"], ""))
    return [
        instance["instance_id"],
        instance["instance_type"],
        market,
        instance["availability_zone"],
        end,
        proof or "none",
    ]


def _models(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    models = sorted(receipt["models"], key=_piece)
    yield "models", _model_table(models) if models else "none"
    gains = {gain_over_baselines(model.get("metrics") or {}) for model in models}
    for mark, meaning in (GAINS[gain] for gain in GAINS if gain in gains):
        yield "", styled(f"{mark} {meaning}", "dim")
    for failure in sorted(receipt["failed"], key=_piece):
        yield (
            "",
            Text.assemble(
                (f"{FAILED_MARK[0]} ", BAD), styled(f"{failure['piece']}: {failure['reason']}", "")
            ),
        )
    if receipt.get("retries"):
        yield "", f"{counted(receipt['retries'], 'model was', 'models were')} retried"


def _files(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    title = "files"
    for file in receipt["files"]:
        done = "added" if file["added"] else "checked"
        yield title, Inline([file["file"], done, f"{file['bytes']:,} bytes", file["sha256"][:12]])
        title = ""
    if not receipt["files"]:
        yield title, "none"


def _outputs(receipt: dict[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    """Yield a script's exit, its last lines, and its output files."""
    if len(receipt["scripts"]) > 1:
        yield from _values(receipt["scripts"], receipt.get("devices", {}).get("out_of_service", ()))
    for script in receipt["scripts"] if len(receipt["scripts"]) == 1 else ():
        starts = f"started {script['starts']} times" if script["starts"] > 1 else ""
        ended = (
            f"exit code {script['exit_code']}"
            if script["exit_code"] >= 0
            else f"signal {-script['exit_code']}"
        )
        yield (
            "script",
            Inline(
                filter(None, [script["piece"], ended, duration(script["seconds"]), starts, _best(script)])
            ),
        )
        yield from (("", styled(note, "")) for note in script["notes"])
        yield "", ""
        yield "last lines", lines(*script["last_lines"]) if script["last_lines"] else "it printed nothing"
    for failure in receipt["failed"]:
        yield (
            "",
            Text.assemble(
                (f"{FAILED_MARK[0]} ", BAD), styled(f"{failure['piece']}: {failure['reason']}", "")
            ),
        )
    yield "", ""
    title = "files"
    for file in receipt["files"][:MOST_SHOWN_FILES]:
        yield title, Inline([file["file"], f"{file['bytes']:,} bytes", file["sha256"][:12]])
        title = ""
    if len(receipt["files"]) > MOST_SHOWN_FILES:
        yield "", f"and {len(receipt['files']) - MOST_SHOWN_FILES:,} more"
    if not receipt["files"]:
        yield title, "none"


def _best(script: Mapping[str, Any]) -> str:
    """Return the best value of a script's metric, as text."""
    best = script["best"]
    return f"best {best['metric']} {best['value']:.4g}" if best else ""


def _values(
    scripts: list[dict[str, Any]], out_of_service: Sequence[str]
) -> Iterator[tuple[str, RenderableType]]:
    """Yield how a script ended for each of its values, what device is broken, and the last lines of those not
    done.
    """
    shown = sorted(scripts, key=lambda script: (script["done"], script["piece"]))[:MOST_SHOWN_VALUES]
    yield "values", FittedTable(VALUES, [_value(script) for script in shown])
    if len(scripts) > len(shown):
        yield "", f"and {len(scripts) - len(shown):,} more"
    yield from (("", styled(f"out of service: {line}", BAD)) for line in out_of_service)
    for script in [script for script in shown if not script["done"]][:MOST_LAST_LINES]:
        told = [*script["notes"], *script["last_lines"]]
        yield "", ""
        yield "last lines", lines(f"of {script['piece']}:", *(told or ["it printed nothing"]))


def _value(script: dict[str, Any]) -> list[Cell]:
    mark, style = MARKS["done"] if script["done"] else FAILED_MARK
    ended = (
        f"exit code {script['exit_code']}" if script["exit_code"] >= 0 else f"signal {-script['exit_code']}"
    )
    best = _best(script).removeprefix("best ")
    return [
        styled(mark, style),
        script["piece"],
        ended,
        best,
        duration(script["seconds"]),
        str(script["starts"]),
    ]


def _model_table(models: list[dict[str, Any]]) -> FittedTable:
    metrics = models[0].get("metrics") or {}  # a run trains one target
    names, first = titles(metrics), headline_column(metrics)
    # The headline stays longest, hashes leave first.
    stays = [0 if place == first else place + 1 for place in range(len(names))]
    scores = [
        TableColumn(title=title, right=True, leaves=leaves)
        for title, leaves in zip(names, stays, strict=True)
    ]
    ids = [
        TableColumn(title=title, leaves=len(names) + place)
        for place, title in enumerate(("model", "version", "sha256"), 1)
    ]
    columns = [
        TableColumn(title=""),
        TableColumn(title="symbol" if _of_symbols(models) else "piece"),
        *scores,
        *ids,
    ]
    return FittedTable(columns, [_model_row(model, scores=len(names)) for model in models])


def _model_row(model: dict[str, Any], *, scores: int) -> list[Cell]:
    metrics = model.get("metrics") or {}
    mark, _ = GAINS.get(gain_over_baselines(metrics), ("", ""))
    kind = "-".join(filter(None, (str(model["family"]), str(model.get("target") or ""))))
    values = cells(metrics) if len(titles(metrics)) == scores else ["-"] * scores
    return [
        styled(mark, GOOD),
        str(model["piece"]),
        *values,
        kind,
        str(model["version_id"])[:8],
        str(model["sha256"])[:12],
    ]


def _of_symbols(models: list[dict[str, Any]]) -> bool:
    return all(model["series"] == [model["piece"]] for model in models if "series" in model)


def _piece(entry: dict[str, Any]) -> str:
    return str(entry["piece"])


_WORK = {"train": _models, "prepare": _files}  # any other command's is its outputs
