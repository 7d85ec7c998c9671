"""The manifest is read into what it was written from, or refused in one line."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.manifests import MACHINE, PIECE, SCRIPT, command, manifest
from trainer.base.strict_json import Unsound
from trainer.runs.manifest import Command, ManifestInput, read_manifest
from trainer.runs.record_json import to_json

INPUT = ManifestInput(path="data/a/x.csv", key="raw/.files/x", version_id="v", sha256="0" * 64, bytes=3)


def test_a_manifest_survives_json() -> None:
    written = manifest(inputs=(INPUT,), machines={"g6.xlarge": MACHINE}, documents={"a.json": {"b": [1]}})
    assert read_manifest(to_json(written)) == written


def test_no_right_of_a_command_has_a_default() -> None:
    for field in dataclasses.fields(Command):
        assert field.default is field.default_factory is dataclasses.MISSING, field.name


def changed(path: str, value: Any) -> bytes:
    """Return a manifest with another value at a place such as command.user; `...` removes it."""
    values = json.loads(to_json(manifest(inputs=(INPUT,), machines={"g6.xlarge": MACHINE})))
    *way, last = path.split(".")
    place = values
    for key in way:
        place = place[int(key) if key.isdecimal() else key]
    place.pop(last) if value is ... else place.update({last: value})
    return json.dumps(values).encode()


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("format", 4, "format 4, this version reads 6"),
        ("command", ..., "has no field 'command'"),
        *((f"command.{name}", ..., f"has no field '{name}'") for name in SCRIPT),
        *((f"command.{name}", [3.5], "not a valid value") for name in ("user", "words", "variables", "gpus")),
        ("command.later", True, "command has an unknown field 'later'"),
        ("later", True, "the manifest has an unknown field 'later'"),
        ("command.user", "root", "'root', which is not a valid value"),
        ("command.user", "agent", "the agent's user and no metadata"),
        ("command.name", "../train", "has no name"),
        ("command.words", [], "has no words"),
        ("command.requirements", "other.txt", "requirements that are none of its files"),
        ("command.leaves", "models", "files to announce, and no events"),
        ("command.beside", ["result.json"], "an object of the agent's beside the result"),
        ("command.beside", ["log/x"], "an object of the agent's beside the result"),
        ("command.beside", ["*/x"], "an object of the agent's beside the result"),
        ("command.files", {"../x": ""}, "has the file '../x'"),
        ("command.secrets", {"A": 1}, "command.secrets.A is '1'"),
        ("command.out_bytes", -1, "not a valid value"),
        ("inputs.0.path", "data/../x", "has the file 'data/../x'"),
        ("inputs.0.path", "out/x", "has the file 'out/x'"),
        ("inputs.0.path", "/etc/passwd", "has the file '/etc/passwd'"),
        ("inputs.0.sha256", "x", "has the hash 'x'"),
        ("pieces", [], "has pieces that its command does not run"),
        ("documents", {"../x": 1}, "has the document '../x'"),
        ("documents", {"job.json": 1}, "has the document 'job.json'"),
    ],
)
def test_another_manifest_is_refused_in_one_line(path: str, value: Any, why: str) -> None:
    with pytest.raises(Unsound, match=why) as refused:
        read_manifest(changed(path, value))
    assert "\n" not in str(refused.value)


def test_inputs_and_pieces_have_places_and_names_of_their_own() -> None:
    with pytest.raises(Unsound, match="two inputs of one place"):
        manifest(inputs=(INPUT, INPUT))
    with pytest.raises(Unsound, match="two pieces of one name"):
        manifest(pieces=(PIECE, PIECE))
    with pytest.raises(Unsound, match="the piece '../x'"):
        replace(PIECE, piece="../x", values={"a": "1"})
    with pytest.raises(Unsound, match="pieces that its command does not run"):
        manifest(command=command(tells="events"))
