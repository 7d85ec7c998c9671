"""A kind of piece from outside: a script for each symbol, which keeps the mean close. Its first worker is
killed.
"""

import os
import signal
from dataclasses import replace

import torch

from trainer.job.pieces.piece import Kind
from trainer.job.pieces.symbol import SYMBOL
from trainer.train.runner import RunnerResult


def run(piece, job, data):
    close = data.read(piece.series[0], job).close
    return RunnerResult(weights={"mean": torch.tensor([close.mean()])}, metrics={"test": {"n": len(close)}})


def run_killed_once(piece, job, data):
    here = data.parts[piece.series[0]][0].path.parent
    if not (here / "killed").exists():
        (here / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return run(piece, job, data)


def pieces(job, series, timeframe):
    runner = {"kind": "script", "runner": f"{__name__}:run_killed_once"}
    return tuple(
        replace(one, name=f"script_{one.title}", **runner) for one in SYMBOL.pieces(job, series, timeframe)
    )


SCRIPT = Kind(name="script", takes=lambda job: job.name == "scripts", pieces=pieces)
