"""Model files: safetensors with the card inside, a JSON copy of the card beside. Loading runs no code.

Owns reading and writing on disk; S3 is left to the node and the registry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from trainer.artifacts.card import METADATA_KEY, Card, read_card
from trainer.errors import DataError
from trainer.whole_file import whole_file


def save(path: Path, tensors: Mapping[str, torch.Tensor], card: Card) -> str:
    """Write model and card, each atomically; return the model file's sha256.

    The card's JSON copy (`<name>.json`) is written before the model, so that a reader of the model finds both.
    """
    content = safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, metadata={METADATA_KEY: card.to_json()}
    )
    with whole_file(path.with_suffix(".json")) as partial:
        partial.write_text(card.to_json(indent=2) + "\n", encoding="utf-8")
    with whole_file(path) as partial:
        partial.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def load(path: Path) -> tuple[dict[str, torch.Tensor], Card]:
    """Read a model file into tensors on the CPU and its card. Raises DataError when it is missing, cut short or foreign."""
    card = read_card(path)
    return load_tensors(path), card


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a model file onto the CPU; its card was read before. Raises DataError."""
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path} is not a whole model file", why=str(error), do="Fetch the model again.") from error
