"""Match the stack's image lines with the types of a launch; refuse what can't work before anything is
created. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.aws.stack_outputs import StackOutputs, architecture_of
from trainer.base.errors import ConfigError, UsageError
from trainer.machines.compatibility import Compatibility, judge, system_of
from trainer.machines.instances import InstanceType


def line_for(machines: Sequence[InstanceType], outputs: StackOutputs) -> str:
    """Return the image line for the types of a launch, which pins one image.

    Raises UsageError for types of two architectures, ConfigError if the stack has no line for theirs.
    """
    by_system = {system_of(machine.name): machine.name for machine in reversed(machines)}
    if len(by_system) > 1:
        named = " and ".join(f"{name} ({system})" for system, name in sorted(by_system.items()))
        why, do = (
            "a run pins one machine image, which is for one architecture",
            "Name types of one architecture.",
        )
        raise UsageError(f"{named} can't be in one launch", why=why, do=do)
    (system,) = by_system
    lines = [line for line in outputs.images if architecture_of(line) == system]
    if not lines:
        why = (
            f"it is {system}, and the stack has image lines for"
            f" {', '.join(map(architecture_of, outputs.images))} only"
        )
        do = f"pulumi config set image_line_{system} LINE, then pulumi up; or choose another type."
        raise ConfigError(f"the stack has no image for {by_system[system]}", why=why, do=do)
    return lines[0]


def refuse_unfit(machines: Sequence[InstanceType], outputs: StackOutputs, *, named: bool) -> None:
    """Raise ConfigError for a type that can't work on the stack's image line, or if no type of a default
    choice can.

    `named`: the job names these types. A retired one has its own refusal, with replacements
    (`machines.refuse_retired`).
    """
    line = line_for(machines, outputs)
    verdicts = [verdict_on(machine, line) for machine in machines]
    for machine, verdict in zip(machines, verdicts, strict=True):
        if machine.launchable and not verdict.works and (named or not any(one.works for one in verdicts)):
            raise ConfigError(f"{machine.name} would not train on this stack", why=verdict.why, do=verdict.do)


def verdict_on(machine: InstanceType, line: str) -> Compatibility:
    """Return the compatibility matrix's verdict on a type and an image line of the stack."""
    return judge(machine.name, line, system=architecture_of(line))
