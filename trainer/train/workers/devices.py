"""Which devices there are, and which worker gets which: `cpu`, or one of `cuda:0`, `cuda:1` ... each."""

from __future__ import annotations

import torch

from trainer.errors import UsageError
from trainer.train.cpu import num_cores


def device_kind(choice: str) -> str:
    """Return `cuda` or `cpu` for the user's choice; auto takes a GPU if there is one. Raises UsageError for a missing GPU."""
    available = torch.cuda.is_available()
    if choice == "cuda" and not available:
        raise UsageError(
            "--device cuda, but torch finds no GPU here", do="Take --device cpu, or check `nvidia-smi` and the torch build."
        )
    return "cuda" if available and choice != "cpu" else "cpu"


def default_workers(kind: str) -> int:
    """Return one worker for each GPU, or for each core."""
    return torch.cuda.device_count() if kind == "cuda" else num_cores()


def device_of(kind: str, worker: int) -> str:
    """Return the device of a worker; more workers than GPUs share them in turn."""
    return f"cuda:{worker % torch.cuda.device_count()}" if kind == "cuda" else "cpu"
