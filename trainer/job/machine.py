"""The `[machine]` table of a job: instance types, market, limits of time and money. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from trainer.base.cluster import MOST_NODES
from trainer.base.errors import UsageError
from trainer.base.settings import bad_value, check_limits, setting
from trainer.job.variables import is_of_the_trainer, read_variables

MARKETS = ("on_demand", "spot")
LONGEST = timedelta(days=366)
LONGEST_QUEUE = timedelta(hours=12)  # each try is kept in the record
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_DURATION_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True, kw_only=True)
class MachineSettings:
    """The `[machine]` table: instance types in order of preference, market, and limits of time and money."""

    instance: tuple[str, ...] = setting((), "Instance types in order of preference.")
    gpu_profile: str = setting(
        "", "GPU profile, from `mayfly profiles`; empty: the profile of the GPU found."
    )
    nodes: int = setting(
        1,
        "Machines of one type that work together: they share models, agents or values, or train one large"
        " model.",
        least=1,
        most=MOST_NODES,
    )
    market: tuple[str, ...] = setting(
        ("on_demand",),
        "Markets in order of preference: " + " or ".join(MARKETS) + ", or both.",
        choices=MARKETS,
    )
    budget: float = setting(0.0, "Dollars the run may cost at most; 0: no budget.", least=0, most=10_000_000)
    max_duration: str = setting(
        "", "Longest run, such as 90m or 6h; empty: three times the slow estimate, 30m to 12h."
    )
    spot_without_checkpoints: bool = setting(
        False, "Buy spot although the command keeps no checkpoints: it starts over after an interruption."
    )
    queue_timeout: str = setting(
        "",
        "Longest wait for capacity, 12h at most, 0 for none; empty: none at a desk, 1h for scheduled runs.",
    )
    idle_stop: str = setting(
        "", "End the run once all GPUs stood nearly idle for so long, such as 30m; empty: only say so."
    )
    env: tuple[str, ...] = setting(
        (),
        "Variables of Mayfly's own trainer, as NAME=value, such as NCCL_DEBUG=INFO. The manifest shows them:"
        " no secrets.",
    )

    def __post_init__(self) -> None:
        check_limits("machine", self)
        for key in ("max_duration", "idle_stop"):
            if text := getattr(self, key):
                parse_duration(text, f"machine.{key}")
        _ = self.variables  # refuses bad ones
        if not self.market:
            raise bad_value("machine.market", self.market, "one of " + ", ".join(MARKETS))
        if self.queue_for(timedelta(0)) > LONGEST_QUEUE:
            hours = LONGEST_QUEUE // timedelta(hours=1)
            raise bad_value("machine.queue_timeout", self.queue_timeout, f"at most {hours}h")

    @property
    def variables(self) -> dict[str, str]:
        """Return `env` as a mapping. Raises UsageError for a bad name, one that Mayfly sets, and a
        secret's.
        """
        return read_variables(
            "machine.env",
            self.env,
            is_ours=is_of_the_trainer,
            ours="Leave it out: Mayfly or the machine decides it.",
            secrets="The trainer needs none; name secrets of a refresh in data.secrets.",
        )

    @property
    def idle_seconds(self) -> float:
        """Return the seconds of `idle_stop`, 0 without one."""
        return parse_duration(self.idle_stop).total_seconds() if self.idle_stop else 0.0

    def max_duration_or(self, default: timedelta) -> timedelta:
        """Return `max_duration`, or `default` where the job names none."""
        return parse_duration(self.max_duration) if self.max_duration else default

    def queue_for(self, default: timedelta) -> timedelta:
        """Return how long the run waits for capacity at most, `default` where the job does not say."""
        if self.queue_timeout.strip() == "0":
            return timedelta(0)
        return parse_duration(self.queue_timeout, "machine.queue_timeout") if self.queue_timeout else default


def parse_duration(text: str, name: str = "") -> timedelta:
    """Parse '90m', '1h30m', '2d'. Raises UsageError, with the setting's name, for anything else, zero
    included.
    """
    what = f"{name} '{text[:40]}'".lstrip()
    parts = _DURATION.findall(text.strip().lower())
    if not parts or _DURATION.sub("", text.strip().lower()).strip():
        raise UsageError(f"{what} is not a duration", do="Write it as 45s, 90m, 6h or 1h30m.")
    lengths = [{_DURATION_UNITS[unit]: float(number)} for number, unit in parts]
    try:
        total = sum((timedelta(**length) for length in lengths), timedelta(0))
    except OverflowError:
        total = timedelta.max
    if total > LONGEST:
        do = f"Give a duration of at most {LONGEST.days} days."
        raise UsageError(f"{what} is longer than any run", do=do)
    if total <= timedelta(0):
        raise UsageError(f"{what} is not above zero", do="Give a duration above zero.")
    return total
