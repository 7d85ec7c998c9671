"""The files of one checkpoint: safetensors with the tensors, and `manifest.json`, which is written last and
read strictly.

    <shard>.safetensors    the tensors, or the parts of them that one rank holds
    manifest.json        position of the run, the shard and box of each tensor's chunks, and each shard's hash

No pickle: reading a checkpoint runs no code. It is accepted only if the manifest is sound, every shard has
the hash in the manifest, and the chunks of every tensor cover it exactly once. `trainer.train.checkpoint`
writes and deletes checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

import safetensors
import torch

from trainer.base.files import open_plain, read_plain, whole_file
from trainer.base.strict_json import MOST_TEXT, Fields, Unsound, Value, read_object
from trainer.train.off_device import contents

FORMAT = 3
MANIFEST = "manifest.json"
MOST_BYTES = 64 * 2**20  # of a manifest
MOST_SHARDS, MOST_DIMENSIONS = 1024, 16
# safetensors' names; a user's buffer of any other type is refused before training
# (`train/own/probe_model.py`)
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.complex64: "C64",
}
_TYPES = {name: dtype for dtype, name in DTYPES.items()}
_ENDLESS = ("inf", "-inf", "nan")  # JSON has no such numbers


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A box of a tensor, stored in one shard under the tensor's name."""

    shard: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Type, shape and chunks of a tensor of a checkpoint."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True)
class Made:
    """Versions and hashes that must be equal in a checkpoint and in the run that continues it."""

    torch: str  # version
    code: str  # that training reaches
    settings: str  # of the job, that determine the model
    data: str  # bars of its series, and their plan
    precision: str = ""  # of matrix products on the writer's device

    @property
    def fingerprint(self) -> str:
        """Return the hash by which a finished model is known; it counts in any precision."""
        parts = [self.torch, self.code, self.settings, self.data]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def difference(self, here: Made) -> str:
        """Describe how this writer differs from a run of `here`; empty if it does not."""
        words = {
            "torch": f"torch {self.torch} wrote it, this is {here.torch}",
            "precision": f"it was written in {self.precision}, this machine trains in {here.precision}",
            "code": f"other code of training wrote it ({self.code[:8]}, this is {here.code[:8]})",
            "settings": "it has other settings of the job",
            "data": "it has other bars",
        }
        return "; ".join(text for part, text in words.items() if getattr(self, part) != getattr(here, part))


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """The manifest of a checkpoint. `state` and `run` hold numbers, and lists of rows of numbers, by name."""

    model: str
    made: Made
    choice: Mapping[str, Any]
    state: Mapping[str, Any]
    run: Mapping[str, Any]
    shards: Mapping[str, str]  # sha256 by the file's name
    tensors: Mapping[str, StoredTensor]

    def write(self, place: Path) -> None:
        """Write manifest.json into the checkpoint's folder, which makes the checkpoint valid."""
        document = {
            "format": FORMAT,
            "model": self.model,
            "made": asdict(self.made),
            "choice": dict(self.choice),
            "state": {name: _plain(value) for name, value in self.state.items()},
            "run": {name: _plain(value) for name, value in self.run.items()},
            "shards": dict(self.shards),
            "tensors": [_row(name, stored) for name, stored in self.tensors.items()],
        }
        with whole_file(place / MANIFEST) as partial:
            partial.write_text(json.dumps(document, allow_nan=False), encoding="utf-8")


_MADE = tuple(field.name for field in fields_of(Made))


def read_manifest(place: Path) -> CheckpointManifest:
    """Read the manifest of a checkpoint. Raises Unsound if it is invalid, OSError if it can't be read."""
    body = read_plain(place / MANIFEST, most_bytes=MOST_BYTES)
    fields = read_object(body, most_bytes=MOST_BYTES, name=MANIFEST, most_number=sys.float_info.max)
    fields.whole("format", least=FORMAT, most=FORMAT)
    shards = {
        Value(name, "a shard").file_name(): value.sha256()
        for name, value in fields.table("shards").entries().items()
    }
    if len(shards) > MOST_SHARDS:
        raise Unsound(f"{MANIFEST} names {len(shards)} shards")
    made = fields.table("made")
    return CheckpointManifest(
        model=fields.text("model"),
        made=Made(**{part: made.text(part) for part in _MADE}),
        choice=fields.table("choice").values,
        state={name: _number_or_rows(value) for name, value in fields.table("state").entries().items()},
        run={name: _number_or_rows(value) for name, value in fields.table("run").entries().items()},
        shards=shards,
        tensors={
            row.text("name", most=MOST_TEXT): _stored(row, shards)
            for row in fields.rows("tensors", most=10**6)
        },
    )


def read_tensors(place: Path, manifest: CheckpointManifest) -> dict[str, torch.Tensor]:
    """Check the shards' hashes, then return every tensor by name, joined from its chunks, on the CPU.

    Raises Unsound for a damaged shard, OSError or SafetensorError for one that can't be read.
    """
    verify_shards(place, manifest)
    whole = {}
    for name, stored in manifest.tensors.items():
        if len(stored.chunks) == 1:
            whole[name] = read_chunk(place, name, stored.chunks[0], stored.dtype)
            continue
        whole[name] = torch.empty(stored.shape, dtype=stored.dtype)
        for chunk in stored.chunks:
            ends = map(sum, zip(chunk.offsets, chunk.sizes, strict=True))
            whole[name][tuple(map(slice, chunk.offsets, ends))] = read_chunk(place, name, chunk, stored.dtype)
    return whole


