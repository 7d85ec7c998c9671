"""Lay out a script's files and folders by the contract in docs/scripts.md, and run its command to the end
(script_run.py).

If the agent is root, the script runs as a user of its own (script_user.py). Nothing that it writes is
trusted.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import trainer
from trainer.base import environment
from trainer.base.errors import Stopped, TrainingFailed
from trainer.base.symbols import path_flaw
from trainer.job.script import FOLDER, VISIBLE, ScriptSettings, replaced
from trainer.job.script_values import variables_of
from trainer.node.redaction import Redaction
from trainer.node.scratch import make_scratch, remove_scratch
from trainer.node.script_outputs import Outputs
from trainer.node.script_packages import install, make_venv
from trainer.node.script_run import ScriptPiece, ScriptRun, ScriptStart
from trainer.node.script_user import close_to_others, leave_mount, make_script_user
from trainer.node.shared import Node
from trainer.node.stack_secrets import own_secrets, read_secrets
from trainer.node.stage import fetch_inputs

log = logging.getLogger("trainer.node")


@dataclass(frozen=True, kw_only=True)
class ScriptFolders:
    """The folders of a script on its machine."""

    root: Path

    @property
    def script(self) -> Path:
        """Return its working folder, which has its files."""
        return self.root / "files"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def own(self) -> Path:
        """Return the folder of its events, its home and, if it has a user of its own, its temporary files."""
        return self.root / "own"

    @property
    def events(self) -> Path:
        return self.own / "events.jsonl"

    @property
    def copies(self) -> Path:
        """Return the folder that has a working folder, a copy of the script's files, for each value that
        runs.
        """
        return self.root / "copies"

    @property
    def events_of_values(self) -> Path:
        """Return the folder that has an events file for each value."""
        return self.root / "events"

    @property
    def venv(self) -> Path:
        return self.root / "venv"

    def make(self) -> None:
        """Make the folders."""
        for folder in (
            self.script,
            self.data,
            self.out,
            self.checkpoints,
            self.copies,
            self.events_of_values,
            self.own / "home",
            self.own / "tmp",
        ):
            folder.mkdir(parents=True, exist_ok=True)


def run_script(node: Node, manifest: dict[str, Any]) -> int:
    """Run the manifest's script; return its exit code. Raises a TrainerError if it can't start or fails."""
    place = ScriptFolders(root=node.work / "script")
    place.make()
    try:
        return _run(node, manifest, place)
    finally:
        remove_scratch(node.work)
        if node.rehearsal or node.here:  # a desk's disk: its packages may be gigabytes
            shutil.rmtree(place.venv, ignore_errors=True)


def _run(node: Node, manifest: dict[str, Any], place: ScriptFolders) -> int:
    script = ScriptSettings(**{key: _tupled(value) for key, value in manifest["job"]["script"].items()})
    (node.work / "events").mkdir(exist_ok=True)
    lay_out(node, manifest, place)
    secrets = own_secrets(script.secrets) if node.here else read_secrets(node, manifest.get("secrets") or {})
    node.redaction = Redaction(secrets)
    script_user = make_script_user(rehearsal=node.rehearsal or node.here)
    python = environment.image_python()
    bare = environment.for_script({}, path=os.defpath)
    image = "the desk's .venv" if node.rehearsal else python if node.here else "the image"
    node.status.python_packages = f"{image}, {script.requirements}" if script.requirements else image
    programs = make_venv(node, python=python, folder=place.venv, environment=bare)
    if script.requirements:
        requirements = place.script / script.requirements
        install(
            node,
            python=python,
            venv=place.venv,
            requirements=requirements,
            wheels=place.script,
            environment=bare,
        )
    pieces = _pieces(manifest, script, place)
    if script_user is not None:
        script_user.give(
            place.out,
            place.checkpoints,
            place.events_of_values,
            place.own,
            *(() if script.over else (place.script,)),
        )
        close_to_others(*(path for path in node.work.iterdir() if path != place.root))
        close_to_others(*(_code().parent / name for name in ("bundle.zip", "code", "environments")))
        leave_mount(_code().parent / "cache")  # the input cache: its files are read by other runs
    found = node.status.devices.found if node.status.devices else 1
    places = script.places(found)
    if not places:
        why, do = f"a value takes {script.gpus:g}", "Lower script.gpus, or name a larger --instance."
        raise TrainingFailed(f"this machine has {found} GPUs", why=why, do=do)
    threads = (
        {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // len(places)))} if len(places) > 1 else {}
    )
    scratch = place.own / "tmp" if script_user else make_scratch(node.work)
    home = {**threads, "HOME": str(place.own / "home"), "TMPDIR": str(scratch)}

    own = environment.visible_gpus() if node.here else None  # names of the GPUs that the caller allows
    names = [str(gpu) for gpu in range(found)] if own is None else [name.strip() for name in own.split(",")]

    def start_of(piece: ScriptPiece, gpus: tuple[int, ...]) -> ScriptStart:
        given = {**script.variables, **_contract(place, piece, gpus), **variables_of(dict(piece.values))}
        visible = {VISIBLE: ",".join(names[gpu] for gpu in gpus)} if script.over or own is not None else {}
        variables = environment.for_script({**home, **given, **visible, **secrets}, path=str(programs))
        return ScriptStart(words=[replaced(word, given) for word in script.words], variables=variables)

    outputs = Outputs(folder=place.out, node=node, most_bytes=int(script.out_gib * 2**30))
    run = ScriptRun(node, script, pieces, places, start_of, script_user=script_user)
    return run.to_the_end(outputs, sha256=manifest["script_sha256"])


def _pieces(manifest: Mapping[str, Any], script: ScriptSettings, place: ScriptFolders) -> list[ScriptPiece]:
    """Return the run's pieces and make their folders, before the script runs: it could put links there."""
    combinations = script.combinations
    made = []
    for entry in manifest["pieces"]:
        model = {key: value for key, value in entry.items() if key != "estimate"}
        name = str(entry["piece"]) if combinations else ""
        if name and name not in combinations:  # its names are folders
            raise TrainingFailed(
                f"the manifest names the piece {name[:80]!r}",
                why="its job has no such values",
                do="Launch again.",
            )
        for folder in (place.out / name, place.checkpoints / name):
            folder.mkdir(exist_ok=True)
        made.append(
            ScriptPiece(
                model=model,
                values=combinations[name] if combinations else {},
                folder=place.copies / name if name else place.script,
                copy_of=place.script if name else None,
                prefix=f"{name}/" if name else "",
                events=place.events_of_values / f"{name}.jsonl" if name else place.events,
                estimate=float(entry.get("estimate", 1.0)),
            )
        )
    return made


