"""A panel: what it reads of each date, that nothing of it is later, its scores by series and by date, and its
predictions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.planted import panel_job, planted_panel
from tests.jobs import PAIRS, keys_for, with_settings
from tests.nightly import others_nightly
from tests.pieces import piece_of
from trainer.bars.job_plan import entry_of
from trainer.bars.panel_plan import plan_panel
from trainer.base.settings import CHUNKS
from trainer.data.read.candles import Candles
from trainer.data.read.shapes import FIELDS
from trainer.data.read.writing import write_candles
from trainer.data.timeframes import DAY
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.store.card import card_from_json, read_card
from trainer.targets import TARGETS
from trainer.targets.described import shown
from trainer.train.evaluate.panel_scores import panel_baselines, rank_correlations, score_panel
from trainer.train.evaluate.scores import SPANS, days_of_a_cell, outputs_by_span
from trainer.train.inputs.panel_rows import read_panel
from trainer.train.inputs.series import PieceData
from trainer.train.inputs.source import on_device, plan_and_open, read_source
from trainer.train.packs.pack import new_model
from trainer.train.piece import run_of
from trainer.train.predict.load_model import target_of
from trainer.train.predict.predictions import NotPredicted
from trainer.train.predict.symbols import Predictions, predict_models

FEATURES = ("volume_zscore_15", "log_return_1", "time_of_week_sin")
SCALERS = ("pooled", "series", "rank")
LATE, GONE = 3, 5  # series that begin late and end before the test


TRANSFORMER = {"model": "transformer", "preset": "tiny", "lookback": 8, "dropout": 0.0}


def job_with(scaler: str = "rank", **settings: Any) -> Job:
    job = with_settings(panel_job(scaler, seed=0), features=FEATURES, hidden=4, batch=64, epochs=1)
    return with_settings(job, **settings) if settings else job


def prepared(panel: list[Candles], job: Job) -> PieceData:
    """Return the data of a panel's only fold, as its plan in memory has it."""
    named = {one.symbol: one for one in panel}
    entries = [entry_of(named[symbol], plans) for symbol, plans in plan_panel(named, job).items()]
    return read_panel(named, job, entries, 1)


def piece_of_all(job: Job, panel: list[Candles]) -> Piece:
    return piece_of(job, *(one.symbol for one in panel), timeframe="1d")


def moved(candles: Candles, date: int) -> Candles:
    """Return candles with every bar from a time on changed, each by its own, and by much."""
    late = candles.timestamp >= date
    factor = np.where(late, np.exp(np.random.default_rng(1).normal(0, 0.2, len(late))), 1.0)
    return replace(candles, **{name: getattr(candles, name) * factor for name in FIELDS})


@pytest.fixture(scope="module")
def panel() -> list[Candles]:
    return planted_panel(0, series=8, dates=260)


