"""examples/runpod: its compose file as Docker would read it, and the command that it runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml

from trainer.cli.asked_job import asked_job
from trainer.cli.parser import build_parser

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "runpod"
DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")  # as Compose fills variables that are not set


def test_compose_runs_the_agent_on_all_gpus_without_a_secret():
    (name, service), *others = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"].items()
    assert name == "train" and not others
    (shell, flag, line) = service["command"]
    assert (shell, flag) == ("bash", "-c")
    setup, _, command = DEFAULT.sub(r"\1", line).partition(" && exec ")  # exec: SIGTERM reaches the agent
    assert setup == "make setup" and "$" not in command
    program, *words = shlex.split(command)
    assert program == ".venv/bin/mayfly"
    arguments = build_parser().parse_args(words)
    assert arguments.verb == "agent" and arguments.here and arguments.max_duration == "3h"
    arguments.job = str(ROOT / arguments.job)
    assert asked_job(arguments, script_duration="12h").data.set == "main"

    assert service["restart"] == "no"  # YAML alone would make it false
    assert int(service["stop_grace_period"].removesuffix("s")) >= 90 and service["shm_size"] == "8gb"
    source, _, target = service["volumes"][0].partition(":")
    assert (FOLDER / source).resolve() == ROOT and target == service["working_dir"]
    environment = service["environment"]
    assert all(value is None for key, value in environment.items() if key.startswith("AWS_"))
    assert environment["MAYFLY_HOME"].startswith(service["working_dir"])  # or nothing could resume
    (gpu,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert gpu == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_the_page_says_what_was_not_run():
    page = (FOLDER / "README.md").read_text()
    assert "Not run in CI" in page and "nothing does" in page
    compose = (FOLDER / "compose.yaml").read_text()
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"):
        assert variable in page and variable in compose
