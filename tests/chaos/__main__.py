"""`python -m tests.chaos N`: N seeded schedules and every enumerated one, and the table of what they found."""

from __future__ import annotations

import argparse
import itertools
import sys

from tests.chaos.campaign import (
    campaign,
    every_crash,
    every_layer,
    every_pair,
    every_stall,
    layers_off,
    seeded,
)


def main() -> int:
    """Play the campaign; return 1 if anything was violated."""
    parser = argparse.ArgumentParser(description="Play schedules of faults against the control plane.")
    parser.add_argument("number", type=int, nargs="?", default=10_000, help="seeded schedules")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--pairs", action=argparse.BooleanOptionalAction, default=True, help="play every pair"
    )
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.number)
    layers = layers_off(seeds[: options.number // 5])
    pairs = every_pair() if options.pairs else ()
    table = campaign(
        itertools.chain(every_crash(), every_stall(), every_layer(), pairs, layers, seeded(seeds))
    )
    print(table.text())
    return 1 if table.violations else 0


if __name__ == "__main__":
    sys.exit(main())
