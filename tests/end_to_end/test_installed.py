"""The package as others get it: a wheel made from the sdist, in an environment and a folder of its own, rehearses a run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from contextlib import suppress
from pathlib import Path

import pytest

from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--epochs", "1", "--set", "model.hidden=8", "--set", "model.lookback=8")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_wheel_from_the_sdist_rehearses_outside_the_checkout(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling, the build backend, is not installed")
    home, desk, python = tmp_path / "home", tmp_path / "desk", tmp_path / "venv" / "bin" / "python"
    home.mkdir()
    desk.mkdir()

    def run(*words: str | Path, folder: Path = desk) -> str:
        alone = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home)}  # nothing of the checkout's
        done = subprocess.run(words, cwd=folder, env=alone, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, folder=ROOT)
    (sdist,) = tmp_path.glob("mayfly-*.tar.gz")
    offline = ("--quiet", "--no-index", "--no-deps")
    run(sys.executable, "-m", "pip", "wheel", *offline, "--no-build-isolation", "-w", tmp_path, sdist)
    (wheel,) = tmp_path.glob("mayfly-*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    for package in Path(sysconfig.get_path("purelib")).iterdir():  # the tests' own, but for the checkout
        ours = package.name == "trainer" or package.name.startswith("mayfly-")  # pip writes through a link
        if package.suffix != ".pth" and not ours:
            with suppress(FileExistsError):  # pip
                (site / package.name).symlink_to(package)
    run(python, "-m", "pip", "install", *offline, wheel)
    # The libraries of the stack's functions, which a first rehearsal fetches by their hashes.
    shutil.copytree(Path(sys.prefix) / "mayfly-wheels", tmp_path / "venv" / "mayfly-wheels")
    assert str(site) in run(python, "-c", "import trainer; print(trainer.__path__[0])")

    write_candles(
        desk / "AAA_1h.parquet", [synthetic_candles("AAA", bars=800, timeframe="1h")], synthetic=True
    )
    mayfly = python.parent / "mayfly"
    try:
        receipt = json.loads(run(mayfly, "launch", "--rehearse", "--data", ".", *SMALL, "-y", "--json"))
        assert (receipt["state"], receipt["left"], len(receipt["models"])) == ("done", [], 1)
        assert receipt["instances"][0]["proof"] == "described terminated"
    finally:
        run(mayfly, "rehearse", "--stop")
    assert [path.name for path in desk.iterdir()] == ["AAA_1h.parquet"]
