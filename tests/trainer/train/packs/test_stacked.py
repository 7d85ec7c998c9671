"""A model trains alike in every strategy and pack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch

from tests.jobs import job_of, with_settings
from tests.nightly import others_nightly
from trainer.job.job import Job
from trainer.targets import TARGETS
from trainer.train.packs.pack import Member, Pack, fresh_state
from trainer.train.packs.sequential import SequentialPack
from trainer.train.packs.stacked import Fused, Streams
from trainer.train.precision import cpu_has_bf16_recurrence

pytestmark = pytest.mark.slow

STEPS = 16
FEW_STEPS = 6  # where what is compared would differ at the first step already
MODELS = 3
JOB = job_of(hidden=8, lookback=6, batch=32, dropout=0.2, learning_rate=1e-2, clip_norm=0.2)
RELATIVE = {torch.float32: 1e-3, torch.float64: 1e-9}
Strategy = Callable[[Sequence[Member], Job], Pack]


STRATEGIES = (SequentialPack, Fused, Streams)
ONE_TO_ANOTHER = ((SequentialPack, Fused), (Fused, Streams), (Streams, SequentialPack))


def _members(dtype: torch.dtype = torch.float32) -> list[Member]:
    found = []
    for number in range(MODELS):
        generator = torch.Generator().manual_seed(number)
        # Symbols of different length and scale: rows lie unpadded, and each model has its own scaler.
        rows_TF = torch.randn(200 + 50 * number, 5, generator=generator, dtype=torch.float64)
        rows_TF = rows_TF * (number + 1) + number
        parts = (rows_TF, rows_TF[:, :1] > number, rows_TF.mean(0), rows_TF.std(0))
        rows, labels, mean, std = (part.to(dtype) for part in parts)
        found.append(Member(name=f"m{number}", rows_TF=rows, labels_TK=labels, mean_F=mean, std_F=std))
    return found


def _batches(members: Sequence[Member], step: int) -> list[torch.Tensor]:
    """Return each model's windows; every fifth batch of model 1 is a short one, as at the end of an epoch."""
    generator = torch.Generator().manual_seed(1000 + step)
    sizes = [JOB.train.batch, 7 if step % 5 == 0 else JOB.train.batch, JOB.train.batch]
    return [
        torch.randint(0, len(member.rows_TF) - JOB.model.lookback, (size,), generator=generator)
        for member, size in zip(members, sizes, strict=True)
    ]


def _train(
    pack: Pack, members: Sequence[Member], *, stop: dict[int, int] | None = None, steps: int = STEPS
) -> torch.Tensor:
    """Take these steps, a model being active until its `stop`; return the losses (steps, M)."""
    losses = []
    for step in range(steps):
        active = [step < (stop or {}).get(number, steps) for number in range(len(members))]
        losses.append(pack.step(active, _batches(members, step)))
    return torch.stack(losses)


@cache
def _trained(strategy: Strategy, dtype: torch.dtype) -> torch.Tensor:
    """Return the losses (steps, M) of the test job's models, trained as they are most often."""
    members = _members(dtype)
    return _train(strategy(members, JOB), members)


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.float32, marks=pytest.mark.nightly, id="fp32"),
        pytest.param(torch.float64, id="float64"),
    ],
)
@pytest.mark.parametrize("strategy", [Fused, Streams])
def test_stacked_packs_have_the_losses_of_sequential_ones(strategy: Strategy, dtype: torch.dtype) -> None:
    expected = _trained(SequentialPack, dtype)
    torch.testing.assert_close(_trained(strategy, dtype), expected, rtol=RELATIVE[dtype], atol=0)
    assert (expected[-5:].mean(0) < expected[:5].mean(0)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "float64"])
@pytest.mark.parametrize("strategy", [Fused, Streams])
def test_a_model_in_a_pack_trains_as_it_does_alone(strategy: Strategy, dtype: torch.dtype) -> None:
    members, together = _members(dtype), _trained(strategy, dtype)
    alone = strategy(members[1:2], JOB)
    losses = torch.stack([alone.step([True], _batches(members, step)[1:2])[0] for step in range(STEPS)])
    torch.testing.assert_close(losses, together[:, 1], rtol=RELATIVE[dtype], atol=0)


