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

HELD_OUT = "held-out/"  # begins the names of a held-out twin's tensors in the file of its refit


def weights_sha256(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the hash of a network's tensors by name: that of a held-out twin in its refit's card."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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


def load_tensors(path: Path, *, held_out: bool = False) -> dict[str, torch.Tensor]:
    """Return the tensors of a model file, on the CPU, without its card; with `held_out` those of a refit's
    twin by their own names. Raises DataError.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            names = [name for name in list(file.keys()) if name.startswith(HELD_OUT) == held_out]
            return {name.removeprefix(HELD_OUT): file.get_tensor(name) for name in names}
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise DataError(
            f"{path} is not a whole model file", why=str(error), do="Fetch the model again."
        ) from error
