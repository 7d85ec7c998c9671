"""The step of plain modules: the gradient of the whole batch for any slices, independent of other models."""

from __future__ import annotations

import subprocess

import pytest
import torch
from torch import nn

from tests.jobs import full, job_of, with_settings
from trainer.job.job import Job
from trainer.store.card import read_card
from trainer.store.weights import load
from trainer.train.packs.pack import Member, new_model
from trainer.train.packs.sequential import SequentialPack

STEPS = 30


def _member(name: str, seed: int, dtype: torch.dtype = torch.float32) -> Member:
    generator = torch.Generator().manual_seed(seed)
    rows_TF = torch.randn(400, 5, generator=generator).to(dtype)
    labels_TK = (rows_TF[:, :1] > 0).to(dtype)
    mean_F, std_F = torch.full((5,), 0.1, dtype=dtype), torch.full((5,), 0.9, dtype=dtype)
    return Member(name=name, rows_TF=rows_TF, labels_TK=labels_TK, mean_F=mean_F, std_F=std_F)


def _job(**settings: object) -> Job:
    return job_of(hidden=8, lookback=12, batch=64, dropout=0.2, learning_rate=1e-2, **settings)


def _batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    return [torch.randint(0, 380, (64,), generator=generator) for _ in range(STEPS)]


def _losses(pack: SequentialPack, number: int, members: int) -> list[float]:
    return [pack.step([True] * members, [starts] * members)[number].item() for starts in _batches()]


@pytest.mark.slow
def test_thirty_steps_are_those_of_plain_torch():
    job, member = (
        with_settings(_job(), dropout=0.0, clip_norm=0.1, weight_decay=0.5),
        _member("a", 0, torch.float64),
    )
    model = new_model(member, job)
    named = dict(model.named_parameters())
    biases = {name for name in named if "bias" in name}
    groups = [
        {"params": [named[name] for name in named if name not in biases], "weight_decay": 0.5},
        {"params": [named[name] for name in biases], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=job.train.learning_rate)
    lookback, most = job.model.lookback, job.train.clip_norm
    scaled_TF, expected, clipped = (member.rows_TF - member.mean_F) / member.std_F, [], 0
    for starts in _batches():
        windows = torch.stack([scaled_TF[start : start + lookback] for start in starts.tolist()], dim=1)
        labels = member.labels_TK[starts + lookback - 1]
        loss = nn.functional.binary_cross_entropy_with_logits(model(windows), labels)
        optimizer.zero_grad()
        loss.backward()
        clipped += int(nn.utils.clip_grad_norm_(model.parameters(), most) > most)
        optimizer.step()
        expected.append(loss.item())
    assert _losses(SequentialPack([member], job, micro_batch=17), 0, 1) == pytest.approx(expected, rel=1e-9)
    assert 0 < clipped < STEPS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "relative"),
    [pytest.param(torch.float32, 1e-3, marks=pytest.mark.nightly), (torch.float64, 1e-9)],
    ids=["fp32", "float64"],
)
def test_slices_of_a_batch_give_the_losses_of_the_whole_batch(dtype, relative):
    whole = _losses(SequentialPack([_member("a", 0, dtype)], _job(), micro_batch=64), 0, 1)
    sliced = _losses(SequentialPack([_member("a", 0, dtype)], _job(), micro_batch=17), 0, 1)
    assert sliced == pytest.approx(whole, rel=relative)
    assert sum(whole[-5:]) < sum(whole[:5])


def test_a_model_trains_bit_identically_alone_and_in_a_pack():
    alone = SequentialPack([_member("a", 0)], _job())
    packed = SequentialPack([_member("b", 1), _member("a", 0)], _job())
    assert _losses(alone, 0, 1) == _losses(packed, 1, 2)
    for name, tensor in alone.model(0).state_dict().items():
        assert torch.equal(tensor, packed.model(1).state_dict()[name])


