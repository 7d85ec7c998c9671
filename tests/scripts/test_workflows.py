"""CI and pre-commit run scripts that exist, on the Pythons that we support, with the least permissions."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.pages import in_line
from trainer.cli.parser import build_parser

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")
}
EXAMPLES = {
    path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "examples/github-actions").glob("*.yml")
}


def steps(flows: dict[str, Any] = WORKFLOWS) -> list[dict[str, Any]]:
    return [step for flow in flows.values() for job in flow["jobs"].values() for step in job["steps"]]


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


def test_the_examples_pin_actions_by_commit_and_store_no_key() -> None:
    used = {step["uses"] for step in steps(EXAMPLES) if "uses" in step}
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used)
    assert EXAMPLES["rehearse"]["permissions"] == {"contents": "read"}
    assert EXAMPLES["launch"]["permissions"] == {"contents": "read", "id-token": "write"}
    assert list(EXAMPLES["launch"][True]) == ["workflow_dispatch"]
    assert EXAMPLES["launch"]["jobs"]["launch"]["environment"] == "aws"
    assert not [step for step in steps(EXAMPLES) if "${{" in step.get("run", "")]
    assert "secrets." not in json.dumps(EXAMPLES)


def test_the_examples_commands_are_ones_that_their_parser_takes() -> None:
    lines = [line for step in steps(EXAMPLES) for line in step.get("run", "").splitlines()]
    ours = [line.replace("$BUDGET", "2").partition(" > ")[0] for line in lines if line.startswith("mayfly ")]
    words = [one.words for line in ours for one in in_line("", line)]
    assert [one[0] for one in sorted(words)] == ["data", "launch", "launch"]
    assert all(build_parser("mayfly").parse_args(one) for one in words)


def test_the_examples_role_is_for_one_repositorys_environment() -> None:
    (statement,) = json.loads((ROOT / "examples/github-actions/trust.json").read_text())["Statement"]
    assert statement["Action"] == "sts:AssumeRoleWithWebIdentity"
    claims = statement["Condition"]["StringEquals"]
    assert list(statement["Condition"]) == ["StringEquals"] and "*" not in "".join(claims.values())
    assert claims["token.actions.githubusercontent.com:sub"].endswith(":environment:aws")
    assert claims["token.actions.githubusercontent.com:aud"] == "sts.amazonaws.com"


def test_pre_commit_runs_ruff_on_the_folders_of_the_check() -> None:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    folders = re.search(r"folders=\((.+)\)", (ROOT / "scripts/check").read_text())[1].split()
    assert [hook["entry"].split()[:2] for hook in repo["hooks"]] == [
        [".venv/bin/ruff", "format"],
        [".venv/bin/ruff", "check"],
    ]
    for hook in repo["hooks"]:
        assert all(re.search(hook["files"], f"{folder}/a.py") for folder in folders)
