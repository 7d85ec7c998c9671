"""Reports of runs by hand: as many models as asked for, with curves, GPUs, cards and a lost spot machine."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from tests.manifests import manifest
from tests.pieces import named
from tests.records import RUN, at, created, make_record, piece, rung, seen
from trainer.runs.attempts import Attempt
from trainer.runs.observation import Observation
from trainer.runs.receipt import Receipt, make_receipt
from trainer.runs.record import RunRecord
from trainer.runs.report.curves import RunCurves, curves_of
from trainer.runs.report.data import Seen, report_data
from trainer.runs.report.models import InProduction, ReadCard
from trainer.runs.reports import Heartbeat, NodeResult

SECONDS = 5_400  # that the run trains
ABOUT: dict[str, Any] = {
    "headline": "log_loss",
    "proper": ["log_loss"],
    "metrics": {
        "auc": {"title": "AUC", "better": "higher", "unit": ""},
        "log_loss": {"title": "log loss", "better": "lower", "unit": "nats"},
        "brier": {"title": "Brier", "better": "lower", "unit": ""},
    },
    "table": [{"title": "AUC (logistic)", "value": ["auc"], "beside": ["baselines", "logistic", "auc"]}],
    "rule": "long for the horizon if the forecast is up, else cash",
}


def planted_record(pieces: Sequence[str] = ()) -> RunRecord:
    """Return a closed run that lost a spot machine at 2,000 s and was done by another."""
    ladder = (rung(market="spot", predicted=(150.0, 60.0, 4_800.0, 30.0), p90_seconds=6_000.0), rung())
    why = {"what": "the spot instance i-1 was taken back", "why": "Server.SpotInstanceTermination"}
    first = Attempt(
        number=1, launches=(created(),), created_at=at(5), ended_at=at(2_010), cause="lost", error=why
    )
    again = created(rung=0, token="t2", intended_at=at(2_030), instance_ids=("i-2",))
    end = SECONDS + 900
    made = tuple(piece(label, model=model_name(place)) for place, label in enumerate(pieces))
    return make_record(
        pieces=made,
        ladder=ladder,
        attempts=(first, Attempt(number=2, launches=(again,), created_at=at(2_035))),
        instances=(
            seen(market="spot", running_seen_at=at(40), terminated_at=at(2_000)),
            seen(
                instance_id="i-2", attempt=2, market="spot", launched_at=at(2_035), terminated_at=at(end),
            ),
        ),
        state="closed",
        outcome="done",
        estimated_usd=7.5,
        ending_at=at(end - 20),
        closed_at=at(end + 10),
    )  # fmt: skip


def model_name(place: int) -> str:
    return f"lstm-direction_SYM{place:04d}-USD_1m"


def planted_models(number: int, *, seed: int = 1, names: str = "SYM{0:04d}-USD") -> list[dict[str, Any]]:
    """Return so many models of a result, some better than their baseline, with trades."""
    draw = random.Random(seed)
    return [_model(place, names.format(place), draw) for place in range(number)]


def _model(place: int, symbol: str, draw: random.Random) -> dict[str, Any]:
    edge = draw.gauss(0.002, 0.004)
    score = 0.6925 - edge

    def scores(shift: float) -> dict[str, Any]:
        return {"n": 43_200, "auc": 0.53 + shift, "log_loss": score - shift / 10, "brier": 0.25 - shift / 10}

    gain = {"gain": edge, "error": 0.0012, "freedom": 29, "low": edge - 0.0024, "high": edge + 0.0024}
    test = {
        **scores(0.0),
        "first": "2026-10-20",
        "last": "2026-11-19",
        "cells": 30,
        "cell": "1 day",
        "intervals": {"auc": [0.51, 0.55], "log_loss": [score - 0.002, score + 0.002]},
        "baselines": {"logistic": scores(-0.01), "persistence": scores(-0.02)},
        "better": {"logistic": {"log_loss": gain}, "persistence": {"log_loss": {**gain, "gain": edge + 0.001}}},
        "trading": {
            "bars": 43_200, "net": edge * 20, "low": edge * 20 - 0.05, "high": edge * 20 + 0.05, "gross": 0.2,
            "turnover": 80.0, "exposure": 0.5, "hold": 0.05, "beyond_low": -0.1, "beyond_high": 0.1,
            "sharpe": edge, "skew": 0.0, "kurtosis": 3.5, "fee": 0.001, "slippage": 0.0005,
        },
    }  # fmt: skip
    return {
        **named(symbol),
        "family": "lstm",
        "target": "direction",
        "key": f"models/experiments/AROA1:i-2/{RUN}/2/{model_name(place)}.safetensors",
        "version_id": "v1",
        "sha256": "ab" * 32,
        "metrics": {"about": ABOUT, "validation": scores(0.001), "test": test},
    }


def planted_events(models: int, *, epochs: int, seed: int = 1) -> Iterator[bytes]:
    """Yield the lines of a training of so many models on four GPUs."""
    draw = random.Random(seed)
    for place in range(models):
        symbol, level, name = (
            f"SYM{place:04d}-USD",
            draw.gauss(0.69, 0.002),
            f"lstm-direction_SYM{place:04d}-USD_1m",
        )
        for epoch in range(1, epochs + 1):
            loss = level - 0.01 * (1 - math.exp(-epoch / 4))
            yield _line(
                "epoch", SECONDS * epoch / epochs, model=name, piece=symbol, epoch=epoch, train_loss=loss - 0.0006 * epoch,
                validation_loss=loss + 0.00004 * epoch**2 + draw.gauss(0, 0.0004),
            )  # fmt: skip
    for moment in range(100, SECONDS, 30):
        rate = 41_000 + 3_000 * math.sin(moment / 300) if not 2_000 < moment < 2_300 else 0.0
        yield _line(
            "progress", moment, model="lstm-direction_SYM0000-USD_1m", piece="SYM0000-USD", epoch=1, epochs=epochs,
            step=1, steps=9, loss=0.7, rate=rate, unit="windows", worker=0,
        )  # fmt: skip
        for gpu in range(4):
            use = 93 + draw.gauss(0, 2) if rate else 0.0
            figures = {
                "use_percent": use,
                "memory_used_mib": 9_000 + 400 * gpu,
                "memory_mib": 23_028,
                "power_watts": 80 + use,
            }
            yield _line("gpu", moment, gpu=gpu, sample=moment, **figures)


def _line(event: str, seconds: float, **fields: Any) -> bytes:
    return json.dumps(
        {"event": event, "time": (at(300) + timedelta(seconds=seconds)).isoformat(), **fields}
    ).encode()


def planted_curves(models: int, *, epochs: int = 20) -> RunCurves:
    record = planted_record()
    lines = b"\n".join(planted_events(models, epochs=epochs))
    assert record.closed_at is not None
    return curves_of([("", lines)], begin=record.preflight_at, end=record.closed_at)


def planted_receipt(models: list[dict[str, Any]]) -> Receipt:
    end = SECONDS + 860
    phases = {
        "boot": at(2_040),
        "stage": at(2_180),
        "train": at(2_250),
        "upload": at(end - 40),
        "end": at(end),
    }
    data = {"files": [], "bars": 3_700_000, "holes": 12, "synthetic": False}
    result = NodeResult(
        state="done", models=tuple(models), phases=phases, data=data, devices={"found": 4, "kind": "gpu"}
    )
    return make_receipt(planted_record([one["piece"] for one in models]), Observation(result=result))


def planted_cards(models: list[dict[str, Any]], *, most: int = 60) -> dict[str, ReadCard]:
    draw, days = random.Random(3), [at(86_400 * day).timestamp() for day in range(30)]
    forecast = [0.44 + 0.012 * group for group in range(10)]
    return {
        one["key"]: ReadCard(
            reliability={
                "up": {
                    "n": [4_320] * 10, "forecast": forecast, "happened": [x + draw.gauss(0, 0.01) for x in forecast],
                    "low": [x - 0.02 for x in forecast], "high": [x + 0.02 for x in forecast],
                }
            },
            begins=days,
            net=[draw.gauss(0.002, 0.01) for _ in days],
        )
        for one in models[:most]
    }  # fmt: skip


def planted_report(number: int, *, epochs: int = 20, names: str = "SYM{0:04d}-USD") -> dict[str, Any]:
    """Return the data of a report of so many models."""
    models = planted_models(number, names=names)
    receipt = planted_receipt(models)
    beat = Heartbeat(
        instance_id="i-1",
        at=at(1_990),
        lease_until=at(2_100),
        phases={"boot": at(20), "stage": at(150), "train": at(230)},
    )
    last = NodeResult(
        state="done",
        phases={
            "stage": at(2_180),
            "train": at(2_250),
            "upload": at(SECONDS + 820),
            "end": at(SECONDS + 860),
        },
    )
    known = Seen(
        manifest=manifest(),
        reports={1: Observation(heartbeat=beat), 2: Observation(result=last)},
        curves=planted_curves(number, epochs=epochs),
        cards=planted_cards(models),
        production={models[0]["key"]: InProduction(name="crypto/a", metrics=models[-1]["metrics"])},
    )
    return report_data(receipt, planted_record([one["piece"] for one in models]), known)
