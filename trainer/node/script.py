"""Work of a script's node: lay out what the contract names, run the user's command, follow it, send what it leaves in OUT.

docs/scripts.md is the contract. The script runs as a user of its own where there is root to make one (stranger.py), started
again where a signal killed it, with its checkpoint folder as it left it. Nothing that it writes is trusted.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trainer
from trainer import environment
from trainer.errors import Stopped, TrainingFailed
from trainer.node.progress import advance
from trainer.node.script_events import EventFile, ScriptEvents, StepRate
from trainer.node.script_outputs import Outputs
from trainer.node.script_packages import install, make_venv
from trainer.node.script_process import ScriptProcess
from trainer.node.shared import Node
from trainer.node.stage import fetch_inputs
from trainer.node.stranger import Stranger, close_to_others, leave_mount, make_stranger
from trainer.script import FOLDER, ScriptSettings, replaced
from trainer.symbols import path_flaw

log = logging.getLogger("trainer.node")
POLL_SECONDS = 0.2
GRACE_SECONDS = 30.0  # between SIGTERM and SIGKILL; a shutdown leaves 75 s, of which the upload needs some
REHEARSAL_GRACE_SECONDS = 5.0  # of the 10 s that a rehearsal's machine has
PIECE = ("piece", "kind", "series", "fold", "seed")


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folders of a script on its machine."""

    root: Path

    @property
    def script(self) -> Path:
        """Return its working folder, with its files."""
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
        """Return the folder of its events, its home and its temporary files."""
        return self.root / "own"

    @property
    def events(self) -> Path:
        return self.own / "events.jsonl"

    @property
    def venv(self) -> Path:
        return self.root / "venv"

    def make(self) -> None:
        """Make the folders."""
        for folder in (self.script, self.data, self.out, self.checkpoints, self.own / "home", self.own / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)


def run_script(node: Node, manifest: dict[str, Any]) -> int:
    """Run the manifest's script to its end; return its exit code. Raises ours for what can't begin, and for one that failed."""
    script = ScriptSettings(**{key: _tupled(value) for key, value in manifest["job"]["script"].items()})
    (model,) = manifest["pieces"]
    place = Place(root=node.work / "script")
    place.make()
    (node.work / "events").mkdir(exist_ok=True)
    lay_out(node, manifest, place)
    stranger = make_stranger(rehearsal=node.rehearsal or node.here)
    python = environment.image_python()
    bare = environment.for_script({}, path=os.defpath)
    image = "the desk's .venv" if node.rehearsal else python if node.here else "the image"
    node.status.python_packages = f"{image}, {script.requirements}" if script.requirements else image
    programs = make_venv(node, python=python, folder=place.venv, environment=bare)
    if script.requirements:
        requirements = place.script / script.requirements
        install(node, python=python, venv=place.venv, requirements=requirements, wheels=place.script, environment=bare)
    if stranger is not None:
        stranger.give(place.script, place.out, place.checkpoints, place.own)
        close_to_others(*(path for path in node.work.iterdir() if path != place.root))
        close_to_others(*(_code().parent / name for name in ("bundle.zip", "code", "environments")))
        leave_mount(_code().parent / "cache")  # of inputs: who reaches it may read and write what other runs read
    contract = {
        "MAYFLY_DATA": str(place.data),
        "MAYFLY_OUT": str(place.out),
        "MAYFLY_CHECKPOINTS": str(place.checkpoints),
        "MAYFLY_EVENTS": str(place.events),
        "MAYFLY_DEVICES": str(node.status.devices.found if node.status.devices else 1),
    }
    home = {"HOME": str(place.own / "home"), "TMPDIR": str(place.own / "tmp")}
    variables = environment.for_script({**home, **script.variables, **contract}, path=str(programs))
    words = [replaced(word, {**script.variables, **contract}) for word in script.words]
    return _Run(node, model, script, place, words, variables, stranger).to_the_end(sha256=manifest["script_sha256"])


