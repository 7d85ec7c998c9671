"""Rows on the disk: the same to the last bit as in memory, without a trace when they are gone."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from tests.jobs import job_of, sets
from trainer.base.errors import DataError
from trainer.job.job import Job
from trainer.machines.host_memory import rows_gib, rows_on_disk
from trainer.store.card import read_card
from trainer.train.__main__ import main as train
from trainer.train.inputs import rows, series
from trainer.train.inputs.row_files import empty_rows
from trainer.train.inputs.source import JobData, Source, plan_and_open, read_source
from trainer.train.inputs.survey import survey
from trainer.train.workers.helpers import read_here

SMALL = {"model": "tcn", "target": "direction", "width": 4, "blocks": 2, "chunk": 32, "batch": 4}
TCN = job_of(**SMALL)


def read(job: Job, folder: Path, monkeypatch: pytest.MonkeyPatch, *, host_gib: float) -> list[Source]:
    """Read the sources of a job on a host with so much memory."""
    monkeypatch.setattr(rows, "PART", 1_000)  # several parts of these few bars
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    data = plan_and_open(job, folder, scratch=scratch).with_room(folder=scratch, host_gib=host_gib, workers=1)
    return [read_source(piece, job, data) for piece in survey(job, data.plan).pieces]


@pytest.mark.parametrize("keys", [{}, {"pooled": True}, {"features": ("log_return_1", "rsi_14")}])
def test_rows_on_the_disk_are_those_in_memory(tmp_path, write_candles, monkeypatch, keys):
    for symbol in ("A-USD", "B-USD"):
        write_candles(tmp_path, symbol, bars=4_000)
    job = job_of(**{**SMALL, **keys})
    files: list[tuple[int, int]] = []

    def counted(count: int, width: int, *, folder: Path | None) -> torch.Tensor:
        if folder is not None:
            files.append((count, width))
        return empty_rows(count, width, folder=folder)

    for module in (rows, series):
        monkeypatch.setattr(module, "empty_rows", counted)
    inside = read(job, tmp_path, monkeypatch, host_gib=math.inf)
    assert not files
    outside = read(job, tmp_path, monkeypatch, host_gib=0.0)
    assert files and {width for _, width in files} == {len(job.data.inputs)}
    assert [one.name for one in inside] == [one.name for one in outside]
    for one, other in zip(inside, outside, strict=True):
        for fold, data in one.folds.items():
            for name in ("rows_TF", "train_labels_TK", "mean_F", "std_F", "reads"):
                mine, theirs = (getattr(each, name).nan_to_num(7.0) for each in (data, other.folds[fold]))
                assert torch.equal(mine, theirs), name
    assert not list((tmp_path / "scratch").glob("rows-*")), "mapped files have no name"


@pytest.mark.nightly
def test_models_trained_from_the_disk_are_equal_to_the_bit(tmp_path, write_candles, monkeypatch, capsys):
    (tmp_path / "data").mkdir()
    write_candles(tmp_path / "data", "A-USD", bars=3_000)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    models = []
    for name, gib in (("memory", 1e6), ("disk", 1e-9)):
        monkeypatch.setattr("trainer.machines.host_memory.host_gib", lambda gib=gib: gib)
        where = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / name)]
        keys = ("model.name=tcn", "model.width=4", "model.blocks=2", "model.chunk=64", "train.batch=4")
        keys += ("target.name=direction",)
        code = train([*where, "--device", "cpu", "--workers", "1", "--epochs", "1", *sets(*keys)])
        assert code == 0, capsys.readouterr().err
        (file,) = (tmp_path / name).glob("*.safetensors")
        models.append((load_file(file), read_card(file).metrics))
        assert ("stay on the disk" in capsys.readouterr().err) == (name == "disk")
    (inside, scores), (outside, others) = models
    assert inside.keys() == outside.keys() and scores == others
    assert all(torch.equal(inside[name], outside[name]) for name in inside)


def test_a_file_of_rows_has_no_name_and_keeps_values(tmp_path):
    made = empty_rows(100, 3, folder=tmp_path)
    made.copy_(torch.arange(300.0).view(100, 3))
    assert list(tmp_path.iterdir()) == [] and made[99].tolist() == [297.0, 298.0, 299.0]
    assert made[10:20].is_contiguous() and empty_rows(0, 3, folder=tmp_path).shape == (0, 3)


def test_a_disk_without_room_is_a_data_error(tmp_path, monkeypatch):
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full, raising=False)
    with pytest.raises(DataError, match=r"100 rows need .* \(No space left on device\)"):
        empty_rows(100, 3, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_mac_takes_the_room_of_rows_by_writing_it(tmp_path, monkeypatch):
    """macOS has no posix_fallocate."""
    monkeypatch.delattr("os.posix_fallocate", raising=False)
    made = empty_rows(100_000, 3, folder=tmp_path)  # more than one block of zeros
    made[-1] = 7.0
    assert made.shape == (100_000, 3) and made.sum() == 21.0

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(DataError, match=r"100 rows need .* \(No space left on device\)"):
        empty_rows(100, 3, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_rows_stay_on_the_disk_where_they_are_large_for_the_host():
    """Fifty million minutes are 6.9 GiB of rows."""
    assert rows_gib(TCN, bars=50_000_000) == pytest.approx(6.9, abs=0.1)

    def stay(job: Job, *, host_gib: float, workers: int = 1) -> bool:
        return rows_on_disk(job, bars=50_000_000, host_gib=host_gib, workers=workers)

    assert stay(TCN, host_gib=16.0) and not stay(TCN, host_gib=32.0) and stay(TCN, host_gib=64.0, workers=4)
    assert not stay(Job(), host_gib=16.0), "windows are drawn from all over the rows"


def test_data_without_a_host_keeps_rows_in_memory(tmp_path, write_candles):
    write_candles(tmp_path, "A-USD", bars=1_000)
    data: JobData = plan_and_open(TCN, tmp_path, scratch=tmp_path)
    (piece,) = survey(TCN, data.plan).pieces
    assert data.rows_folder(piece, TCN) is None and data.notes([piece], TCN) == []
    small = data.with_room(folder=tmp_path, host_gib=1e-6, workers=2)
    assert small.rows_folder(piece, TCN) == tmp_path
    assert small.notes([replace(piece, bars=50_000_000)], TCN) == [
        "rows of 1 model stay on the disk, up to 6.9 GiB each"
    ]


def test_a_worker_reads_such_rows_itself_beside_its_training():
    """They are in a file of the process that reads them, and go through no pipe."""
    source = SimpleNamespace(folds={1: None}, baselines=lambda fold: [fold])
    reading = read_here(lambda: source, refit=False)  # type: ignore[arg-type, return-value]
    assert (reading.source.result(), reading.foreseen.result()) == (source, {1: [1]})
    assert read_here(lambda: source, refit=True).foreseen.result() == {}  # type: ignore[arg-type, return-value]

    def refused() -> Source:
        raise DataError("no bars")

    with pytest.raises(DataError, match="no bars"):
        read_here(refused, refit=False).foreseen.result()
