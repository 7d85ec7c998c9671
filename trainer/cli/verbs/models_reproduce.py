"""`mayfly models reproduce RUN|MODEL`: train models again on this machine, from the code, job and data
versions of their run, and compare the losses that training records; or a script, and compare its files.

Reads the run's bucket and writes nothing there (`cli/sources/again.py`). What can't be had is refused before
anything is downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib import metadata
from typing import Any

from trainer.aws.objects import Objects, open_objects
from trainer.aws.stack import read_stack
from trainer.base.errors import ConfigError, TrainingFailed, UsageError
from trainer.base.strict_json import Unsound
from trainer.base.text import some_of
from trainer.cli.connect import connected
from trainer.cli.output import say_json
from trainer.cli.sources.again import AgainHere, fetch_inputs, folder_for
from trainer.cli.terminal import Console, show
from trainer.cli.views.reproduction import document_of, reproduction_view
from trainer.job.reading import job_from
from trainer.job.search import values_in
from trainer.runs.stored_receipt import read_receipt
from trainer.store.lineage import PastRun, card_of_model, code_of, lock_of, past_run, refuse_deleted
from trainer.store.reproduction import (
    ComparedFile,
    ComparedModel,
    Here,
    asked,
    compared,
    grouped,
    inexact,
    lacks,
    other_packages,
    script_again,
    trained_again,
)
from trainer.store.trained import LossPlace, Trained, told_losses, trained_of

LEVELS = ("DEFAULT", "AVX2", "AVX512")  # a processor's instructions, by torch's names, each with those before


def run(arguments: argparse.Namespace) -> int:
    """Reproduce and print the comparison. Returns 0 if it is equal to the bit, or within the tolerance where
    a GPU, a pack or another processor excuses that; else 100.
    """
    steps = arguments.steps
    if steps is not None and steps < 1:
        raise UsageError(f"--steps is {steps}", do="Give 1 or more, or leave it out for all.")
    if sys.platform != "linux":
        raise ConfigError(
            "a run is reproduced on Linux", why=f"this is {sys.platform}", do="Use WSL or Docker."
        )
    console = Console(plain=arguments.json)
    with ExitStack() as ends:
        ends.callback(console.close)
        where = {"rehearse": arguments.rehearse, "program": False, "local": arguments.local}
        access = ends.enter_context(connected(**where))
        bucket = read_stack(access, stack=arguments.stack).bucket
        objects = open_objects(access, bucket)
        past = past_run(objects, arguments.name)
        code = code_of(objects, past.manifest)
        refuse_other_lock(past, code)
        kind = _Script if past.manifest.command.tells == "numbers" else _Models
        asked_for = kind(past, objects, steps or 0)
        refuse_deleted(objects, past.manifest.inputs)
        work = ends.enter_context(folder_for(arguments.name, past))
        fetch_inputs(past, access, bucket, work, console, quiet=arguments.json)
        again = AgainHere(past=past, code=code, work=work)
        compared_here = asked_for.carried_out(again, console)
        same = all(one.verdict != "different" for one in compared_here)
        if same:
            work.remove()
        else:
            console.line(f"what was made here stays in {work.path} for 30 days")
    if arguments.json:
        say_json({"run_id": past.run_id, "steps": steps, **document_of(compared_here)})
    else:
        show(reproduction_view(compared_here, past.run_id))
    return 0 if same else TrainingFailed.exit_code


def refuse_other_lock(past: PastRun, code: bytes) -> None:
    """Raise ConfigError if packages of the run's lock are not what is installed here."""
    if others := other_packages(lock_of(code), _installed):
        version = some_of(others, 5)
        do = "Install these versions, or reproduce it with the Mayfly and the environment of that time."
        raise ConfigError(f"run {past.run_id} was made with other packages", why=version, do=do)


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _here() -> Here:
    """Return what this machine has."""
    import torch  # late: it takes a second to load

    from trainer.node.devices import GPUS, NoDriver, nvidia_smi
    from trainer.train.cpu import num_cores
    from trainer.train.hardware import hardware_of

    try:
        gpus = tuple(name for _, name, _ in nvidia_smi(GPUS))
    except NoDriver:
        gpus = ()
    known = hardware_of("cpu", "fp32")
    return Here(
        processor=known.chip,
        instructions=known.instructions,
        torch=torch.__version__,
        gpus=gpus,
        cores=num_cores(),
    )


