"""One bar of the stacked LSTM: torch's cell, its gradients, and half precision over a whole window."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainer.models.lstm.cell import lstm_cell, lstm_cell_backward
from trainer.models.lstm.stacked import StackedLstm

ROWS, HIDDEN = 5, 3


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_cell_and_its_gradients_are_torchs():
    inputs, recurrent, before = (
        random(ROWS, 4 * HIDDEN),
        random(ROWS, 4 * HIDDEN, seed=1),
        random(ROWS, HIDDEN),
    )
    torchs = nn.LSTMCell(4 * HIDDEN, HIDDEN, bias=False).double()
    torchs.weight_ih.data = torch.eye(4 * HIDDEN, dtype=torch.float64)
    torchs.weight_hh.data.zero_()
    gates, start = (inputs + recurrent).requires_grad_(), before.clone().requires_grad_()
    expected = torchs(gates, (torch.zeros(ROWS, HIDDEN, dtype=torch.float64), start))
    hidden, cell, kept = lstm_cell(inputs, recurrent, before)
    torch.testing.assert_close((hidden, cell), expected, rtol=1e-12, atol=1e-12)
    grads = random(ROWS, HIDDEN, seed=2), random(ROWS, HIDDEN, seed=3)
    wanted = torch.autograd.grad(expected, (gates, start), grads)
    found = lstm_cell_backward(*grads, before, cell, kept)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_a_cell_in_half_precision_is_rounded_once():
    """The one for CUDA computes in float32, too, and rounds its results."""
    inputs, recurrent, before = (
        tensor.bfloat16()
        for tensor in (random(ROWS, 4 * HIDDEN), random(ROWS, 4 * HIDDEN, seed=1), random(ROWS, HIDDEN))
    )
    exact = lstm_cell(inputs.float(), recurrent.float(), before.float())
    for found, expected in zip(lstm_cell(inputs, recurrent, before), exact, strict=True):
        assert found.dtype == torch.bfloat16 and torch.equal(found, expected.bfloat16())


@pytest.mark.parametrize("steps", [1, 60, 240])
def test_half_precision_over_a_window_is_as_near_as_torchs_own(steps: int) -> None:
    """Cell states have the gates' type: after many bars they are no further off than those of `nn.LSTM`."""
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
