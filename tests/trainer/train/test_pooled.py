"""One model of several symbols: laid end to end, scored singly and together, and predicting one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.jobs import job_of
from tests.nightly import others_nightly
from tests.pieces import piece_of
from tests.predictions import of_test, predict_file
from tests.trainer.train.rosters import Roster
from trainer.base.errors import DataError
from trainer.data.read.reading import read_candles
from trainer.job.job import Job
from trainer.store.card import read_card
from trainer.store.weights import load
from trainer.train.inputs.series import PieceData, lay
from trainer.train.inputs.source import on_device, plan_and_open, read_source
from trainer.train.inputs.survey import survey
from trainer.train.packs.strategy import form_pack
from trainer.train.piece import run_of
from trainer.train.predict.load_model import target_of
from trainer.train.predict.readers import gather, gather_chunks
from trainer.train.predict.symbols import predict_models

JOBS = {
    "windows": job_of(lookback=20, hidden=4, batch=64, epochs=1),
    "fused": job_of(lookback=20, hidden=4, batch=64, epochs=1, strategy="fused"),
    "chunks": job_of(model="tcn", target="direction", blocks=2, width=4, chunk=64, batch=2, epochs=1),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, write_candles: Any) -> Path:
    folder = tmp_path_factory.mktemp("pooled")
    write_candles(folder, "SIG-USD", bars=1500, signal=1.0)
    write_candles(folder, "LOW-USD", bars=1500, seed=1, first=150)
    return folder


def _series(job: Job, folder: Path, *symbols: str) -> list[PieceData]:
    data = plan_and_open(job, folder, scratch=folder)
    return [read_source(piece_of(job, symbol), job, data).folds[1] for symbol in symbols]


@pytest.mark.slow
@pytest.mark.parametrize("name", others_nightly(JOBS, lambda name: name == "fused"))
def test_a_pool_of_one_series_trains_its_plain_model(name, data):
    job = JOBS[name]
    (single,) = _series(job, data, "SIG-USD")
    (symbol_data,) = single.series
    laid = lay([symbol_data], rows=[1500], padding=job.model.bars_out)
    runs = [run_of(each, job, model="m", seed=3) for each in (single, laid)]
    for run in runs:
        Roster(run).train(form_pack, job)
    assert runs[0].history == runs[1].history
    other = runs[1].best_weights
    assert all(torch.equal(weight, other[name]) for name, weight in runs[0].best_weights.items())


@pytest.mark.parametrize("name", ["windows", "chunks"])
def test_a_series_is_read_alike_at_any_offset(name, data):
    job = JOBS[name]
    parts = _series(job, data, "SIG-USD", "LOW-USD")
    both = lay([part.series[0] for part in parts], rows=[1500, 1350], padding=job.model.bars_out)
    assert both.offsets == (0, 1500 + job.model.bars_out) and len(both.reads) == sum(
        len(part.reads) for part in parts
    )
    seen = job.model.bars_seen
    taken = 0
    for part, offset in zip(parts, both.offsets, strict=True):
        reads = part.reads
        assert torch.equal(both.reads[taken : taken + len(reads)], reads + offset)
        taken += len(reads)
        if name == "chunks":
            # Begins at the last bar: all but that lies beyond the series.
            last = torch.tensor([len(part.rows_TF) - seen])
            steps = torch.arange(job.model.bars_out + seen - 1)
            place = torch.cat([reads, last])
            one = gather_chunks(part.rows_TF, place, steps, part.mean_F, part.std_F)
            same = gather_chunks(both.rows_TF, place + offset, steps, both.mean_F, both.std_F)
        else:
            steps = torch.arange(seen)[:, None]
            one = gather(part.rows_TF, reads, steps, part.mean_F, part.std_F)
            same = gather(both.rows_TF, reads + offset, steps, both.mean_F, both.std_F)
        assert torch.equal(one, same)
        end = offset + len(part.rows_TF)
        assert both.train_labels_TK[offset:end].nan_to_num(-1).equal(part.train_labels_TK.nan_to_num(-1))
        assert both.train_labels_TK[end : end + job.model.bars_out].isnan().all()


def test_series_stay_views_of_shared_rows_on_another_device(data):
    job = job_of(lookback=20, hidden=4, batch=64, pooled=True)
    source = read_source(piece_of(job, "SIG-USD", "LOW-USD"), job, plan_and_open(job, data, scratch=data))
    moved = on_device(source, "meta").folds[1]
    assert moved.rows_TF.device.type == "meta"
    assert [one.rows_TF.shape[0] for one in moved.series] == [1500, 1350]
    assert all(one.rows_TF._base is moved.rows_TF for one in moved.series)


def test_a_symbol_refused_by_planning_fails_its_pool(data, tmp_path, write_candles):
    write_candles(tmp_path, "SIG-USD", bars=1500)
    write_candles(tmp_path, "NEW-USD", bars=1500, first=1400)
    job = job_of(lookback=20, hidden=4, batch=64, pooled=True)
    (piece,) = survey(job, (found := plan_and_open(job, tmp_path, scratch=tmp_path)).plan).pieces
    assert piece.series == ("NEW-USD", "SIG-USD") and piece.bars == 1500
    with pytest.raises(DataError, match="NEW-USD has 100 bars"):
        read_source(piece, job, found)


@pytest.mark.slow
def test_a_pooled_model_is_scored_on_each_series_and_on_all(data, tmp_path, train_piece):
    job = job_of(
        name="mix", lookback=20, hidden=8, batch=64, epochs=2, learning_rate=1e-2, horizon=1, pooled=True
    )
    piece = piece_of(job, "SIG-USD", "LOW-USD")
    done = train_piece(piece, job, data, tmp_path)
    file = tmp_path / done["file"]
    tensors, card = load(file)
    assert done["file"] == "lstm-direction_mix_1m.safetensors" and tensors
    assert done["piece"] == card.piece == "mix" and done["series"] == list(card.symbols)
    assert (card.kind, card.symbols) == ("pooled", ("SIG-USD", "LOW-USD"))
    one, other = card.series
    assert one.scaler["mean"] != other.scaler["mean"]
    assert (one.data["bars"], other.data["bars"]) == (1500, 1350)
    assert one.splits["test"]["first"] == other.splits["test"]["first"]  # one split by time
    assert card.metrics["test"]["n"] == one.metrics["test"]["n"] + other.metrics["test"]["n"]
    assert card.metrics["test"]["baselines"].keys() == one.metrics["test"]["baselines"].keys()
    assert card.metrics["test"]["cell"] == one.metrics["test"]["cell"] == "1 day"
    assert one.metrics["test"]["auc"] > other.metrics["test"]["auc"] + 0.1  # the other has no signal
    target = target_of(card, file)
    for series in card.series:
        close = read_candles(data)[series.symbol]
        rows = predict_file(file, data, symbol=series.symbol)
        chances, labels = of_test(rows, close, series.splits["test"])
        scores = target.scores(chances, labels)
        assert scores == {key: series.metrics["test"][key] for key in scores}
    both = list(predict_models([file], data, last=5))
    assert [item.symbol for item in both] == ["LOW-USD", "SIG-USD"]
    for item in both:
        last = [row.values["probability"] for row in predict_file(file, data, symbol=item.symbol)[-5:]]
        assert item.columns["probability"].tolist() == last
    assert read_card(file).data["bars"] == 2850