def verify_shards(place: Path, manifest: CheckpointManifest) -> None:
    """Raise Unsound if a shard's hash is not the manifest's, OSError if a shard is missing."""
    for shard, sha256 in manifest.shards.items():
        with open_plain(place / shard) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise Unsound(f"{shard} is not the file that {MANIFEST} names")


def read_chunk(place: Path, name: str, chunk: Chunk, dtype: torch.dtype) -> torch.Tensor:
    """Read a chunk of a tensor, on the CPU. Raises Unsound if the shard holds another type or shape under its
    name.
    """
    with safetensors.safe_open(place / chunk.shard, framework="pt") as file:
        tensor: torch.Tensor = file.get_tensor(name)
    if (tensor.dtype, tuple(tensor.shape)) != (dtype, chunk.sizes):
        raise Unsound(
            f"{name} in {chunk.shard} is {tensor.dtype} {tuple(tensor.shape)}, not {dtype} {chunk.sizes}"
        )
    return tensor


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> str:
    """Write a safetensors file tensor by tensor; return its sha256.

    safetensors' own writer first copies everything in memory under the interpreter's lock, which stops
    training: it lost 2.8 to 4.5 s of steps for 288 MB, this one 0.2 to 1.1 s (AMD EPYC, 2 busy cores,
    2026-11-21). Format: https://github.com/huggingface/safetensors#format.
    """
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        shape = list(tensor.shape)
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with whole_file(path) as partial, partial.open("wb") as file:
        for part in (len(text).to_bytes(8, "little"), text):
            file.write(part)
            digest.update(part)
        for content in contents(tensors.values()):
            file.write(content)
            digest.update(content)
    return digest.hexdigest()


def whole_in(shard: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, StoredTensor]:
    """Return the manifest entries of tensors that are stored undivided in one shard."""

    def stored(tensor: torch.Tensor) -> StoredTensor:
        shape = tuple(tensor.shape)
        chunk = Chunk(shard=shard, offsets=(0,) * len(shape), sizes=shape)
        return StoredTensor(dtype=tensor.dtype, shape=shape, chunks=(chunk,))

    return {name: stored(tensor) for name, tensor in tensors.items()}


def _row(name: str, stored: StoredTensor) -> dict[str, Any]:
    chunks = [[chunk.shard, list(chunk.offsets), list(chunk.sizes)] for chunk in stored.chunks]
    return {"name": name, "dtype": DTYPES[stored.dtype], "shape": list(stored.shape), "chunks": chunks}


def _stored(row: Fields, shards: Mapping[str, str]) -> StoredTensor:
    shape = _sizes(row.value("shape"))
    chunks = []
    for item in row.value("chunks").items(least=1, most=MOST_SHARDS):
        shard, offsets, sizes = item.items(least=3, most=3)
        chunks.append(Chunk(shard=shard.choice(shards), offsets=_sizes(offsets), sizes=_sizes(sizes)))
    _check_cover(row.text("name", most=MOST_TEXT), shape, chunks)
    return StoredTensor(dtype=_TYPES[row.choice("dtype", _TYPES)], shape=shape, chunks=tuple(chunks))


def _sizes(value: Value) -> tuple[int, ...]:
    return tuple(item.whole(most=2**48) for item in value.items(most=MOST_DIMENSIONS))


def _check_cover(name: str, shape: tuple[int, ...], chunks: Sequence[Chunk]) -> None:
    """Raise Unsound unless the chunks cover the tensor exactly once: inside it, without overlap, of its size
    in total.
    """
    for number, one in enumerate(chunks):
        if len(one.offsets) != len(shape) or len(one.sizes) != len(shape):
            raise Unsound(f"a chunk of {name[:80]} has other dimensions")
        box = zip(one.offsets, one.sizes, shape, strict=True)
        if any(start + size > length for start, size, length in box):
            raise Unsound(f"a chunk of {name[:80]} is outside it")
        if any(_overlap(one, other) for other in chunks[:number]):
            raise Unsound(f"two chunks of {name[:80]} overlap")
    if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(shape):
        raise Unsound(f"the chunks of {name[:80]} do not cover it")


def _overlap(one: Chunk, other: Chunk) -> bool:
    boxes = zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    return all(max(a, b) < min(a + length, b + other_length) for a, length, b, other_length in boxes)


def _plain(value: Any) -> Any:
    """Return a value of `state` or `run` as JSON, with inf and nan as strings.

    A mapping becomes two lists: its names may be long module paths, and JSON keys are limited.
    """
    if isinstance(value, Mapping):
        return {"names": list(value), "numbers": [_plain(item) for item in value.values()]}
    if isinstance(value, (list, tuple)):
        return [{name: _plain(cell) for name, cell in row.items()} for row in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number_or_rows(value: Value) -> Any:
    """Return a number, a list of rows (name -> number or text), or a table of numbers."""
    if isinstance(value.value, list):
        rows = [row.fields().entries() for row in value.items()]
        return [{name: _number(cell) for name, cell in row.items()} for row in rows]
    if isinstance(value.value, dict):
        table = value.fields().exactly(("names", "numbers"))
        names = [item.text(most=MOST_TEXT) for item in table["names"].items()]
        numbers = table["numbers"].items(least=len(names), most=len(names))
        return {name: _number(number) for name, number in zip(names, numbers, strict=True)}
    return _number(value)


def _number(value: Value) -> float | int:
    if isinstance(value.value, str):
        return float(value.choice(_ENDLESS))
    if isinstance(value.value, int):
        return value.whole(least=-(2**63))
    return value.number(least=-sys.float_info.max, most=sys.float_info.max)