def _contract(place: ScriptFolders, piece: ScriptPiece, gpus: Sequence[int]) -> dict[str, str]:
    return {
        "MAYFLY_DATA": str(place.data),
        "MAYFLY_OUT": str(place.out / piece.prefix),
        "MAYFLY_CHECKPOINTS": str(place.checkpoints / piece.prefix),
        "MAYFLY_EVENTS": str(piece.events),
        "MAYFLY_DEVICES": str(len(gpus)),
    }


def lay_out(node: Node, manifest: dict[str, Any], place: ScriptFolders) -> None:
    """Copy the script's files from the bundle and its data from S3 into their folders. Raises a
    TrainerError.
    """
    packed = Path(trainer.__file__).parent / FOLDER
    for path in manifest["script_files"]:
        _refuse_flaw(path)
        target = place.script / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(packed / path, target)
    inputs = {entry["key"]: entry for entry in manifest["inputs"]}  # one file may lie under several names
    fetched = node.work / "inputs"
    fetch_inputs(
        node.uplink.s3,
        bucket=node.uplink.bucket,
        inputs=list(inputs.values()),
        folder=fetched,
        stopped=node.is_stopping,
        origins=node.origins,
    )
    node.status.inputs = node.origins.to_dict()
    log.info("inputs: %s", node.origins.summary)
    for entry in manifest["inputs"]:
        _refuse_flaw(entry["path"])
        target = place.data / entry["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(fetched / PurePosixPath(entry["key"]).name, target)
    if node.is_stopping():
        raise Stopped("stopped before the script began")


def _refuse_flaw(path: str) -> None:
    if why := path_flaw(path):
        raise TrainingFailed(f"the manifest names the file {path[:80]!r}", why=why, do="Launch again.")


def _code() -> Path:
    """Return the folder of the agent's own code."""
    return Path(trainer.__file__).parents[1]


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
