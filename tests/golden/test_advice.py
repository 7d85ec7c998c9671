"""`mayfly plan` of the jobs that five reports of users describe, at two widths, from the package's lists
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from scripts.plans import JOBS
from trainer.cli.parser import build_parser
from trainer.cli.verbs.plan import advise
from trainer.cli.views.advice import advice_view
from trainer.cli.views.drawing import drawn


@pytest.mark.parametrize("name", JOBS)
def test_the_plan_of_a_report(
    name: str, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MAYFLY_PROFILES", str(tmp_path / "profiles.toml"))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    now = datetime(2026, 11, 26, tzinfo=timezone.utc)
    monkeypatch.setattr("trainer.cli.verbs.plan.utc_now", lambda: now)
    made = advise(build_parser().parse_args(["plan", *JOBS[name].split()]))
    view = advice_view(made.work, made.plan, made.outside, made.choice, made.pay)
    texts = [f"mayfly plan {JOBS[name]}\n"]
    texts += [f"{f'| {width} columns':-<{width}}\n{drawn(view, width=width)}" for width in (80, 120)]
    golden(f"plan-{name}", "\n".join(texts))
