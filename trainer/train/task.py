"""The two ends of one model's training: candles read and prepared before, scores, model file and card after.

Runs inside a worker; `loop.py` is the training itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import trainer
from trainer.artifacts.card import Card, read_card
from trainer.artifacts.names import ModelName
from trainer.artifacts.weights import save
from trainer.code_files import training_sha256
from trainer.config import Job
from trainer.data.features import FEATURES, FEATURES_VERSION
from trainer.data.streams import StreamData
from trainer.data.windows import SymbolData
from trainer.errors import DataError, TrainingFailed
from trainer.models.families import architecture_of
from trainer.train.evaluation import evaluate
from trainer.train.loop import Run, labels_at
from trainer.train.packs.pack import Member
from trainer.train.precision import matmul_dtype
from trainer.train.score import INPUT_LIMIT, Evaluator, metrics, probabilities_of
from trainer.train.source import Source, read_source
from trainer.train.volatility import stream_run, stream_scores


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model to train, and the estimate (windows to visit) that orders the queue."""

    symbol: str
    family: str
    timeframe: str
    estimate: int
    seed: int
    fold: int = 1  # of the job's, oldest first
    files: tuple[str, ...] = ()  # that hold the symbol's candles, if that is known
    threads: int = 1  # to train with on a CPU; `station.threads_of`
    source_gib: float = 0.0  # of host memory that reading its symbol takes; `source.source_gib`
    several: bool = False  # whether the job makes other models of the symbol, so that the name tells fold and seed

    @property
    def name(self) -> ModelName:
        """Return the model's name in its parts."""
        numbers = {"fold": self.fold, "seed": self.seed} if self.several else {}
        return ModelName(family=self.family, symbol=self.symbol, timeframe=self.timeframe, **numbers)

    @property
    def model(self) -> str:
        """Return the model's name."""
        return str(self.name)

    @property
    def identity(self) -> dict[str, Any]:
        """Return what an event says of whom it is about."""
        return {"model": self.model, "symbol": self.symbol, "fold": self.fold, "seed": self.seed}


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A task whose data lies on the device, ready to train."""

    task: Task
    run: Run
    source: Source

    @property
    def symbol_data(self) -> SymbolData:
        """Return the data of the task's fold."""
        return self.source.folds[self.task.fold - 1]


def source_of(task: Task, job: Job, *, data: Path) -> Source:
    """Read and prepare what all models of the task's symbol share, on the CPU.

    Raises DataError when its bars can't be trained on.
    """
    return read_source(task.symbol, task.timeframe, job, folder=data, code_sha256=training_sha256(), files=task.files)


def open_task(task: Task, job: Job, source: Source) -> Opened:
    """Make a task ready to train on its fold of a source."""
    data = source.folds[task.fold - 1]
    draws = task.name.stem
    if isinstance(data, StreamData):
        run = stream_run(task.model, task.symbol, data, job, seed=task.seed, draws=draws)
        return Opened(task=task, run=run, source=source)
    member = Member(
        name=task.model,
        rows_TF=data.rows_TF,
        labels_T=data.labels_T,
        mean_F=data.mean_F,
        std_F=data.std_F,
        seed=task.seed,
        draws=draws,
    )
    run = Run(member=member, symbol=task.symbol, starts=data.starts, learning_rate=job.learning_rate)
    return Opened(task=task, run=run, source=source)


def kept(opened: Opened, *, out: Path) -> dict[str, Any] | None:
    """Return the `model_done` event of a model that an earlier run of the same job, data and code left in `out`; else None."""
    file = out / f"{opened.task.model}.safetensors"
    try:
        card = read_card(file)
    except DataError:  # none there, or a spoilt one
        return None
    if card.data.get("fingerprint") != opened.source.mark:
        return None
    return _done(opened.task, file.name, hashlib.sha256(file.read_bytes()).hexdigest(), card.metrics)


def close_task(
    opened: Opened, model: torch.nn.Module, job: Job, *, out: Path, device: str, choice: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Score a trained model once and write it to `out`; return its `model_done` event. The card keeps `choice` as it is.

    Raises TrainingFailed when training did not come to a finite loss.
    """
    task, run = opened.task, opened.run
    if run.failure:
        raise TrainingFailed(f"{task.model} did not train", why=run.failure, do="Lower learning_rate or clip_norm.")
    data = opened.symbol_data
    scores = stream_scores(model, data, job) if isinstance(data, StreamData) else _scores(model, opened, job)
    file = f"{task.model}.safetensors"
    sha256 = save(out / file, run.best_weights, _card(opened, job, scores, device, choice or {}))
    return _done(task, file, sha256, scores)


def _done(task: Task, file: str, sha256: str, scores: dict[str, dict[str, Any]]) -> dict[str, Any]:
    found = {"family": task.family, "file": file, "sha256": sha256, "metrics": scores}
    return {"event": "model_done", **task.identity, **found}


def _scores(model: torch.nn.Module, opened: Opened, job: Job) -> dict[str, dict[str, Any]]:
    """Score validation plainly, and the test span, this once, beside its baselines and with intervals."""
    member, run = opened.run.member, opened.run
    evaluator = Evaluator(rows_TF=member.rows_TF, mean_F=member.mean_F, std_F=member.std_F, lookback=job.lookback)
    validation, test = (probabilities_of(evaluator.logits(model, run.starts[span])) for span in ("validation", "test"))
    return {
        "validation": metrics(validation, labels_at(member.labels_T, run.starts["validation"], job.lookback)),
        "test": evaluate(
            test,
            opened.symbol_data,
            opened.source.close,
            lookback=job.lookback,
            horizon=job.horizon,
            span="test",
            forecasts=opened.source.baselines(opened.task.fold, job),
        ),
    }


def _card(opened: Opened, job: Job, scores: dict[str, dict[str, Any]], device: str, choice: Mapping[str, Any]) -> Card:
    task, run, symbol_data = opened.task, opened.run, opened.symbol_data
    settings = (
        *("epochs", "batch", "learning_rate", "warmup_steps", "schedule", "weight_decay", "clip_norm", "ema", "patience"),
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
            "choice": dict(choice),
            "precision": str(matmul_dtype(job, torch.device(device))).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
        data={**opened.source.data, "ties": symbol_data.ties, "fingerprint": opened.source.mark},
        code_sha256=training_sha256(),
        seed=task.seed,
        fold=task.fold,
        folds=job.folds,
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
