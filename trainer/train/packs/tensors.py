"""Copy the tensors of a module by name, and put them back: weights, tied ones once, and buffers of any type.

Buffers that a module keeps out of its `state_dict` are included: a resumed model needs every buffer.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn


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
    """Put back the tensors of `tensors_of`. Raises ValueError where a weight is missing or has another shape."""
    weights = dict(module.named_parameters())
    for name, weight in weights.items():
        if name not in tensors or tensors[name].shape != weight.shape:
            raise ValueError(f"no weight {name} of shape {tuple(weight.shape)}")
        weight.copy_(tensors[name])
    put_buffers(module, {name: tensor for name, tensor in tensors.items() if name not in weights})


@torch.no_grad()
def put_buffers(module: nn.Module, buffers: Mapping[str, torch.Tensor]) -> None:
    """Put buffers back; the module's own may have other shapes and types, or be missing. Raises ValueError for a weight."""
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
def follow(average: nn.Module, module: nn.Module, share: float) -> None:
    """Move an average of a module's weights towards them by `share`, and give it the module's buffers as they are."""
    for mean, weight in zip(average.parameters(), module.parameters(), strict=True):
        if mean.is_floating_point():
            mean.lerp_(weight, share)
    put_buffers(average, dict(module.named_buffers()))
