"""A refresh script at the desk: what is refused before it is published."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.jobs import job_of
from trainer.aws.objects import Objects
from trainer.base.errors import UsageError
from trainer.cli.sources.refresh_script import locked_modules, refuse_unfetched, with_refresh_script
from trainer.data.read.fetch_record import FETCHED_KEY
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles
from trainer.job.reading import job_from, load_job


def test_a_refresh_script_is_sent_under_its_hash(tmp_path: Path) -> None:
    job = job_of(name="weekly")
    assert with_refresh_script(job) == (job, {})
    path = tmp_path / "fetch.py"
    lines = (
        "import csv, ccxt",
        "import attr, dateutil.parser",
        "from bs4 import BeautifulSoup",
        "from google.protobuf import message",
        "try:",
        "    import tensorflow",
        "except ImportError: pass",
    )
    path.write_text("\n".join(lines))
    sent, files = with_refresh_script(job_of(name="weekly", refresh=str(path), secrets=("API_KEY",)))
    ((sha256, content),) = files.items()
    assert content == path.read_bytes()
    assert (sent.data.refresh, sent.data.secrets) == (f"{sha256}.py", ("API_KEY",))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import torch", "fetch.py imports torch"),
        ("from sklearn import svm", "fetch.py imports sklearn"),
        ("import trainer.data", "fetch.py imports trainer"),
        ("from . import helpers", "fetch.py imports a module beside it"),
        ("from .requests import get", "fetch.py imports a module beside it"),
        ("def fetch(:\n    pass", "fetch.py can't be compiled .*line 1"),
        ("x = 1\nreturn x", "fetch.py can't be compiled .*line 2"),
        ("\0", "fetch.py can't be compiled"),
    ],
)
def test_a_script_that_could_not_run_is_refused(tmp_path: Path, source: str, why: str) -> None:
    path = tmp_path / "fetch.py"
    path.write_text(source)
    with pytest.raises(UsageError, match=why):
        with_refresh_script(job_of(name="weekly", refresh=str(path)))


def test_the_lock_brings_what_the_pages_promise() -> None:
    assert {
        "ccxt",
        "yfinance",
        "requests",
        "pandas",
        "numpy",
        "pyarrow",
        "boto3",
        "dateutil",
    } <= locked_modules()
    assert not {"torch", "sklearn"} & locked_modules()


def test_a_fetch_sends_no_file_and_keeps_its_name(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('name = "weekly"\n[data]\nrefresh = "fetch"\n')
    job = job_from(load_job(path))
    assert (job.data.refresh, with_refresh_script(job)) == ("fetch", (job, {}))


class Bucket:
    """A bucket in memory, as far as a publication lists it."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    def put(self, *, key: str, body: bytes) -> None:
        self.bodies[key] = body

    def list(self, *, prefix: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(key=key, size=len(body)) for key, body in self.bodies.items()]

    def get(self, *, key: str) -> SimpleNamespace:
        return SimpleNamespace(body=self.bodies[key])


def test_a_set_that_names_no_source_is_not_published(tmp_path: Path) -> None:
    objects = Bucket()
    with pytest.raises(
        UsageError, match="no file of data set coins says from which source.*mayfly data fetch"
    ):
        refuse_unfetched(cast(Objects, objects), "coins")
    write_candles(tmp_path / "one.parquet", [synthetic_candles("BTC-USD", bars=9)])
    objects.put(key="raw/coins/one.parquet", body=(tmp_path / "one.parquet").read_bytes())
    with pytest.raises(UsageError, match="nothing to go on from"):
        refuse_unfetched(cast(Objects, objects), "coins")
    write_candles(
        tmp_path / "a.parquet", [synthetic_candles("BTC-USD", bars=3)], metadata={FETCHED_KEY: b"{}"}
    )
    objects.put(key="raw/coins/a.parquet", body=(tmp_path / "a.parquet").read_bytes())
    refuse_unfetched(cast(Objects, objects), "coins")
