"""Write a model as ONNX: the network with the scaler in one graph, any batch, the card in its metadata, and
the numbers compared with torch's before the file gets its name. Needs the extra `mayfly[onnx]`.

By `torch.onnx.export` with `dynamo=True`, torch's recommended exporter since 2.9
(https://docs.pytorch.org/docs/stable/onnx.html, 2026-11-27).

Shapes: B windows or chunks, T bars read of each, F features, C columns of the context.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.base.errors import UsageError
from trainer.base.files import whole_file
from trainer.base.settings import CONTEXT
from trainer.store.card import METADATA_KEY
from trainer.train.predict.loaded import CONTEXT_INPUT, SERIES, LoadedModel, X

OUTPUTS = "outputs"
PARITY = 1e-5  # largest difference from torch, as a share of the largest output
MOST_BYTES = 2**31 - 2**20  # protobuf's limit is 2 GiB, and the graph itself takes a little
BATCHES = (1, 2, 64)  # that are compared, on seeded inputs
FURTHER_BARS = 5  # of the chunk that is traced, besides those that one output sees


@dataclass(frozen=True, kw_only=True)
class OnnxParity:
    """The largest difference between onnxruntime's outputs and torch's on `inputs` windows or chunks."""

    difference: float
    largest_output: float
    inputs: int

    @property
    def share(self) -> float:
        """Return the difference as a share of the largest output."""
        return self.difference / self.largest_output if self.largest_output else self.difference


def write_onnx(model: LoadedModel, path: Path) -> OnnxParity:
    """Write a model as ONNX, atomically, and return how it compares with torch.

    Inputs: `x` (batch, T, F) float32, features that are not scaled; `series` (batch,) int64, if its series
    have scalers of their own; `context` (batch, C) int64, of a transformer. Output: `outputs`, the network's.
    An agent in an environment of the user's takes observations as `x` (batch, 1, D). The metadata has the
    card, as the .safetensors file does, and what inputs and outputs are (`mayfly_x`).

    Raises UsageError without the extra, for a model of more than 2 GiB, for one that torch can't export, and
    for numbers that differ by more than PARITY.
    """
    _check_possible(model)
    content = _exported(model)
    with whole_file(path) as partial:
        partial.write_bytes(content)
        parity = compare(model, partial)
        if not parity.share <= PARITY:
            why = f"its graph differs by {parity.share:.1e} of the largest output, more than {PARITY:.0e}"
            raise _impossible(model, why)
    return parity


def compare(model: LoadedModel, path: Path) -> OnnxParity:
    """Run an ONNX file and the module on the same seeded inputs."""
    import onnxruntime  # late: only an export needs it

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    difference = largest = 0.0
    for seed, batch in enumerate(BATCHES):
        inputs = seeded_inputs(model, batch, further=seed, seed=seed)
        with torch.no_grad():
            wanted = model.module(**inputs).numpy()
        (made,) = session.run([OUTPUTS], {name: tensor.numpy() for name, tensor in inputs.items()})
        if made.shape != wanted.shape or not np.isfinite(made).all():
            return OnnxParity(difference=float("inf"), largest_output=1.0, inputs=sum(BATCHES))
        difference = max(difference, float(np.abs(made - wanted).max()))
        largest = max(largest, float(np.abs(wanted).max()))
    return OnnxParity(difference=difference, largest_output=largest, inputs=sum(BATCHES))


def seeded_inputs(
    model: LoadedModel, batch: int, *, further: int = 0, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Return random inputs of a model, in its scalers' range. `further`: bars of a chunk, besides those that
    its first output sees.
    """
    draw = torch.Generator().manual_seed(seed)
    mean_SF, std_SF = model.module.mean, model.module.std
    series_B = torch.randint(len(mean_SF), (batch,), generator=draw)
    bars = model.card.lookback + (0 if model.reads_windows else further)
    noise_BTF = torch.randn(batch, bars, mean_SF.shape[1], generator=draw)
    inputs = {X: mean_SF[series_B][:, None] + std_SF[series_B][:, None] * noise_BTF}
    if SERIES in model.input_names:
        inputs[SERIES] = series_B
    if CONTEXT_INPUT in model.input_names:
        most = {**CONTEXT, "series": len(model.card.series)}
        columns = [torch.randint(most[name] + 1, (batch,), generator=draw) for name in CONTEXT]
        inputs[CONTEXT_INPUT] = torch.stack(columns, dim=1)
    return inputs


def _check_possible(model: LoadedModel) -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise UsageError(f"{missing[0]} is not installed", do="Install it: pip install 'mayfly[onnx]'")
    size = sum(tensor.nbytes for tensor in model.module.state_dict().values())
    if size > MOST_BYTES:
        raise _impossible(model, f"it has {size / 2**30:.1f} GiB, and a file of ONNX at most 2")


def _exported(model: LoadedModel) -> bytes:
    """Return the bytes of the graph, not yet compared."""
    inputs = seeded_inputs(model, 3, further=FURTHER_BARS)
    batch = torch.export.Dim("batch")
    shapes: dict[str, dict[int, Any]] = {name: {0: batch} for name in inputs}
    if not model.reads_windows:
        shapes[X][1] = torch.export.Dim("bars", min=model.card.lookback + 1)
    try:
        with _quiet(), torch.no_grad():  # without gradients some networks compute less
            program = torch.onnx.export(
                model.module,
                kwargs=inputs,
                dynamo=True,
                dynamic_shapes=shapes,
                output_names=[OUTPUTS],
                verbose=False,
            )
        assert program is not None
        told = {f"mayfly_{name}": words for name, words in model.told.items()}
        program.model.metadata_props.update({METADATA_KEY: model.card.to_json(), **told})
        content: bytes = program.model_proto.SerializeToString()
        return content
    except Exception as error:  # a user's module, and the exporter, can raise anything
        cause = error.__cause__ or error
        line = next((line for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        raise _impossible(model, line.strip()[:200]) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's remarks on libraries that we don't use from the terminal."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _impossible(model: LoadedModel, why: str) -> UsageError:
    do = "Use it in Python: trainer.load (docs/models.md)."
    return UsageError(f"{model.checked.name} can't be written as ONNX", why=why, do=do)
