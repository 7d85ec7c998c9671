"""The table of times and dollars by GPU: a row per chip, a column per number of GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from trainer.cli.output import counted, duration, money
from trainer.cli.views.table import DIM, Cell, FittedTable, styled
from trainer.launch.gpu_table import COUNTS, OnGpus

LAW = "a ring all-reduce beside the backward pass (docs/training.md)"


def gpu_view(rows: Sequence[OnGpus]) -> Iterator[RenderableType]:
    """Yield the table, then which chips can't train the model and where several GPUs are pointless."""
    chips = list(dict.fromkeys(row.machine.gpu_model for row in rows))
    by_chip = [_line([row for row in rows if row.machine.gpu_model == chip]) for chip in chips]
    yield FittedTable(by_chip, leaving=("link",))
    for chip in chips:
        if refused := [row for row in rows if row.machine.gpu_model == chip and row.refused]:
            yield f"   {_name(refused[-1])}: {refused[-1].refused}"
    # The largest number of GPUs of each chip, if it is pointless.
    most = {row.machine.gpu_model: row for row in sorted(rows, key=lambda row: row.devices)}
    if pointless := [most[chip] for chip in chips if most[chip].is_pointless]:
        named = ", ".join(f"{row.devices}×{_name(row)} {row.speedup:.1f}" for row in pointless)
        yield (
            "   Not worthwhile for this model and batch, since the link is slow (speed-up over one GPU):"
            f" {named}"
        )
    yield styled(f"Several GPUs: by law, {LAW}; an estimate until measured. List prices, boot included.", DIM)


def _line(rows: Sequence[OnGpus]) -> dict[str, Cell]:
    by_count = {row.devices: row for row in rows}
    links = {row.link: None for row in rows if row.devices > 1}
    cells = {counted(count, "GPU"): _cell(by_count.get(count)) for count in COUNTS}
    return {"one model on": _name(rows[0]), "link": ", ".join(links) or "-", **cells}


def _cell(row: OnGpus | None) -> Cell:
    if row is None:
        return "-"
    if row.refused:
        return styled("does not fit", DIM)
    text = f"{duration(row.seconds_p50)} {money(row.dollars_p50)}"
    if row.placement is not None and row.placement.sharded:
        text += " (FSDP)"
    return styled(text, DIM) if row.is_pointless else text


def _name(row: OnGpus) -> str:
    return row.machine.gpu_model.removeprefix("NVIDIA ")
