"""A refresh script at the desk: what is refused before it is published."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import job_of
from trainer.base.errors import UsageError
from trainer.cli.sources.refresh_script import locked_modules, with_refresh_script


def test_a_refresh_script_is_sent_under_its_hash(tmp_path: Path) -> None:
    job = job_of(name="weekly")
    assert with_refresh_script(job) == (job, {})
    path = tmp_path / "fetch.py"
    lines = (
        "import csv, ccxt",
        "import dateutil.parser",
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
    assert {"ccxt", "requests", "pandas", "numpy", "pyarrow", "boto3", "dateutil"} <= locked_modules()
    assert not {"torch", "sklearn"} & locked_modules()
