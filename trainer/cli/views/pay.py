"""The ways to pay for the runs of a job, as a table and sentences."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from trainer.cli.output import duration, money
from trainer.cli.views.table import DIM, FittedTable, styled
from trainer.launch.pay import RUNS_A_MONTH, Way, WaysToPay


def pay_lines(pay: WaysToPay) -> Iterator[RenderableType]:
    """Yield the table of dollars: of one run, and of a month of runs weekly and daily, and always on."""
    took = ", ".join(f"{pay.run_hours * runs:.1f} h {name}" for name, runs in RUNS_A_MONTH.items())
    machines = f"{pay.nodes} × {pay.instance_type}" if pay.nodes > 1 else pay.instance_type
    yield f"Ways to pay for {machines}, {duration(pay.run_hours * 3600)} a run ({took} a month):"
    yield FittedTable(
        [_row(way) for way in pay.ways],
        right=("$/h", "once", "weekly", "daily", "always on"),
        leaving=("prices of", "$/h"),
    )
    for sentence in pay.sentences:
        yield f"   {sentence}"
    for absent in pay.missing:
        yield styled(f"   Not shown: {absent}.", DIM)
    yield ""


def _row(way: Way) -> dict[str, str]:
    hourly = f"{way.usd_per_hour:.2f}" if not way.term_months else ""
    monthly = {name: way.monthly_usd(runs) for name, runs in RUNS_A_MONTH.items()}
    return {
        "way": way.name,
        "$/h": hourly,
        "once": money(way.once_usd),
        **{name: "one is too few" if usd is None else money(usd) for name, usd in monthly.items()},
        "always on": money(way.always_usd),
        "prices of": way.source,
    }
