"""Random numbers follow from a seed and a purpose alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainer.models.layers import numbers_of
from trainer.train.packs.agents import uniform
from trainer.train.seeds import (
    KEYS_AHEAD,
    DropoutKeys,
    Episodes,
    batch_order,
    derive,
    drawing,
    dropout_keys,
    episode_order,
    key_table,
)


def test_a_derived_seed_is_the_same_on_every_machine():
    assert derive(0, "lstm_BTC-USD_1m", "weights") == 10266279285617625489


def test_parts_of_a_purpose_do_not_run_together():
    assert derive(0, "a", "bc") != derive(0, "ab", "c")


def test_batch_order_depends_on_seed_model_and_epoch_alone():
    torch.manual_seed(1)
    first = batch_order(50, seed=0, model="m", epoch=0)
    torch.rand(7)
    assert torch.equal(first, batch_order(50, seed=0, model="m", epoch=0))
    others = [batch_order(50, seed=1, model="m", epoch=0), batch_order(50, seed=0, model="n", epoch=0)]
    assert not any(
        torch.equal(first, other) for other in [*others, batch_order(50, seed=0, model="m", epoch=1)]
    )


def test_dropout_keys_differ_by_step_and_layer():
    keys = dropout_keys(seed=0, model="m", steps=range(4), layers=3)
    assert keys.dtype == torch.int32 and len({tuple(key) for key in keys.view(12, 2).tolist()}) == 12


@pytest.mark.parametrize("layers", [0, 1, 300])
def test_keys_on_the_device_are_those_of_each_step(layers: int) -> None:
    table = key_table(2, layers=layers, device=torch.device("cpu"))
    keys = DropoutKeys(table[1], seed=3, model="m")
    steps = [0, 1, KEYS_AHEAD - 1, KEYS_AHEAD, 5, 10 * KEYS_AHEAD + 7]
    for step in steps:
        expected = dropout_keys(seed=3, model="m", steps=[step], layers=layers)[0]
        assert torch.equal(keys.of(step), expected)
    assert not table[0].any()


def test_seeding_on_a_cpu_equals_torchs_without_cuda(monkeypatch):
    module = nn.Linear(2, 2)
    torch.manual_seed(5)
    expected, before = torch.rand(3), torch.get_rng_state()
    monkeypatch.setattr(
        torch.cuda, "manual_seed_all", lambda seed: pytest.fail("it makes a stack trace, which takes 2 ms")
    )
    with drawing(module, seed=5, device=torch.device("cpu")):
        assert torch.equal(torch.rand(3), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_agents_lanes_visit_windows_in_turn():
    episodes = Episodes(lanes=3, bars=4, length=6)
    seeded = {"most": 36, "seed": 1, "model": "m"}
    order = episode_order(20, episodes, epoch=0, **seeded)
    assert order.shape == (36, 2) and torch.equal(order[:, 1], order[:, 0] + 1)
    lanes = order[:, 0].view(3, 3, 4).transpose(0, 1).reshape(3, 2, 6)  # by lane, in episodes
    assert (lanes.diff(dim=-1) == 1).all() and order.min() >= 0 and order.max() <= 19
    assert torch.equal(episode_order(20, episodes, epoch=0, **seeded), order)
    assert not torch.equal(episode_order(20, episodes, epoch=1, **seeded), order)
    short = episode_order(4, episodes, epoch=0, **seeded)  # fewer windows than an episode
    assert short.max() == 3 and torch.equal(short[:, 1], short[:, 0] + 1)


def test_numbers_of_keys_are_uniform_and_of_their_key():
    keys = dropout_keys(seed=0, model="m", steps=range(2), layers=2, purpose="agent").view(4, 2)
    drawn = uniform(keys, 4096)
    assert drawn.min() > 0 and drawn.max() < 1
    assert (drawn.mean(1) - 0.5).abs().max() < 0.02 and (drawn.var(1) - 1 / 12).abs().max() < 0.005
    assert torch.corrcoef(drawn).triu(1).abs().max() < 0.06
    assert (drawn[:, 1:] * drawn[:, :-1]).mean(1).sub(0.25).abs().max() < 0.02
    assert torch.equal(uniform(keys[2:3], 4096)[0], drawn[2])
    assert len(set(numbers_of(keys, 4096)[0].tolist())) > 4080
