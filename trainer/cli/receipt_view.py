"""The receipt as text: models, time, dollars, deadline, and the end of every instance."""

from __future__ import annotations

from typing import Any

from trainer.artifacts.names import label
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
    several = int(receipt["job"].get("folds", 1)) * int(receipt["job"].get("seeds", 1))
    lines += _models(receipt["models"], several)
    for failure in receipt["failed"]:
        lines.append(f"failed     {_called(failure, several)}: {failure['reason']}")
    if receipt.get("retries"):
        lines.append(f"retries    {receipt['retries']}")
    if receipt.get("note"):
        lines.append(f"note       {receipt['note']}")
    return lines


def set_by(item: dict[str, Any]) -> str:
    """Return what set the deadline of a receipt or of a status document, as text."""
    return f"set by {CAUSES.get(item['deadline_cause'], item['deadline_cause'])}"


def _called(model: dict[str, Any], several: int) -> str:
    fold, seed = model.get("fold", 1), model.get("seed", 0)
    return label(str(model["symbol"]), fold=fold, seed=seed, models_per_symbol=several)


def _models(models: list[dict[str, Any]], several: int) -> list[str]:
    if not models:
        return ["models     none"]
    volatility = all("qlike" in _scores(model) for model in models)  # a run trains one family
    scores = (
        ["correlation (HAR)", "QLIKE (HAR)"]
        if volatility
        else ["accuracy (base rate)", "AUC (logistic)", "MCC", "log loss", "Brier"]
    )
    rows = [["symbol", "family", *scores, "version", "sha256"]]
    rows += [[_called(model, several), *_model_row(model, volatility=volatility)] for model in models]
    lines = table(rows)
    return [f"models     {lines[0]}", *(f"           {line}" for line in lines[1:])]


def _scores(model: dict[str, Any]) -> dict[str, Any]:
    return (model.get("metrics") or {}).get("test") or model.get("metrics") or {}


def _model_row(model: dict[str, Any], *, volatility: bool) -> list[str]:
    scores = _scores(model)

    def score(name: str, of: dict[str, Any] = scores) -> str:
        value = of.get(name)
        return f"{value:.4f}" if isinstance(value, (int, float)) else "-"

    if volatility:
        har = scores["baselines"]["har"]
        told = [f"{score(name)} ({score(name, har)})" for name in ("correlation", "qlike")]
    else:
        logistic = scores.get("baselines", {}).get("logistic", {})
        beside = [f"{score('accuracy')} ({score('base_rate')})", f"{score('auc')} ({score('auc', logistic)})"]
        told = [*beside, *map(score, ("mcc", "log_loss", "brier"))]
    return [
        str(model["family"]),
        *told,
        str(model["version_id"])[:8],
        str(model["sha256"])[:12],
    ]
