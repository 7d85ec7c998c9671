"""Interruptions that users ask for: a rehearsal takes the machine of their job back once a share of its steps
is done (`mayfly launch --rehearse --interrupt 40%`).

The server looks at the progress that the node of the run's first attempt reports, as any desk could. A
command that reports no steps is not interrupted. Tests ask for interruptions of later attempts, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainer.base.errors import UsageError
from trainer.base.strict_json import Unsound
from trainer.rehearsal.kept_bucket import KeptBucket
from trainer.rehearsal.world import Instance, World
from trainer.runs.keys import NodeKeys
from trainer.runs.reports import share_reported

NOTICE_SECONDS = 20.0  # instead of EC2's two minutes, for which nobody wants to wait at a desk
_WANTED = re.compile(r"(\d{1,3})%(,no-notice)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """An interruption of one run: the share of its steps that is done before, and its notice."""

    share: float  # 0: at once
    notice_seconds: float  # 0: none

    @property
    def text(self) -> str:
        """Return it as a command says it."""
        notice = f"with {self.notice_seconds:g} s of notice" if self.notice_seconds else "without notice"
        return f"its machine is taken back at {self.share:.0%} of its steps, {notice}"


def read_interruption(text: str) -> Interruption:
    """Read `40%` or `40%,no-notice`. Raises UsageError for anything else."""
    read = _WANTED.fullmatch(text)
    if not read or not 1 <= int(read[1]) <= 99:
        why = "it is a share of the job's steps, 1% to 99%"
        do = "Write it as --interrupt 40%, or 40%,no-notice."
        raise UsageError(f"--interrupt is '{text[:40]}'", why=why, do=do)
    return Interruption(share=int(read[1]) / 100, notice_seconds=0 if read[2] else NOTICE_SECONDS)


@dataclass(kw_only=True)
class AskedInterruption:
    """An interruption that is still to come, and the hash of the progress object that was read last."""

    wanted: Interruption
    attempt: int = 1
    read: str = ""


def interrupt_due(
    world: World, interruptions: dict[str, AskedInterruption], buckets: Collection[KeptBucket], now: datetime
) -> None:
    """Take back the machines of the runs that are as far as their interruption asks for, each once."""
    for run_id, asked in list(interruptions.items()):
        machine = _machine_of(world, run_id, asked.attempt, now)
        if machine is not None and _share_done(machine, asked, buckets) >= asked.wanted.share:
            del interruptions[run_id]
            notice = timedelta(seconds=asked.wanted.notice_seconds)
            world.interrupt(machine.id, now, after=notice, notice=notice)


def _machine_of(world: World, run_id: str, attempt: int, now: datetime) -> Instance | None:
    """Return the running instance of an attempt of a run."""
    wanted = {"run_id": run_id, "attempt": str(attempt)}
    mine = (one for one in world.instances.values() if wanted.items() <= one.tags.items())
    return next((one for one in mine if one.state(now) == "running"), None)


def _share_done(machine: Instance, asked: AskedInterruption, buckets: Collection[KeptBucket]) -> float:
    """Return the share that the machine reports, 0 if it has reported nothing since the last look."""
    tags = machine.tags
    keys = NodeKeys(
        role_id=tags.get("role_id", ""),
        instance_id=machine.id,
        run_id=tags["run_id"],
        attempt=asked.attempt,
    )
    versions = [version for bucket in buckets for version in bucket.versions(keys.progress)]
    if not versions or versions[0].sha256 == asked.read or versions[0].file is None:
        return 0.0
    asked.read = versions[0].sha256
    try:
        return share_reported(versions[0].file.read_bytes())
    except Unsound:  # a node's reports are untrusted
        return 0.0
