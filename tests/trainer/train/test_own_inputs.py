"""Inputs of the user's own: columns of the candle files, from the file to the card and through `predict`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs import job_of, with_settings
from tests.pieces import piece_of
from tests.predictions import predict_file
from trainer.base.errors import DataError
from trainer.data.feature_names import FEATURES
from trainer.data.read.reading import read_candles
from trainer.store.card import read_card
from trainer.targets import TARGETS
from trainer.train.inputs.rows import prepare
from trainer.train.inputs.source import plan_and_open, read_source

JOB = job_of(lookback=5, horizon=1, hidden=8, layers=1, dropout=0.0, batch=128, epochs=4, learning_rate=1e-2)
OWN = with_settings(JOB, columns="hint", features="none")
BARS, FIRST = 5000, 40  # the column's first value


def hinted(folder: Path, *, extra: str = "hint") -> Path:
    """Write a walk whose next move the column `hint` tells, in one bar of two: the other cells are empty."""
    random = np.random.default_rng(3)
    hint = np.repeat(random.choice([-1.0, 1.0], BARS // 2), 2)
    move = 1e-3 * np.concatenate([[0.0], hint[:-1]]) + 1e-4 * random.standard_normal(BARS)
    close = 100 * np.exp(np.cumsum(move))
    columns = dict.fromkeys(("open", "high", "low", "close"), close)
    times = np.datetime64("2024-01-01", "ns") + np.arange(BARS) * np.timedelta64(60, "s")
    shown = np.where((np.arange(BARS) % 2 == 0) & (np.arange(BARS) >= FIRST), hint, np.nan)
    table = pa.table(
        {"timestamp": times, **columns, "volume": np.ones(BARS), extra: pa.array(shown, from_pandas=True)}
    )
    path = folder / "SIG-USD_1m.parquet"
    pq.write_table(table, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lstm", "tcn"])
def test_a_signal_in_a_column_is_found_and_predicted(model, tmp_path, train):
    file = hinted(tmp_path)
    settings = (
        {"lookback": 5, "hidden": 8}
        if model == "lstm"
        else {"width": 8, "blocks": 2, "chunk": 64, "batch": 4}
    )
    keys = {
        "model": model,
        "target": "direction",
        "dropout": 0.0,
        "horizon": 1,
        "epochs": 4,
        "learning_rate": 1e-2,
        **settings,
    }
    trained = train(tmp_path, tmp_path / "out", **keys, columns="hint", features="none")
    card = read_card(trained.file)
    assert (card.features, card.columns, len(card.of().scaler["mean"])) == (["hint"], ["hint"], 1)
    assert card.metrics["test"]["auc"] > 0.95
    predictions = predict_file(trained.file, file)
    candles = read_candles(file)["SIG-USD"]
    rows = {
        str(bar): row
        for row, bar in enumerate(np.datetime_as_string(candles.timestamp.astype("datetime64[ns]"), unit="s"))
    }
    first, last = (rows[card.of().splits["test"][end].rstrip("Z")] for end in ("first", "last"))
    scored = [(rows[one.bar.rstrip("Z")], one.values["probability"]) for one in predictions]
    inside = [
        (row, chance)
        for row, chance in scored
        if first <= row < last and candles.close[row] != candles.close[row + 1]
    ]
    labels = np.array([[float(candles.close[row + 1] > candles.close[row])] for row, _ in inside])
    target = TARGETS["direction"](horizon=1)
    found = target.scores(np.array([chance for _, chance in inside]), labels)
    assert found == {name: card.metrics["test"][name] for name in found}
    assert min(row for row, _ in scored) == FIRST + card.lookback - 1


def test_columns_join_the_features_in_card_and_prediction(tmp_path, train):
    file = hinted(tmp_path)
    trained = train(tmp_path, tmp_path / "out", hidden=4, lookback=5, epochs=1, columns="hint")
    card = read_card(trained.file)
    assert (
        card.features == [*FEATURES, "hint"]
        and card.columns == ["hint"]
        and card.architecture["features"] == 38
    )
    assert predict_file(trained.file, file, last=3)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(
        DataError, match="has no column hint .its columns besides those of a bar: hind.. Did you mean hind"
    ):
        predict_file(trained.file, hinted(other, extra="hind"))


def test_a_checkpoint_belongs_to_the_values_of_its_columns(tmp_path):
    file = hinted(tmp_path)
    table = pq.read_table(file)

    def mark(**keys: str) -> str:
        job = with_settings(OWN, **keys)
        return read_source(piece_of(job), job, plan_and_open(job, tmp_path, scratch=tmp_path)).origin.made

    before, with_ours = mark(), mark(features="all")
    values = table.column("hint").to_numpy().copy()
    values[BARS - 2] = -values[BARS - 2]
    pq.write_table(table.set_column(table.num_columns - 1, "hint", pa.array(values, from_pandas=True)), file)
    assert len({before, with_ours, mark(), mark(features="all")}) == 4


@pytest.mark.parametrize("features", ["all", "none"])
def test_no_input_before_a_cell_depends_on_it(tmp_path, features):
    file = hinted(tmp_path)
    job = with_settings(OWN, features=features)

    def prepared():
        return prepare(read_candles(file, columns=job.data.columns)["SIG-USD"], job)

    before, table = prepared(), pq.read_table(file)
    random = np.random.default_rng(0)
    for cut in sorted(random.integers(FIRST + 1, BARS, 5)):
        values = table.column("hint").to_numpy().copy()
        values[cut:] = np.where(random.random(BARS - cut) < 0.5, np.nan, random.normal(0, 9, BARS - cut))
        pq.write_table(
            table.set_column(table.num_columns - 1, "hint", pa.array(values, from_pandas=True)), file
        )
        after = prepared()
        assert np.array_equal(after.rows_TF[:cut], before.rows_TF[:cut])
        assert not np.array_equal(after.rows_TF, before.rows_TF)
        if cut >= before.spans.train.stop:
            assert np.array_equal(after.mean_F, before.mean_F) and np.array_equal(after.std_F, before.std_F)


def told_ahead(folder: Path, bars: int = BARS) -> Path:
    """Write a walk, and a side series with the next move of each bar, as of the bar's start."""
    random = np.random.default_rng(3)
    move = random.choice([-1e-3, 1e-3], bars)
    close = 100 * np.exp(np.cumsum(move))
    times = np.datetime64("2024-01-01", "ns") + np.arange(bars) * np.timedelta64(60, "s")
    columns = dict.fromkeys(("open", "high", "low", "close"), close)
    pq.write_table(
        pa.table({"timestamp": times, **columns, "volume": np.ones(bars)}), folder / "SIG-USD_1m.parquet"
    )
    pq.write_table(pa.table({"time": times, "next": np.roll(move, -1)}), folder / "hint.side.parquet")
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize(("lag", "finds"), [("1m", True), ("2m", False)])
def test_a_side_series_counts_from_its_publication(lag, finds, tmp_path, train):
    keys = {"hidden": 8, "lookback": 1, "horizon": 1, "epochs": 4, "learning_rate": 1e-2, "features": "none"}
    trained = train(told_ahead(tmp_path), tmp_path / "out", **keys, columns=f"hint lag {lag}")
    auc = read_card(trained.file).metrics["test"]["auc"]
    assert auc > 0.95 if finds else 0.4 < auc < 0.6


def test_a_model_with_a_side_series_needs_it_to_predict(tmp_path, train):
    folder = told_ahead(tmp_path, bars=1_500)
    entry = "hint lag 1m"
    trained = train(folder, tmp_path / "out", hidden=4, lookback=5, horizon=1, epochs=1, columns=entry)
    card = read_card(trained.file)
    assert (card.features[-1], card.columns) == (entry, [entry])
    assert [file["file"] for file in card.data["files"]] == ["SIG-USD_1m.parquet", "hint.side.parquet"]
    assert predict_file(trained.file, folder, last=3)
    side = folder / "hint.side.parquet"
    table = pq.read_table(side)
    pq.write_table(table.slice(0, 1_400), side)
    with pytest.raises(DataError, match="side series hint is stale"):
        predict_file(trained.file, folder, last=3)
    side.unlink()
    with pytest.raises(DataError, match="there is no side series hint"):
        predict_file(trained.file, folder, last=3)
