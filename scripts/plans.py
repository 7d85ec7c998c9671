"""Make the table of docs/cost.md: the recommendations of `mayfly plan` for jobs that users described.

`scripts/reference` writes it; tests/golden has the plans themselves.
"""

from __future__ import annotations

from pathlib import Path

from trainer.cli.output import duration, money
from trainer.cli.parser import build_parser
from trainer.cli.verbs.plan import advise
from trainer.launch.candidates import PlanCandidate

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cost.md"
PANEL = "--symbols 500 --bars 6300 --timeframe 1d --model transformer --target return --epochs 150"
SETTINGS = "model.preset=large data.panel=true data.calendar=XNYS train.batch=2048 model.lookback=256"
JOBS = {  # by what they are
    "three-coins": "--symbols 3 --bars 3700000 --model lstm --epochs 15",
    "hourly": "--symbols 5 --bars 520000 --timeframe 1h --model lstm --epochs 10 --desk rtx_4090=0.12",
    "20-coins": "--symbols 20 --bars 500000 --model lstm",
    "500-coins": "--symbols 500 --bars 500000 --model lstm --deadline 3h",
    "panel": " ".join([PANEL, *(f"--set {one}" for one in SETTINGS.split())]),
    "tcn": "--symbols 1 --bars 4000000 --model tcn --epochs 100 --objective time",
}


def plans_of_jobs() -> str:
    """Return a row for each job: the command, the cheapest, the fastest and the recommended machine."""
    rows = ["| job | cheapest | fastest | recommended |", "| --- | --- | --- | --- |"]
    for name, words in JOBS.items():
        choice = advise(build_parser().parse_args(["plan", *words.split()])).choice
        assert choice is not None
        chosen = (choice.cheapest, choice.fastest, choice.recommended)
        rows.append(f"| {name}: `mayfly plan {words}` | {' | '.join(map(_cell, chosen))} |")
    return "\n".join(rows) + "\n"


def _cell(one: PlanCandidate) -> str:
    market = one.market.replace("_", "-")
    return f"{one.machine.name} {market}, {duration(one.seconds_p50)}, {money(one.dollars_p50)}"
