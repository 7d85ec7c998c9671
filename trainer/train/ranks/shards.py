"""Checkpoints that several ranks write together in the background, each its shard, by
torch.distributed.checkpoint (DCP).

DCP decides which rank writes which part of a tensor: a replicated tensor is written by one rank, a sharded
one (FSDP2's) by each its part. The storage is ours, since DCP's default metadata is a pickle: one safetensors
file per rank, then rank 0's `manifest.json` (`trainer.train.checkpoint_files`). `trainer.train.checkpoint`
reads them and joins the parts, so that any number of ranks can resume; reading needs neither DCP nor other
ranks. See docs/adr/0019.
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
    """Write checkpoints of a model that several ranks train, one at a time, in the background.

    The counterpart of `checkpoint.CheckpointWriter`: every rank submits the same states in the same order.
    `group` (gloo) is used only for checkpoints, because its collectives run on a separate thread. `report`
    receives the events; ranks other than the first drop them.
    """

    def __init__(
        self,
        folder: Path,
        report: Report,
        *,
        group: dist.ProcessGroup,
        choice: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder, self._report, self._group, self._choice = folder, report, group, choice
        self._writing: Future[None] | None = None

    def submit(self, run: Run, state: ModelState, mark: str, *, snapshot_seconds: float) -> None:
        """Start to write this state, after the previous one. `run` and `state` are copies that nothing else
        changes.
        """
        began = time.perf_counter()
        self.flush()
        waited = time.perf_counter() - began
        place, manifest = (
            place_of(self._folder, run, state),
            manifest_of(run, state, mark, choice=self._choice),
        )
        identity = {"model": run.member.name, "piece": run.title}
        submitted = time.perf_counter()
        saving = async_save(
            dict(tensors_of_checkpoint(run, state)),
            storage_writer=ShardWriter(place, manifest),
            async_stager=_Staged(),
            process_group=self._group,
        )

        assert not isinstance(saving, AsyncSaveResponse)  # only from stagers that copy in the background
        reported: Future[None] = Future()  # done after the event is reported

        def finish(done: Future[Any]) -> None:
            cost = {"snapshot_seconds": snapshot_seconds, "waited_seconds": waited}
            error = done.exception()
            if error is None:
                cost["write_seconds"] = time.perf_counter() - submitted
                seconds = {name: round(value, 6) for name, value in cost.items()}
                self._report(
                    {
                        "event": "checkpoint",
                        **identity,
                        "folder": f"{place.parent.name}/{place.name}",
                        **seconds,
                    }
                )
            elif reason := _of_the_disk(error):
                # A full disk costs the checkpoint, not the model.
                self._report({"event": "checkpoint_failed", **identity, "reason": reason})
            else:
                reported.set_exception(_as_error(error))
                return
            reported.set_result(None)

        saving.add_done_callback(finish)
        self._writing = reported

    def flush(self) -> None:
        """Wait until everything queued is on disk. Raises the writer's errors except OSError, which is
        reported as an event.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


class ShardWriter(StorageWriter):
    """DCP's storage: a safetensors file per rank, then the coordinator's manifest. Deletes old
    checkpoints.
    """

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
        """Remove what a killed writer left in the folder, and name each rank's shard. Coordinator only."""
        shutil.rmtree(self._place, ignore_errors=True)
        self._place.mkdir(parents=True)
        names = [f"shard-{number}-of-{len(plans)}.safetensors" for number in range(1, len(plans) + 1)]
        return [replace(plan, storage_data=name) for plan, name in zip(plans, names, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
        """Write this rank's shard, unless it has no part of any tensor."""
        tensors: dict[str, torch.Tensor] = {}
        for item in plan.items:
            tensor = planner.resolve_data(item)
            if not isinstance(tensor, torch.Tensor) or item.index.fqn in tensors:
                raise TypeError("a shard holds only tensors, one part of each")
            tensors[item.index.fqn] = tensor
        done: TorchFuture[list[WriteResult]] = TorchFuture()
        part = _Part(
            shard=plan.storage_data,
            sha256=put_tensors(self._place / plan.storage_data, tensors) if tensors else "",
        )
        done.set_result([_result(item, tensors[item.index.fqn], part) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the manifest, which makes the checkpoint valid, then delete older checkpoints. Coordinator
        only.
        """
        written = [result for of_rank in results for result in of_rank]
        chunks: dict[str, list[Chunk]] = {}
        for result in written:
            data = result.storage_data
            chunks.setdefault(result.index.fqn, []).append(
                Chunk(shard=data.shard, offsets=data.offsets, sizes=data.sizes)
            )
        tensors = {
            name: StoredTensor(
                dtype=known.properties.dtype, shape=tuple(known.size), chunks=tuple(chunks[name])
            )
            for name, known in metadata.state_dict_metadata.items()
            if isinstance(known, TensorStorageMetadata)  # `write_data` refuses others
        }
        shards = {result.storage_data.shard: result.storage_data.sha256 for result in written}
        replace(self._manifest, shards=shards, tensors=tensors).write(self._place)
        drop_old(self._place)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False: DCP may not choose this storage by a name."""
        return False


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The part of a tensor that a rank wrote: its shard and its place. Sent to the coordinator."""

    shard: str
    sha256: str
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


class _Staged(AsyncStager):
    """Copies nothing: states are copies already (`Pack.snapshot`)."""

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
    """Return a failed checkpoint's error as an Exception with a short text: DCP's is a BaseException of
    several tracebacks.
    """
    if not isinstance(error, CheckpointException):
        return error
    failures = (f"rank {rank}: {wrapped[0]}" for rank, wrapped in error.failures.items())
    return RuntimeError(f"no checkpoint was written: {'; '.join(failures)}")


def _of_the_disk(error: BaseException) -> str:
    """Return the text of a failed checkpoint's errors if all are OSErrors, else ''."""
    failures = (
        [wrapped[0] for wrapped in error.failures.values()]
        if isinstance(error, CheckpointException)
        else [error]
    )
    return "; ".join(map(str, failures)) if all(isinstance(failure, OSError) for failure in failures) else ""
