"""The table of one look at a node's hardware: use, memory, power and temperature of its GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType

from trainer.cli.output import duration
from trainer.cli.views.table import Cell, FittedTable, lines, styled


def sample_view(sample: Mapping[str, Any]) -> RenderableType:
    """Return a sample of `mayfly status --json` with its age, which shows whether the node still reports."""
    cpu = sample["cpu"]
    rows = [_row(str(gpu["gpu"]), gpu["name"], gpu) for gpu in sample["gpus"]]
    rows += [_row("cpu", f"{cpu['cores']} cores", cpu)] if cpu else []
    table = FittedTable(
        rows, right=("use", "memory", "power", "temperature"), leaving=("name", "temperature")
    )
    note = [styled(sample["note"], "")] if sample["note"] else []
    return lines(f"{duration(sample['age_seconds'])} ago", table, *note)


def _row(number: str, name: str, figures: Mapping[str, float | None]) -> dict[str, Cell]:
    use, watts, celsius = (figures.get(key) for key in ("use_percent", "power_watts", "temperature_celsius"))
    return {
        "gpu": number,
        "name": name,
        "use": "-" if use is None else f"{use:.0f}%",
        "memory": _memory(figures["memory_used_mib"], figures["memory_mib"]),
        "power": "-" if watts is None else f"{watts:.0f} W",
        "temperature": "-" if celsius is None else f"{celsius:.0f} °C",
    }


def _memory(used: float | None, total: float | None) -> str:
    parts = ["-" if value is None else f"{value / 1024:.1f}" for value in (used, total)]
    return "-" if parts == ["-", "-"] else f"{parts[0]}/{parts[1]} GiB"