@pytest.fixture(scope="module")
def folder(panel: list[Candles], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("panel")
    write_candles(path / "panel_1d.parquet", panel)
    return path


@pytest.mark.parametrize("scaler", SCALERS)
def test_a_date_without_a_bar_is_masked_and_not_filled(panel, scaler):
    data = prepared(panel, job_with(scaler))
    seen = 0
    for one, candles in zip(data.series, panel, strict=True):
        assert one.place_T is not None and one.num_rows == len(one.rows_TF)
        missing = np.setdiff1d(np.arange(one.num_rows), one.place_T)
        assert (one.rows_TF[missing] == 0).all() and (one.rows_TF[one.place_T, 0] == 1).all()
        assert one.train_labels_TK[missing].isnan().all()
        seen += len(missing)
        assert len(candles) + len(missing) == one.num_rows
    assert seen > 10


@pytest.mark.parametrize(
    ("scaler", "settings"), [*((scaler, {}) for scaler in SCALERS), ("rank", TRANSFORMER)]
)
def test_later_bars_of_any_series_change_no_earlier_input(panel, scaler, settings):
    job = job_with(scaler, **settings)
    before = prepared(panel, job)
    date = int(panel[0].timestamp[before.series[0].bars("test")[10]])
    after = prepared([moved(one, date) for one in panel], job)
    model = new_model(run_of(before, job, model="m", seed=0).member, job)
    outputs = [outputs_by_span(model, data, job)["test"] for data in (before, after)]
    changed = 0
    for number, (one, other) in enumerate(zip(before.series, after.series, strict=True)):
        rows = int((one.candles.timestamp < date).sum())
        rows = one.num_rows if rows == len(one.candles) else int(one.place_T[rows])  # type: ignore[index]
        assert torch.equal(one.rows_TF[:rows], other.rows_TF[:rows])
        assert torch.equal(one.train_labels_TK.nan_to_num(-9), other.train_labels_TK.nan_to_num(-9))
        old = one.candles.timestamp[one.bars("test")] < date
        assert np.array_equal(outputs[0][number][old], outputs[1][number][: int(old.sum())])
        changed += not torch.equal(one.rows_TF[rows:], other.rows_TF[rows:])
    assert changed == len(panel) - 1  # all but the one that ended before


def test_ranks_are_among_the_series_of_their_date(panel):
    job = job_with("rank")
    data = prepared(panel, job)
    column, rows = job.data.inputs.index("log_return_1"), dict[int, list[float]]()
    for one in data.series:
        for bar in range(14, len(one.candles)):
            row = one.rows_TF[one.place_T[bar], column]  # type: ignore[index]
            rows.setdefault(int(one.candles.timestamp[bar]), []).append(float(row))
    assert {len(values) for values in rows.values()} > {6, 7}  # late, gone and missing ones
    assert all(abs(sum(values)) < 1e-5 for values in rows.values())
    date = int(panel[0].timestamp[120])
    other = prepared([moved(panel[0], date), *panel[1:]], job)
    for before, after in zip(data.series[1:], other.series[1:], strict=True):
        old = before.place_T[before.candles.timestamp < date]  # type: ignore[index]
        ranked = [column, job.data.inputs.index("volume_zscore_15")]
        assert torch.equal(before.rows_TF[old][:, ranked], after.rows_TF[old][:, ranked])
    assert not torch.equal(data.series[1].rows_TF, other.series[1].rows_TF)


def test_each_scaler_scales_as_documented(panel):
    pooled, own, rank = (prepared(panel, job_with(scaler)) for scaler in SCALERS)
    assert all(torch.equal(mean, pooled.scalers[0][0]) for mean, _ in pooled.scalers)
    assert not torch.equal(own.scalers[0][0], own.scalers[1][0]) and torch.equal(
        own.panel.mean_F, pooled.panel.mean_F
    )  # type: ignore[union-attr]
    mean_F, std_F = rank.scalers[0]
    assert (
        mean_F[:3].tolist() == [0, 0, 0] and std_F[:3].tolist() == [1, 1, 1] and mean_F[3] != 0
    )  # the clock is pooled


def test_inputs_that_all_series_share_are_not_ranked(panel):
    """Their ranks would all be 0."""
    fear = "fear_greed lag 1d"
    features = (
        *("log_return_1", "bar_range", "log_seconds_since_last_bar"),
        *("new_york_time_sin", "turn_of_month"),
    )
    job = job_with("rank", features=features, columns=[fear, "funding"])
    random = np.random.default_rng(0)
    by_date = {
        int(time): random.normal() for time in np.unique([time for one in panel for time in one.timestamp])
    }
    sides = [
        replace(
            one,
            columns={
                "funding": random.normal(size=len(one)),
                fear: np.array([by_date[int(time)] for time in one.timestamp]),
            },
        )
        for one in panel
    ]
    data = prepared(sides, job)
    inputs = job.data.inputs
    ranked = {"log_return_1", "bar_range", "log_seconds_since_last_bar", "funding"}
    for column, name in enumerate(inputs[1:], 1):
        is_pooled = bool(data.scalers[0][0][column] != 0) or bool(data.scalers[0][1][column] != 1)
        assert is_pooled == (name not in ranked), name
    one, candles = data.series[0], sides[0]
    row, date = int(one.place_T[100]), int(candles.timestamp[100])
    mean_F, std_F = data.scalers[0]
    place = inputs.index(fear)
    assert float(one.rows_TF[row, place] * std_F[place] + mean_F[place]) == pytest.approx(
        by_date[date], abs=1e-5
    )


def test_series_without_training_windows_get_the_common_scaler(panel):
    short = panel[2].rows(200)
    data = prepared([*panel[:2], short, *panel[3:]], job_with("series"))
    assert data.panel is not None and data.panel.numbers == (1, 2, 0, 4, 5, 6, 7, 8)
    assert torch.equal(data.scalers[2][0], data.panel.mean_F) and data.series[2].fitted == data.panel.fitted
    assert len(data.series[2].rows("test")) > 0


def test_windows_and_chunks_read_the_same_rows_for_each_label(panel, folder):
    job = job_with(timeframe="1d")
    piece = piece_of_all(job, panel)
    source = read_source(piece, job, found := plan_and_open(job, folder, scratch=folder))
    data = source.folds[1]
    again = read_source(piece, job, found).folds[1]
    assert torch.equal(data.reads, again.reads) and torch.equal(data.rows_TF, again.rows_TF)
    labelled = (~data.train_labels_TK.isnan().any(dim=1)).nonzero()[:, 0]
    assert sorted((data.reads + job.model.bars_seen - 1).tolist()) == labelled.tolist()
    entries = found.plan.symbols
    assert sum(len(one.rows("validation")) for one in data.series) == sum(
        entry.folds[0].bars["validation"] for entry in entries.values()
    )
    moved_to = on_device(source, "meta").folds[1]
    assert [one.rows_TF.shape for one in moved_to.series] == [one.rows_TF.shape for one in data.series]
    assert all(one.rows_TF._base is moved_to.rows_TF for one in moved_to.series)


def test_sparse_test_bars_of_a_series_do_not_lengthen_blocks():
    panel = planted_panel(0, series=8, dates=400)
    job = job_with(horizon=5)
    test = prepared(panel, job).series[1].spans.test
    begin, end = (int(panel[1].timestamp[bar]) for bar in (test.start, test.stop - 1))
    keep = (panel[0].timestamp < begin) | (panel[0].timestamp > end - 7 * DAY)
    columns = {name: getattr(panel[0], name)[keep] for name in ("timestamp", *FIELDS)}
    suspended, *others = prepared([replace(panel[0], **columns), *panel[1:]], job).series
    begins = suspended.candles.timestamp[suspended.bars("test")]
    assert len(begins) < 9 and np.ptp(begins) > 30 * DAY
    assert days_of_a_cell(suspended) == days_of_a_cell(others[0]) < 10


def test_rank_correlation_is_spearmans_by_date():
    random = np.random.default_rng(0)
    dates = np.repeat([3, 5, 7, 9], [6, 2, 4, 5])
    forecast, labels = random.standard_normal(17), random.standard_normal(17)
    labels[8:12] = 1.0
    forecast[12:] = 0.5
    found, values = rank_correlations(forecast, labels, dates)
    assert found.tolist() == [3, 9] and values[1] == 0
    forecast[1] = forecast[0]  # which share a rank
    order = np.array([1.5, 1.5, 0, 0, 0, 0])
    order[2:] = [(forecast[:6] < value).sum() + 1 for value in forecast[2:6]]
    order[:2] = (forecast[:6] < forecast[0]).sum() + 1.5
    _, values = rank_correlations(forecast, labels, dates)
    assert values[0] == pytest.approx(np.corrcoef(order, labels[:6].argsort().argsort())[0, 1])


@pytest.mark.parametrize("scaler", SCALERS)
def test_variance_is_unbiased_where_series_have_own_scales(panel, scaler):
    wilder = [
        replace(one, **{name: getattr(one, name) ** (1 + number) for name in FIELDS if name != "volume"})
        for number, one in enumerate(panel)
    ]
    keys = keys_for({"hidden": 4}, model="lstm", target="volatility")
    job = with_settings(job_with(scaler), **keys, horizon_sessions=1)
    data = prepared(wilder, job)
    outputs = {span: [np.zeros((len(one.rows(span)), 1)) for one in data.series] for span in SPANS}
    scored, _ = score_panel(outputs, data, panel_baselines(data))
    both = [(one.labels("validation")[:, 0], its) for one, its in zip(data.series, scored, strict=True)]
    shares = [np.exp(2 * (labels - its.forecasts["validation"][:, 1])) for labels, its in both]
    assert np.concatenate(shares).mean() == pytest.approx(1)


SMALL = {
    "lookback": 4,
    "heads": 2,
    "width": 4,
    "blocks": 1,
    "chunk": 32,
    "hidden": 4,
    "horizon_sessions": 1,
    "horizon": 2,
    "volatility_bars": 20,
}


ON_PANELS = [(model, target) for model, target in PAIRS if not TARGETS[target].acts]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "name"),
    others_nightly(ON_PANELS, lambda pair: pair[0] == "lstm" or pair[1] == "direction"),
)
def test_every_model_and_target_train_and_predict_on_a_panel(
    model: str, name: str, panel: list[Candles], folder: Path, tmp_path: Path, train_piece: Callable[..., Any]
) -> None:
    scaler = SCALERS[list(TARGETS).index(name) % 3]
    keys = {
        "name": "planted",
        "panel": True,
        "scaler": scaler,
        "features": FEATURES,
        "timeframe": "1d",
        "calendar": "sessions",
    }
    job = with_settings(
        Job(), **keys_for(SMALL, model=model, target=name), **keys, epochs=1, test_fraction=0.25
    )
    job = with_settings(job, batch=4 if job.model.reads == CHUNKS else 128)
    done = train_piece(piece_of_all(job, panel), job, folder, tmp_path)
    file = tmp_path / done["file"]
    card = read_card(file)
    assert card.panel is not None and (card.kind, card.panel.scaler_of) == ("panel", scaler)
    assert card.features[0] == "present" and card_from_json(card.to_json()) == card
    assert any(text.startswith("rank IC ") for text in shown(card.metrics))
    assert card.metrics["test"]["n"] == sum(one.metrics["test"].get("n", 0) for one in card.series)
    assert card.series[GONE].metrics["test"] == {} and card.series[GONE].splits["test"]["bars"] == 0
    target = target_of(card, file)
    made = [one for one in predict_models([file], folder) if isinstance(one, Predictions)]
    assert [one.symbol for one in made] == [one.symbol for one in panel]
    if name != "direction":
        return
    said, truth, of = [], [], {item.symbol: item for item in prepared(panel, job).series}
    for one, series, candles in zip(made, card.series, panel, strict=True):
        bars = {int(bar): chance for bar, chance in zip(one.bar, one.columns["probability"], strict=True)}
        data = of[one.symbol]
        rows = data.bars("test")
        if not len(rows):
            continue
        chances = np.array([bars[int(time)] for time in candles.timestamp[rows]])
        scores = target.scores(chances, data.labels("test"))
        assert scores == {key: series.metrics["test"][key] for key in scores}
        said.append(chances)
        truth.append(data.labels("test"))
    scores = target.scores(np.concatenate(said), np.concatenate(truth))
    assert scores == {key: card.metrics["test"][key] for key in scores}


