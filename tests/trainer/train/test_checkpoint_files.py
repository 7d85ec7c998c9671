"""A checkpoint's manifest is read strictly, and its shards must have their hashes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from tests.trainer.train.rosters import MADE
from trainer.base.strict_json import Unsound
from trainer.train.checkpoint_files import (
    MANIFEST,
    CheckpointManifest,
    Chunk,
    StoredTensor,
    read_manifest,
    read_tensors,
    write_tensors,
)

TENSOR = torch.arange(15, dtype=torch.float64).view(5, 3)


def checkpoint(place: Path) -> Path:
    """Write a checkpoint of one tensor in two shards, three rows and two."""
    halves = {"one.safetensors": (0, 3), "two.safetensors": (3, 2)}
    chunks = [
        Chunk(shard=name, offsets=(first, 0), sizes=(rows, 3)) for name, (first, rows) in halves.items()
    ]
    shards = {
        name: write_tensors(place / name, {"w": TENSOR[first : first + rows]})
        for name, (first, rows) in halves.items()
    }
    CheckpointManifest(
        model="m",
        made=MADE,
        choice={"from": {}},
        state={"batches": 3, "steps": {"a" * 300: 2}},
        run={"best_loss": math.inf, "loss_sum": 1e300, "history": [{"epoch": 1, "train_loss": math.nan}]},
        shards=shards,
        tensors={"w": StoredTensor(dtype=torch.float64, shape=(5, 3), chunks=tuple(chunks))},
    ).write(place)
    return place


def test_a_checkpoint_is_read_back_bit_identically(tmp_path):
    place = checkpoint(tmp_path)
    manifest = read_manifest(place)
    assert torch.equal(read_tensors(place, manifest)["w"], TENSOR)
    assert manifest.run["best_loss"] == math.inf and manifest.run["loss_sum"] == 1e300
    assert manifest.run["history"][0]["epoch"] == 1 and math.isnan(manifest.run["history"][0]["train_loss"])
    assert manifest.state == {"batches": 3, "steps": {"a" * 300: 2}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda it: it.update(format=1), "format"),
        (lambda it: it["tensors"][0]["chunks"].pop(), "do not cover it"),
        (lambda it: it["tensors"][0]["chunks"][1][1].__setitem__(0, 2), "overlap"),
        (lambda it: it["tensors"][0]["chunks"][1][2].__setitem__(0, 3), "outside"),
        (lambda it: it["tensors"][0]["chunks"][1].__setitem__(0, "../three.safetensors"), "not one of"),
        (lambda it: it["tensors"][0].update(dtype="PICKLE"), "not one of"),
        (lambda it: it["tensors"][0].update(dtype="F32"), "not torch.float32"),
        (lambda it: it["shards"].update({"../one.safetensors": "0" * 64}), "no name of a file"),
        (lambda it: it["shards"].update({"one.safetensors": "0" * 64}), "is not the file"),
        (lambda it: it["run"].update(best_loss="much"), "not one of"),
        (lambda it: it["run"].update(best_loss=[["x"]]), "not an object"),
    ],
)
def test_a_malformed_manifest_is_refused(tmp_path, change, words):
    place = checkpoint(tmp_path)
    document = json.loads((place / MANIFEST).read_text())
    change(document)
    (place / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(Unsound, match=words):
        read_tensors(place, read_manifest(place))


def test_a_missing_shard_raises_file_not_found(tmp_path):
    place = checkpoint(tmp_path)
    (place / "two.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        read_tensors(place, read_manifest(place))
