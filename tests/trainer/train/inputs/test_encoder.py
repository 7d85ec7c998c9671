"""A head on a pretrained encoder: what must match, what it takes over, what trains when, and its
unseen bars.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.jobs import full, job_of, with_settings
from tests.models import SETTINGS, make_model
from tests.pieces import piece_of
from tests.predictions import predict_file
from trainer.base.errors import DataError, UsageError
from trainer.job.job import Job
from trainer.job.reading import load_job
from trainer.models.pretrained import stage_of
from trainer.store.card import Card, CardSeries, card_from_json, read_card
from trainer.store.weights import load, save
from trainer.train.__main__ import main
from trainer.train.inputs.encoder import check_inputs, pinned, portable
from trainer.train.inputs.rows import prepare
from trainer.train.inputs.series import alone
from trainer.train.inputs.source import plan_and_open, read_source
from trainer.train.packs.pack import Member, new_model
from trainer.train.packs.strategy import form_pack
from trainer.train.piece import run_of
from trainer.train.run import Run

SIZES = {"model": "transformer", **SETTINGS["transformer"]}
TCN = {"model": "tcn", **SETTINGS["tcn"]}
FEATURES = ("log_return_1", "bar_range")
COMMON = {"epochs": 1, "batch": 64, "features": ",".join(FEATURES), "horizon": 1}
ENDS = "2024-01-01T12:00:00Z"  # the last bar of the encoders' validation
EARLY, BARS = 800, 2_000
NAMES = ("AAA", "SIG-USD")


@pytest.fixture(scope="module")
def bars(tmp_path_factory: pytest.TempPathFactory, write_candles: Any) -> Path:
    """Return a folder with `early` bars of two series, and `all` of one."""
    folder = tmp_path_factory.mktemp("encoder")
    for name, count, symbols in (("early", EARLY, NAMES), ("all", BARS, NAMES[1:])):
        (folder / name).mkdir()
        for number, symbol in enumerate(symbols):
            write_candles(folder / name, symbol, bars=count, seed=number + (name == "all"), signal=1.0)
    return folder


@pytest.fixture(scope="module")
def encoders(bars: Path) -> dict[str, Path]:
    """Return an encoder of each architecture, of two series; its weights are untrained."""
    made = {}
    for name in ("transformer", "tcn"):
        made[name] = bars / f"{name}-return_ticks_1m.safetensors"
        series = [
            CardSeries(
                symbol=symbol,
                calendar="24x7",
                horizon=1,
                scaler={"mean": [number + 0.5] * 2, "std": [2.0] * 2, "limit": 10.0},
                splits={"validation": {"first": "2024-01-01T08:00:00Z", "last": ENDS}},
            )
            for number, symbol in enumerate(NAMES)
        ]
        make_model(
            made[name], name, "return", features=FEATURES, series=series, model=made[name].stem, seed=3
        )
    return made


def head(encoder: Path, **settings: Any) -> Job:
    """Return a pinned job of a head, on the timeframe of its data."""
    sizes = TCN if "tcn" in encoder.name else SIZES
    known = {**COMMON, **sizes, "batch": 8 if sizes is TCN else 64, "timeframe": "1m", "target": "direction"}
    return pinned(job_of(**{**known, "encoder": str(encoder), **settings}))


def opened(job: Job, data: Path) -> Run:
    """Return the training of a job's one piece."""
    source = read_source(piece_of(job, "SIG-USD"), job, plan_and_open(job, data, scratch=data))
    return run_of(source.folds[1], job, model="head", seed=0)


def windows(run: Run, step: int, count: int) -> list[torch.Tensor]:
    """Return a batch of the run."""
    return [run.reads[step * count : (step + 1) * count]]


def edited(encoder: Path, folder: Path, change: Callable[[Card], Card]) -> Path:
    """Write a copy of an encoder with another card."""
    tensors, card = load(encoder)
    save(folder / encoder.name, tensors, change(card))
    return folder / encoder.name


