"""Checkpoints that several ranks write together, each its shard, by torch.distributed.checkpoint (DCP), beside the training.

DCP decides which rank writes which part of which tensor: of a tensor that all ranks hold, one writes it; of one that lies on
them in parts (FSDP2's), each writes its own. Its storage is ours, since its default metadata is a pickle: a safetensors file a
rank, then rank 0's `manifest.json` (`trainer.train.checkpoint_files`). `trainer.train.checkpoint` reads them: it joins the
parts, so that any number of ranks goes on from them, and reading needs neither DCP nor other ranks. See docs/adr/0021.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future as TorchFuture

from trainer.train.checkpoint import drop_old, manifest_of, place_of, tensors_of_checkpoint
from trainer.train.checkpoint_files import CheckpointManifest, Chunk, StoredTensor, put_tensors
from trainer.train.loop import Report, Run
from trainer.train.packs.pack import ModelState


class ShardedCheckpointWriter:
    """Write checkpoints of a model that the ranks of a group train, one at a time, beside the training.

    The counterpart of `checkpoint.CheckpointWriter`: every rank submits the same states in the same order. `group` serves
    these checkpoints alone, on the CPU (gloo), because its collectives run on a thread of their own. `report` receives the
    events; ranks other than the first pass one that drops them.
    """

    def __init__(
        self, folder: Path, report: Report, *, group: dist.ProcessGroup, choice: Mapping[str, Any] | None = None
    ) -> None:
        self._folder, self._report, self._group, self._choice = folder, report, group, choice
        self._writing: Future[None] | None = None

    def submit(self, run: Run, state: ModelState, mark: str, *, snapshot_seconds: float) -> None:
        """Begin to write this state, after the one before. `run` and `state` are copies that nothing else changes."""
        began = time.perf_counter()
        self.flush()
        waited = time.perf_counter() - began
        place, manifest = place_of(self._folder, run, state), manifest_of(run, state, mark, choice=self._choice)
        identity = {"model": run.member.name, "piece": run.title}
        submitted = time.perf_counter()
        saving = async_save(
            dict(tensors_of_checkpoint(run, state)),
            storage_writer=ShardWriter(place, manifest),
            async_stager=_Staged(),
            process_group=self._group,
        )

        assert not isinstance(saving, AsyncSaveResponse)  # of a stager that copies beside the training: ours does not
        told: Future[None] = Future()  # done once the event is out, too

        def tell(done: Future[Any]) -> None:
            cost = {"snapshot_seconds": snapshot_seconds, "waited_seconds": waited}
            error = done.exception()
            if error is None:
                cost["write_seconds"] = time.perf_counter() - submitted
                seconds = {name: round(value, 6) for name, value in cost.items()}
                self._report({"event": "checkpoint", **identity, "folder": f"{place.parent.name}/{place.name}", **seconds})
            elif reason := _of_the_disk(error):
                # A full disk loses the checkpoint and not the model; the event has the error.
                self._report({"event": "checkpoint_failed", **identity, "reason": reason})
            else:
                told.set_exception(_as_error(error))
                return
            told.set_result(None)

        saving.add_done_callback(tell)
        self._writing = told

    def flush(self) -> None:
        """Wait until what was submitted is on disk. Raises errors of the writer, other than those of the disk."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


class ShardWriter(StorageWriter):
    """DCP's storage: a safetensors file a rank with tensors only, then the coordinator's manifest. Drops older checkpoints."""

    def __init__(self, place: Path, manifest: CheckpointManifest) -> None:
        self._place, self._manifest = place, manifest

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """See StorageWriter. The place is the constructor's."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """See StorageWriter."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """See StorageWriter."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Empty the place of what a killed writer left there, and name the shard of each rank. Coordinator only."""
        shutil.rmtree(self._place, ignore_errors=True)
        self._place.mkdir(parents=True)
        names = [f"shard-{number}-of-{len(plans)}.safetensors" for number in range(1, len(plans) + 1)]
        return [replace(plan, storage_data=name) for plan, name in zip(plans, names, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
        """Write this rank's shard; none where it has no part of any tensor."""
        tensors: dict[str, torch.Tensor] = {}
        for item in plan.items:
            tensor = planner.resolve_data(item)
            if not isinstance(tensor, torch.Tensor) or item.index.fqn in tensors:
                raise TypeError("a shard holds tensors alone, one part of each")
            tensors[item.index.fqn] = tensor
        done: TorchFuture[list[WriteResult]] = TorchFuture()
        part = _Part(shard=plan.storage_data, sha256=put_tensors(self._place / plan.storage_data, tensors) if tensors else "")
        done.set_result([_result(item, tensors[item.index.fqn], part) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the manifest, from which the checkpoint counts, then drop older checkpoints. Coordinator only."""
        written = [result for of_rank in results for result in of_rank]
        chunks: dict[str, list[Chunk]] = {}
        for result in written:
            data = result.storage_data
            chunks.setdefault(result.index.fqn, []).append(Chunk(shard=data.shard, offsets=data.offsets, sizes=data.sizes))
        tensors = {
            name: StoredTensor(dtype=known.properties.dtype, shape=tuple(known.size), chunks=tuple(chunks[name]))
            for name, known in metadata.state_dict_metadata.items()
            if isinstance(known, TensorStorageMetadata)  # `write_data` refuses others
        }
        shards = {result.storage_data.shard: result.storage_data.sha256 for result in written}
        replace(self._manifest, shards=shards, tensors=tensors).write(self._place)
        drop_old(self._place)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether DCP may choose this storage by a name: it may not."""
        return False


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The part of a tensor that a rank wrote: its shard and its place. Sent to the coordinator."""

    shard: str
    sha256: str
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


class _Staged(AsyncStager):
    """States come as copies (`Pack.snapshot`), so nothing has to be copied before the training goes on."""

    _synchronize_after_execute = False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return state_dict

    def synchronize_staging(self) -> None:
        return None

    def close(self) -> None:
        return None


def _result(item: WriteItem, tensor: torch.Tensor, part: _Part) -> WriteResult:
    offsets, sizes = tuple(item.index.offset or (0,) * tensor.dim()), tuple(tensor.shape)
    data = replace(part, offsets=offsets, sizes=sizes)
    return WriteResult(index=item.index, size_in_bytes=tensor.nbytes, storage_data=data)


def _as_error(error: BaseException) -> BaseException:
    """Return a failed checkpoint's error as an ordinary one: DCP's own is none, and its text is several tracebacks."""
    if not isinstance(error, CheckpointException):
        return error
    failures = (f"rank {rank}: {wrapped[0]}" for rank, wrapped in error.failures.items())
    return RuntimeError(f"no checkpoint was written: {'; '.join(failures)}")


def _of_the_disk(error: BaseException) -> str:
    """Return the errors of disks in a failed checkpoint, as text; nothing if there are others."""
    failures = [wrapped[0] for wrapped in error.failures.values()] if isinstance(error, CheckpointException) else [error]
    return "; ".join(map(str, failures)) if all(isinstance(failure, OSError) for failure in failures) else ""
