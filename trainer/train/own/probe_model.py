"""Build a user's own model, run it forwards and backwards, and measure its memory and cost for planner and
packer.

Counts weights, the bytes that autograd keeps (at two batch sizes), and multiplications, by torch's counter,
with oneDNN off, since it hides an LSTM's. Also checks whether slices of a batch have the gradient of the
whole, and whether an output depends only on its own bars.

Shapes: N windows or chunks, L bars of each, F features, T outputs of a chunk, O outputs a bar.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from trainer.base.errors import UsageError
from trainer.base.own_file import OwnFile, as_usage_error
from trainer.base.settings import CHUNKS
from trainer.job.job import Job
from trainer.models import network_of
from trainer.train.checkpoint_files import DTYPES
from trainer.train.packs.tensors import buffers_of
from trainer.train.predict.readers import EVALUATION_CHUNK

FEW, MANY = 4, 12  # windows or chunks of the two batches that are measured
CUTS = (5, 7)  # slices of a batch of MANY
# of a gradient's norm: another order of float32 sums changes less, statistics of a batch change more
SAME = 1e-3
ALONE = 1e-4  # of an output, likewise
_DROPOUTS = ("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d")


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """A class under trial: how it is built and called, and the name for messages."""

    name: str
    architecture: dict[str, Any]
    file: str
    bars: int  # of a window or chunk
    outs: int  # outputs of a chunk in time; 0: a window, which has no such dimension
    outputs: int  # per bar

    def build(self) -> nn.Module:
        """Return an untrained network, on the CPU."""
        torch.manual_seed(0)
        network: nn.Module = network_of(OwnFile.name).build(self.architecture, file=self.file)
        return network

    def reads(self, count: int, *, bars: int = 0) -> torch.Tensor:
        """Return random features in the shape that packs use: (L, N, F) windows, or (N, F, L) chunks."""
        generator = torch.Generator().manual_seed(1)
        x_NLF = torch.randn(count, bars or self.bars, self.architecture["features"], generator=generator)
        return (x_NLF.transpose(1, 2) if self.outs else x_NLF.transpose(0, 1)).contiguous()

    def outputs_of(self, network: nn.Module, x: torch.Tensor, *, outs: int | None = None) -> torch.Tensor:
        """Return the outputs: (N, O), or (N, T, O) for chunks. Raises UsageError for another shape or if not
        finite.
        """
        count, outs = x.shape[0 if self.outs else 1], self.outs if outs is None else outs
        expected = (count, outs, self.outputs) if self.outs else (count, self.outputs)
        bars = x.shape[2] if self.outs else x.shape[0]
        shape = f"x of shape ({count}, {bars}, {self.architecture['features']})"
        with as_usage_error(f"{self.name}.forward fails on {shape}"):
            outputs: torch.Tensor = network(x)
            actual = tuple(outputs.shape)
        if actual != expected:
            raise UsageError(
                f"{self.name}.forward returns shape {actual}", why=f"for {shape} it must be {expected}", do=DO
            )
        if not bool(torch.isfinite(outputs).all()):
            raise UsageError(
                f"{self.name}.forward returns outputs that are not finite", why=f"for {shape} of noise", do=DO
            )
        return outputs


DO = "See docs/models.md."


def measure_model(job: Job, say: Callable[[str], None]) -> OwnFile:
    """Return the job's model with its measurements. Raises UsageError, one line, for anything wrong
    with it.
    """
    model: Any = job.own_files["model"]
    say(f"loading {model.base_name} and building {model.class_name}")
    trial = _trial(job, receptive_field=0)
    network: Any = trial.build()
    field = getattr(network.net, "receptive_field", 0)
    if type(field) is not int or field < 0:
        raise UsageError(f"{trial.name}.receptive_field is {field!r}", why="it is a number of bars", do=DO)
    if field:
        trial = _trial(job, receptive_field=field)
        network = trial.build()
    say(f"{trial.name}.forward and its backward pass")
    _check_step(trial, network)
    say(f"{trial.name}.forward in evaluation")
    _check_evaluation(trial, network.eval(), field)
    say(f"measuring {trial.name}")
    figures = _figures(trial, network.train())
    say(f"comparing slices of a batch of {trial.name}")
    measured = model.measured_as(of=model.code, receptive_field=field, slices=_slices_agree(trial), **figures)
    tried: OwnFile = replace(model, measured=measured)
    return tried


def _figures(trial: _Trial, network: nn.Module) -> dict[str, float]:
    """Return the model's measurements: weights, and per window or chunk the bytes kept, the largest tensor,
    and MFLOP.

    `kept_once_bytes` are kept by every batch, whatever its size.
    """
    with (
        warnings.catch_warnings(action="ignore"),
        torch.backends.mkldnn.flags(enabled=False),
    ):  # warns of unrelated flags
        (few, _), (many, largest) = (_kept(trial, network, count) for count in (FEW, MANY))
        counter = FlopCounterMode(display=False)
        with counter:
            trial.outputs_of(network, trial.reads(FEW)).sum().backward()  # type: ignore[no-untyped-call]
    kept = max(0.0, (many - few) / (MANY - FEW))
    return {
        "weights": sum(weight.numel() for weight in network.parameters()),
        "kept_bytes": kept,
        "kept_once_bytes": max(0.0, few - FEW * kept),
        "largest_bytes": largest / MANY,
        "mflop": counter.get_total_flops() / FEW / 1e6,
    }


def _trial(job: Job, *, receptive_field: int) -> _Trial:
    model: Any = job.own_files["model"]
    architecture = job.model.architecture(features=len(job.data.inputs), outputs=job.target.outputs)
    return _Trial(
        name=model.class_name,
        architecture={**architecture, "reads": CHUNKS} if receptive_field else architecture,
        file=model.file,
        bars=receptive_field - 1 + model.chunk if receptive_field else model.lookback,
        outs=model.chunk if receptive_field else 0,
        outputs=job.target.outputs,
    )


def _check_step(trial: _Trial, network: nn.Module) -> None:
    """Take an optimizer step as a pack does."""
    outputs = trial.outputs_of(network.train(), trial.reads(FEW))
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    if not outputs.requires_grad or not trained:
        raise UsageError(f"{trial.name} has no weight to train", why="its outputs have no gradient", do=DO)
    with as_usage_error(f"the backward pass of {trial.name} fails"):
        outputs.square().sum().backward()  # type: ignore[no-untyped-call]
    if all(weight.grad is None for weight in trained):
        raise UsageError(f"{trial.name} has no weight to train", why="none has a gradient", do=DO)
    with as_usage_error(f"AdamW can't train {trial.name}", DO):
        torch.optim.AdamW(trained, fused=True).step()
    for name, buffer in (*network.named_buffers(), *network.named_parameters()):
        if buffer.dtype not in DTYPES or buffer.layout != torch.strided:
            kind = str(buffer.dtype).removeprefix("torch.")
            what = f"{trial.name}.{name} is of type {kind}, {buffer.layout}"
            raise UsageError(what, why="a checkpoint can't keep that", do="Use another type.")


@torch.no_grad()
def _check_evaluation(trial: _Trial, network: nn.Module, field: int) -> None:
    """Check that an output depends only on its own bars: not on chance, the rest of the batch, or
    later bars.
    """
    x = trial.reads(FEW)
    torch.manual_seed(1)
    whole = trial.outputs_of(network, x)
    torch.manual_seed(2)
    if not _near(trial.outputs_of(network, x), whole):
        why = "the same bars gave two outputs"
        raise UsageError(
            f"{trial.name} is not deterministic in evaluation",
            why=why,
            do="Draw random numbers only if self.training.",
        )
    alone = [trial.outputs_of(network, part) for part in torch.split(x, 1, dim=0 if trial.outs else 1)]
    if not _near(torch.cat(alone), whole):
        why = "an output would depend on other windows, later ones among them"
        raise UsageError(
            f"{trial.name} uses statistics of the batch in evaluation", why=why, do="Use running statistics."
        )
    if not trial.outs:
        return
    for place in (trial.outs // 2, trial.outs - 1):
        moved = x.clone()
        moved[:, :, place + field - 1 :] += 1.0
        if not _near(trial.outputs_of(network, moved)[:, :place], whole[:, :place]):
            raise UsageError(
                f"{trial.name} looks ahead", why="an output of a chunk changes with bars after its own", do=DO
            )
        moved = x.clone()
        moved[:, :, :place] += 1.0
        if not _near(trial.outputs_of(network, moved)[:, place:], whole[:, place:]):
            why = "an output of a chunk changes with earlier bars"
            raise UsageError(
                f"{trial.name} sees more than its receptive_field of {field} bars", why=why, do="Raise it."
            )
    trial.outputs_of(network, trial.reads(1, bars=EVALUATION_CHUNK + field - 1), outs=EVALUATION_CHUNK)


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.allclose(one, other, rtol=ALONE, atol=ALONE * float(other.abs().max().clamp(min=1e-6))))


def _kept(trial: _Trial, network: nn.Module, count: int) -> tuple[float, float]:
    """Return the bytes that autograd keeps of a batch, without weights, and those of the largest tensor among
    them.
    """
    weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
    kept: dict[int, int] = {}
    held: list[object] = []  # keeps storages alive: a freed address could be reused

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            held.append(storage)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        held.append(trial.outputs_of(network, trial.reads(count)))
    return float(sum(kept.values())), float(max(kept.values(), default=0))


def _slices_agree(trial: _Trial) -> bool:
    """Return whether slices of a batch give its gradient and its buffers, without dropout."""
    names = {name: getattr(nn.functional, name) for name in _DROPOUTS}
    attention = nn.functional.scaled_dot_product_attention
    try:
        for name in names:
            setattr(nn.functional, name, lambda x, *_, **__: x)
        nn.functional.scaled_dot_product_attention = _attention_without_dropout(attention)
        whole = _gradients(trial, (MANY,), seed=1)
        return _agree(whole, _gradients(trial, (MANY,), seed=2)) and _agree(
            whole, _gradients(trial, CUTS, seed=1)
        )
    finally:
        for name, function in names.items():
            setattr(nn.functional, name, function)
        nn.functional.scaled_dot_product_attention = attention


def _attention_without_dropout(attention: Callable[..., Any]) -> Callable[..., Any]:
    def plain(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        *rest: Any,
        **named: Any,
    ) -> Any:
        return attention(query, key, value, attn_mask, 0.0, *rest, **named)

    return plain


def _gradients(trial: _Trial, cuts: Sequence[int], *, seed: int) -> dict[str, torch.Tensor]:
    """Return the gradients of a fixed batch, summed over slices, and the buffers after it."""
    network = trial.build().train()
    for part in network.modules():  # of recurrent layers and attention
        if isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0  # type: ignore[assignment]
    torch.manual_seed(seed)
    for x in torch.split(trial.reads(MANY), list(cuts), dim=0 if trial.outs else 1):
        trial.outputs_of(network, x).square().sum().backward()  # type: ignore[no-untyped-call]
    grads = {name: weight.grad for name, weight in network.named_parameters() if weight.grad is not None}
    return {**grads, **{f"buffer {name}": buffer.double() for name, buffer in buffers_of(network).items()}}


def _agree(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    if one.keys() != other.keys() or any(one[name].shape != other[name].shape for name in one):
        return False
    largest = max(
        (float(tensor.norm()) for name, tensor in one.items() if not name.startswith("buffer ")), default=0.0
    )
    return all(
        float((one[name] - other[name]).norm()) <= SAME * (float(one[name].norm()) + SAME * largest)
        for name in one
    )
