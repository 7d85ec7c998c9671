"""The node's lock: what the data check reads at a desk a node reads, with the packages of its lock and no
others.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from trainer.base.code_files import NODE, code_files

ROOT = Path(__file__).parents[3]
RAW = ROOT.parent / "shared" / "data" / "raw"
BARS = 1_500
# Reads each file with the data check, as a node whose packages are those of its lock; prints the failures as
# JSON.
READER = """
import io, json, sys
from contextlib import redirect_stdout

class Gate:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ADMITTED and not name.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"the node's lock has no {name}", name=name)

ADMITTED = {*sys.stdlib_module_names, "trainer", *json.loads(sys.argv[1])}
sys.meta_path.insert(0, Gate())
from trainer.bars.check import main

failed = {}
for path in sys.argv[3:]:
    said = io.StringIO()
    with redirect_stdout(said):
        code = main(["--job", sys.argv[2], "--data", path])
    if code:
        failed[path] = json.loads(said.getvalue())["error"]
import exchange_calendars  # what [data] calendar = "XNYS" needs
print(json.dumps(failed))
"""
WHERE_INSTALLED = {"lightgbm"}  # a baseline that a node is without


def locked(name: str = "requirements") -> dict[str, str]:
    """Return the distributions in a lock of the node's, with their versions."""
    lock = (ROOT / f"trainer/node/{name}.lock").read_text(encoding="utf-8")
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^ ;]+)", lock, re.MULTILINE))


def modules_of(names: Iterable[str]) -> set[str]:
    """Return the top-level modules of installed distributions."""
    paths = [file.parts for name in names for file in distribution(name).files or ()]
    modules = [parts[0] for parts in paths if parts[-1].endswith((".py", ".so"))]
    return {name.partition(".")[0] for name in modules if name not in ("..", ".")}


def read(program: str, admitted: set[str], *paths: Path) -> Any:
    """Run a program that may import these modules alone; return what it prints."""
    words = [sys.executable, "-c", program, json.dumps(sorted(admitted)), *map(str, paths)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Daily bars in every format and with every kind of time that is read."""
    folder = tmp_path_factory.mktemp("samples")
    days = pa.array([10_000 + day for day in range(BARS)], pa.int32()).cast(pa.date32())
    prices = {
        name: pa.array([price + number % 7 for number in range(BARS)])
        for name, price in (("open", 10.0), ("high", 20.0), ("low", 5.0), ("close", 11.0), ("volume", 100.0))
    }
    stamps = days.cast(pa.timestamp("us"))
    times = {
        "date": days,
        "stamp": stamps,
        "zoned": pc.assume_timezone(stamps, "America/New_York"),
        "epoch": stamps.cast(pa.int64()),
        "text": pc.strftime(stamps, "%Y-%m-%dT%H:%M:%SZ"),
        "offset": pc.strftime(stamps, "%Y-%m-%d %H:%M:%S+01:00"),
        "day": pc.strftime(stamps, "%Y-%m-%d"),
        "number": pc.strftime(stamps, "%Y%m%d").cast(pa.int64()),
    }
    paths = []
    for name, column in times.items():
        table = pa.table({"time": column, **prices})
        for suffix in (".parquet", ".csv", ".csv.gz"):
            paths.append(folder / f"{name.upper()}_1d{suffix}")
            if suffix == ".parquet":
                pq.write_table(table, paths[-1])
                continue
            with pa.output_stream(str(paths[-1])) as stream:
                pa_csv.write_csv(table, stream)
    for codec in ("gzip", "brotli", "zstd", "lz4"):
        paths.append(folder / f"{codec.upper()}_1d.parquet")
        table = pa.table({"time": days, "symbol": [codec] * BARS, **prices})
        pq.write_table(table, paths[-1], compression=codec)
    return paths


@pytest.mark.nightly
@pytest.mark.slow
def test_a_node_reads_every_sample_with_its_lock(samples: list[Path], tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    real = [path for path in sorted(RAW.glob("*")) if "_1m_" not in path.name] if RAW.is_dir() else []
    job.write_text(json.dumps({"name": "samples", "model": {"lookback": 2}, "target": {"horizon": 1}}))
    refused = read(READER, modules_of(locked()), job, *samples, *real)
    # Of the real ones, some symbols are too short.
    assert {path: refused[path] for path in map(str, samples) if path in refused} == {}


def test_imports_of_a_node_are_in_its_lock_or_its_image() -> None:
    admitted = {*sys.stdlib_module_names, "trainer", "torch", *modules_of(locked()), *WHERE_INSTALLED}
    assert "ray" in locked("cluster")  # which nodes of several install
    assert "optuna" in locked("search")  # which a search by TPE installs
    assert {"ccxt", "yfinance"} <= locked("prepare").keys()  # which a prepare run adds
    admitted |= {"ray", "optuna", "ccxt", "yfinance"}
    missing = {}
    fetches = {"ccxt", "yfinance"} & locked("prepare").keys()  # of the fetch of a prepare run alone
    for name, content in code_files(NODE).items():
        for node in ast.walk(ast.parse(content)) if name.endswith(".py") else ():
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            missing |= {module: name for module in modules if module.partition(".")[0] not in admitted}
    alone = {module: name for module, name in missing.items() if module.partition(".")[0] in fetches}
    assert all(name.startswith("trainer/data/fetch/") for name in alone.values()), alone
    missing = {module: name for module, name in missing.items() if module not in alone}
    assert missing == {}


# Describes a folder as a prepare run does, with the packages of its lock that a desk has too.
DESCRIBER = (
    READER.partition("from trainer.bars.check")[0]
    + """
import trainer.node.agent
from trainer.bars.check import main

sys.exit(main(["--describe", "--data", sys.argv[2]]))
"""
)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_prepare_run_reads_every_sample_with_its_lock(samples: list[Path]) -> None:
    both = locked("prepare").keys() & {name.lower() for name in locked()}
    assert all(locked("prepare")[name] == locked()[name] for name in both), "they read the same"
    report = read(DESCRIBER, modules_of(both), samples[0].parent)
    assert report["errors"] == {} and len(report["files"]) == len(samples)
