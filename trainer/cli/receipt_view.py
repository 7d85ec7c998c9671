"""The receipt as text: models, time, dollars, deadline, and the end of every instance."""

from __future__ import annotations

from typing import Any

from trainer.artifacts.metrics import cells, titles
from trainer.cli.output import duration, money, table
from trainer.runs.deadline import CAUSES


def receipt_lines(receipt: dict[str, Any]) -> list[str]:
    """Return a receipt as lines of text."""
    seconds, dollars, data = receipt["seconds"], receipt["dollars"], receipt["data"]
    lines = [f"run        {receipt['run_id']}", f"state      {receipt['state']} (exit code {receipt['exit_code']})"]
    if error := receipt.get("error"):
        why = f" ({error['why']})" if error.get("why") else ""
        lines.append(f"because    {error['what']}{why}. {error.get('do', '')}".rstrip())
    phases = "  ".join(f"{phase} {duration(value)}" for phase, value in seconds.items() if phase != "total")
    lines.append(f"time       {duration(seconds['total'])}: {phases}")
    spent = f"{money(dollars['spent_low'])} to {money(dollars['spent_high'])}"
    lines.append(f"dollars    {spent} spent, {money(dollars['estimated'])} estimated")
    if "deadline_cause" in receipt:  # format 1 had the run's deadline only, which need not be the one that held
        lines.append(f"deadline   {receipt['deadline']}, {set_by(receipt)}")
    if data:
        kind = "SYNTHETIC" if data.get("synthetic") else "real"
        lines.append(f"data       {data.get('bars', 0):,} bars used ({kind}), {data.get('holes', 0):,} holes")
    for instance in receipt["instances"]:
        lines.append(
            f"instance   {instance['instance_id']} {instance['instance_type']} {instance['market'].replace('_', '-')} "
            f"{instance['availability_zone']}: {instance['state']} ({instance['proof'] or 'no proof'})"
        )
    lines += _models(receipt["models"])
    for failure in receipt["failed"]:
        lines.append(f"failed     {failure['piece']}: {failure['reason']}")
    if receipt.get("retries"):
        lines.append(f"retries    {receipt['retries']}")
    if receipt.get("log_tail"):
        first, *more = receipt["log_tail"].splitlines()
        lines += [f"its log    {first}", *(f"           {line}" for line in more)]
    if receipt.get("note"):
        lines.append(f"note       {receipt['note']}")
    return lines


def set_by(item: dict[str, Any]) -> str:
    """Return what set the deadline of a receipt or of a status document, as text."""
    return f"set by {CAUSES.get(item['deadline_cause'], item['deadline_cause'])}"


def _models(models: list[dict[str, Any]]) -> list[str]:
    if not models:
        return ["models     none"]
    first = models[0].get("metrics") or {}  # a run trains one target
    rows = [["piece", "model", *titles(first), "version", "sha256"]]
    rows += [[str(model["piece"]), *_model_row(model, columns=len(titles(first)))] for model in models]
    lines = table(rows)
    return [f"models     {lines[0]}", *(f"           {line}" for line in lines[1:])]


def _model_row(model: dict[str, Any], *, columns: int) -> list[str]:
    scores = cells(model.get("metrics") or {}) or ["-"] * columns
    kind = "-".join(filter(None, (str(model["family"]), str(model.get("target") or ""))))
    return [kind, *scores, str(model["version_id"])[:8], str(model["sha256"])[:12]]
