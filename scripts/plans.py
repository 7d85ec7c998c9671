"""Make the tables of docs/cost.md and docs/agents.md: what `mayfly plan` says of jobs that users described.

`scripts/reference` writes it; tests/golden has the plans themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
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


AGENTS_PAGE = PAGE.with_name("agents.md")
AGENTS = "--set target.name=position --set model.name"
AGENT_JOBS = {
    f"{coins} coins, {model}": f"--symbols {coins} --bars 525600 {AGENTS}={model}"
    for coins in (20, 500)
    for model in ("mlp", "lstm")
}
COUNTS = (0, 1, 2, 4, 8)  # of GPUs


def plans_of_agents() -> str:
    """Return a row for each job: the cheapest machine on demand of each number of GPUs, and the best."""
    titles = ["job", "no GPU", *(f"{count} GPU{'s' if count > 1 else ''}" for count in COUNTS[1:])]
    rows = [f"| {' | '.join([*titles, 'recommended'])} |", f"|{' --- |' * (len(titles) + 1)}"]
    for name, words in AGENT_JOBS.items():
        advice = advise(build_parser().parse_args(["plan", *words.split()]))
        assert advice.choice is not None
        cells = [_cheapest(advice.plan.candidates, count) for count in COUNTS]
        rows.append(f"| {' | '.join([name, *cells, _cell(advice.choice.recommended)])} |")
    return "\n".join(rows) + "\n"


def _cheapest(candidates: Sequence[PlanCandidate], gpus: int) -> str:
    of_count = [one for one in candidates if one.machine.gpus == gpus and one.market == "on_demand"]
    able = [one for one in of_count if not one.refused]
    if not able:  # a run is stopped after twelve hours
        return f"{duration(min(one.seconds_p50 for one in of_count))} at least: over 12 h"
    one = min(able, key=lambda candidate: candidate.dollars_p50)
    busy = f", computes {one.rate.busy:.0%}" if gpus else ""
    return f"{one.machine.name}, {duration(one.seconds_p50)}, {money(one.dollars_p50)}{busy}"


MACHINES = (1, 2, 4, 8)


def plans_of_machines() -> str:
    """Return a row for each job: of so many machines on demand, those whose dollars x hours are the least."""
    titles = ["job", *(f"{count} machine{'s' if count > 1 else ''}" for count in MACHINES)]
    rows = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    for name, words in list(AGENT_JOBS.items())[1:]:  # the first is done in minutes on one
        cells = [_best_of(words, count) for count in MACHINES]
        rows.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(rows) + "\n"


def _best_of(words: str, nodes: int) -> str:
    asked = ["plan", *words.split(), "--on-demand", "--set", f"machine.nodes={nodes}"]
    choice = advise(build_parser().parse_args(asked)).choice
    assert choice is not None
    one = choice.recommended
    several = f"{nodes} × " if nodes > 1 else ""
    return f"{several}{one.machine.name}, {duration(one.seconds_p50)}, {money(one.dollars_p50)}"


def _cell(one: PlanCandidate) -> str:
    market = one.market.replace("_", "-")
    return f"{one.machine.name} {market}, {duration(one.seconds_p50)}, {money(one.dollars_p50)}"
