"""CI and pre-commit run scripts that exist, on the Pythons that we support, with the least permissions."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")
}


def steps() -> list[dict[str, Any]]:
    return [step for flow in WORKFLOWS.values() for job in flow["jobs"].values() for step in job["steps"]]


def test_workflows_call_scripts_that_exist() -> None:
    called = {script for step in steps() for script in re.findall(r"\bscripts/[\w-]+", step.get("run", ""))}
    named = ("check", "nightly", "quick", "setup", "test")
    assert called == {f"scripts/{name}" for name in named}
    assert all((ROOT / script).is_file() for script in called)


def test_tests_run_on_each_supported_python_and_scripts_use_it() -> None:
    pythons = WORKFLOWS["ci"]["jobs"]["linux"]["strategy"]["matrix"]["python"]
    assert pythons == ["3.11", "3.12", "3.13", "3.14"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={pythons[0]}"
    assert all(step["env"]["PYTHON"] == "python" for step in steps() if "scripts/" in step.get("run", ""))


def test_actions_are_pinned_by_their_major_version() -> None:
    used = {step["uses"] for step in steps() if "uses" in step}
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", action) for action in used)


def test_workflows_only_read_and_the_preview_alone_has_a_role() -> None:
    assert WORKFLOWS["ci"]["permissions"] == WORKFLOWS["nightly"]["permissions"] == {"contents": "read"}
    assert WORKFLOWS["preview"]["permissions"] == {"contents": "read", "id-token": "write"}
    assert list(WORKFLOWS["preview"][True]) == ["workflow_dispatch"]  # YAML 1.1 reads `on` as True
    assert not any("permissions" in job for flow in WORKFLOWS.values() for job in flow["jobs"].values())


def test_the_nightly_parts_run_each_night_and_by_make() -> None:
    assert WORKFLOWS["nightly"][True]["schedule"]
    script = (ROOT / "scripts/nightly").read_text()
    parts = ("scripts/settings-pairs", "-m scripts.storage_modes", "-m tests.live --embedded")
    for part in (*parts, "--rehearse --instance p4d.24xlarge"):
        assert part in script
    command = ["make", "--no-print-directory", "-n", "nightly"]  # make may run this test
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "scripts/nightly"


def test_no_input_is_pasted_into_a_shell() -> None:
    assert not [step["run"] for step in steps() if "${{" in step.get("run", "")]


def test_pre_commit_runs_ruff_on_the_folders_of_the_check() -> None:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    folders = re.search(r"folders=\((.+)\)", (ROOT / "scripts/check").read_text())[1].split()
    assert [hook["entry"].split()[:2] for hook in repo["hooks"]] == [
        [".venv/bin/ruff", "format"],
        [".venv/bin/ruff", "check"],
    ]
    for hook in repo["hooks"]:
        assert all(re.search(hook["files"], f"{folder}/a.py") for folder in folders)
