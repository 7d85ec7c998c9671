"""The MLP: all bars of a window side by side, and many as one program."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.jobs import job_of
from trainer.base.settings import ModelCost
from trainer.models.mlp.network import build, stacked

ARCHITECTURE = {"features": 3, "lookback": 5, "hidden": 4, "layers": 2, "outputs": 2}


def test_it_is_layers_with_tanh_on_the_bars_in_order():
    torch.manual_seed(0)
    model = build(ARCHITECTURE)
    x_TBF = torch.randn(5, 7, 3)
    first, second = model.hidden
    for row in range(7):
        window = torch.cat([x_TBF[bar, row] for bar in range(5)])
        expected = model.head(second(first(window).tanh()).tanh())
        torch.testing.assert_close(model(x_TBF)[row], expected)


def test_stacked_models_give_the_outputs_of_each_alone():
    torch.manual_seed(0)
    models, together = [build(ARCHITECTURE).double() for _ in range(3)], stacked(ARCHITECTURE)
    x_MTBF = torch.randn(3, 5, 7, 3, dtype=torch.float64)
    weights_MP = torch.stack([together.flatten(model.state_dict()) for model in models])
    outputs_MBO = together.forward(weights_MP, x_MTBF)
    for model, x_TBF, outputs_BO, weights_P in zip(models, x_MTBF, outputs_MBO, weights_MP, strict=True):
        torch.testing.assert_close(outputs_BO, model(x_TBF), rtol=0, atol=1e-12)
        state = model.state_dict()
        assert all(torch.equal(state[name], part) for name, part in together.unflatten(weights_P).items())


def cost_and_network() -> tuple[ModelCost, nn.Module]:
    job = job_of(model="mlp", hidden=8, layers=3, lookback=4)
    sizes = {"features": len(job.data.inputs), "outputs": job.target.outputs}
    return job.cost, build(job.model.architecture(**sizes))


def test_its_cost_counts_its_weights() -> None:
    cost, model = cost_and_network()
    assert cost.weights == sum(weight.numel() for weight in model.parameters())


@pytest.mark.nightly
def test_its_cost_counts_its_products() -> None:
    from torch.utils.flop_counter import FlopCounterMode  # takes a second

    cost, model = cost_and_network()
    features = model.hidden[0].in_features // 4
    with FlopCounterMode(display=False) as counted:
        model(torch.randn(4, 16, features)).sum().backward()
    assert cost.mflop == counted.get_total_flops() / 16 / 1e6
