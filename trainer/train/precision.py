"""In which numbers a model is multiplied: by the job's word, else by the chip. Weights, moments and losses are always float32.

bf16 from compute capability 8.0 on, fp16 with a scaled loss below, fp32 on a CPU unless bf16 is asked for.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from trainer.config import Job
from trainer.errors import UsageError

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# torch.amp.GradScaler's own numbers (torch 2.13): where a scaled loss begins, and after how many steps it dares more.
FIRST_SCALE = 65536.0
GROWTH_STEPS = 2000


def matmul_dtype(job: Job, device: torch.device) -> torch.dtype:
    """Return the numbers for matrix products. Raises UsageError for fp16 on a CPU, where nothing would be won."""
    if job.precision != "auto":
        if job.precision == "fp16" and device.type == "cpu":
            raise UsageError(
                "precision fp16 on a CPU", why="it has no fp16 units", do="Set precision to bf16, or leave it auto."
            )
        return _DTYPES[job.precision]
    if device.type == "cpu":
        return torch.float32
    # Emulated bf16 is slower than fp16: https://docs.pytorch.org/docs/stable/generated/torch.cuda.is_bf16_supported.html
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def settle_precision(job: Job, device: torch.device) -> torch.dtype:
    """Return `matmul_dtype`, and hold this process to it: left alone, cuDNN takes an LSTM's or convolution's fp32 for TF32.

    TF32 keeps three digits, and strategies would not agree (https://docs.pytorch.org/docs/stable/notes/cuda.html, 2026-11-21).
    """
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    return matmul_dtype(job, device)


def autocast(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """Run matrix products in `dtype`. Casts are not cached, so that a recorded graph holds them all."""
    if dtype == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=dtype, cache_enabled=False)


def first_scale(dtype: torch.dtype) -> float:
    """Return the factor that a loss begins with: small gradients would vanish in fp16, and in no other."""
    return FIRST_SCALE if dtype == torch.float16 else 1.0
