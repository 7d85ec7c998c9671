"""Read and write model files: safetensors with the card inside, and a JSON copy of the card. Loading runs no
code.

On disk only; the node and the registry handle S3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from trainer.base.errors import DataError
from trainer.base.files import whole_file
from trainer.store.card import METADATA_KEY, Card, read_card


def save(path: Path, tensors: Mapping[str, torch.Tensor], card: Card) -> str:
    """Write model and card, each atomically; return the model file's sha256.

    The card's JSON copy (`<name>.json`) is written before the model, so that a reader of the model finds
    both.
    """
    content = safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        metadata={METADATA_KEY: card.to_json()},
    )
    with whole_file(path.with_suffix(".json")) as partial:
        partial.write_text(card.to_json(indent=2) + "\n", encoding="utf-8")
    with whole_file(path) as partial:
        partial.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def load(path: Path) -> tuple[dict[str, torch.Tensor], Card]:
    """Return the tensors of a model file, on the CPU, and its card. Raises DataError if it is missing,
    truncated or foreign.
    """
    card = read_card(path)
    return load_tensors(path), card


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a model file, on the CPU, without its card. Raises DataError."""
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise DataError(
            f"{path} is not a whole model file", why=str(error), do="Fetch the model again."
        ) from error
