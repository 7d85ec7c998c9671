"""The two ends of one model's training: candles read and prepared before, scores, model file and card after.

Runs inside a worker; `loop.py` is the training itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import torch

import trainer
from trainer.artifacts.card import Card
from trainer.artifacts.weights import save
from trainer.config import Job
from trainer.data.candles import Candles, read_candles, time_text
from trainer.data.features import FEATURES, FEATURES_VERSION
from trainer.data.streams import StreamData, prepare_stream
from trainer.data.windows import SymbolData, prepare
from trainer.errors import TrainingFailed
from trainer.models.families import architecture_of
from trainer.train.checkpoint import fingerprint
from trainer.train.loop import Run, labels_at
from trainer.train.pack import Member
from trainer.train.precision import matmul_dtype
from trainer.train.score import INPUT_LIMIT, Evaluator, metrics, probabilities_of
from trainer.train.volatility import stream_run, stream_scores


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model to train, and the estimate (windows to visit) that orders the queue."""

    symbol: str
    family: str
    timeframe: str
    estimate: int

    @property
    def model(self) -> str:
        """Return the model's name, `<family>_<SYMBOL>_<timeframe>`."""
        return f"{self.family}_{self.symbol}_{self.timeframe}"


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A task whose data lies on the device, ready to train; and what its card will say about that data."""

    task: Task
    run: Run
    symbol_data: SymbolData
    data: dict[str, Any]
    mark: str  # what a checkpoint of this training belongs to


def open_task(task: Task, job: Job, *, data: Path, device: str) -> Opened:
    """Read and prepare one model's data. Raises DataError when its bars can't be trained on."""
    candle_set = read_candles(data, symbols=(task.symbol,), timeframe=task.timeframe, bars=job.bars)
    candles = candle_set.symbols[task.symbol]
    symbol_data = (prepare_stream if job.model == "tcn" else prepare)(candles, job, device=device)
    return Opened(
        task=task,
        run=_run(task, symbol_data, job),
        symbol_data=symbol_data,
        data={
            "files": [{"file": read.file, "bars": read.bars} for read in candle_set.files],
            "bars": len(candles),
            "first": time_text(candles.timestamp[0]),
            "last": time_text(candles.timestamp[-1]),
            "holes": symbol_data.holes,
            "ties": symbol_data.ties,
            "synthetic": candle_set.synthetic,
        },
        mark=fingerprint(job, data=_columns(candles), code_sha256=code_sha256()),
    )


def close_task(opened: Opened, model: torch.nn.Module, job: Job, *, out: Path, device: str) -> dict[str, Any]:
    """Score a trained model once and write it to `out`; return its `model_done` event.

    Raises TrainingFailed when training did not come to a finite loss.
    """
    task, run = opened.task, opened.run
    if run.failure:
        raise TrainingFailed(f"{task.model} did not train", why=run.failure, do="Lower learning_rate or clip_norm.")
    symbol_data = opened.symbol_data
    scores = stream_scores(model, symbol_data, job) if isinstance(symbol_data, StreamData) else _scores(model, run, job)
    file = f"{task.model}.safetensors"
    sha256 = save(out / file, run.best_weights, _card(opened, job, scores, device))
    return {
        "event": "model_done",
        "model": task.model,
        "symbol": task.symbol,
        "family": task.family,
        "file": file,
        "sha256": sha256,
        "metrics": scores,
    }


def _columns(candles: Candles) -> dict[str, bytes]:
    names = ("timestamp", "open", "high", "low", "close", "volume")
    return {name: getattr(candles, name).tobytes() for name in names}


def _run(task: Task, symbol_data: SymbolData, job: Job) -> Run:
    if isinstance(symbol_data, StreamData):
        return stream_run(task.model, task.symbol, symbol_data, job, seed=job.seed)
    member = _member(task, symbol_data, job)
    return Run(member=member, symbol=task.symbol, starts=symbol_data.starts, learning_rate=job.learning_rate)


def _member(task: Task, symbol_data: SymbolData, job: Job) -> Member:
    return Member(
        name=task.model,
        rows_TF=symbol_data.rows_TF,
        labels_T=symbol_data.labels_T,
        mean_F=symbol_data.mean_F,
        std_F=symbol_data.std_F,
        seed=job.seed,
    )


def _scores(model: torch.nn.Module, run: Run, job: Job) -> dict[str, dict[str, Any]]:
    member = run.member
    evaluator = Evaluator(rows_TF=member.rows_TF, mean_F=member.mean_F, std_F=member.std_F, lookback=job.lookback)
    scores = {}
    for span in ("validation", "test"):
        chances = probabilities_of(evaluator.logits(model, run.starts[span]))
        scores[span] = metrics(chances, labels_at(member.labels_T, run.starts[span], job.lookback))
    return scores


def _card(opened: Opened, job: Job, scores: dict[str, dict[str, Any]], device: str) -> Card:
    task, run, symbol_data = opened.task, opened.run, opened.symbol_data
    settings = (
        *("epochs", "batch", "learning_rate", "warmup_steps", "schedule", "weight_decay", "clip_norm", "patience"),
        *(
            "strategy",
            "pack",
            "micro_batch",
            "activation_checkpointing",
        ),  # how fast, not what: the tuner's choice, 0 the default
    )
    return Card(
        model=task.model,
        family=task.family,
        symbol=task.symbol,
        timeframe=task.timeframe,
        architecture=architecture_of(job, num_features=len(FEATURES)),
        features=list(FEATURES),
        features_version=FEATURES_VERSION,
        lookback=job.bars_seen,
        horizon=symbol_data.horizon_bars if isinstance(symbol_data, StreamData) else job.horizon,
        calendar=symbol_data.calendar,
        # float32 values written as float64 text: reading them back gives the same float32. The limit is in deviations.
        scaler={
            "mean": symbol_data.mean_F.tolist(),
            "std": symbol_data.std_F.tolist(),
            "limit": INPUT_LIMIT,
            **_label(symbol_data),
        },
        splits=symbol_data.splits(),
        metrics=scores,
        training={
            **{name: getattr(job, name) for name in settings},
            "epochs_run": run.epoch,
            "best_epoch": run.best_epoch,
            "final_learning_rate": run.learning_rate,
            "lowered": run.lowered,
            "history": run.history,
            "device": device,
            "precision": str(matmul_dtype(job, torch.device(device))).removeprefix("torch."),
            "torch": torch.__version__,
        },
        data=opened.data,
        code_sha256=code_sha256(),
        seed=job.seed,
        created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        mayfly=trainer.__version__,
    )


def _label(symbol_data: SymbolData) -> dict[str, Any]:
    """Return what turns a volatility model's output into a log: its label's scale; nothing for a model of classes."""
    if not isinstance(symbol_data, StreamData):
        return {}
    return {
        "label_mean": symbol_data.label_mean,
        "label_std": symbol_data.label_std,
        "horizon_sessions": symbol_data.horizon_sessions,
    }


@cache
def code_sha256() -> str:
    """Return the hash of the package's Python files, names and content, in the order of their names."""
    root = Path(trainer.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
