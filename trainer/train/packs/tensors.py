"""Copy the tensors of a module by name, and put them back: weights, tied ones once, and buffers of any type.

Buffers that a module keeps out of its `state_dict` are included: a resumed model needs every buffer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn

BUCKET_BYTES = 64 << 20  # of divided weights that are gathered together


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of a module's weights and buffers."""
    return {**weights_of(module), **buffers_of(module)}


def weights_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of a module's weights."""
    return {name: weight.detach().clone() for name, weight in module.named_parameters()}


def buffers_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of a module's buffers."""
    return {name: buffer.detach().clone() for name, buffer in module.named_buffers()}


@torch.no_grad()
def put_tensors(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put back the tensors of `tensors_of`. Raises ValueError if a weight is missing or has another shape."""
    weights = dict(module.named_parameters())
    for name, weight in weights.items():
        if name not in tensors or tensors[name].shape != weight.shape:
            raise ValueError(f"no weight {name} of shape {tuple(weight.shape)}")
        weight.copy_(placed_like(weight, tensors[name]))
    put_buffers(module, {name: tensor for name, tensor in tensors.items() if name not in weights})


@torch.no_grad()
def put_buffers(module: nn.Module, buffers: Mapping[str, torch.Tensor]) -> None:
    """Put buffers back, even if the module's have another shape or type or are missing. Raises ValueError for
    a weight.
    """
    there = dict(module.named_buffers())
    for name, tensor in buffers.items():
        present = there.get(name)
        if present is not None and (present.shape, present.dtype) == (tensor.shape, tensor.dtype):
            present.copy_(tensor)
            continue
        owner, _, leaf = name.rpartition(".")
        holder = module.get_submodule(owner)
        if leaf in holder._parameters:
            raise ValueError(f"{name} is a weight under another name")
        device = next((weight.device for weight in module.parameters()), tensor.device)
        holder._buffers[leaf] = tensor.detach().to(device, copy=True)


@torch.no_grad()
def restore_buffers(module: nn.Module, buffers: Mapping[str, torch.Tensor], *, unless: torch.Tensor) -> None:
    """Put the values of buffers back unless the condition (), on their device, holds. The host does not wait.

    A buffer whose shape or type has changed keeps its new value.
    """
    for name, now in module.named_buffers():
        before = buffers.get(name)
        if before is not None and (now.shape, now.dtype) == (before.shape, before.dtype):
            now.copy_(torch.where(unless, now, before))


def placed_like(like: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with a weight's type and device; if the weight is divided among ranks, divided
    as well.
    """
    if not is_divided(like) or is_divided(tensor):
        return tensor.to(like.dtype) if is_divided(tensor) else tensor.to(like)
    from torch.distributed.tensor import DTensor, distribute_tensor  # late: takes a second; for ranks only

    assert isinstance(like, DTensor)
    # Every rank has the whole tensor: nothing is sent.
    return distribute_tensor(
        tensor.to(like.device, like.dtype), like.device_mesh, like.placements, src_data_rank=None
    )


@torch.no_grad()
def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor divided among ranks gathered whole (all ranks must call this); any other tensor as it
    is.
    """
    gathered: torch.Tensor = tensor.full_tensor() if is_divided(tensor) else tensor  # type: ignore[attr-defined]
    return gathered


def is_divided(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is divided among ranks: torch's DTensor, which only FSDP2 loads."""
    return hasattr(tensor, "full_tensor")


@torch.no_grad()
def put_whole(module: nn.Module, divided: nn.Module, *, bucket_bytes: int = BUCKET_BYTES) -> None:
    """Copy weights and buffers of a module divided among ranks into an undivided one. Weights are gathered
    together, up to `bucket_bytes` at a time: one by one, each would wait for all ranks.
    """
    bucket, size = list[tuple[torch.Tensor, torch.Tensor]](), 0
    for mine, theirs in zip(module.parameters(), divided.parameters(), strict=True):
        if not is_divided(theirs):
            mine.copy_(theirs)
            continue
        if bucket and size + mine.nbytes > bucket_bytes:
            _gather(bucket)
            bucket, size = [], 0
        bucket.append((mine, theirs))
        size += mine.nbytes
    _gather(bucket)
    put_buffers(module, dict(divided.named_buffers()))


def _gather(bucket: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Gather divided weights by one collective, and copy each into its undivided one.

    FSDP2 divides the first dimension as `torch.chunk` does; here every rank's part is filled up to the
    largest.
    """
    if not bucket:
        return
    mesh = bucket[0][1].device_mesh  # type: ignore[attr-defined]
    ranks = mesh.size()
    parts = list[torch.Tensor]()
    for mine, theirs in bucket:
        local = theirs.to_local().flatten()  # type: ignore[attr-defined]
        most = math.ceil(mine.shape[0] / ranks) * mine[0].numel()
        parts.append(nn.functional.pad(local, (0, most - local.numel())))
    together = torch.cat(parts)
    gathered_RN = together.new_empty(ranks, together.numel())
    torch.distributed.all_gather(list(gathered_RN.unbind()), together, group=mesh.get_group())
    first = 0
    for (mine, _), part in zip(bucket, parts, strict=True):
        columns = gathered_RN[:, first : first + part.numel()]
        mine.copy_(columns.flatten()[: mine.numel()].view_as(mine))
        first += part.numel()


@torch.no_grad()
def update_average(average: nn.Module, module: nn.Module, share: float | torch.Tensor) -> None:
    """Update a moving average of a module's weights, `share` of the way towards them, and copy the module's
    buffers.
    """
    for mean, weight in zip(average.parameters(), module.parameters(), strict=True):
        if mean.is_floating_point():
            mean.lerp_(weight, share.to(mean.dtype) if isinstance(share, torch.Tensor) else share)
    put_buffers(average, dict(module.named_buffers()))
