"""Reproduce a model: check that this machine can, turn its run's manifest into one for it, and compare the
losses. Pure, standard library only.

Losses are equal to the bit where everything that their last digits depend on is the same; elsewhere within
TOLERANCE.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainer.base.text import counted
from trainer.store.trained import Losses, LossPlace, Trained

# Of a loss. Sums in another order differ in the last digits, and training lets differences grow: an H100's
# and an H200's losses of whole trainings were within 0.2 % of a CPU's (docs/benchmarks.md, 2026-11-27).
TOLERANCE = 2e-3
Verdict = Literal["equal to the bit", "within the tolerance", "different"]
OTHERS = "others.json"  # of GIVEN: the pieces that are not trained again
# Packages of a lock that carry bytes and compute nothing.
CARRIERS = {"boto3", "botocore", "jmespath", "s3transfer", "urllib3", "nvidia-ml-py", "six", "tzdata"}


@dataclass(frozen=True, kw_only=True)
class Here:
    """This machine's processor, GPUs and torch, on which losses depend."""

    processor: str
    instructions: str
    torch: str
    gpus: tuple[str, ...]  # by name
    cores: int


@dataclass(frozen=True, kw_only=True)
class ComparedLoss:
    """A loss as recorded, and as computed again; None: not finite."""

    place: LossPlace
    recorded: float | None
    computed: float | None

    @property
    def is_equal(self) -> bool:
        """Return whether both are the same to the bit."""
        return self.recorded == self.computed

    @property
    def difference(self) -> float:
        """Return how far they are apart, as a share of the recorded one; infinity if one is not finite."""
        if self.is_equal:
            return 0.0
        if self.recorded is None or self.computed is None:
            return float("inf")
        return abs(self.computed - self.recorded) / max(abs(self.recorded), 1e-300)


@dataclass(frozen=True, kw_only=True)
class ComparedModel:
    """A model's losses as recorded and as computed again."""

    model: str
    losses: tuple[ComparedLoss, ...]
    missing: int = 0  # recorded losses that were not computed
    inexact: str = ""  # why another last digit is no difference; '': it is one
    failed: str = ""  # why it was not trained

    @property
    def verdict(self) -> Verdict:
        """Return what the losses show."""
        if self.failed or self.missing or not self.losses:
            return "different"
        if all(one.is_equal for one in self.losses):
            return "equal to the bit"
        within = self.inexact and all(one.difference <= TOLERANCE for one in self.losses)
        return "within the tolerance" if within else "different"

    @property
    def worst(self) -> float:
        """Return the largest difference, as a share."""
        return max((one.difference for one in self.losses), default=0.0)


@dataclass(frozen=True, kw_only=True)
class ComparedFile:
    """A file that a script left, then and here, by sha256; '': it left none here."""

    file: str
    recorded: str
    computed: str

    @property
    def verdict(self) -> Verdict:
        """Return whether it is the same."""
        return "equal to the bit" if self.recorded == self.computed else "different"


def compared(
    trained: Trained, computed: Losses, *, steps: int, inexact: str, failed: str = ""
) -> ComparedModel:
    """Return the losses of a training, or of its first `steps`, beside the recorded ones."""
    wanted = asked(trained, steps)
    losses = [
        ComparedLoss(place=place, recorded=trained.losses[place], computed=computed[place])
        for place in wanted
        if place in computed
    ]
    missing = len(wanted) - len(losses)
    return ComparedModel(
        model=trained.model, losses=tuple(losses), missing=missing, inexact=inexact, failed=failed
    )


def asked(trained: Trained, steps: int) -> list[LossPlace]:
    """Return the recorded losses that the first `steps` of a training make; 0: all."""
    if not steps:
        return list(trained.losses)
    per = {"step": 1, "epoch": trained.steps_of_epoch}
    return [place for place in trained.losses if place.fit < 2 and place.number * per[place.unit] <= steps]


def inexact(trained: Trained, here: Here) -> str:
    """Return why the losses of a training may differ in their last digits here; '' if they may not."""
    if trained.device == "cuda":
        return "" if trained.deterministic else "a GPU may add in another order"
    if trained.depends_on_its_pack:
        return f"packs form by the clock, and it was in one with {counted(len(trained.mates) - 1, 'other')}"
    if trained.torch != here.torch:
        return f"torch {trained.torch} then, {here.torch} here"
    if (trained.chip, trained.instructions) != (here.processor, here.instructions):
        then, now = (
            f"{chip} with {instructions}"
            for chip, instructions in (
                (trained.chip, trained.instructions),
                (here.processor, here.instructions),
            )
        )
        return f"{then} then, {now} here"
    return ""


