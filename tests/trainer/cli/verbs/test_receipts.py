"""Sums of receipts as a table."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from trainer.cli.verbs.receipts import sums_table
from trainer.runs.receipt_sums import CostSum


def test_an_estimate_of_some_runs_says_of_how_many() -> None:
    """What all runs took, beside the estimates of some, would look like a bad estimate."""
    known = {"seconds": 60.0, "low": 1.0, "high": 1.0}
    sums = [
        CostSum(group="lstm", runs=3, estimated=0.9, estimated_runs=3, **known),
        CostSum(group="net", runs=4, estimated=0.2, estimated_runs=1, **known),
        CostSum(group="new", runs=2, **known),
    ]
    drawn = StringIO()
    Console(file=drawn, width=100).print(sums_table(sums, "job"))
    cells = [line.partition("$1.00")[2].strip() for line in drawn.getvalue().splitlines()[1:4]]
    assert cells == ["$0.90", "$0.20 of 1 run", "-"]
    assert drawn.getvalue().rstrip().endswith("$3.00  $1.10 of 4 runs")