class _Run:
    """The starts of one script, its events and its outputs."""

    def __init__(
        self,
        node: Node,
        model: dict[str, Any],
        script: ScriptSettings,
        place: Place,
        words: list[str],
        variables: dict[str, str],
        stranger: Stranger | None,
    ) -> None:
        self._node, self._model, self._script, self._place = node, model, script, place
        self._words, self._variables, self._stranger = words, variables, stranger
        self._told = EventFile(node.work / "events" / "events.jsonl")
        self._events, self._rate = ScriptEvents(place.events), StepRate()
        self._starts, self._exit_code, self._last_lines = 0, 0, list[str]()
        self._asked_to_end = False

    def to_the_end(self, *, sha256: str) -> int:
        """Run it, again after a signal, and send what it left. Raises TrainingFailed, or Stopped.

        `sha256` is the script's, by which a later launch knows how long it took.
        """
        node = self._node
        outputs = Outputs(folder=self._place.out, node=node, most_bytes=int(self._script.out_gib * 2**30))
        node.enter("train")
        node.status.message = ""
        self._tell({"event": "started", "models": [self._model], "workers": 1, "device": _kind(node), "data": {}})
        began = time.monotonic()
        try:
            with outputs:
                while self._start() < 0 and not node.stopping.is_set() and self._starts <= self._script.restarts:
                    self._tell({"event": "retry", **self._model, "reason": f"it was killed by signal {-self._exit_code}"})
        finally:
            node.enter("upload")
            outputs.finish()
            node.status.files = [outputs.sent[path] for path in sorted(outputs.sent)]
            node.status.scripts = [self._end(sha256, time.monotonic() - began, outputs.notes)] if self._starts else []
        return self._ended()

    def _end(self, sha256: str, seconds: float, notes: list[str]) -> dict[str, Any]:
        """Return how a script that began has ended, as the receipt has it."""
        left_out = [f"{self._events.unsound:,} lines of its events could not be read"] if self._events.unsound else []
        return {
            **{key: self._model[key] for key in PIECE},
            "sha256": sha256,
            "exit_code": self._exit_code,
            "starts": self._starts,
            "seconds": round(seconds, 3),
            "last_lines": self._last_lines,
            "notes": [*notes, *left_out],
        }

    def _process(self) -> ScriptProcess:
        """Start the command. Raises TrainingFailed where this machine can't run it."""
        try:
            return ScriptProcess(
                self._words,
                folder=self._place.script,
                environment=self._variables,
                stranger=self._stranger,
                grace_seconds=REHEARSAL_GRACE_SECONDS if self._node.rehearsal else GRACE_SECONDS,
            )
        except TrainingFailed as error:
            self._tell({"event": "model_failed", **self._model, "reason": error.what})
            raise

    def _start(self) -> int:
        """Run the command once, to its end."""
        node = self._node
        with self._process() as process:
            self._starts += 1
            self._tell({"event": "model_started", **self._model, "worker": 0})
            log.info("started: %s", " ".join(self._words))
            while (code := process.poll()) is None:
                if node.stopping.is_set():
                    self._asked_to_end = True
                    process.stop()
                self._follow()
                time.sleep(POLL_SECONDS)
        self._follow()
        self._exit_code, self._last_lines = code, process.output.last_lines
        log.info("the script ended with exit code %d", code)
        return code

    def _follow(self) -> None:
        """Turn the script's new events into ours."""
        for event in self._events.new():
            counts, values = event["counts"], event["values"]
            if "steps" in counts or "epochs" in counts:  # a bar needs both; what is missing counts as one
                counts = {"step": 0, "steps": 1, "epoch": 1, "epochs": 1, **counts}
            rate = self._rate.update(counts["step"]) if "step" in event["counts"] else self._rate.value
            numbers = {"rate": round(rate, 3), "unit": "steps", "worker": 0, "loss": event["loss"], "values": values}
            self._tell({"event": "script", **self._model, **counts, **numbers})
            losses = {key: values[key] for key in ("train_loss", "validation_loss") if key in values}
            if losses and "epoch" in event["counts"]:
                self._tell({"event": "epoch", **self._model, "epoch": counts["epoch"], **losses})

    def _ended(self) -> int:
        if self._asked_to_end:  # whatever its exit code: it may end well when it is asked to, and is not done
            raise Stopped("the script was stopped")
        if self._exit_code == 0:
            self._tell({"event": "script_done", **self._model})
            return 0
        how = f"was killed by signal {-self._exit_code}" if self._exit_code < 0 else f"ended with exit code {self._exit_code}"
        why = self._last_lines[-1] if self._last_lines else "it printed nothing"
        self._tell({"event": "model_failed", **self._model, "reason": f"it {how}: {why}"})
        raise TrainingFailed(f"the script {how}", why=why, do="Read `mayfly logs`.")

    def _tell(self, event: dict[str, Any]) -> None:
        self._told.write(event)
        self._node.status.progress = advance(self._node.status.progress, event)


def lay_out(node: Node, manifest: dict[str, Any], place: Place) -> None:
    """Put the script's files from the bundle into its folder, and its data from S3. Raises ours."""
    packed = Path(trainer.__file__).parent / FOLDER
    for path in manifest["script_files"]:
        _refuse_flaw(path)
        target = place.script / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(packed / path, target)
    inputs = {entry["key"]: entry for entry in manifest["inputs"]}  # one file may lie under several names
    by_hash = node.work / "inputs"
    fetch_inputs(
        node.uplink.s3,
        bucket=node.uplink.bucket,
        inputs=list(inputs.values()),
        folder=by_hash,
        stopped=node.stopping.is_set,
        origins=node.origins,
    )
    node.status.inputs = node.origins.to_dict()
    log.info("inputs: %s", node.origins.summary)
    for entry in manifest["inputs"]:
        _refuse_flaw(entry["path"])
        target = place.data / entry["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(by_hash / entry["sha256"], target)
    if node.stopping.is_set():
        raise Stopped("stopped before the script began")


def _refuse_flaw(path: str) -> None:
    if why := path_flaw(path):
        raise TrainingFailed(f"the manifest names the file {path[:80]!r}", why=why, do="Launch again.")


def _kind(node: Node) -> str:
    return node.status.devices.kind if node.status.devices else ""


def _code() -> Path:
    """Return the folder of the agent's own code."""
    return Path(trainer.__file__).parents[1]


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
