"""`python -m tests.chaos N`: N seeded schedules and every enumerated one, and the table of what they found."""

from __future__ import annotations

import argparse
import itertools
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.chaos.campaign import all_parts, campaign
from tests.chaos.mutations import BUGS, MOST_SCHEDULES, search, searched


def main() -> int:
    """Play the campaign; return 1 if anything was violated."""
    parser = argparse.ArgumentParser(description="Play schedules of faults against the control plane.")
    parser.add_argument("number", type=int, nargs="?", default=10_000, help="seeded schedules")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--pairs", action=argparse.BooleanOptionalAction, default=True, help="play every pair"
    )
    parser.add_argument("--bugs", action="store_true", help="look for each deliberate bug instead")
    options = parser.parse_args()
    if options.bugs:
        return look_for_bugs()
    seeds = range(options.first, options.first + options.number)
    table = campaign(all_parts(seeds, pairs=options.pairs))
    print(table.text())
    return 1 if table.violations else 0


def look_for_bugs() -> int:
    """Look for each deliberate bug in the same schedules, and print after how many it was found."""
    missed = 0
    with ProcessPoolExecutor() as pool:
        for name, (number, broken) in zip(
            names := [bug.__name__ for bug in BUGS], pool.map(_found, names), strict=True
        ):
            missed += not broken
            print(f"{name:<44}{number:>6}  {broken[0][:100] if broken else 'NOT FOUND'}", flush=True)
    return 1 if missed else 0


def _found(name: str) -> tuple[int, list[str]]:
    (bug,) = [one for one in BUGS if one.__name__ == name]
    return searched(bug, itertools.islice(search(), MOST_SCHEDULES))


if __name__ == "__main__":
    sys.exit(main())
