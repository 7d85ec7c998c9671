"""Checkpoints that the ranks of a machine write together: each its shard, then rank 0 the manifest.

A tensor that all ranks have is written by one of them, a divided one (FSDP2's) by each rank its rows. Of
several machines the first writes all, since FSDP2 divides within each, and the others receive what they
resume from. `trainer.train.checkpoint` reads and joins the parts, so that any number of ranks can resume;
reading needs no other rank. See docs/adr/0019-shards-without-a-pickle.md.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainer.base.strict_json import Unsound, read_object
from trainer.train.checkpoint import (
    checkpoint_folder,
    drop_old,
    manifest_of,
    removed_if_refused,
    tensors_of_checkpoint,
)
from trainer.train.checkpoint_files import Chunk, Made, StoredTensor, write_tensors
from trainer.train.packs.pack import ModelState
from trainer.train.packs.tensors import is_divided
from trainer.train.ranks.group import Ranks
from trainer.train.run import Run
from trainer.train.stages import DOCUMENT

BLOCK = 16 << 20  # bytes that travel at once
MOST_TOLD, MOST_SHARDS = 1 << 20, 4_096
STEP, FILE = "[0-9]{12}", r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}"


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
    for number, (name, tensor) in enumerate(tensors.items() if ranks.writes else ()):
        if is_divided(tensor):
            part: torch.Tensor = tensor.to_local()  # type: ignore[attr-defined]
            if len(part):  # a rank may have no row of it
                parts[name] = part
        elif ranks.is_first if name == DOCUMENT else number % ranks.per_node == ranks.rank:
            parts[name] = tensor
    shard = f"shard-{ranks.rank + 1}-of-{ranks.per_node}.safetensors"
    written: dict[str, Any] = {"shard": shard, "error": ""}
    try:
        if ranks.writes:
            written["sha256"] = write_tensors(place / shard, parts)
    except OSError as error:
        written["error"] = f"rank {ranks.rank}: {error}"
    written["sizes"] = {name: list(part.shape) for name, part in parts.items()}
    all_written = [json.loads(text) for text in ranks.texts(json.dumps(written))[: ranks.per_node]]
    with removed_if_refused(place) if ranks.is_first else nullcontext():
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


def spread(newest: Path | None, folder: Path, *, ranks: Ranks) -> None:
    """Give every other machine rank 0's newest checkpoint of a piece, in `folder`, in the place of its own.

    All ranks receive it, and the first of each machine writes it.
    """
    files = [] if newest is None else sorted(path for path in newest.iterdir() if path.is_file())
    sizes = {path.name: path.stat().st_size for path in files}
    own = {"folder": newest.name if newest else "", "files": sizes}
    told = read_object(
        ranks.texts(json.dumps(own if ranks.is_first else {}))[0].encode(),
        most_bytes=MOST_TOLD,
        name="a list",
    )
    receives = not ranks.writes and ranks.rank % ranks.per_node == 0
    if receives:
        shutil.rmtree(folder, ignore_errors=True)
    if not (name := told.text("folder", pattern=STEP)):
        ranks.any(False)
        return
    into = folder / name
    for file, size in told.table("files", most=MOST_SHARDS).values.items():
        if not re.fullmatch(FILE, file):
            raise Unsound(f"a file of a checkpoint is named {file[:80]!r}")
        source = (newest / file).open("rb") if newest is not None else nullcontext()
        into.mkdir(parents=True, exist_ok=True) if receives else None
        target = (into / file).open("wb") if receives else nullcontext()
        with source as reading, target as writing:
            for first in range(0, int(size), BLOCK):
                count = min(BLOCK, int(size) - first)
                block = torch.zeros(count, dtype=torch.uint8)
                if reading is not None:
                    block = torch.frombuffer(bytearray(reading.read(count)), dtype=torch.uint8)
                ranks.from_first(block)
                if writing is not None:
                    writing.write(block.numpy().data)
    ranks.any(False)  # no rank reads before all is there


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
