"""The transformer: size, multiplications and memory by formula, what an output depends on, dropout by place
in the batch.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.memory import ALLOWED, counted, predicted
from tests.jobs import job_of
from tests.nightly import others_nightly
from trainer.base.errors import UsageError
from trainer.base.settings import CONTEXT
from trainer.models.transformer import PRESETS
from trainer.models.transformer.network import Transformer, attention_of_few, build

SMALL = job_of(model="transformer", preset="tiny", lookback=24, dropout=0.2, series=5, hide_series=0.5)
SHAPES = (
    {},
    {"instance_norm": False, "patch": 8},
    {"preset": "small", "lookback": 12, "series": 0},
    {"width": 96, "blocks": 1},
)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def model(*, recompute: bool = False, **settings: object) -> Transformer:
    torch.manual_seed(0)
    job = job_of(model="transformer", **{**SMALL.model.to_keys(), **settings})
    return build(job.model.architecture(features=5, outputs=2), recompute=recompute).double()


def windows(rows: int = 6) -> torch.Tensor:
    return torch.randn(24, rows, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def contexts(rows: int = 6) -> torch.Tensor:
    return torch.tensor([[row % 5 + 1, row % 7 + 1, row % 12 + 1, row * 16 + 1] for row in range(rows)])


def keys() -> torch.Tensor:
    return torch.arange(2 * SMALL.model.num_dropouts, dtype=torch.int32).view(-1, 2)


def test_the_large_preset_has_151_million_weights():
    settings = job_of(model="transformer", preset="large", lookback=128).model
    with torch.device("meta"):
        large = build(settings.architecture(features=37, outputs=1))
    assert settings.tokens == 32
    assert settings.cost(features=37, outputs=1).weights == 151_388_609
    assert sum(weight.numel() for weight in large.parameters()) == 151_388_609


@pytest.mark.parametrize("shape", [*SHAPES, *({"preset": name} for name in PRESETS)])
def test_it_has_the_weights_of_the_formula(shape):
    settings = job_of(model="transformer", **shape).model
    with torch.device("meta"):
        built = build(settings.architecture(features=7, outputs=3))
    weights = sum(weight.numel() for weight in built.parameters())
    assert settings.cost(features=7, outputs=3).weights == weights


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.slow
def test_a_step_has_the_operations_of_the_formula(shape):
    settings = job_of(model="transformer", **shape).model
    built, x_TBF = build(settings.architecture(features=7, outputs=3)), torch.randn(settings.lookback, 4, 7)
    # torch has no formula for flash attention on a CPU.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        built(x_TBF).sum().backward()
    assert counter.get_total_flops() == 4 * settings.cost(features=7, outputs=3).flops


@pytest.mark.slow
def test_on_a_frozen_encoder_only_the_head_runs_backward():
    settings = job_of(model="transformer", encoder="one.safetensors", encoder_training="frozen").model
    built, x_TBF = build(settings.architecture(features=7, outputs=3)), torch.randn(settings.lookback, 4, 7)
    for name, weight in built.named_parameters():
        weight.requires_grad_(name.startswith("head."))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        built(x_TBF).sum().backward()
    assert counter.get_total_flops() == 4 * settings.cost(features=7, outputs=3).flops
    assert settings.cost(features=7, outputs=3).trained == built.head.weight.numel() + 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "again", "precision"),
    others_nightly(
        product((1, 16), (False, True), ("fp32", "bf16")),
        lambda case: case in ((16, False, "fp32"), (16, True, "bf16")),
    ),
)
def test_a_steps_memory_is_what_the_formula_says(batch, again, precision):
    """With a batch of one most of it are gradients, with sixteen activations."""
    of_step = {"precision": precision, "activation_checkpointing": again, "micro_batch": batch}
    job = job_of(model="transformer", preset="small", series=4, batch=batch, **of_step)
    part, _ = predicted(job, on_gpu=False)
    found = counted(job)
    assert found.kept == pytest.approx(part.kept, rel=ALLOWED)
    assert found.peak == pytest.approx(part.kept + part.workspace, rel=ALLOWED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_of_few_tokens_is_torchs(dtype):
    """Torch's is exact here: in float64, of the same numbers. In half precision scores are rounded."""
    parts = torch.randn(3, 5, 2, 16, 8, generator=torch.Generator().manual_seed(0)).to(dtype).unbind()
    found = attention_of_few(*parts)
    exact = torch.nn.functional.scaled_dot_product_attention(*(part.double() for part in parts))
    assert found.dtype == dtype
    allowed = 1e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.double(), exact, rtol=allowed, atol=allowed)


