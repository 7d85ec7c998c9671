"""Checkpoints that ranks write together are read as whole tensors by any number of ranks."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.train.ranks.ranks import TwoRanks
from tests.trainer.train.rosters import MADE, always
from trainer.train.checkpoint import CheckpointWriter, newest
from trainer.train.checkpoint_files import MANIFEST
from trainer.train.packs.pack import Member, ModelState
from trainer.train.ranks.group import Ranks
from trainer.train.run import Run


def state(batches: int) -> tuple[Run, ModelState]:
    """Return a run and its state, the same in every process."""
    draw = torch.Generator().manual_seed(batches)
    weights = {
        "halved": torch.randn(5, 3, dtype=torch.float64, generator=draw),
        "one_row": torch.randn(1, 7, generator=draw),  # fewer rows than ranks: one of them has none
        "half": torch.randn(4, generator=draw).to(torch.bfloat16),
    }
    rows = torch.zeros(1, 1)
    member = Member(name="m0", rows_TF=rows, labels_TK=rows, mean_F=rows[0], std_F=rows[0])
    run = Run(
        member=member,
        title="S0",
        reads=torch.arange(3),
        validation=always(0.0),
        learning_rate=0.1,
    )
    run.best_weights, run.history = {"halved": weights["halved"] * 2}, [{"epoch": 1, "train_loss": 0.5}]
    whole = {"whole": torch.randn(6, generator=draw), "number": torch.tensor(3.0)}
    return run, ModelState(
        weights={**weights, **whole}, exp_avg=weights, exp_avg_sq={}, updates=batches, batches=batches
    )


def write_as_rank(ranks: Ranks, folder: Path) -> list[dict[str, Any]]:
    """Write three checkpoints as one of the ranks, then one that the last rank's disk refuses; return the
    events.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from trainer.train.ranks.shards import write_shards

    mesh = init_device_mesh("cpu", (ranks.count,))
    events: list[dict[str, Any]] = []
    store = partial(write_shards, ranks=ranks.in_background())
    writer = CheckpointWriter(folder / "checkpoints", events.append, store=store)

    def divided(tensors: Any) -> dict[str, torch.Tensor]:
        cut = ("halved", "one_row", "half")
        return {
            name: distribute_tensor(one, mesh, [Shard(0)]) if name in cut else one
            for name, one in tensors.items()
        }

    for batches in (7, 8, 9):
        run, plain = state(batches)
        run.best_weights = divided(run.best_weights)
        parts = {"weights": divided(plain.weights), "exp_avg": divided(plain.exp_avg), "exp_avg_sq": {}}
        writer.submit(run, ModelState(**parts, updates=batches, batches=batches), MADE, snapshot_seconds=0.5)
    writer.flush()
    place = folder / ("file" if ranks.rank else "refused")
    refused = CheckpointWriter(place, events.append, store=store)
    refused.submit(run, ModelState(**parts, updates=1, batches=1), MADE, snapshot_seconds=0.5)
    refused.flush()
    return events


@pytest.fixture(scope="module")
def written(two_ranks: TwoRanks, tmp_path_factory: Any) -> tuple[Path, list[list[dict[str, Any]]]]:
    """Return the folder in which two ranks wrote their checkpoints, and the events of each rank."""
    folder = tmp_path_factory.mktemp("shards")
    (folder / "file").touch()
    return folder / "checkpoints", two_ranks(write_as_rank, folder)


def test_parts_of_two_ranks_are_read_as_whole_tensors(written):
    folder, _ = written
    found = newest(folder, "m0", MADE)
    run, expected = state(9)
    assert found is not None and found.state.batches == 9 and found.fields["history"] == run.history
    for part in ("weights", "exp_avg"):
        read = getattr(found.state, part)
        assert read.keys() == getattr(expected, part).keys()
        assert all(torch.equal(tensor, read[name]) for name, tensor in getattr(expected, part).items())
    assert torch.equal(found.best_weights["halved"], run.best_weights["halved"])


def test_ranks_write_their_parts_and_shared_tensors_once(written):
    folder, _ = written
    assert [place.name for place in sorted((folder / "m0").iterdir())] == [
        "000000000008",
        "000000000009",
    ]  # older are dropped
    place = folder / "m0" / "000000000009"
    shards = [f"shard-{number}-of-2.safetensors" for number in (1, 2)]
    assert sorted(file.name for file in place.iterdir()) == [MANIFEST, *shards]
    tensors = {row["name"]: row["chunks"] for row in json.loads((place / MANIFEST).read_text())["tensors"]}
    assert [chunk[1:] for chunk in sorted(tensors["weights.halved"])] == [[[0, 0], [3, 3]], [[3, 0], [2, 3]]]
    assert {chunk[0] for chunk in tensors["weights.halved"]} == set(shards)
    assert len(tensors["weights.whole"]) == len(tensors["weights.number"]) == 1


def test_a_damaged_shard_makes_the_previous_checkpoint_count(written, tmp_path):
    folder, _ = written
    shard = folder / "m0" / "000000000009" / "shard-2-of-2.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        found = newest(folder, "m0", MADE)
        assert found is not None and found.state.batches == 8
    finally:
        shard.write_bytes(content)


def test_a_disk_error_costs_the_checkpoint_and_no_rank(written):
    folder, events = written
    assert newest(folder.parent / "refused", "m0", MADE) is None
    assert not list((folder.parent / "refused").glob("*/*"))  # the first rank's shard would fill the disk
    for rank in range(2):
        names = [event["event"] for event in events[rank]]
        assert names == ["checkpoint"] * 3 + ["checkpoint_failed"]
        assert events[rank][0]["folder"] == "m0/000000000007" and events[rank][0]["snapshot_seconds"] == 0.5
        assert "file" in events[rank][-1]["reason"]