@pytest.mark.parametrize("strategy", [SequentialPack, Fused, Streams])
def test_a_stopped_and_a_broken_model_do_not_move(strategy: Strategy) -> None:
    members = _members()
    pack = strategy(members, with_settings(JOB, ema=0.9))
    for step in range(5):
        pack.step([True] * MODELS, _batches(members, step))
    before = [pack.snapshot(number) for number in range(MODELS)]
    if isinstance(pack, SequentialPack):
        members[0].rows_TF.fill_(torch.nan)
    else:
        pack._rows_RF[: len(members[0].rows_TF)] = torch.nan
    losses = [pack.step([True, False, True], _batches(members, step)) for step in range(5, 8)]
    assert [torch.isfinite(loss).tolist() for loss in losses] == [[False, False, True]] * 3
    after = [pack.snapshot(number) for number in range(MODELS)]
    for number in (0, 1):  # the broken one does not move either
        for part in ("weights", "average", "exp_avg", "exp_avg_sq"):
            kept, found = getattr(before[number], part), getattr(after[number], part)
            assert kept and all(torch.equal(kept[name], found[name]) for name in kept)
        assert after[number].updates == before[number].updates == 5
    assert after[2].updates == 8
    assert not torch.equal(after[2].weights["head.weight"], before[2].weights["head.weight"])