def lacks(trained: Trained, here: Here) -> str:
    """Return what this machine lacks that a training took; '' for nothing."""
    if trained.device != "cuda":
        return ""
    there = [name for name in here.gpus if name == trained.chip]
    if len(there) >= trained.ranks:
        return ""
    has = ", ".join(sorted(set(here.gpus))) or "no GPU"
    count = f"{trained.ranks} x " if trained.ranks > 1 else ""
    return f"it was trained on {count}{trained.chip}, this machine has {has}"


def other_packages(lock: str, installed: Callable[[str], str]) -> list[str]:
    """Return each package of a lock that is installed in another version, as text. `installed` returns a
    package's version, '' for none: a lock has packages of other systems, too, and several versions by Python.
    """
    pinned: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock, re.MULTILINE):
        pinned.setdefault(name, []).append(version)
    found = []
    for name, versions in sorted(pinned.items()):
        there = installed(name)
        if there and name not in CARRIERS and there.partition("+")[0] not in versions:
            found.append(f"{name} {' or '.join(versions)} (here {there})")
    return found


def grouped(models: Sequence[Trained]) -> list[list[Trained]]:
    """Return models in groups of the same settings, which one training can train."""
    groups: dict[object, list[Trained]] = {}
    for one in models:
        expert = (one.strategy, one.pack, one.micro_batch, one.activation_checkpointing, one.threads)
        values = tuple(sorted(one.values.items()))
        groups.setdefault((one.device, one.ranks, one.batch, expert, values), []).append(one)
    return list(groups.values())


def trained_again(
    manifest: Mapping[str, Any],
    group: Sequence[Trained],
    pieces: Mapping[str, str],
    *,
    cores: int,
    values: Iterable[tuple[str, Any]] = (),
) -> dict[str, Any]:
    """Return the manifest of a run that trains a group of its models again on this machine; `pieces` are all
    models of the run, model -> title. What a trial, the machine or the memory chose is fixed to what was
    chosen, and keys that a search chose to their `values`, without the search.
    """
    first = group[0]
    mates = [name for one in group if one.depends_on_its_pack for name in one.mates]
    chosen = {
        "strategy": first.strategy,
        "pack": first.pack,
        "micro_batch": first.micro_batch,
        "activation_checkpointing": first.activation_checkpointing,
        "threads": first.threads if first.device == "cpu" else 0,
        "tune": "never",
        "trace_steps": 0,
    }
    again = _alone(manifest)
    again["job"]["expert"] |= chosen
    for key, value in values:
        table, _, name = key.partition(".")
        again["job"][table] |= {name: value}
    again["job"].pop("search", None)
    again["job"]["train"] |= {"batch": first.batch}
    to_train = {*mates, *(one.model for one in group)}
    others = [title for model, title in pieces.items() if model not in to_train]
    again["documents"] = {**manifest["documents"], OTHERS: others}
    workers = _workers(first, cores=cores, models=1 if mates else len(to_train))
    again["command"]["words"] = _words(manifest["command"]["words"], workers, first.device)
    return again


def script_again(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a run that runs its script again on this machine."""
    return _alone(manifest)


def _alone(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest for this machine alone. It has no smoke test, which says nothing of losses."""
    job = {name: dict(table) for name, table in manifest["job"].items() if isinstance(table, Mapping)}
    for table in ("machine", "train", "expert"):
        job.setdefault(table, {})
    job["machine"]["nodes"] = 1
    names = {name: value for name, value in manifest["job"].items() if name not in job}
    command = {**manifest["command"], "devices": "found"}
    return {**manifest, "job": {**names, **job}, "command": command, "ssh_key": ""}


def _workers(trained: Trained, *, cores: int, models: int) -> int:
    """Return how many processes train here: the ranks of then, or as many as cores and models allow."""
    if trained.ranks > 1 or trained.device == "cuda":
        return trained.ranks
    return max(1, min(models, cores // trained.threads))


def _words(words: Sequence[str], workers: int, device: str) -> list[str]:
    """Return the trainer's words for this machine: without other machines, and with files that are all
    there.
    """
    kept, rest = list[str](), iter(words)
    fixed = {"--workers": str(workers), "--device": device, "--finished": f"$GIVEN/{OTHERS}"}
    for word in rest:
        if word in ("--cluster", "--carried", "--arriving"):
            next(rest)
        elif word in fixed:
            kept += [word, fixed[word]]
            next(rest)
        else:
            kept.append(word)
    return kept
