"""A model's bars are read as soon as its own files are there, while the others are still on their way."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.jobs import job_of
from trainer.aws.place import REHEARSAL
from trainer.bars.document import DataPlan
from trainer.bars.job_plan import folder_of, plan_data
from trainer.base.arrivals import Arrivals
from trainer.base.errors import DataError
from trainer.data.read import reading
from trainer.data.read.sources import open_candles
from trainer.data.read.writing import write_candles
from trainer.job.job import Job
from trainer.node.arriving import ArrivingInputs
from trainer.node.origins import Origins
from trainer.runs.manifest import ManifestInput
from trainer.train.inputs.arriving import by_symbol
from trainer.train.inputs.source import JobData, open_data, plan_and_open


class GatedS3:
    """Files of a folder; one comes only once its gate is open, and `asked` has the order."""

    def __init__(self, folder: Path, gated: str = "") -> None:
        self.folder, self.gated, self.gate, self.asked = folder, gated, threading.Event(), list[str]()
        self.entries = [
            ManifestInput(
                path=f"data/{path.name}",
                key=f"raw/main/{path.name}",
                version_id="v",
                sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
                bytes=path.stat().st_size,
            )
            for path in sorted(folder.iterdir())
        ]

    def get_object(self, *, Key: str, **_: str) -> dict[str, Any]:
        name = Key.rpartition("/")[2]
        self.asked.append(name)
        if name == self.gated:
            assert self.gate.wait(60)
        body = io.BytesIO((self.folder / name).read_bytes())
        return {"Body": SimpleNamespace(iter_chunks=lambda size: iter(lambda: body.read(size), b""))}


class Machine:
    """A node that trains a job while its files come."""

    def __init__(self, tmp_path: Path, s3: GatedS3) -> None:
        self.root, self.s3, self.document = tmp_path / "command", s3, tmp_path / "arriving.json"
        (self.root / "data").mkdir(parents=True)
        (tmp_path / "scratch").mkdir()
        self.scratch = tmp_path / "scratch"
        self.status = SimpleNamespace(inputs={})
        node = {"uplink": SimpleNamespace(s3=s3, bucket="b"), "moved": lambda: None, "origins": Origins()}
        node |= {"place": REHEARSAL, "is_stopping": lambda: False, "status": self.status}
        known: Any = {"fetched": tmp_path / "inputs", "root": self.root, "document": self.document}
        self.arriving = ArrivingInputs(cast(Any, SimpleNamespace(**node)), s3.entries, **known)

    def open(self, job: Job, plan: DataPlan, **more: Any) -> JobData:
        known: Any = {"scratch": self.scratch, "plan": plan, "arriving": self.document, **more}
        return open_data(job, self.root / "data", **known)


@pytest.fixture
def candles(tmp_path: Path, make_candles: Callable[..., Any]) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    for number, symbol in enumerate(("AAA", "BBB")):
        write_candles(folder / f"{symbol}_1m.parquet", [make_candles(900 - number, symbol=symbol)])
    return folder


def planned(job: Job, candles: Path, tmp_path: Path) -> DataPlan:
    return plan_data(job, folder_of(job, candles, scratch=tmp_path))


JOB = job_of(symbols=("AAA", "BBB"), timeframe="1m", calendar="24x7")


def test_the_first_model_has_bars_before_the_last_file_comes(candles: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path, GatedS3(candles, gated="BBB_1m.parquet"))
    plan = planned(JOB, candles, tmp_path)
    with machine.arriving, ThreadPoolExecutor(1) as other:
        data = machine.open(JOB, plan)
        first = data.read("AAA", JOB)
        assert [path.name for path in (machine.root / "data").iterdir()] == ["AAA_1m.parquet"]
        second = other.submit(data.read, "BBB", JOB)
        machine.s3.gate.set()
        last = second.result(60)
    whole = plan_and_open(JOB, candles, scratch=tmp_path)
    for symbol, read in (("AAA", first), ("BBB", last)):
        assert (read.close == whole.read(symbol, JOB).close).all()
    assert machine.status.inputs["s3_files"] == 2


def test_a_model_waits_for_the_files_that_its_side_series_read(candles: Path, tmp_path: Path) -> None:
    columns = ("log_return_5 of BBB",)
    job = job_of(symbols=("AAA",), timeframe="1m", calendar="24x7", columns=columns)
    plan = planned(job, candles, tmp_path)
    assert plan.symbols["AAA"].files == ("AAA_1m.parquet", "BBB_1m.parquet")
    machine = Machine(tmp_path, GatedS3(candles, gated="BBB_1m.parquet"))
    with machine.arriving, ThreadPoolExecutor(1) as other:
        data = machine.open(job, plan)
        reading = other.submit(data.read, "AAA", job)
        until = threading.Event()
        assert not until.wait(0.2) and not reading.done()
        machine.s3.gate.set()
        came = reading.result(60)
    whole = plan_and_open(job, candles, scratch=tmp_path).read("AAA", job)
    assert np.array_equal(came.columns[columns[0]], whole.columns[columns[0]], equal_nan=True)
    files = plan.symbols["AAA"].files
    assert data.arriving is not None
    assert (
        data.arriving.opened("AAA", files, job, "1m")[1] is data.arriving.opened("AAA", files, job, "1m")[1]
    )


def test_an_index_of_many_symbols_opens_each_file_once(
    tmp_path: Path, make_candles: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 500 symbols needs the bars of all 500: read alone, each would open them again."""
    folder, symbols = tmp_path / "mine", tuple(f"S{number:02d}" for number in range(20))
    folder.mkdir()
    for number, symbol in enumerate(symbols):
        write_candles(folder / f"{symbol}_1m.parquet", [make_candles(900, symbol=symbol, seed=number)])
    job = job_of(symbols=symbols, timeframe="1m", calendar="24x7", columns=("log_return_5 of index",))
    plan = planned(job, folder, tmp_path)
    job, opened, machine = plan.decided(job), list[str](), Machine(tmp_path, GatedS3(folder))

    def noted(path: Path, name: str, *more: Any) -> Any:
        opened.append(name)
        return open_candles(path, name, *more)

    monkeypatch.setattr(reading, "open_candles", noted)
    with machine.arriving:
        data = machine.open(job, plan)
        read = [data.read(symbol, job) for symbol in symbols]
    assert sorted(opened) == [f"{symbol}_1m.parquet" for symbol in symbols]
    assert [one.symbol for one in read] == list(symbols) and all(one.columns for one in read)


