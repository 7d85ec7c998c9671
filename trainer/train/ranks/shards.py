"""Checkpoints that several ranks write together: each rank its shard, then rank 0 the manifest.

A tensor that all ranks have is written by one of them, a divided one (FSDP2's) by each rank its rows.
`trainer.train.checkpoint` reads and joins the parts, so that any number of ranks can resume; reading needs no
other rank. See docs/adr/0019-shards-without-a-pickle.md.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainer.train.checkpoint import checkpoint_folder, drop_old, manifest_of, tensors_of_checkpoint
from trainer.train.checkpoint_files import Chunk, Made, StoredTensor, write_tensors
from trainer.train.packs.pack import ModelState
from trainer.train.packs.tensors import is_divided
from trainer.train.ranks.group import Ranks
from trainer.train.run import Run
from trainer.train.stages import DOCUMENT


def write_shards(
    folder: Path, run: Run, state: ModelState, made: Made, *, choice: Mapping[str, Any], ranks: Ranks
) -> Path:
    """Write a checkpoint together with the other ranks, as `checkpoint.write` does alone; return its folder.

    If a rank's disk refuses, all ranks raise OSError.
    """
    place, tensors = checkpoint_folder(folder, run, state), tensors_of_checkpoint(run, state)
    if ranks.is_first:
        shutil.rmtree(place, ignore_errors=True)  # what a killed writer left there
    ranks.any(False)  # waits for all: no rank writes before it is empty
    parts = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        if is_divided(tensor):
            part: torch.Tensor = tensor.to_local()  # type: ignore[attr-defined]
            if len(part):  # a rank may have no row of it
                parts[name] = part
        elif ranks.is_first if name == DOCUMENT else number % ranks.count == ranks.rank:
            parts[name] = tensor
    written: dict[str, Any] = {"shard": f"shard-{ranks.rank + 1}-of-{ranks.count}.safetensors", "error": ""}
    try:
        place.mkdir(parents=True, exist_ok=True)
        written["sha256"] = write_tensors(place / written["shard"], parts)
    except OSError as error:
        written["error"] = f"rank {ranks.rank}: {error}"
    written["sizes"] = {name: list(part.shape) for name, part in parts.items()}
    all_written = [json.loads(text) for text in ranks.texts(json.dumps(written))]
    if errors := [one["error"] for one in all_written if one["error"]]:
        raise OSError("; ".join(errors))
    if ranks.is_first:
        manifest = replace(
            manifest_of(run, state, made, choice=choice),
            shards={one["shard"]: one["sha256"] for one in all_written},
            tensors={name: _stored(name, tensor, all_written) for name, tensor in tensors.items()},
        )
        manifest.write(place)
        drop_old(place)
    return place


def _stored(name: str, tensor: torch.Tensor, written: Sequence[Mapping[str, Any]]) -> StoredTensor:
    """Return the manifest entry of a tensor. FSDP2 divides its rows, in the order of the ranks."""
    chunks, first = [], 0
    for one in written:
        if name in one["sizes"]:
            sizes = tuple(one["sizes"][name])
            offsets = (first, *[0] * len(sizes))[: len(sizes)]
            chunks.append(Chunk(shard=one["shard"], offsets=offsets, sizes=sizes))
            first += sizes[0] if sizes else 0
    return StoredTensor(dtype=tensor.dtype, shape=tuple(tensor.shape), chunks=tuple(chunks))
