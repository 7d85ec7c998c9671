"""What the trainer's events add up to. Pure: an event and the state before it give the state after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far the models are, as the trainer told it."""

    models: Mapping[str, str] = field(default_factory=dict)  # model -> symbol, as planned by the trainer
    symbols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # symbol -> epoch, step, loss, state ...
    done: tuple[Mapping[str, Any], ...] = ()  # model_done events
    failed: tuple[Mapping[str, str], ...] = ()
    rates: Mapping[int, float] = field(default_factory=dict)  # worker -> windows a second, of those at work
    retries: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None

    @property
    def windows_per_second(self) -> float | None:
        """Return the rate of all workers together, or None before the first."""
        return round(sum(self.rates.values()), 1) if self.rates else None


def advance(progress: Progress, event: Mapping[str, Any]) -> Progress:
    """Return the state after one event; an event this version doesn't know changes nothing."""
    kind, symbol = event.get("event"), str(event.get("symbol", ""))
    if kind == "started":
        models = {item["model"]: item["symbol"] for item in event["models"]}
        waiting = {name: {"state": "waiting"} for name in models.values()}
        return replace(progress, models=models, symbols=waiting, data=event.get("data", {}))
    if kind == "model_started":
        return _with_symbol(progress, symbol, state="training")
    if kind == "progress":
        told = {key: event.get(key) for key in ("epoch", "epochs", "step", "steps", "loss")}
        rates = {**progress.rates, event["worker"]: float(event.get("windows_per_second") or 0.0)}
        return replace(_with_symbol(progress, symbol, state="training", **told), rates=rates)
    if kind == "epoch":
        return _with_symbol(progress, symbol, **{key: event.get(key) for key in ("epoch", "train_loss", "validation_loss")})
    if kind == "model_done":
        return replace(_with_symbol(progress, symbol, state="done"), done=(*progress.done, event))
    if kind == "retry":
        return replace(_with_symbol(progress, symbol, state="waiting"), retries=progress.retries + 1)
    if kind == "model_failed":
        failed = {"symbol": symbol, "reason": str(event.get("reason", ""))}
        return replace(_with_symbol(progress, symbol, state="failed"), failed=(*progress.failed, failed))
    if kind == "error":
        return replace(progress, error={key: event.get(key) for key in ("code", "what", "why", "do")})
    if kind == "ended":
        return replace(progress, rates={})
    return progress


def _with_symbol(progress: Progress, symbol: str, **told: Any) -> Progress:
    return replace(progress, symbols={**progress.symbols, symbol: {**progress.symbols.get(symbol, {}), **told}})