def test_weights_follow_from_seed_and_name_alone():
    torch.manual_seed(1)
    first = SequentialPack([_member("a", 0)], _job())
    torch.manual_seed(2)
    again, other_name = SequentialPack([_member("a", 0)], _job()), SequentialPack([_member("b", 0)], _job())
    weight = [pack.model(0).state_dict()["head.weight"] for pack in (first, again, other_name)]
    assert torch.equal(weight[0], weight[1])
    assert not torch.equal(weight[0], weight[2])


@pytest.mark.nightly
@pytest.mark.slow
def test_the_command_keeps_and_scores_the_average(tmp_path, write_candles, train, python):
    write_candles(tmp_path, "SIG-USD", bars=1200, signal=1.0)
    settings = {"hidden": 4, "lookback": 20, "batch": 64, "epochs": 3, "learning_rate": 1e-2, "ema": 0.9}
    command = [*python, "-m", "trainer.train", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    command += ["--device", "cpu"]
    assignments = [f"--set={name}={value}" for name, value in full(settings).items()]
    subprocess.run([*command, *assignments], check=True, timeout=500, capture_output=True)
    file = tmp_path / "out" / "lstm-direction_SIG-USD_1m.safetensors"
    card = read_card(file)
    assert card.training["ema"] == 0.9
    here, plain = (
        train(tmp_path, tmp_path / name, **{**settings, "ema": ema})
        for name, ema in (("here", 0.9), ("plain", 0.0))
    )
    weights, same, others = (load(found)[0] for found in (file, here.file, plain.file))
    assert all(
        torch.equal(weight, same[name]) and not torch.equal(weight, others[name])
        for name, weight in weights.items()
    )
    assert card.metrics == read_card(here.file).metrics != read_card(plain.file).metrics
    # The same steps, judged otherwise: only the validation sees the average.
    histories = [item.training["history"] for item in (card, read_card(plain.file))]
    assert [item["train_loss"] for item in histories[0]] == [item["train_loss"] for item in histories[1]]
    best = min(item["validation_loss"] for item in histories[0])
    assert card.metrics["validation"]["log_loss"] < best, "calibrated there"


def test_the_device_skips_the_steps_the_host_would_skip():
    """On a GPU the host waits for no step: a tensor tells fused AdamW that a gradient is not finite. It can
    on a CPU, too.
    """
    job, member = _job(ema=0.9), _member("a", 0)
    member.labels_TK[150:160] = torch.nan
    clean = [starts[(starts < 130) | (starts > 165)] for starts in _batches()[:12]]
    batches = [torch.tensor([140, 141]), *clean[:6], torch.tensor([142, 143, 144]), *clean[6:]]
    packs = [SequentialPack([member], job), SequentialPack([member], job)]
    packs[1]._skips_on_device = True
    losses = [torch.stack([pack.step([True], [starts])[0] for starts in batches]) for pack in packs]
    assert (
        torch.isnan(losses[0]).nonzero()[:, 0].tolist()
        == torch.isnan(losses[1]).nonzero()[:, 0].tolist()
        == [0, 7]
    )
    assert torch.equal(losses[0].nan_to_num(), losses[1].nan_to_num())
    here, there = packs[0].snapshot(0), packs[1].snapshot(0)
    assert here.updates == there.updates == len(clean) and here.batches == there.batches == len(batches)
    for part in ("weights", "exp_avg", "exp_avg_sq"):
        assert all(
            torch.equal(tensor, getattr(there, part)[name]) for name, tensor in getattr(here, part).items()
        )
    assert here.average.keys() == there.average.keys() and here.average
    for name, average in here.average.items():  # its share is a tensor in float32 there
        torch.testing.assert_close(there.average[name], average, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("compiles", "expected"), [("always", 2), ("auto", 0), ("never", 0)])
def test_a_worker_compiles_blocks_only_if_the_job_asks(compiles, expected, monkeypatch):
    compiled = []
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled.append(type(module)))
    SequentialPack([_member("a", 0)], _job(layers=2, compile=compiles))
    assert compiled == [nn.LSTM] * expected