@pytest.mark.slow
def test_a_panel_predicts_symbols_that_it_never_saw(
    panel: list[Candles], tmp_path: Path, train_piece: Callable[..., Any]
) -> None:
    seen, data = tmp_path / "seen", tmp_path / "data"
    for path, part in ((seen, panel[:6]), (data, panel)):
        path.mkdir()
        write_candles(path / "panel_1d.parquet", part)
    for scaler in SCALERS:
        job = job_with(scaler)
        done = train_piece(piece_of_all(job, panel[:6]), job, seen, tmp_path)
        file = tmp_path / done["file"]
        every = {one.symbol: one for one in predict_models([file], data) if isinstance(one, Predictions)}
        assert list(every) == [one.symbol for one in panel]  # S06 and S07 are new
        (some, none) = predict_models([file], data, symbols=["S06", "NEW"], last=3)
        assert isinstance(none, Predictions)
        assert none.symbol == "S06"
        assert isinstance(some, NotPredicted)
        assert some.absent
        for name, values in none.columns.items():
            assert values.tolist() == every["S06"].columns[name][-3:].tolist()
    short = tmp_path / "short"
    short.mkdir()
    write_candles(short / "panel_1d.parquet", [panel[0], panel[1].rows(-10)])
    found = {one.symbol: one for one in predict_models([file], short)}
    assert isinstance(found["S00"], Predictions)
    assert isinstance(found["S01"], NotPredicted)
    assert found["S01"].absent
    assert "no bar of S01 has enough bars before it" in str(found["S01"].error)


@pytest.mark.slow
def test_unseen_series_share_one_embedding(panel, folder, tmp_path, train_piece):
    job = job_with("pooled", **TRANSFORMER, learning_rate=1e-2)
    done = train_piece(piece_of_all(job, panel), job, folder, tmp_path)
    again = [replace(panel[0], symbol=name) for name in ("COPY", "NEW")]
    write_candles(tmp_path / "all_1d.parquet", [*again, *panel])
    made = predict_models(
        [tmp_path / done["file"]], tmp_path / "all_1d.parquet", symbols=["COPY", "NEW", "S00"]
    )
    copy, new, seen = (one.columns["volatilities"] for one in made if isinstance(one, Predictions))
    assert np.array_equal(copy, new) and not np.allclose(copy, seen)
