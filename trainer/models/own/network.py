"""Adapt a user's own module to the interface of packs: batch first, full precision, lazy weights initialized.

Shapes: N windows or chunks, T bars of a window, X bars read of a chunk, F features, O outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from trainer.base.errors import UsageError, nearest
from trainer.base.own_file import as_usage_error, load_class
from trainer.base.settings import CHUNKS

_DRY_RUN = 2  # windows of the pass that initializes lazy weights


def build(architecture: dict[str, Any], *, file: str, recompute: bool = False) -> OwnNetwork:
    """Build an untrained network from the class in `file`, which must have the architecture's hash.

    Its weights come from torch's global generator. Raises UsageError for a file or class that can't be used.
    `recompute` is never set: the job refuses it.
    """
    cls = load_class(file, architecture["class"], sha256=architecture["sha256"])
    if not issubclass(cls, nn.Module):
        raise UsageError(
            f"{architecture['class']} is not a torch.nn.Module", do="Make it a subclass of torch.nn.Module."
        )
    with as_usage_error(f"{architecture['class']} can't be built"):
        net = cls(**_arguments(cls, architecture))
        parameters = list(net.parameters())  # fails if the constructor did not call super().__init__()
    network = OwnNetwork(net, reads=architecture["reads"])
    if any(is_lazy(parameter) for parameter in parameters):
        bars = int(getattr(net, "receptive_field", 0) or architecture["lookback"])
        with as_usage_error(f"{architecture['class']} can't make its lazy weights"), torch.no_grad():
            net.eval()
            net(torch.zeros(_DRY_RUN, bars, architecture["features"]))
            net.train()
    return network


class OwnNetwork(nn.Module):
    """Runs a user's module; tensors keep the names that they have there."""

    def __init__(self, net: nn.Module, *, reads: str) -> None:
        super().__init__()
        self.net, self._chunks = net, reads == CHUNKS

    def forward(
        self, x: torch.Tensor, keys_L2: torch.Tensor | None = None, first_row: int = 0
    ) -> torch.Tensor:
        """Return (N, O) for windows (T, N, F), or (N, T, O) for chunks (N, F, X), in the precision of x."""
        x_NTF = x.transpose(1, 2) if self._chunks else x.transpose(0, 1)
        if not torch.is_inference_mode_enabled():
            return self._outputs(x_NTF.contiguous())
        # Tensors that a module creates now and keeps, such as a mask, must also work in training.
        with torch.inference_mode(False), torch.no_grad():
            return self._outputs(x_NTF.clone(memory_format=torch.contiguous_format))

    def _outputs(self, x_NTF: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.net(x_NTF)
        return outputs.to(x_NTF.dtype)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        return self.net.named_parameters(prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.Tensor]]:
        return self.net.named_buffers(prefix, recurse, remove_duplicate)

    def get_submodule(self, target: str) -> nn.Module:
        return self.net.get_submodule(target)


def _arguments(cls: type[nn.Module], architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the constructor's arguments. Raises UsageError for a setting that it does not take."""
    given = {
        "features": architecture["features"],
        "outputs": architecture["outputs"],
        **architecture["settings"],
    }
    parameters = inspect.signature(cls).parameters
    if "lookback" in parameters:
        given["lookback"] = architecture["lookback"]
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return given
    unknown = [name for name in given if name not in parameters]
    if unknown:
        own = [name for name in parameters if name not in ("features", "outputs", "lookback")]
        do = nearest(unknown[0], own) or (f"It takes {', '.join(own)}." if own else "It takes no setting.")
        raise UsageError(f"{cls.__name__} takes no argument '{unknown[0]}'", do=do)
    return given
