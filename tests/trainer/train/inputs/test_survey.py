"""Data of workers: the files of each symbol, and the memory that reading them takes."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs import job_of
from tests.pieces import piece
from trainer.base.errors import UsageError
from trainer.job.search import SearchSettings
from trainer.job.trials import TrialEnd
from trainer.machines.host_memory import source_gib
from trainer.train.inputs.source import plan_and_open, read_source
from trainer.train.inputs.survey import read_finished, survey

SMALL = job_of(batch=64, lookback=20)
NO_SEARCH = SearchSettings()


def test_a_worker_opens_only_the_files_of_its_symbol(tmp_path, write_candles):
    for symbol in ("A-USD", "B-USD"):
        write_candles(tmp_path, symbol, bars=1000)
    data = plan_and_open(SMALL, tmp_path, scratch=tmp_path)
    first, second = survey(SMALL, data.plan).pieces
    assert [part.file for part in data.parts[second.series[0]]] == ["B-USD_1m_2024-2024.parquet"]
    (tmp_path / "B-USD_1m_2024-2024.parquet").write_bytes(b"spoilt meanwhile")
    assert read_source(first, SMALL, data).name == "A-USD"


def test_a_file_of_many_symbols_is_split_into_an_array_of_each(tmp_path, write_candles):
    tables = []
    for symbol in ("A-USD", "B-USD"):
        file = write_candles(tmp_path, symbol, bars=1000)
        tables.append(pq.read_table(file).append_column("symbol", pa.array([symbol] * 1000)))
        file.unlink()
    pq.write_table(pa.concat_tables(tables), tmp_path / "all_1m.parquet")
    (tmp_path / "scratch").mkdir()
    data = plan_and_open(SMALL, tmp_path, scratch=tmp_path / "scratch")
    piece = survey(SMALL, data.plan).pieces[0]
    assert piece.memory_gib == source_gib(bars=1000, rows=1000, folds=1)
    (tmp_path / "all_1m.parquet").unlink()
    source = read_source(piece, SMALL, data)
    assert list(source.origin.files) == [{"file": "all_1m.parquet", "sha256": data.plan.files[0].sha256}]
    assert (source.name, source.origin.entries[0].bars) == ("A-USD", 1000)


def test_source_memory_follows_its_formula():
    assert source_gib(bars=0, rows=0, folds=1) == pytest.approx(48 / 1024)
    columns = job_of(columns="a,b", features="none")
    alone = source_gib(bars=1000, rows=1000, folds=1, job=columns) - 48 / 1024
    assert alone * 2**30 == pytest.approx(1000 * 3 * 64), "reading them takes more than preparing them"
    million = source_gib(bars=1_000_000, rows=1_000_000, folds=2) - 48 / 1024
    assert million * 2**30 == pytest.approx(1e6 * (37 * 4 + 48 + 24 + 64), rel=0.03)


def test_finished_pieces_are_known_by_their_titles(tmp_path):
    pieces = [piece("A-USD"), piece("B-USD")]
    path = tmp_path / "finished.json"
    path.write_text(json.dumps(["B-USD"]))
    assert read_finished(path, pieces, NO_SEARCH) == {pieces[1].name: None}
    path.write_text("[]")
    assert read_finished(path, pieces, NO_SEARCH) == read_finished(None, pieces, NO_SEARCH) == {}


def test_finished_trials_come_with_what_they_ended_with(tmp_path):
    search = SearchSettings(over={"train.learning_rate": {"low": 0.1, "high": 0.2}})
    pieces = [piece("A-USD"), piece("A-USD", name="a_t3", title="A-USD t3", trial=3, study="a")]
    end = TrialEnd(trial=3, values=(("train.learning_rate", 0.15),), end="pruned", score=0.5, epochs=3)
    path = tmp_path / "finished.json"
    path.write_text(json.dumps([{"piece": "A-USD t3", **end.to_dict()}]))
    assert read_finished(path, pieces, search) == {"a_t3": end}
    for wrong in ({"trial": 2}, {"end": "won"}, {"values": {"train.learning_rate": "9"}}, {"values": {}}):
        path.write_text(json.dumps([{"piece": "A-USD t3", **end.to_dict(), **wrong}]))
        with pytest.raises(UsageError, match="cannot read finished pieces"):
            read_finished(path, pieces, search)
    path.write_text('["A-USD t3"]')
    with pytest.raises(UsageError, match="or none"):
        read_finished(path, pieces, search)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('["C-USD"]', "'C-USD' is not a piece of this job"),
        ('{"A-USD": 1}', "not a list"),
        ("[1]", "not a text"),
        ("[", "Expecting value"),
        ("[" * 100_000, "recursion"),
        (None, "No such file"),
    ],
)
def test_finished_pieces_are_read_strictly(tmp_path, content, why):
    path = tmp_path / "finished.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=str(path)) as refused:
        read_finished(path, [piece("A-USD")], NO_SEARCH)
    assert why in str(refused.value) and refused.value.do
