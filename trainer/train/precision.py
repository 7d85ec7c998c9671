"""The number format of matrix products: the job's, else by chip. Weights, moments and losses are always
float32.

The default is bf16 from compute capability 8.0 on (for an LSTM only if cuDNN has one in bf16) and fp16 with a
scaled loss below; fp32 on a CPU, for a narrow LSTM, which is faster in it, for a module of the user's own,
and for agents, whose loss is a ratio of probabilities.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from trainer.base import environment
from trainer.base.errors import UsageError
from trainer.base.settings import RECURRENT
from trainer.job.job import Job
from trainer.machines.kernels import half_pays

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# torch.amp.GradScaler's defaults (torch 2.13): the first scale of a loss, and the steps after which it grows.
FIRST_SCALE = 65536.0
GROWTH_STEPS = 2000
# First cuDNN with an LSTM in bf16 (https://github.com/pytorch/pytorch/pull/164411); without one torch runs a
# bf16 layer step by step. MIOpen has none (`use_miopen` in torch's aten/src/ATen/native/RNN.cpp, read
# 2026-11-21).
_CUDNN_OF_BF16_RECURRENCE = 91300
# An LSTM is deterministic only with this (https://docs.pytorch.org/docs/2.12/cudnn_rnn_determinism.html,
# 2026-11-21). It costs 8 MiB for each thread and stream that multiplies, torch's default on Hopper 32.
# `Streams` uses two threads a stream.
_CUBLAS_WORKSPACE = ":4096:2"


def matmul_dtype(job: Job, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products. Raises UsageError for one that the device lacks."""
    if job.train.precision != "auto":
        if job.train.precision == "fp16" and device.type == "cpu":
            raise UsageError(
                "precision fp16 on a CPU",
                why="it has no fp16 units",
                do="Set train.precision to bf16, or leave it auto.",
            )
        if job.train.precision == "bf16" and device.type == "cuda" and not _has_bf16():
            raise UsageError(
                "precision bf16 on a GPU without bf16", do="Leave train.precision auto, or set fp16 or fp32."
            )
        recurrent = device.type == "cpu" and job.cost.kernel == RECURRENT
        if job.train.precision == "bf16" and recurrent and not cpu_has_bf16_recurrence():
            raise UsageError(
                "precision bf16 on this CPU",
                why="oneDNN has no recurrent layer in bf16 for a CPU without AVX-512",
                do="Leave train.precision auto, or set fp32.",
            )
        return DTYPES[job.train.precision]
    if device.type == "cpu" or job.model.is_any_module or job.target.acts or not half_pays(job.cost):
        return torch.float32
    if _has_bf16() and (job.cost.kernel != RECURRENT or _has_bf16_recurrence()):
        return torch.bfloat16
    return torch.float16


def precision_of(job: Job, device: torch.device) -> str:
    """Return the name of the number format that `matmul_dtype` has: fp32, bf16 or fp16."""
    dtype = matmul_dtype(job, device)
    return next(name for name, known in DTYPES.items() if known == dtype)


def _has_bf16() -> bool:
    # Emulated bf16 is slower than fp16:
    # https://docs.pytorch.org/docs/stable/generated/torch.cuda.is_bf16_supported.html
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def cpu_has_bf16_recurrence() -> bool:
    """Return whether an LSTM runs in bf16 on this CPU. Without oneDNN torch has its own, for any CPU."""
    is_there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return not is_there or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _has_bf16_recurrence() -> bool:
    version = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return version is not None and version >= _CUDNN_OF_BF16_RECURRENCE


def resolve_precision(job: Job, device: torch.device) -> torch.dtype:
    """Make this process's sums deterministic, turn TF32 off, and return `matmul_dtype`.

    Call it before the first product on a GPU. By default cuDNN computes an fp32 LSTM or convolution in TF32,
    which keeps three digits: strategies would not agree
    (https://docs.pytorch.org/docs/stable/notes/cuda.html, 2026-11-21).
    """
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False
        environment.set_cublas_workspace(_CUBLAS_WORKSPACE)
    return matmul_dtype(job, device)


def autocast(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """Return a context that runs matrix products in `dtype`. Casts are not cached, so that a recorded graph
    has them all.
    """
    if dtype == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=dtype, cache_enabled=False)


def first_scale(dtype: torch.dtype) -> float:
    """Return the first scale of a loss: 1 except for fp16, in which small gradients would vanish."""
    return FIRST_SCALE if dtype == torch.float16 else 1.0
