"""The wheel carries the program as data: a top-level package called infra would shadow a user's own."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="hatchling, the build backend, is not installed"
)
def test_the_wheel_carries_infra_as_data_alone(tmp_path: Path) -> None:
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path))
    command = [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("mayfly-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (about,) = (archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"trainer"}
    carried = {name.removeprefix("trainer/_infra/") for name in names if name.startswith("trainer/_infra/")}
    sources = {f"infra/{path.name}" for path in (ROOT / "infra").glob("*.py")}
    sources |= {f"ami/{path.name}" for path in (ROOT / "ami").iterdir() if path.is_file()}
    assert carried == sources | {"Pulumi.yaml", "Pulumi.dev.yaml", "requirements.lock"}
    assert "trainer/node/bootstrap.sh" in names
    assert "\n# Mayfly\n" in about and "](https://www.pulumi.com/docs/install/)" in about
    assert re.findall(r"\]\((?!https://)[^)]*\)", about) == [], (
        "a link that leads nowhere from a package's page"
    )