def test_a_file_that_does_not_come_fails_its_own_model(candles: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path, GatedS3(candles))
    spoiled = [
        replace(entry, sha256="0" * 64) if "BBB" in entry.key else entry for entry in machine.s3.entries
    ]
    machine.arriving._places = {entry.stored_as: [entry] for entry in spoiled}
    with machine.arriving:
        data = machine.open(JOB, planned(JOB, candles, tmp_path))
        with pytest.raises(DataError, match=r"input raw/main/BBB_1m.parquet .*can't be used") as failed:
            data.read("BBB", JOB)
        assert "the manifest says" in failed.value.why
        assert len(data.read("AAA", JOB)) == 900


def test_a_panel_waits_for_all_files(candles: Path, tmp_path: Path) -> None:
    panel = job_of(symbols=("AAA", "BBB"), timeframe="1m", calendar="24x7", panel=True)
    machine = Machine(tmp_path, GatedS3(candles, gated="AAA_1m.parquet"))
    plan = planned(panel, candles, tmp_path)
    with machine.arriving, ThreadPoolExecutor(1) as other:
        opened = other.submit(machine.open, panel, plan)
        until = threading.Event()
        assert not until.wait(0.2) and not opened.done()
        machine.s3.gate.set()
        data = opened.result(60)
    assert set(data.parts) == {"AAA", "BBB"}


def test_where_nobody_brings_more_nothing_is_waited_for(candles: Path, tmp_path: Path) -> None:
    machine, plan = Machine(tmp_path, GatedS3(candles)), planned(JOB, candles, tmp_path)
    Arrivals(beat=3, over=True).write(machine.document)
    with pytest.raises(DataError, match="AAA_1m.parquet did not come"):
        machine.open(JOB, plan).read("AAA", JOB)
    machine.document.write_text("{}")
    with pytest.raises(DataError, match="cannot read"):
        machine.open(JOB, plan).read("AAA", JOB)


def test_names_say_whether_a_file_can_be_read_alone() -> None:
    assert by_symbol(["BTC-USD_1m_2024.parquet", "ETH-USD_1h.csv"])
    assert not by_symbol(["BTC-USD_1m.parquet", "BTC-USD.parquet"])