@pytest.mark.parametrize("strategy", [Fused, Streams])
def test_a_neighbour_that_stops_changes_nothing_for_the_others(strategy: Strategy) -> None:
    members = _members()
    together = _trained(strategy, torch.float32)
    thinned = _train(strategy(members, JOB), members, stop={1: 10})
    assert torch.isnan(thinned[10:, 1]).all()
    torch.testing.assert_close(thinned[:, [0, 2]], together[:, [0, 2]], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("first", "later"), others_nightly(product(STRATEGIES, STRATEGIES), lambda pair: pair in ONE_TO_ANOTHER)
)
def test_a_snapshot_continues_in_any_strategy(first: Strategy, later: Strategy) -> None:
    members, uninterrupted = _members(torch.float64), _trained(SequentialPack, torch.float64)
    begun, continued = first(members, JOB), later(members, JOB)
    for step in range(STEPS // 2):
        begun.step([True] * MODELS, _batches(members, step))
    for number in range(MODELS):
        continued.restore(number, begun.snapshot(number))
    losses = [continued.step([True] * MODELS, _batches(members, step)) for step in range(STEPS // 2, STEPS)]
    torch.testing.assert_close(torch.stack(losses), uninterrupted[STEPS // 2 :], rtol=1e-9, atol=0)


@pytest.mark.parametrize("strategy", [Fused, Streams])
def test_models_of_the_same_rows_keep_their_own_labels(strategy: Strategy) -> None:
    first = _members()[0]  # as folds of a symbol, whose later bars only one of them trains on
    labels = first.labels_TK.clone()
    labels[100:] = torch.nan
    later, batch = replace(first, name="fold 2", labels_TK=labels), torch.arange(JOB.train.batch)
    losses = strategy([replace(later, name="fold 1"), replace(first, name="fold 2")], JOB).step(
        [True, True], [batch, batch + 120]
    )
    assert torch.isfinite(losses).all()
    assert later.rows_TF is first.rows_TF


@pytest.mark.parametrize("strategy", [SequentialPack, Fused, Streams])
def test_learning_rates_are_per_model(strategy: Strategy) -> None:
    members = _members(torch.float64)
    pack = strategy(members, JOB)
    pack.set_learning_rate(1, 0.0)

    def heads() -> list[torch.Tensor]:
        return [pack.snapshot(number).weights["head.weight"] for number in range(MODELS)]

    before = heads()
    pack.step([True] * MODELS, _batches(members, 1))
    assert [torch.equal(*pair) for pair in zip(before, heads(), strict=True)] == [False, True, False]


@pytest.mark.parametrize("strategy", [Fused, Streams])
def test_trials_of_a_pack_have_their_own_decay_and_clipping(strategy: Strategy) -> None:
    rates = [(0.0, 0.2), (0.5, 0.05), (5.0, 1.0)]
    jobs = [with_settings(JOB, weight_decay=decay, clip_norm=clip) for decay, clip in rates]
    members = [replace(one, job=job) for one, job in zip(_members(torch.float64), jobs, strict=True)]
    together, plain = (
        _train(pack(members, JOB), members, steps=FEW_STEPS) for pack in (strategy, SequentialPack)
    )
    torch.testing.assert_close(together, plain, rtol=1e-9, atol=0)
    same = [replace(one, job=None) for one in members]
    assert not torch.allclose(_train(strategy(same, JOB), same, steps=FEW_STEPS)[-1], together[-1])


@pytest.mark.parametrize("strategy", [Fused, Streams])
def test_a_members_module_has_its_current_weights(strategy: Strategy) -> None:
    members = _members()
    pack = strategy(members, JOB)
    pack.step([True] * MODELS, _batches(members, 1))
    weights = pack.snapshot(2).weights
    assert all(torch.equal(tensor, weights[name]) for name, tensor in pack.model(2).state_dict().items())


@pytest.mark.skipif(not cpu_has_bf16_recurrence(), reason="oneDNN has no bf16 LSTM for this CPU")
@pytest.mark.parametrize("strategy", [Fused, Streams])
def test_bf16_packs_agree_with_bf16_alone_and_come_near_fp32(strategy: Strategy) -> None:
    job, members = with_settings(JOB, precision="bf16"), _members()
    alone = _train(SequentialPack(members, job), members, steps=FEW_STEPS)
    together = _train(strategy(members, job), members, steps=FEW_STEPS)
    torch.testing.assert_close(together, alone, rtol=1e-2, atol=0)
    full = _trained(SequentialPack, torch.float32)[:FEW_STEPS]
    assert not torch.equal(alone, full)
    torch.testing.assert_close(alone, full, rtol=2e-2, atol=0)


@pytest.mark.parametrize("strategy", [SequentialPack, Fused, Streams])
def test_activations_computed_again_give_the_same_losses(strategy: Strategy) -> None:
    members, again = _members(), with_settings(JOB, activation_checkpointing=True)
    losses = _train(strategy(members, again), members, steps=FEW_STEPS)
    assert torch.equal(losses, _trained(strategy, torch.float32)[:FEW_STEPS])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "float64"])
@pytest.mark.parametrize("strategy", [Fused, Streams])
def test_slices_of_a_batch_give_the_losses_of_the_whole_batch(
    strategy: Callable[..., Pack], dtype: torch.dtype
) -> None:
    members, whole = _members(dtype), _trained(strategy, dtype)[:FEW_STEPS]
    sliced = _train(strategy(members, JOB, micro_batch=9), members, steps=FEW_STEPS)
    torch.testing.assert_close(sliced, whole, rtol=RELATIVE[dtype], atol=0)


@pytest.mark.parametrize("strategy", [SequentialPack, Fused, Streams])
def test_a_loss_scale_changes_nothing_and_is_halved_if_too_large(
    strategy: Strategy,
) -> None:
    members = _members()
    plain, scaled = strategy(members, JOB), strategy(members, JOB)
    if not isinstance(scaled, SequentialPack):
        scaled._is_scaled = True  # as in fp16
    scaled.restore(1, replace(scaled.snapshot(1), loss_scale=1024.0))
    for step in range(5):
        losses = [pack.step([True] * MODELS, _batches(members, step)) for pack in (plain, scaled)]
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=0)
    before = scaled.snapshot(1)
    scaled.restore(1, replace(before, loss_scale=2.0**200))  # beyond what float32 holds: gradients overflow
    loss = scaled.step([True] * MODELS, _batches(members, 5))[1]
    after = scaled.snapshot(1)
    assert torch.isfinite(loss)  # the scale is to blame and not the model, so the loop hears nothing of it
    assert (after.loss_scale, after.updates, scaled.snapshot(0).updates) == (2.0**199, before.updates, 6)
    assert all(torch.equal(after.weights[name], weight) for name, weight in before.weights.items())


def _averaged(pack: Pack, members: Sequence[Member], steps: range) -> list[torch.Tensor]:
    """Take steps; return each model's weights as they are evaluated, in one row."""
    for step in steps:
        pack.step([True] * len(members), _batches(members, step))
    return [_row(pack.model(number).state_dict()) for number in range(len(members))]


def _row(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([state[name].reshape(-1) for name in sorted(state)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "float64"])
@pytest.mark.parametrize("strategy", [Fused, Streams])
def test_strategies_agree_on_the_average_of_weights(strategy: Strategy, dtype: torch.dtype) -> None:
    job, members = with_settings(JOB, ema=0.9), _members(dtype)
    expected = _averaged(SequentialPack(members, job), members, range(FEW_STEPS))
    found = _averaged(strategy(members, job), members, range(FEW_STEPS))
    for ours, theirs in zip(found, expected, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < RELATIVE[dtype]


@pytest.mark.parametrize("strategy", [SequentialPack, Fused, Streams])
def test_the_average_follows_its_formula_and_changes_nothing(strategy: Strategy) -> None:
    members, decay = _members(torch.float64), 0.7
    plain, averaged = strategy(members, JOB), strategy(members, with_settings(JOB, ema=decay))
    expected = [_row(plain.snapshot(number).weights) for number in range(MODELS)]
    for step in range(FEW_STEPS):
        told = [pack.step([True] * MODELS, _batches(members, step)) for pack in (plain, averaged)]
        assert torch.equal(*told)
        kept = min(decay, (1 + step + 1) / (10 + step + 1))
        weights = [_row(plain.snapshot(number).weights) for number in range(MODELS)]
        expected = [kept * average + (1 - kept) * new for average, new in zip(expected, weights, strict=True)]
    for number in range(MODELS):
        state = averaged.snapshot(number)
        assert torch.equal(_row(state.weights), weights[number]) and not plain.snapshot(number).average
        torch.testing.assert_close(_row(state.average), expected[number], rtol=1e-9, atol=1e-12)
        assert torch.equal(_row(averaged.model(number).state_dict()), _row(state.average))


@pytest.mark.parametrize(
    ("first", "later"), others_nightly(product(STRATEGIES, STRATEGIES), lambda pair: pair in ONE_TO_ANOTHER)
)
def test_an_average_continues_in_any_strategy(first: Strategy, later: Strategy) -> None:
    job, members = with_settings(JOB, ema=0.9), _members(torch.float64)
    begun, continued = first(members, job), later(members, job)
    _averaged(begun, members, range(10))
    for number in range(MODELS):
        continued.restore(number, begun.snapshot(number))
    whole, resumed = (_averaged(pack, members, range(10, FEW_STEPS)) for pack in (begun, continued))
    for ours, theirs in zip(resumed, whole, strict=True):
        assert torch.equal(ours, theirs) or (
            first is not later and float((ours - theirs).norm() / theirs.norm()) < 1e-9
        )


@pytest.mark.parametrize("strategy", [SequentialPack, Fused, Streams])
def test_a_restarted_model_restarts_its_average(strategy: Strategy) -> None:
    job, members = with_settings(JOB, ema=0.9), _members(torch.float64)
    pack = strategy(members, job)
    (best, *_) = _averaged(pack, members, range(5))
    _averaged(pack, members, range(5, 10))
    averages = pack.model(0).state_dict()
    assert not torch.equal(_row(averages), best)
    start = {name: torch.full_like(weight, 0.25) for name, weight in averages.items()}
    pack.restore(0, fresh_state(start, like=pack.snapshot(0)))
    assert torch.equal(_row(pack.model(0).state_dict()), _row(start))
    pack.step([True] * MODELS, _batches(members, 10))
    state = pack.snapshot(0)
    expected = _row(start) + 9 / 11 * (_row(state.weights) - _row(start))  # as after any first update
    torch.testing.assert_close(_row(state.average), expected, rtol=1e-9, atol=1e-12)


def test_members_that_share_rows_store_them_once() -> None:
    members = _members()
    twin = replace(members[0], name="twin")
    pack = Fused([members[0], twin, members[1]], JOB)
    assert len(pack._rows_RF) == len(members[0].rows_TF) + len(members[1].rows_TF)
    assert pack._offsets_M1[:, 0].tolist() == [0, 0, len(members[0].rows_TF)]


@pytest.mark.parametrize("target", [name for name, home in TARGETS.items() if not home.acts])
@pytest.mark.parametrize("strategy", [Fused, pytest.param(Streams, marks=pytest.mark.nightly)])
def test_a_pack_takes_every_target_as_plain_modules_do(strategy: Strategy, target: str) -> None:
    job, members = with_settings(JOB, target=target), _members(torch.float64)
    packs = [SequentialPack(members, job, micro_batch=job.train.batch), strategy(members, job)]
    plain, other = (_train(pack, members, steps=10) for pack in packs)
    torch.testing.assert_close(other, plain, rtol=1e-9, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("fp16", 1e-2), ("bf16", 1e-2)])
@pytest.mark.parametrize("strategy", [Fused, Streams])
def test_a_recorded_graph_gives_the_losses_of_plain_modules(
    strategy: Strategy, precision: str, tolerance: float
) -> None:
    job = with_settings(JOB, ema=0.9, precision=precision)
    tensors = ("rows_TF", "labels_TK", "mean_F", "std_F")
    members = [
        replace(member, **{name: getattr(member, name).cuda() for name in tensors}) for member in _members()
    ]
    batches = [[starts.cuda() for starts in _batches(members, step)] for step in range(STEPS)]
    plain, recorded = SequentialPack(members, job), strategy(members, job)
    before = recorded.snapshot(0)
    recorded.step([False] * MODELS, batches[0])  # records, which moves nobody
    after = recorded.snapshot(0)
    assert after.updates == after.batches == 0
    for part in ("weights", "average", "exp_avg", "exp_avg_sq"):
        assert torch.equal(_row(getattr(after, part)), _row(getattr(before, part)))
    told = [[pack.step([True] * MODELS, starts) for starts in batches] for pack in (plain, recorded)]
    torch.testing.assert_close(torch.stack(told[1]), torch.stack(told[0]), rtol=tolerance, atol=0)
    for number in range(MODELS):
        ours, theirs = (_row(pack.model(number).state_dict()) for pack in (recorded, plain))
        assert float((ours - theirs).norm() / theirs.norm()) < tolerance
