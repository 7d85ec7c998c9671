"""Instance types with the GPUs that a task asks for, cheapest first."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainer.machines.instances import InstanceType, catalogue

MOST_TYPES = 3
ARM = ("g5g.",)  # the image's PyTorch is for x86


def types_with(names: Sequence[str], *, least: int, most: int, gib: float = 0.0) -> list[str]:
    """Return up to MOST_TYPES launchable types with `least` to `most` of one of these GPUs, of at least `gib`
    memory each.

    Without names any GPU will do. [] if no type has them.
    """
    fits = [
        machine
        for machine in catalogue().values()
        if machine.launchable
        and machine.price_usd_per_hour
        and least <= machine.gpus <= most
        and machine.gpu_memory_gib >= 0.9 * gib  # a card of 24 GB shows 22.4 GiB
        and (names or not machine.name.startswith(ARM))
        and (not names or any(_is(machine, name) for name in names))
    ]
    return [
        machine.name
        for machine in sorted(fits, key=lambda machine: machine.price_usd_per_hour or 0.0)[:MOST_TYPES]
    ]


def _is(machine: InstanceType, name: str) -> bool:
    """Return whether a type has the GPU of that name, as `A100` or `A100-80GB`."""
    model = machine.gpu_model.removeprefix("NVIDIA ").upper()
    wanted, whole = re.sub("[^A-Z0-9]", "", name.upper()), re.sub("[^A-Z0-9]", "", model)
    return bool(wanted) and (
        wanted in (whole, model.split()[0]) or (len(wanted) >= 6 and whole.startswith(wanted))
    )
