"""Expected hardware and price of a node, for its training: `--machine FILE`, JSON that the agent writes from
the manifest. While it trains the agent adds how far checkpoints are to be apart (`CheckpointInterval`).

At a desk there is no file: hardware is not compared, no cost is computed, and checkpoints are as far apart as
the job says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.base.errors import UsageError
from trainer.base.files import read_plain
from trainer.base.strict_json import Unsound, read_object

MOST_BYTES = 16 * 1024
MOST_USD = 100_000.0
# Between checkpoints of a model on an instance, which may be gone at any time: four fifths of two minutes. In
# the fifth the agent finds one and sends it (`node.snapshots`). Only their price makes it more.
MOST_CHECKPOINT_SECONDS = 96
LOOK_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """Expected hardware and price of the machine; empty values are unknown."""

    instance_type: str = ""
    gpus: int = 0
    link: str = ""  # between its GPUs: NVSwitch, NVLink, PCIe, or none
    bus_gb_per_s: float = 0.0  # estimated bus bandwidth of an all-reduce over its GPUs; 0: unknown
    usd_per_hour: float | None = None  # of its market, as the launch saw it
    paid_seconds: float = 0.0  # from the start of user data to the start of training
    checkpoint_seconds: int = 0  # between checkpoints of a model; 0: the job's

    def seconds_between(self, of_job: int) -> int:
        """Return the seconds between checkpoints here, for a job with `train.checkpoint_seconds` (0: none):
        on an instance the machine's; the job's if that is less and below MOST_CHECKPOINT_SECONDS.
        """
        if not self.instance_type:
            return of_job
        mine = self.checkpoint_seconds or MOST_CHECKPOINT_SECONDS
        return min(of_job, mine) if of_job < MOST_CHECKPOINT_SECONDS else mine


class CheckpointInterval:
    """Seconds between checkpoints of a model, as the machine file has them at this moment; 0: none."""

    def __init__(
        self, path: Path | None, of_job: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._of_job, self._clock = path, of_job, clock
        self._seconds, self._looked_at = of_job, float("-inf")

    def __call__(self) -> int:
        """Return the seconds. A file that can't be read changes nothing."""
        if self._path is not None and self._clock() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = self._clock()
            with suppress(UsageError):
                self._seconds = read_machine(self._path).seconds_between(self._of_job)
        return self._seconds


def read_machine(path: Path | None) -> MachineFacts:
    """Read a machine file; without one, return the unknown machine. Raises UsageError for an unreadable or
    invalid file.
    """
    if path is None:
        return MachineFacts()
    try:
        body = read_plain(path, most_bytes=MOST_BYTES)
        fields = read_object(body, most_bytes=MOST_BYTES, name="the machine file")
        return MachineFacts(
            instance_type=fields.text("instance_type"),
            gpus=fields.whole("gpu_count", 0, most=1_024),
            link=fields.text("link", ""),
            bus_gb_per_s=fields.number("bus_gb_per_s", least=0, most=1e6) or 0.0,
            usd_per_hour=fields.number("usd_per_hour", least=0, most=MOST_USD),
            paid_seconds=fields.number("paid_seconds", least=0, most=1e9) or 0.0,
            checkpoint_seconds=fields.whole("checkpoint_seconds", 0, most=1_000_000),
        )
    except (OSError, Unsound) as error:
        why, do = str(getattr(error, "strerror", error)), "Leave --machine out."
        raise UsageError(f"cannot read machine file {path}", why=why, do=do) from error
