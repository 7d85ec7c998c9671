"""The TCN: its size, what an output sees, and that recomputing activations changes nothing."""

from __future__ import annotations

import pytest
import torch

from tests.jobs import job_of
from trainer.models.tcn.network import Taps, Tcn, build

SMALL = job_of(model="tcn", blocks=3, width=8, dropout=0.2)
BARS = 40


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def model(*, recompute: bool = False, dtype: torch.dtype = torch.float64) -> Tcn:
    torch.manual_seed(0)
    return build(SMALL.model.architecture(features=5, outputs=2), recompute=recompute).to(dtype)


def bars(seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 5, BARS + SMALL.model.bars_seen - 1, generator=generator, dtype=torch.float64)


def keys() -> torch.Tensor:
    return torch.arange(2 * 2 * SMALL.model.blocks, dtype=torch.int32).view(-1, 2)


@pytest.mark.slow
def test_the_full_size_has_about_eighteen_million_parameters():
    with torch.device("meta"):
        full = build(job_of(model="tcn").model.architecture(features=37, outputs=1))
    assert sum(parameter.numel() for parameter in full.parameters()) == 18_189_313


@pytest.mark.parametrize("settings", [{}, {"blocks": 3}, {"blocks": 6, "dilation_cap": 4}])
def test_job_and_model_agree_on_the_receptive_field(settings):
    job = job_of(model="tcn", **{"width": 4, **settings})
    built = build(job.model.architecture(features=5, outputs=1))
    assert built.receptive_field == job.model.bars_seen == 1 + 4 * sum(job.model.dilations)


def test_dilations_double_up_to_their_cap():
    assert job_of(model="tcn").model.dilations == (1, 2, 4, 8, 16, 32, 32, 32, 32, 32, 32, 32)


def test_an_output_sees_exactly_its_receptive_field():
    tcn, x_BFX = model(), bars()
    target = 17  # of the outputs; it stands under bar 17 + receptive field - 1
    x_BFX.requires_grad_()
    tcn(x_BFX)[0, target].sum().backward()
    seen = x_BFX.grad.abs().sum(1)[0] > 0
    assert seen.nonzero().flatten().tolist()[0] == target
    assert seen.nonzero().flatten().tolist()[-1] == target + SMALL.model.bars_seen - 1
    assert not x_BFX.grad[1].any()


def test_two_half_chunks_give_the_outputs_of_the_whole():
    tcn, x_BFX = model(), bars()
    half = BARS // 2
    parts = [tcn(x_BFX[:, :, : half + SMALL.model.bars_seen - 1]), tcn(x_BFX[:, :, half:])]
    torch.testing.assert_close(torch.cat(parts, dim=1), tcn(x_BFX), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dropout_keys", [None, keys()])
def test_activations_computed_again_give_the_same_gradients(dropout_keys):
    gradients = []
    for recompute in (False, True):
        tcn = model(recompute=recompute)
        tcn(bars(), dropout_keys).square().mean().backward()
        gradients.append([parameter.grad for parameter in tcn.parameters()])
    assert all(torch.equal(plain, again) for plain, again in zip(*gradients, strict=True))


def test_dropout_of_a_chunk_does_not_depend_on_slices():
    tcn, x_BFX = model(), bars()
    whole = tcn(x_BFX, keys())
    slices = [tcn(x_BFX[row : row + 1], keys(), row) for row in range(2)]
    torch.testing.assert_close(torch.cat(slices), whole, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(whole, tcn(x_BFX))


def test_dropout_leaves_half_precision_as_it_is():
    tcn, types = build(SMALL.model.architecture(features=5, outputs=1)), []
    for block in tcn.blocks:
        block.register_forward_hook(lambda _, __, output: types.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        tcn(bars().float(), keys())
    assert types == [torch.bfloat16] * len(tcn.blocks)


@pytest.mark.parametrize(("taps", "dilation"), [(3, 1), (3, 8), (1, 1)])
def test_products_by_tap_are_the_convolution(taps, dilation):
    generator = torch.Generator().manual_seed(3)
    x_BCX = torch.randn(2, 5, BARS, generator=generator, dtype=torch.float64, requires_grad=True)
    weight_OCK = torch.randn(4, 5, taps, generator=generator, dtype=torch.float64, requires_grad=True)
    by_tap = Taps.apply(x_BCX, weight_OCK, dilation)
    whole = torch.nn.functional.conv1d(x_BCX, weight_OCK, dilation=dilation)
    torch.testing.assert_close(by_tap, whole, rtol=1e-12, atol=1e-12)
    grad = torch.randn(whole.shape, generator=generator, dtype=torch.float64)
    made = torch.autograd.grad(by_tap, (x_BCX, weight_OCK), grad)
    torch.testing.assert_close(
        made, torch.autograd.grad(whole, (x_BCX, weight_OCK), grad), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("settings", [{}, {"dilation_cap": 2}, {"blocks": 5, "dilation_cap": 6}])
def test_one_output_is_computed_from_the_bars_that_it_depends_on(settings):
    job = job_of(model="tcn", **{"blocks": 3, "width": 8, "dropout": 0.2, **settings})
    torch.manual_seed(0)
    tcn = build(job.model.architecture(features=5, outputs=2)).double()
    x_BFX = torch.randn(3, 5, job.model.bars_seen + 1, dtype=torch.float64, requires_grad=True)
    keys_L2 = torch.arange(2 * job.model.num_dropouts, dtype=torch.int32).view(-1, 2)
    for dropout_keys in (None, keys_L2):
        two, one = tcn(x_BFX, dropout_keys), tcn(x_BFX[:, :, 1:], dropout_keys)
        torch.testing.assert_close(one, two[:, 1:], rtol=1e-12, atol=1e-12)
    wanted, made = (torch.autograd.grad(outputs[:, -1].sum(), x_BFX)[0] for outputs in (two, one))
    torch.testing.assert_close(made, wanted, rtol=1e-12, atol=1e-12)
    read = []
    for block in tcn.blocks:
        block.register_forward_hook(lambda _, given, __: read.append(given[0].shape[2]))
    tcn(x_BFX.detach()[:, :, 1:])
    assert sum(read) < 0.8 * sum(x_BFX.shape[2] - 4 * sum(job.model.dilations[:n]) for n in range(len(read)))
