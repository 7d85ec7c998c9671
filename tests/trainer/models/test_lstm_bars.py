"""The stacked LSTM's bars: torch's results and gradients, half precision, and the kernels of a GPU.

These run in Triton's interpreter where Triton is installed (`pip install triton==3.7.1`), and on a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from trainer.models import lstm as home
from trainer.models.lstm import bars, padded
from trainer.models.lstm.stacked import StackedLstm, _recurrence

FEATURES, HIDDEN = 5, 3
MODELS, STEPS, ROWS = 2, 4, 6
# models, bars, rows, hidden size: one and several programs, rows and units beside their edges
SHAPES = ((2, 5, 20, 16), (1, 4, 37, 10), (1, 1, 16, 64), (1, 12, 5, 37))
# One kernel for all bars whose weights stay on the chip or are read at each bar, or a kernel a bar.
WAYS: dict[str, dict[str, bool]] = {
    "stay": {"all_bars_fit": True, "_weights_stay": True},
    "read": {"all_bars_fit": True, "_weights_stay": False},
    "a bar each": {"all_bars_fit": False},
}
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_layer_and_its_gradients_are_torchs():
    plain = [nn.LSTM(FEATURES, HIDDEN).double() for _ in range(MODELS)]
    x_MTBF = random(MODELS, STEPS, ROWS, FEATURES).requires_grad_()
    grad_MTBH = random(MODELS, STEPS, ROWS, HIDDEN, seed=1)
    expected = torch.stack([lstm(x_TBF)[0] for lstm, x_TBF in zip(plain, x_MTBF, strict=True)])
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    each = [[lstm.get_parameter(name) for name in names] for lstm in plain]
    grad_x, *grads = torch.autograd.grad(
        expected, [x_MTBF, *(weight for one in each for weight in one)], grad_MTBH
    )
    by_name = [torch.stack(grads[place :: len(names)]) for place in range(len(names))]
    weights = [torch.stack([one[place] for one in each]).detach().requires_grad_() for place in range(3)]
    bias_M4H = torch.stack([one[2] + one[3] for one in each]).detach().requires_grad_()
    inputs = (x_MTBF, weights[0], weights[1], bias_M4H)
    found = _recurrence(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    made = torch.autograd.grad(found, inputs, grad_MTBH)
    torch.testing.assert_close(made, (grad_x, *by_name[:3]), rtol=1e-12, atol=1e-12)


def test_gates_are_not_read_a_second_time():
    """Their gradients are in their place."""
    inputs = (random(1, 2, 3, FEATURES), random(1, 4 * HIDDEN, FEATURES), random(1, 4 * HIDDEN, HIDDEN))
    hidden = _recurrence(*(one.requires_grad_() for one in inputs), random(1, 4 * HIDDEN))
    hidden.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        hidden.sum().backward()


@pytest.mark.parametrize("steps", [1, 60, 240])
def test_half_precision_over_a_window_is_as_near_as_torchs_own(steps: int) -> None:
    """Hidden states are rounded at each bar: after many they are no further off than those of `nn.LSTM`."""
    torch.manual_seed(0)
    plain = nn.LSTM(8, 32, batch_first=True).double()
    x_BTF = random(64, steps, 8)
    exact = plain(x_BTF)[0][:, -1].detach()
    torchs = nn.LSTM(8, 32, batch_first=True)
    torchs.load_state_dict(plain.state_dict())
    of_torch = torchs.bfloat16()(x_BTF.bfloat16())[0][:, -1].detach().double()
    stacked = StackedLstm(
        features=8, hidden=32, layers=1, dropout=0.0, matmul_dtype=torch.bfloat16, outputs=32
    )
    head = {"head.weight": torch.eye(32), "head.bias": torch.zeros(32)}
    weights = {f"lstms.0.{name}": tensor.float() for name, tensor in plain.state_dict().items()}
    ours = stacked.forward(stacked.flatten({**weights, **head})[None], x_BTF.float().transpose(0, 1)[None])[
        0
    ].double()
    error, of_torchs = ((found - exact).square().mean().sqrt() for found in (ours, of_torch))
    assert 0 < error < 1.1 * of_torchs


def compare_kernels(
    shape: tuple[int, int, int, int], dtype: torch.dtype, device: str, way: str | None = None
) -> None:
    """Compare the kernels with the steps in float64, in one of `WAYS` or in that which they choose. What they
    have to fill is NaN before.
    """
    from trainer.models.lstm import kernels

    with pytest.MonkeyPatch.context() as patch:
        for name, answer in WAYS[way].items() if way else ():
            patch.setattr(kernels, name, lambda _, answer=answer: answer)
        _compare(kernels, shape, dtype, device)


def _compare(kernels: Any, shape: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> None:
    models, steps, rows, hidden = shape
    # Columns of all weights of a model, as in a pack.
    weights = (random(models, 4 * hidden * hidden + 16, seed=1) / hidden**0.5).to(dtype)
    recurrent = weights[:, 16:].view(models, 4 * hidden, hidden)
    products, bias = random(*shape[:3], 4 * hidden).to(dtype), random(models, 4 * hidden, seed=2).to(dtype)
    read = products.new_full((*shape[:3], padded(hidden + 5)), torch.nan)

    def of(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype, device=device).copy_(tensor)

    def agree(found: torch.Tensor, expected: torch.Tensor, times: float = 1.0) -> None:
        allowed = TOLERANCE[dtype] * times
        torch.testing.assert_close(found.cpu().double(), expected, rtol=allowed, atol=allowed)

    gates, exact_gates, exact_read = of(products), products.double(), read.double()
    exact = bars._forward(exact_gates, recurrent.double(), bias.double(), exact_read[..., :hidden])
    filled = of(read)
    states = [torch.full_like(state, torch.nan) for state in bars._states(gates)]
    kernels.try_out(of(recurrent[:1]))
    kernels.forward_bars(gates, of(recurrent), of(bias), filled[..., :hidden], *states)
    agree(gates, exact_gates)
    agree(filled[..., :hidden], exact_read[..., :hidden])
    for state, expected in zip(states, exact, strict=True):
        agree(state, expected)
    assert filled[..., hidden:].isnan().all()  # the inputs' columns
    grad = random(*shape, seed=3).to(dtype)
    exact_gates, cells = gates.cpu().double(), states[1].cpu().double()
    sums = bars._backward(grad.double(), exact_gates, recurrent.double(), cells)
    made = kernels.backward_bars(of(grad), gates, of(recurrent), states[1])
    agree(gates, exact_gates)
    agree(made.sum(1), sums[:, 0], times=steps * rows)


@pytest.mark.parametrize(
    "full",
    [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("Triton Error [CUDA]: out of memory")],
)
def test_a_full_gpu_is_no_reason_to_do_without_kernels(monkeypatch, full: RuntimeError) -> None:
    """A smaller pack leaves room for them: in the same process, as in a trial."""
    answers: list[Exception | None] = [full, None, RuntimeError("Failed to find C compiler.")]

    def try_out(weights: torch.Tensor) -> None:
        if answer := answers.pop(0):
            raise answer

    kernels = SimpleNamespace(try_out=try_out)
    monkeypatch.setitem(sys.modules, "trainer.models.lstm.kernels", kernels)
    monkeypatch.setattr(home, "kernels", kernels, raising=False)
    bars._kernels.cache_clear()
    cpu = torch.device("cpu")
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            bars._kernels(cpu, torch.float32, 4)
        assert bars._kernels(cpu, torch.float32, 4) is kernels
        with pytest.warns(UserWarning, match="in torch's steps: Failed to find C compiler"):
            assert bars._kernels(cpu, torch.float32, 5) is None
    finally:
        bars._kernels.cache_clear()


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves are tested")
@pytest.mark.slow
def test_kernels_compute_what_the_steps_compute() -> None:
    """In a process of its own, since the interpreter is for all kernels of a process."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", __file__],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=Path(__file__).parents[3],
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (3, 20, 37, 64)], ids=str)
@pytest.mark.parametrize("way", [None, "read", "a bar each"])
def test_kernels_of_a_gpu_compute_what_the_steps_compute(
    shape: tuple[int, int, int, int], dtype: torch.dtype, way: str | None
) -> None:
    compare_kernels(shape, dtype, "cuda", way)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_weights_that_a_chip_cannot_hold_are_a_product_of_torchs(dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare_kernels((2, 5, 20, 300), dtype, "cuda")


if __name__ == "__main__":
    # The interpreter has no arithmetic of bf16.
    for each, number, one in product(SHAPES, (torch.float32, torch.float16), WAYS):
        compare_kernels(each, number, "cpu", one)
    compare_kernels((1, 3, 5, 130), torch.float16, "cpu")