class _Models:
    """Models of a run that are trained again. Raises a TrainerError if this machine can't."""

    def __init__(self, past: PastRun, objects: Objects, steps: int) -> None:
        self._past, self._steps = past, steps
        if not past.models:
            do = "mayfly models list shows the models of others."
            raise UsageError(f"run {past.run_id} made no model", do=do)
        self._models = [trained_of(card_of_model(objects, model)) for model in past.models]
        self._here = _here()
        for one in self._models:
            if why := lacks(one, self._here):
                do = "Reproduce it on such a machine."
                raise ConfigError(f"{one.model} can't be reproduced here", why=why, do=do)
            if one.torch.partition("+")[0] != self._here.torch.partition("+")[0]:
                why, do = f"torch {one.torch}, here {self._here.torch}", f"Install torch {one.torch}."
                raise ConfigError(f"{one.model} was made with another torch", why=why, do=do)
            if not asked(one, steps):
                least = min(place.number for place in one.losses)
                do = f"Give --steps {least * one.steps_of_epoch}, or leave it out."
                raise UsageError(f"{one.model} has no loss of its first {steps} steps", do=do)

    def carried_out(self, again: AgainHere, console: Console) -> Sequence[ComparedModel]:
        """Train the models again, and return their losses beside the recorded ones."""
        document, cores = self._past.document, self._here.cores
        pieces = {piece.model: piece.piece for piece in self._past.record.pieces if not piece.is_trial}
        made = list[ComparedModel]()
        for group in grouped(self._models):
            level, here = _level(group[0], self._here)
            heard = _Heard(group, self._steps, console)
            values = values_in(job_from(document["job"]).search, group[0].values) if group[0].values else ()
            manifest = trained_again(document, group, pieces, cores=cores, values=values)
            again.run(manifest, variables=level, heard=heard)
            made += [
                compared(
                    one,
                    heard.losses[one.model],
                    steps=self._steps,
                    inexact=inexact(one, here),
                    failed=heard.failed.get(one.model, ""),
                )
                for one in group
            ]
        return made


def _level(trained: Trained, here: Here) -> tuple[Mapping[str, str], Here]:
    """Return the variables by which torch uses the instructions of then, if this processor has more, and what
    this machine has with them.
    """
    then, now = trained.instructions, here.instructions
    if then in LEVELS and now in LEVELS and LEVELS.index(then) < LEVELS.index(now):
        return {"ATEN_CPU_CAPABILITY": then.lower()}, replace(here, instructions=then)
    return {}, here


class _Heard:
    """Listens to a training; returns True once every loss that is asked for was told, if the rest is not."""

    def __init__(self, group: Sequence[Trained], steps: int, console: Console) -> None:
        self.losses: dict[str, dict[LossPlace, float | None]] = {one.model: {} for one in group}
        self.failed: dict[str, str] = {}
        self._wanted = {one.model: set(asked(one, steps)) for one in group}
        self._ends_early, self._console = steps > 0, console

    def __call__(self, event: Mapping[str, Any]) -> bool:
        model = str(event.get("model", ""))
        if model not in self.losses:
            return False
        try:
            told = told_losses(event)
        except Unsound:
            return False
        self.losses[model] |= told
        if event.get("event") == "model_failed":
            self.failed[model] = str(event.get("reason", ""))
        if event.get("event") in ("progress", "epoch"):
            self._console.update(f"{event.get('piece', model)}: epoch {event.get('epoch')}")
        return self._ends_early and all(
            self._wanted[one] <= self.losses[one].keys() or one in self.failed for one in self.losses
        )


class _Script:
    """A script that is run again. Raises a TrainerError if this machine can't."""

    def __init__(self, past: PastRun, objects: Objects, steps: int) -> None:
        self._past = past
        if steps:
            raise UsageError("a script has no steps of Mayfly's", do="Leave --steps out.")
        if past.record.num_nodes > 1:
            why = f"it ran on {past.record.num_nodes} machines together"
            raise UsageError(f"run {past.run_id} can't be reproduced here", why=why, do="Launch it again.")
        receipt = read_receipt(objects, past.run_id)
        if receipt is None:
            do = "Wait for its end: mayfly status."
            raise UsageError(f"run {past.run_id} has not ended", do=do)
        self._files = {str(item["file"]): str(item["sha256"]) for item in receipt["files"]}
        if not self._files:
            raise UsageError(f"run {past.run_id} left no files", do="Name another run.")

    def carried_out(self, again: AgainHere, console: Console) -> Sequence[ComparedFile]:
        """Run the script again, and return its files beside those of then."""
        console.update("running the script again ...")
        again.run(script_again(self._past.document), variables={"MAYFLY_DESK_PYTHON": sys.executable})
        return [
            ComparedFile(file=name, recorded=sha256, computed=_sha256_of(again, name))
            for name, sha256 in sorted(self._files.items())
        ]


def _sha256_of(again: AgainHere, name: str) -> str:
    """Return the hash of a file that the script left, '' if it left none, or a link."""
    path = again.out / name
    if not path.resolve().is_relative_to(again.out.resolve()) or path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
