"""The component documents of EC2 Image Builder: against a schema, their commands by bash, their names by what
a build has.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from infra.image import COMPONENTS, image_parts

FOLDER = Path(__file__).resolve().parents[2] / "ami"
SCHEMA = json.loads(Path(__file__).with_name("component_schema.json").read_text())
MOST_BYTES = 16_000  # of a document given inline (API reference, CreateComponent, looked up 2026-11-22)
DOCUMENTS = {name: yaml.safe_load((FOLDER / name).read_text()) for name in ("build.yml", "test.yml")}


def commands(document: dict[str, Any]) -> list[str]:
    steps = [step for phase in document["phases"] for step in phase["steps"]]
    in_bash = [step["inputs"]["commands"] for step in steps if step["action"] == "ExecuteBash"]
    return [command for several in in_bash for command in several]


def test_the_documents_are_those_of_the_program() -> None:
    assert {f"ami/{name}" for name in DOCUMENTS} == set(COMPONENTS.values())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_has_the_form_that_image_builder_reads(name: str) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(DOCUMENTS[name])
    assert len((FOLDER / name).read_bytes()) < MOST_BYTES


@pytest.mark.parametrize(
    "change",
    [
        lambda step: step.update(onFailure="Continue"),  # a failed smoke test has to fail the image
        lambda step: step.update(action="ExecuteShell"),
        lambda step: step["inputs"].update(command="true"),
        lambda step: step.pop("timeoutSeconds"),
    ],
)
def test_the_schema_refuses_what_would_not_do(change: Any) -> None:
    document = yaml.safe_load((FOLDER / "test.yml").read_text())
    change(document["phases"][0]["steps"][0])
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(document)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_stop_at_the_first_failure_and_are_bash(name: str) -> None:
    for command in commands(DOCUMENTS[name]):
        assert command.startswith("set -euo pipefail\n")
        assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0


def test_parameters_are_declared_and_used() -> None:
    for document in DOCUMENTS.values():
        declared = {name for one in document.get("parameters", []) for name in one}
        assert set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(document))) == declared


def test_every_file_that_a_command_names_is_among_the_parts() -> None:
    parts = image_parts()
    named = {path.replace("$lock", lock) for document in DOCUMENTS.values() for command in commands(document)
             for path in re.findall(r"\bparts/([\w./$-]+)", command) for lock in ("requirements", "prepare")}  # fmt: skip
    assert named and named <= parts.keys()
    assert "trainer/train/smoke.py" in parts  # of which the smoke test has its training
