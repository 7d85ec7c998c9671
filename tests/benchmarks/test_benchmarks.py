"""Every benchmark runs, prints ratios and writes JSON. Its figures depend on the machine and are not
tested.

Benchmarks whose quick form takes a minute show only their help here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rounds import interleave, machine, median, ratio, write

ROOT = Path(__file__).resolve().parents[2]
Quickly = Callable[..., tuple[str, dict[str, Any]]]
RATIO = re.compile(r"\d\.\d\d+ ?x")


@pytest.fixture
def quickly(python: list[str]) -> Quickly:
    """Return a function that runs a benchmark's quick form: -> (its output, the file it wrote)."""
    return partial(_quickly, python)


def _quickly(python: list[str], name: str, *arguments: str, out: Path) -> tuple[str, dict[str, Any]]:
    """Run it in a process of its own, a fork that has torch loaded: threads and allocator are set there."""
    command = [*python, "-m", f"benchmarks.{name}", "--quick", *arguments, "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(out.read_text())


@pytest.mark.nightly
def test_contenders_of_packs_are_timed_one_after_another(quickly, tmp_path):
    few = ("--only", "set-up", "--shape", "2,8,32", "--seconds", "0.05")
    said, found = quickly("packs", *few, out=tmp_path / "found.json")
    (table,) = found["tables"]
    assert list(table["variants"]) == ["plain", "plain, our set-up"] and RATIO.search(said)


@pytest.mark.nightly
def test_the_memory_formula_is_compared_with_a_step(quickly, tmp_path):
    said, found = quickly("memory", out=tmp_path / "found.json")
    assert ("counted on a CPU" in said) != ("measured on the GPU" in said) and found["machine"]["chip"]
    assert all(figures["found_mib"] > 0 for row in found["rows"] for figures in row["figures"].values())


@pytest.mark.nightly
def test_features_are_timed_beside_pandas(quickly, tmp_path, python):
    made = ["--out", str(tmp_path / "candles"), "--symbols", "A", "--bars", "3000", "--timeframe", "1m"]
    subprocess.run([*python, "-m", "trainer.data.synthetic", *made], cwd=ROOT, check=True)
    given = ("--data", str(tmp_path / "candles"), "--rounds", "1")
    said, found = quickly("features", *given, out=tmp_path / "found.json")
    assert {"mayfly", "pandas"} <= found["rows"].keys() and RATIO.search(said)
    assert all(row["differs"] < 1e-3 for row in found["rows"].values())


@pytest.mark.nightly
def test_a_whole_run_is_split_into_its_phases(quickly, tmp_path):
    _, found = quickly("whole_run", out=tmp_path / "found.json")
    ours = found["symbols"]["3"]["ours"]
    assert all(ours["phases"][phase] > 0 for phase in ("plan", "features", "steps", "forwards", "validation"))
    assert found["symbols"]["3"]["a process a model"]["cpu"] > 0 < found["symbols"]["import"]


@pytest.mark.nightly
def test_agents_are_timed_beside_what_is_installed(quickly, tmp_path):
    _, found = quickly("agents", "--threads", "1", out=tmp_path / "found.json")
    assert len(found["rows"]) == 5 and all(min(row["per_second"].values()) > 0 for row in found["rows"])
    assert found["rows"][0]["times"]["gymnasium"] > 1


@pytest.mark.nightly
def test_a_resident_model_is_timed_beside_onnxruntime(quickly, tmp_path):
    said, found = quickly("resident", out=tmp_path / "found.json")
    assert [row["model"] for row in found["models"]] == ["lstm", "mlp", "tcn", "transformer"]
    assert RATIO.search(said)
    assert all(min(row["ms"].values()) > 0 and row["difference"] < 1e-5 for row in found["models"])


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_each_benchmark_takes_help_quick_and_out(path, monkeypatch, capsys):
    module = import_module(f"benchmarks.{path.stem}")
    if not hasattr(module, "main"):
        assert path.stem in (
            "rounds",
            "contenders",
            "planted",
            "gpu_day_tables",
            "lightning_run",
        )  # what the others share
        return
    assert f"python -m benchmarks.{path.stem} --quick" in module.__doc__
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    said = capsys.readouterr().out
    assert ended.value.code == 0 and "--quick" in said and "--out" in said
    monkeypatch.setattr(sys, "argv", [path.name, "--quik-ly"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2


def test_contenders_take_turns_forwards_and_backwards():
    order: list[str] = []

    def runner(name: str, rate: float) -> Any:
        return lambda: order.append(name) or rate

    rates = interleave({"a": runner("a", 1.0), "b": runner("b", 2.0)}, rounds=3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert rates == {"a": [1.0, 1.0, 1.0], "b": [2.0, 2.0, 2.0]}


def test_a_ratio_is_the_median_of_each_rounds_own():
    rates = {
        "slow": [1.0, 10.0, 2.0],
        "fast": [2.0, 20.0, 2.0],
    }  # the machine was ten times as fast in the second round
    assert ratio(rates, "fast", "slow") == 2.0 and median(rates, "fast") == 2.0


def test_figures_are_written_with_the_machine_they_depend_on(tmp_path):
    path = write("any", {"machine": machine()}, tmp_path / "deep" / "found.json")
    assert json.loads(path.read_text())["machine"].keys() >= {"date", "chip", "cores", "load_1m", "torch"}
