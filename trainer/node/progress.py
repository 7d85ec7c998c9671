"""Progress of a training, folded from its events. Pure: state and event in, the next state out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainer.artifacts.names import label


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far the models are, as the trainer told it."""

    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # model -> symbol, fold, seed, as the trainer planned
    called: Mapping[str, str] = field(default_factory=dict)  # model -> its symbol, with fold and seed where that has several
    symbols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # as called -> epoch, step, loss, state
    done: tuple[Mapping[str, Any], ...] = ()  # model_done events
    failed: tuple[Mapping[str, Any], ...] = ()
    rates: Mapping[int, float] = field(default_factory=dict)  # worker -> `unit` a second, of those at work
    unit: str = "windows"  # or chunks
    retries: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # profile -> shape -> what its tuner found
    looking: bool = False  # for the fastest way to train

    @property
    def rate(self) -> float | None:
        """Return the rate of all workers together, or None before the first."""
        return round(sum(self.rates.values()), 1) if self.rates else None


def advance(progress: Progress, event: Mapping[str, Any]) -> Progress:
    """Return the state after one event; an event this version doesn't know changes nothing."""
    kind = event.get("event")
    if kind == "started":
        models = {item["model"]: {"symbol": item["symbol"], **numbers_of(item)} for item in event["models"]}
        called = _called(models)
        waiting = {name: {"state": "waiting"} for name in called.values()}
        return replace(progress, models=models, called=called, symbols=waiting, data=event.get("data", {}))
    if kind == "tuning":
        return replace(progress, looking=True)
    if kind == "tuned":
        shapes = {**progress.tuned.get(event["profile"], {}), event["shape"]: event["entry"]}
        tuned = {**progress.tuned, event["profile"]: shapes} if event["entry"] else progress.tuned
        return replace(progress, looking=False, tuned=tuned)
    if kind == "error":
        return replace(progress, error={key: event.get(key) for key in ("code", "what", "why", "do")})
    if kind == "ended":
        return replace(progress, rates={})
    model = str(event.get("model", ""))
    if model not in progress.models:
        return progress
    symbol = progress.called[model]
    if kind == "model_started":
        return _with_symbol(progress, symbol, state="training")
    if kind == "progress":
        told = {key: event.get(key) for key in ("epoch", "epochs", "step", "steps", "loss")}
        rates = {**progress.rates, event["worker"]: float(event.get("rate") or 0.0)}
        unit = event.get("unit", progress.unit)
        return replace(_with_symbol(progress, symbol, state="training", **told), rates=rates, unit=unit)
    if kind == "epoch":
        return _with_symbol(progress, symbol, **{key: event.get(key) for key in ("epoch", "train_loss", "validation_loss")})
    if kind == "model_done":
        return replace(_with_symbol(progress, symbol, state="done"), done=(*progress.done, event))
    if kind == "retry":
        return replace(_with_symbol(progress, symbol, state="waiting"), retries=progress.retries + 1)
    if kind == "model_failed":
        failed = {**progress.models[model], "reason": str(event.get("reason", ""))}
        return replace(_with_symbol(progress, symbol, state="failed"), failed=(*progress.failed, failed))
    return progress


def numbers_of(item: Mapping[str, Any]) -> dict[str, int]:
    """Return fold and seed of a model that somebody told of."""
    return {"fold": int(item.get("fold", 1)), "seed": int(item.get("seed", 0))}


def _called(models: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    count = Counter(told["symbol"] for told in models.values())
    return {
        model: label(told["symbol"], fold=told["fold"], seed=told["seed"], models_per_symbol=count[told["symbol"]])
        for model, told in models.items()
    }


def _with_symbol(progress: Progress, symbol: str, **told: Any) -> Progress:
    return replace(progress, symbols={**progress.symbols, symbol: {**progress.symbols.get(symbol, {}), **told}})