@pytest.mark.parametrize("name", ["transformer", "tcn"])
def test_a_model_takes_the_encoders_weights_and_scalers(name, encoders, bars):
    job = head(encoders[name])
    run = opened(job, bars / "all")
    tensors, card = load(encoders[name])
    network = new_model(run.member, job)
    drawn = new_model(
        run.member, job_of(**{**job.model.to_keys(), "model": name, "encoder": "", "target": "direction"})
    )
    for key, weight in network.named_parameters():
        if key.startswith("head."):
            assert torch.equal(weight, drawn.get_parameter(key))
        elif key == "context.tables.series":
            # The head's one series is the encoder's second; the others share the embedding of unknown ones.
            assert torch.equal(weight, tensors[key][[0, 2, 0, 0, 0]])
        else:
            assert torch.equal(weight, tensors[key])
    (known,) = (one.scaler for one in card.series if one.symbol == "SIG-USD")
    assert run.member.mean_F.tolist() == known["mean"] and run.member.std_F.tolist() == known["std"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer", "tcn"])
def test_a_heads_file_is_whole_and_its_card_names_its_parent(name, encoders, bars, tmp_path, train_piece):
    file = edited(encoders[name], tmp_path, lambda card: card)
    job = head(file, encoder_training="frozen")
    trained = (
        tmp_path / "out" / train_piece(piece_of(job, "SIG-USD"), job, bars / "all", tmp_path / "out")["file"]
    )
    file.unlink()
    card = read_card(trained)
    assert card_from_json(card.to_json()) == card
    assert card.parent["model"] == f"{name}-return_ticks_1m" and card.parent["training"] == "frozen"
    assert card.parent["sha256"] == job.model.encoder_sha256
    assert card.parent["until"] == job.model.encoder_until
    before, after = load(encoders[name])[0], load(trained)[0]
    moved = {
        key for key in after if key != "context.tables.series" and not torch.equal(before[key], after[key])
    }
    assert moved == {"head.weight", "head.bias"}
    rows = predict_file(trained, bars / "all", last=5)
    assert all(0 < row.values["probability"] < 1 for row in rows), (
        "the encoder's file is gone: the model is whole"
    )


@pytest.mark.parametrize("restored", [False, True])
def test_blocks_unfreeze_one_by_one_also_after_a_restart(restored, encoders, bars):
    job = head(encoders["transformer"], encoder_training="unfreeze", unfreeze_steps=2)
    run = opened(job, bars / "all")
    member = run.member
    pack = form_pack([member], job)
    moved = []
    for step in range(7):
        if restored:
            state = pack.snapshot(0)
            pack = form_pack([member], job)
            pack.restore(0, state)
        before = pack.snapshot(0).weights
        pack.step([True], windows(run, step, 64))
        after = pack.snapshot(0).weights
        moved.append({key.rsplit(".", 1)[0] for key in after if not torch.equal(before[key], after[key])})
    first = {key for key in moved[2] if key.startswith("blocks.")}
    assert moved[0] == moved[1] == {"head"}
    assert first
    assert all(key.startswith("blocks.1.") for key in first)
    assert moved[2] == moved[3] == {"head", *first}
    assert {key.split(".")[1] for key in moved[4] if key.startswith("blocks.")} == {"0", "1"}
    assert not {"patches", "norm"} & moved[5] and {"patches", "norm"} <= moved[6]
    uneven = pack.snapshot(0)
    assert (uneven.updates, uneven.steps["blocks.1.attended.weight"], uneven.steps["patches.weight"]) == (
        7,
        5,
        1,
    )


def test_a_restart_gives_the_weights_of_an_uninterrupted_run(encoders, bars):
    job = head(encoders["tcn"], encoder_training="unfreeze", unfreeze_steps=1, ema=0.9)
    run = opened(job, bars / "all")
    member = run.member
    packs = [form_pack([member], job) for _ in range(2)]
    for step in range(4):
        for pack in packs:
            pack.step([True], windows(run, step, 2))
        state, packs[1] = packs[1].snapshot(0), form_pack([member], job)
        packs[1].restore(0, state)
    one, other = (pack.snapshot(0) for pack in packs)
    assert all(torch.equal(one.weights[key], other.weights[key]) for key in one.weights)
    assert all(torch.equal(one.average[key], other.average[key]) for key in one.average)


def test_weights_unfreeze_from_the_head_on():
    names = ("head.bias", "blocks.2.first.bias", "blocks.0.inner_in.weight", "patches.weight", "norm.weight")
    assert [stage_of(name, num_blocks=3) for name in names] == [0, 1, 3, 4, 4]


def test_an_encoder_that_has_seen_validation_is_refused(encoders, bars):
    job = head(encoders["transformer"])
    assert job.model.encoder_until == "2024-01-01T12:01:00Z", "the end of its last bar of validation"
    with pytest.raises(DataError) as raised:
        plan_and_open(with_settings(job, symbols="AAA"), bars / "early", scratch=bars)
    assert raised.value.what == "the encoder has seen bars and labels until 2024-01-01T12:01:00Z"
    assert raised.value.why.startswith("validation of AAA begins before, at 2024-01-01T09:")


def test_validation_may_begin_when_the_encoder_ends(encoders, bars):
    job, symbol = head(encoders["transformer"]), "SIG-USD"
    planned = plan_and_open(job, bars / "all", scratch=bars)
    begins = planned.plan.symbols[symbol].folds[0].spans.validation.start
    candles = planned.read(symbol, job)
    for shift, fails in ((0, False), (1, True)):
        until = np.datetime64(int(candles.timestamp[begins]), "ns") + np.timedelta64(shift, "s")
        late = replace(job, model=replace(job.model, encoder_until=f"{until.astype('datetime64[s]')}Z"))
        if fails:
            with pytest.raises(DataError, match="the encoder has seen"):
                prepare(candles, late)
        else:
            assert alone(prepare(candles, late)).reads.numel()


def test_an_encoder_of_another_network_is_refused(encoders, tmp_path):
    path = encoders["transformer"]
    for settings, message in (
        ({"width": 16}, "of another architecture [(]width is 8 there and 16 here"),
        ({"lookback": 12}, "tokens is 5 there and 3 here"),
        ({"encoder_sha256": "0" * 64}, "is another file [(]its sha256 is"),
    ):
        with pytest.raises(UsageError, match=message):
            head(path, **settings)
    with pytest.raises(UsageError, match="it is a transformer, and model.name is tcn"):
        pinned(job_of(**TCN, batch=8, encoder=str(path)))
    assert head(path, dropout=0.5, series=3, hide_series=0.0).model.encoder_sha256


def test_an_encoder_of_other_inputs_is_refused(encoders, tmp_path):
    path = encoders["transformer"]
    check_inputs(head(path))
    with pytest.raises(
        DataError, match="other features [(]it reads 2 inputs, this job 3; only one of them has rsi_14"
    ):
        check_inputs(head(path, features="log_return_1,bar_range,rsi_14"))
    with pytest.raises(
        DataError, match="another timeframe [(]it was trained on bars of 1m, this job has bars of 1h"
    ):
        check_inputs(head(path, timeframe="1h"))
    old = edited(path, tmp_path, lambda card: replace(card, features_version="0.9"))
    with pytest.raises(DataError, match="other features [(]they were of version 0.9"):
        check_inputs(head(old))
    with pytest.raises(
        DataError,
        match="another scaler [(]its inputs are those of single series, this job's those of a panel",
    ):
        check_inputs(replace(head(path), data=replace(head(path).data, panel=True)))


@pytest.mark.parametrize(
    "validation", [None, {"last": "soon"}, {"last": "9" * 50}, ["2024-01-01T00:00:00Z"]], ids=str
)
def test_an_encoder_needs_the_end_of_its_training_in_its_card(validation, encoders, tmp_path):
    splits = {"validation": validation}
    path = edited(
        encoders["tcn"],
        tmp_path,
        lambda card: replace(card, series=[replace(one, splits=splits) for one in card.series]),
    )
    with pytest.raises(DataError, match="its card does not say on which bars"):
        head(path)


def test_a_changed_encoder_file_is_refused(encoders, bars, tmp_path):
    path = edited(encoders["tcn"], tmp_path, lambda card: card)
    job = head(path)
    member = opened(job, bars / "all").member
    edited(encoders["tcn"], tmp_path, lambda card: replace(card, seed=5))
    with pytest.raises(DataError, match="has changed"):
        new_model(member, job)
    tensors, card = load(path)
    save(path, {**tensors, "blocks.0.first.bias": tensors["blocks.0.first.bias"][:1]}, card)
    with pytest.raises(DataError, match="weight blocks.0.first.bias is not that of its architecture"):
        new_model(member, head(path))


def test_a_bad_encoder_is_one_error_line_of_the_training(encoders, bars, tmp_path, capsys):
    early, keys = bars / "early", full({**SIZES, **COMMON})
    known = ["--data", str(early), "--out", str(tmp_path / "out"), "--device", "cpu", "--workers", "1"]
    sizes = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    missing = "no.safetensors can't be read (No such file or directory). Check its path"
    unseen = "none of the 2 symbols can be trained on (the encoder has seen bars and labels until"
    for encoder, more, message in (
        (tmp_path / "no.safetensors", sizes, missing),
        (early / "AAA_1m_2024-2024.parquet", sizes, "is not a whole model file"),
        (encoders["transformer"], sizes, unseen),
        (encoders["transformer"], ["--model", "lstm"], "unknown job key 'model.encoder'"),
    ):
        assert main([*known, *more, "--set", f"model.encoder={encoder}"]) == 2
        error = capsys.readouterr().err.strip()
        assert message in error and len(error.splitlines()) == 1


def test_an_encoder_is_named_from_the_job_files_folder(encoders, tmp_path):
    (tmp_path / "job.toml").write_text('[model]\nname = "tcn"\nencoder = "models/one.safetensors"\n')
    assert load_job(tmp_path / "job.toml")["model"]["encoder"] == str(tmp_path / "models/one.safetensors")
    job = head(encoders["tcn"])
    assert portable(job).model.encoder == encoders["tcn"].name
    assert portable(job).model.encoder_sha256 == job.model.encoder_sha256
    for settings in ({"encoder_sha256": "abc"}, {"encoder_until": "tomorrow"}, {"encoder_training": "half"}):
        with pytest.raises(UsageError):
            job_of(model="tcn", **settings)


def test_a_model_without_encoder_is_not_frozen():
    rows = torch.randn(100, 2)
    member = Member(name="m", rows_TF=rows, labels_TK=rows[:, :1], mean_F=torch.zeros(2), std_F=torch.ones(2))
    network = new_model(member, job_of(**TCN, target="direction"))
    assert all(weight.requires_grad for weight in network.parameters())
