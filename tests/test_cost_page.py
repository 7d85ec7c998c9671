"""docs/cost.md, "Figures that do not add up": each claim is there, and its arithmetic is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.machines.commitments import commitments_of

PAGE = (Path(__file__).parents[1] / "docs" / "cost.md").read_text("utf-8")
FIGURES = PAGE.partition("## Figures that do not add up")[2].partition("\n## ")[0]
T4 = commitments_of("g4dn.xlarge")[0].usd_per_hour
# What a claim says, and how the page has it recomputed: in words, with the same numbers computed here.
CLAIMS = [
    ("p3.8xlarge: 3 minutes, $0.61", f"7 min x $12.24/h = ${7 / 60 * 12.24:.2f}"),
    ("p3.8xlarge", f"10 min, ${10 / 60 * 12.24:.2f}"),
    ("three models cost least", f"g5.2xlarge, 36 min, ${36 / 60 * 1.212:.2f}"),
    ("g5.12xlarge, 4 minutes: $0.76", f"4/60 x $5.672 = ${4 / 60 * 5.672:.2f}"),
    ("p4d.24xlarge, 2 minutes: $1.64", f"2/60 x $32.77 = ${2 / 60 * 32.77:.2f}"),
    ("3 GB from S3 to the GPU: $0.27", f"${3 * 0.09:.2f} is what 3 GB cost to the internet"),
    ("SageMaker costs 40 % more", "ml.g4dn.xlarge does ($0.736 to $0.526)"),
    ("reserved T4, used weekly: $1.80", f"$0.30 x 720 = ${0.30 * 720:.0f} a month"),
    ("reserved T4", f"${T4:.3f} x 730 = ${T4 * 730:.0f}"),
    ("storage: $2.50 a month", f"3 GB x $0.023 = ${3 * 0.023:.2f}"),
    ("$4.54 an hour, for $159, or for $182", f"$159 / 3.5 h = ${159 / 3.5:.2f} an hour"),
    ("$4.54", f"4.5 h, ${4.5 * 45.52:.2f}"),
    ("$4.54", f"$159 / 20 = ${159 / 20:.2f}"),
    ("7.5 million rows", f"500 x 25 x 252 = {500 * 25 * 252 / 1e6:.2f} million at most"),
    ("0.4 % of a step, and 15 %", f"{2 * 7 / 8 * 304 / 300_000 * 1000:.1f} ms at 300 GB/s"),
    ("0.4 % of a step", f"{2 * 7 / 8 * 304 / 300_000 / 0.230:.1%}".replace("%", " % of 230 ms")),
]


@pytest.mark.parametrize(("claim", "recomputed"), CLAIMS)
def test_a_claim_of_the_reports_is_named_and_recomputed(claim: str, recomputed: str) -> None:
    row = next(line for line in FIGURES.splitlines() if claim in line and recomputed in line)
    assert row.count("|") == 3


def test_sagemakers_mark_up_is_forty_percent_for_one_type() -> None:
    """By the prices of the report: g4dn.xlarge, g5.2xlarge, p3.2xlarge, p3.8xlarge."""
    pairs = [(0.736, 0.526), (1.515, 1.212), (3.825, 3.06), (15.30, 12.24)]
    assert [round(100 * (ours / ec2 - 1)) for ours, ec2 in pairs] == [40, 25, 25, 25]