def test_an_output_depends_on_every_bar_of_its_window_alone():
    transformer, x_TBF = model(), windows().requires_grad_()
    transformer(x_TBF)[2].sum().backward()
    moved_TB = x_TBF.grad.abs().sum(-1) > 0
    assert moved_TB[:, 2].all() and not moved_TB[:, [0, 1, 3, 4, 5]].any()


@pytest.mark.parametrize("column", range(len(CONTEXT)))
def test_an_output_depends_on_each_column_of_its_own_context(column):
    transformer, x_TBF, context_BC = model(), windows(), contexts()
    before = transformer(x_TBF, context_BC=context_BC)
    context_BC[1, column] += 1
    after = transformer(x_TBF, context_BC=context_BC)
    assert not torch.equal(after[1], before[1])
    assert torch.equal(after[[0, 2, 3, 4, 5]], before[[0, 2, 3, 4, 5]])


def test_hidden_series_train_the_shared_embedding():
    transformer, x_TBF, context_BC = model(), windows(), contexts()
    outputs = []
    for unknown in (0, 6, 9_999):
        context_BC[:, 0] = unknown
        outputs.append(transformer(x_TBF, context_BC=context_BC))
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])
    table = transformer.context.tables["series"]
    transformer(x_TBF, context_BC=contexts()).sum().backward()
    assert not table.grad[0].any() and table.grad[1:].any(1).all()
    table.grad = None
    transformer(x_TBF, keys(), context_BC=contexts()).sum().backward()
    assert table.grad[0].any() and table.grad[1:].any(1).any()


@pytest.mark.parametrize("blocks", [1, 3])
def test_without_gradients_the_last_block_computes_one_token(blocks):
    transformer = model(blocks=blocks)
    with FlopCounterMode(display=False) as whole:
        wanted = transformer(windows(), context_BC=contexts())
    with torch.no_grad(), FlopCounterMode(display=False) as less:
        made = transformer(windows(), context_BC=contexts())
    torch.testing.assert_close(made, wanted, rtol=1e-12, atol=1e-12)
    assert less.get_total_flops() < (1 - 0.6 / blocks) * whole.get_total_flops()


def test_windows_are_normalized_and_keep_their_level():
    normed, plain = model(), model(instance_norm=False)
    x_TBF = windows()
    with torch.no_grad():
        normed.level.weight.zero_()
        torch.testing.assert_close(normed(x_TBF * 3 + 7), normed(x_TBF), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model()(x_TBF * 3 + 7), model()(x_TBF), rtol=1e-2)
    assert plain.level is None


def test_dropout_of_a_window_does_not_depend_on_slices():
    transformer, x_TBF, context_BC = model(), windows(), contexts()
    whole = transformer(x_TBF, keys(), 0, context_BC)
    slices = [
        transformer(x_TBF[:, row : row + 2], keys(), row, context_BC[row : row + 2]) for row in (0, 2, 4)
    ]
    torch.testing.assert_close(torch.cat(slices), whole, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(whole, transformer(x_TBF, context_BC=context_BC))


@pytest.mark.parametrize("dropout_keys", [None, keys()])
def test_activations_computed_again_give_the_same_gradients(dropout_keys):
    gradients = []
    for recompute in (False, True):
        transformer = model(recompute=recompute)
        transformer(windows(), dropout_keys, 3, contexts()).square().mean().backward()
        gradients.append([weight.grad for weight in transformer.parameters()])
    assert all(torch.equal(plain, again) for plain, again in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lookback": 30}, "'model.lookback' is 30 [(]it must be a multiple of model.patch, which is 4"),
        ({"preset": "huge"}, "one of tiny, small, medium, base, large"),
        ({"heads": 5}, "'model.width' is 64 [(]it must be a multiple of the 5 heads"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        job_of(model="transformer", **settings)


def test_an_architecture_gives_back_its_settings():
    settings = SMALL.model
    architecture = settings.architecture(features=5, outputs=2)
    settings.check_architecture(architecture, features=5, outputs=2, bars_seen=24)
    for wrong in ({"tokens": 7}, {"blocks": "2"}, {"width": 33}, {"series": -1}):
        with pytest.raises(UsageError):
            settings.check_architecture({**architecture, **wrong}, features=5, outputs=2, bars_seen=24)
