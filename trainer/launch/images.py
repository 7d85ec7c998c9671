"""Refuse types of a launch that can't work on the stack's image line, before anything is created. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.base.errors import ConfigError
from trainer.machines.compatibility import judge
from trainer.machines.instances import InstanceType


def refuse_unfit(machines: Sequence[InstanceType], line: str, *, named: bool) -> None:
    """Raise ConfigError for a type that can't work on the stack's image line, or if no type of a default
    choice can.

    `named`: the job names these types. A retired one has its own refusal, with replacements
    (`machines.refuse_retired`).
    """
    verdicts = [judge(machine.name, line) for machine in machines]
    for machine, verdict in zip(machines, verdicts, strict=True):
        if machine.launchable and not verdict.works and (named or not any(one.works for one in verdicts)):
            raise ConfigError(f"{machine.name} would not train on this stack", why=verdict.why, do=verdict.do)
