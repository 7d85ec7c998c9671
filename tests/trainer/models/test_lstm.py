"""The LSTM: the same function as torch's stacked LSTM, causal by construction, with dropout that is a
function.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.jobs import job_of
from trainer.models.layers import keep_mask
from trainer.models.lstm.network import Lstm, build, run_in


def _keys(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32).view(-1, 2)


def test_single_layers_equal_torchs_stacked_lstm():
    torch.manual_seed(0)
    model = Lstm(features=5, hidden=8, layers=2, dropout=0.3)
    stacked = nn.LSTM(5, 8, num_layers=2)
    for layer, lstm in enumerate(model.lstms):
        for name, weight in lstm.named_parameters():
            getattr(stacked, name.replace("l0", f"l{layer}")).data.copy_(weight)
    x_TBF = torch.randn(11, 3, 5)
    expected = model.head(stacked(x_TBF)[0][-1])
    assert torch.allclose(model(x_TBF), expected, atol=1e-6)


def test_a_layer_in_half_precision_has_gradients_in_full():
    torch.manual_seed(0)
    lstm, x_TBF = nn.LSTM(5, 8), torch.randn(11, 3, 5)
    plain = nn.LSTM(5, 8).double()
    plain.load_state_dict(lstm.state_dict())
    expected = plain(x_TBF.double())[0]
    found = run_in(torch.float64, lstm, x_TBF)
    assert found.dtype == torch.float64 and torch.equal(found, expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    for weight, exact in zip(lstm.parameters(), plain.parameters(), strict=True):
        assert weight.grad.dtype == torch.float32
        assert torch.allclose(weight.grad.double(), exact.grad, rtol=1e-6)


def test_dropout_is_off_without_keys_and_a_function_of_them_with():
    torch.manual_seed(0)
    model = Lstm(features=5, hidden=8, layers=2, dropout=0.5)
    x_TBF = torch.randn(11, 6, 5)
    keys = _keys(1, 2, 3, 4)
    assert torch.equal(model(x_TBF), model(x_TBF))
    assert torch.equal(model(x_TBF, keys), model(x_TBF, keys))
    assert not torch.equal(model(x_TBF, keys), model(x_TBF, _keys(1, 3, 3, 4)))
    assert not torch.equal(model(x_TBF, keys), model(x_TBF))


def test_dropout_of_a_slice_is_the_slice_of_the_batchs_dropout():
    whole = keep_mask(_keys(5, 6), first_row=0, shape_TBH=(7, 20, 8), probability=0.8)
    part = keep_mask(_keys(5, 6), first_row=12, shape_TBH=(7, 8, 8), probability=0.8)
    assert torch.equal(whole[:, :, 12:], part)


@pytest.mark.parametrize("probability", [0.5, 0.9])
def test_dropout_keeps_its_share_with_independent_masks(probability):
    shape = (60, 128, 64)
    same = {"first_row": 0, "shape_TBH": shape, "probability": probability}
    masks = [keep_mask(_keys(step, 77), **same) for step in range(3)]
    for mask in masks:
        assert mask.float().mean().item() == pytest.approx(probability, abs=0.003)
    numbers = torch.stack([mask.flatten().float() for mask in masks])
    assert (torch.corrcoef(numbers) - torch.eye(3)).abs().max() < 0.01
    rows = masks[0][0].float().transpose(0, 1).flatten(1)[:40]  # rows of one batch among each other
    assert (torch.corrcoef(rows) - torch.eye(40)).abs().max() < 0.08


def test_a_model_is_built_again_from_its_architecture():
    architecture = job_of(hidden=12, layers=3, dropout=0.0).model.architecture(features=4, outputs=2)
    model = build(architecture)
    again = build(architecture)
    again.load_state_dict(model.state_dict())
    assert torch.equal(model(torch.ones(3, 2, 4)), again(torch.ones(3, 2, 4)))
