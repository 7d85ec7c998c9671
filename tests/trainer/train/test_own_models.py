"""Modules of a user's own train, re-pack, die, resume and predict as ours do."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.jobs import job_of, sets, with_settings
from tests.nightly import others_nightly
from tests.predictions import accuracy, predict_file
from tests.trainer.outside.nets import NETS
from tests.trainer.train.rosters import Roster, WorkerKilled, run_of_noise
from trainer.base.errors import UsageError
from trainer.data.feature_names import FEATURES
from trainer.job.job import Job
from trainer.store.card import read_card
from trainer.store.weights import load
from trainer.train.own.probe_model import measure_model
from trainer.train.packs.pack import fresh_state
from trainer.train.packs.sequential import SequentialPack
from trainer.train.packs.strategy import form_pack
from trainer.train.packs.tensors import put_tensors, tensors_of
from trainer.train.run import Run

pytestmark = pytest.mark.slow
FILE = Path(__file__).parents[1] / "outside" / "nets.py"
EVERY = pytest.mark.parametrize("name", NETS)


def job_for(name: str, **settings: object) -> Job:
    """Return the job of a module, tried as the desk tries it."""
    keys = {"lookback": 6, "chunk": 16, "batch": 4 if name == "Chunks" else 10, "learning_rate": 1e-2}
    keys |= settings
    job = job_of(model=f"{FILE}:{name}", epochs=3, patience=5, checkpoint_seconds=1, **keys)
    model = replace(job.own_files["model"], sha256=hashlib.sha256(FILE.read_bytes()).hexdigest())
    job = job.with_own_files({"model": model})
    before = torch.random.get_rng_state()
    tried = measure_model(job, lambda stage: None)
    torch.random.set_rng_state(before)
    return job.with_own_files({"model": tried})


def run_of(number: int, job: Job) -> Run:
    """Return a run of 11 batches an epoch or more, the last of them of one window."""
    return run_of_noise(number, job, windows=101 + 60 * number, features=len(FEATURES))


def trained(job: Job, *numbers: int, folder: Path, **keys: int) -> Roster:
    """Train these runs, two at a time, with their checkpoints in `folder`."""
    runs = [run_of(number, job) for number in numbers]
    return Roster(*runs, folder=folder, **keys).train(form_pack, job, places=2)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@EVERY
def test_a_module_that_depends_on_slices_is_never_sliced(name):
    job = job_for(name)
    assert job.cost.may_slice == NETS[name]
    pack = form_pack([run_of(0, job).member], job)
    assert isinstance(pack, SequentialPack)
    if not NETS[name]:
        assert pack._micro_batch >= job.train.batch
        with pytest.raises(UsageError, match=f"{name} can't train in slices"):
            with_settings(job, micro_batch=2)
    with pytest.raises(UsageError, match="can't compute its activations again"):
        with_settings(job, activation_checkpointing=True)


def test_a_batch_of_one_window_has_statistics_too():
    job = job_for("Norm", batch=1)
    pack = form_pack([run_of(0, job).member], job)
    assert bool(torch.isfinite(pack.step([True], [torch.arange(1)])).all())


@pytest.mark.parametrize(
    ("name", "ema"),
    others_nightly(product(NETS, (0.0, 0.9)), lambda pair: pair == ("Norm", 0.9)),
)
def test_own_models_resume_and_repack_bit_identically(tmp_path, name, ema):
    job = job_for(name, ema=ema)
    before = torch.random.get_rng_state()
    whole = trained(job, 1, folder=tmp_path / "alone").done["m1"]
    # The other one ends first: the pack is formed anew.
    together = trained(job, 0, 1, folder=tmp_path / "together")
    with pytest.raises(WorkerKilled):
        trained(job, 0, 1, folder=tmp_path / "cut", dies_after=43)
    resumed = trained(job, 0, 1, folder=tmp_path / "cut")
    assert torch.equal(torch.random.get_rng_state(), before), "torch's own generator is as it was"
    assert set(resumed.resumed) == {"m0", "m1"}
    assert whole.history[-1]["train_loss"] < whole.history[0]["train_loss"]
    for other in (together, resumed):
        assert not any(model.training for model in other.models.values())
        assert other.done["m1"].history == whole.history
        assert same(other.done["m1"].best_weights, whole.best_weights)
    assert same(resumed.done["m0"].best_weights, together.done["m0"].best_weights)


@pytest.mark.parametrize(
    ("name", "on_device"), [*((name, False) for name in NETS), ("Norm", True), ("Knots", True)]
)
def test_a_skipped_step_leaves_no_trace_in_buffers(name, on_device):
    job = job_for(name)
    run = run_of(0, job)
    run.member.rows_TF[50] = torch.nan
    pack = form_pack([run.member], job)
    pack._skips_on_device = on_device  # as on a GPU, where the host does not wait to decide
    pack.step([True], [torch.arange(100, 100 + job.train.batch)])
    before = tensors_of(pack.model(0))
    assert torch.isnan(pack.step([True], [torch.arange(43, 43 + job.train.batch)])[0])
    assert same(tensors_of(pack.model(0)), before)
    assert torch.isfinite(pack.step([True], [torch.arange(100, 100 + job.train.batch)])[0])


@EVERY
def test_a_restart_takes_the_best_weights_with_their_buffers(name):
    job = job_for(name, ema=0.5)
    run = run_of(0, job)
    pack = form_pack([run.member], job)
    for first in (0, 20, 40, 60):
        pack.step([True], [torch.arange(first, first + job.train.batch)])
    best = tensors_of(pack.model(0))
    pack.step([True], [torch.arange(80, 80 + job.train.batch)])
    pack.restore(0, fresh_state(best, like=pack.snapshot(0)))
    state = pack.snapshot(0)
    assert same({**state.weights, **state.buffers}, best) and same(dict(state.average), best)
    assert state.updates == 0 and not state.steps


def test_random_numbers_follow_from_seed_step_and_slice():
    job = with_settings(job_for("Attention"), micro_batch=5)
    run = run_of(0, job)
    starts = torch.arange(10)

    def losses(seed: int) -> list[float]:
        torch.manual_seed(seed)
        pack = SequentialPack([run.member], job, micro_batch=5)
        return [float(pack.step([True], [starts])[0]) for _ in range(3)]

    assert losses(1) == losses(2)
    other = SequentialPack([replace(run.member, seed=5)], job, micro_batch=5)
    assert [float(other.step([True], [starts])[0]) for _ in range(3)] != losses(1)


def test_a_weight_of_another_shape_is_not_put_back():
    module, other = nn.Linear(2, 1), nn.Linear(1, 1)
    with pytest.raises(ValueError, match="no weight weight of shape"):
        put_tensors(module, tensors_of(other))


@pytest.mark.parametrize("name", others_nightly(NETS, lambda name: name in ("Norm", "Chunks")))
def test_an_own_model_predicts_its_cards_scores(tmp_path, name, write_candles, train):
    write_candles(tmp_path, "SIG-USD", bars=2500, signal=1.0)
    job = job_for(name, batch=64 if name != "Chunks" else 4)
    model = job.to_dict()["model"]
    keys = {f"model.{key}": model[key] for key in model.keys() - {"name", "file", "class"}}
    settings = {"epochs": 2, "learning_rate": 1e-2, "batch": job.train.batch, "horizon": 1}
    trained = train(tmp_path, tmp_path / "out", model=f"{FILE}:{name}", **keys, **settings)
    card, (tensors, _) = read_card(trained.file), load(trained.file)
    own = card.own_files["model"]
    assert (own["file"], own["class"], own["text"]) == ("nets.py", name, FILE.read_text())
    assert own["sha256"] == hashlib.sha256(FILE.read_bytes()).hexdigest() and str(FILE) not in card.to_json()
    assert "head.weight" in tensors or any(key.endswith(".weight") for key in tensors)
    said = predict_file(trained.file, tmp_path, model_file=FILE)
    chances = {one.bar: one.values["probability"] for one in said}
    last = predict_file(trained.file, tmp_path, last=7, model_file=FILE)
    assert [one.values["probability"] for one in last] == pytest.approx(list(chances.values())[-7:], rel=1e-5)
    found = accuracy(chances, trained.data / "SIG-USD_1m_2024-2024.parquet", card)
    assert found == (card.metrics["test"]["n"], card.metrics["test"]["accuracy"])
    with pytest.raises(UsageError, match="needs its Python file"):
        predict_file(trained.file, tmp_path)
    with pytest.raises(UsageError, match="is another file"):
        predict_file(trained.file, tmp_path, model_file=Path(__file__))


def test_the_command_takes_own_files_and_copies_them(tmp_path, write_candles, python):
    data, out, net, target = (tmp_path / name for name in ("data", "out", "my_net.py", "my_target.py"))
    data.mkdir()
    write_candles(data, "SIG-USD", bars=1200, signal=1.0)
    net.write_text(FILE.read_text())
    target.write_text(FILE.with_name("own_target.py").read_text())
    words = [
        "-m",
        "trainer.train",
        "--data",
        str(data),
        "--out",
        str(out),
        "--device",
        "cpu",
        "--epochs",
        "1",
    ]
    words += ["--model", f"{net}:Norm", "--target", f"{target}:Range"]
    words += sets("model.hidden=5", "model.lookback=7")
    done = subprocess.run([*python, *words], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    file = out / "own-own_SIG-USD_1m.safetensors"
    card = read_card(file)
    assert (card.architecture["settings"], card.lookback, card.metrics["about"]["headline"]) == (
        {"hidden": 5},
        7,
        "loss",
    )
    copies = {path.name: path.read_text() for path in (out / "own_files").iterdir()}
    assert copies == {f"{own['sha256']}.py": own["text"] for own in card.own_files.values()}
    assert len(predict_file(file, data, last=2, model_file=net)) == 2
    net.write_text("raise SystemExit\n")
    refused = subprocess.run([*python, *words], capture_output=True, text=True, timeout=500)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert refused.stderr.startswith("error: my_net.py can't be loaded (SystemExit: )")
