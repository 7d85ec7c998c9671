"""The cheap part of the first day, on the embedded AWS: the checks that start no run, and what holds the day
together.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.live.__main__ import Diary, refuse_another_account, run, variables_of
from tests.live.checks import CHECKS, Check
from tests.live.context import CheckFailed, Live, require
from trainer.aws.place import ACCOUNT

CHEAP = ("identity", "bucket", "sweeper", "layers")
by_name = {check.name: check for check in CHECKS}


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def live(tmp_path: Path, lines: list[str]) -> Live:
    """Nothing to check: for checks of the test's own."""
    nothing: Any = None
    return Live(access=nothing, stack="dev", folder=tmp_path, embedded=False, say=lines.append)


def test_the_cheap_checks_see_the_embedded_aws(
    stack: Any, aws_server: Any, tmp_path: Path, lines: list[str]
) -> None:
    access, _ = stack
    cloud = aws_server.cloud(access)
    cloud.run_nodes = cloud.fire_schedules = True
    own = {"folder": tmp_path, "say": lines.append, "environment": variables_of(access)}
    live = Live(access=access, stack="dev", embedded=True, **own)
    diary = Diary(tmp_path / "seen.json")
    code = run([by_name[name] for name in CHEAP], live, diary, cap_usd=0)
    assert code == 0, "\n".join(lines)
    assert tuple(diary.seen) == CHEAP
    assert all(entry["passed"] and entry["dollars"] == 0 for entry in diary.seen.values())
    said = "\n".join(lines)
    assert "versioned" in said and "the sweeper says" in said
    assert all(f"by {end}" in said for end in ("its own refusal", "the kill schedule", "the sweep schedule"))
    assert run([by_name[name] for name in CHEAP], live, Diary(tmp_path / "seen.json"), cap_usd=0) == 0
    assert lines[-len(CHEAP) :] == [f"== {name}: seen {diary.seen[name]['at']}" for name in CHEAP]


def check(name: str, dollars: float = 0.0, *, fails: str = "", not_embedded: str = "") -> Check:
    def look(live: Live) -> None:
        live.say(f"{name} looked")
        require(not fails, fails)

    return Check(name=name, what="a look", dollars=dollars, minutes=1, run=look, not_embedded=not_embedded)


def test_a_check_that_would_pass_the_cap_is_not_run(live: Live, lines: list[str], tmp_path: Path) -> None:
    diary = Diary(tmp_path / "seen.json")
    assert run([check("one", 0.4), check("free"), check("two", 0.7)], live, diary, cap_usd=1.0) == 1
    assert list(diary.seen) == ["one", "free"]
    assert "0.40 $ so far and 0.70 $ are more than --cap 1" in lines[-1]
    assert run([check("two", 0.7)], live, Diary(tmp_path / "seen.json"), cap_usd=1.2) == 0


def test_a_failed_check_ends_the_day_and_frees_dollars(live: Live, lines: list[str], tmp_path: Path) -> None:
    diary = Diary(tmp_path / "seen.json")
    assert run([check("bad", 0.4, fails="no such thing"), check("next")], live, diary, cap_usd=1.0) == 1
    assert "bad FAILED" in lines[-1] and "no such thing" in lines[-1] and "   bad looked" in lines
    assert run([check("bad", 0.4), check("next")], live, diary, cap_usd=1.0) == 0
    assert diary.seen["bad"]["dollars"] == pytest.approx(0.8) and list(diary.seen) == ["bad", "next"]


def test_what_the_embedded_aws_cannot_show_says_why(live: Live, lines: list[str], tmp_path: Path) -> None:
    live.embedded = True
    real = check("real", 9.0, not_embedded="nobody bills")
    assert run([real], live, Diary(tmp_path / "seen.json"), cap_usd=0) == 0
    assert lines == ["== real: not on the embedded AWS: nobody bills"]


def test_the_named_account_must_be_the_signed_in_one(access: Any) -> None:
    with pytest.raises(CheckFailed, match="rehearses"):
        refuse_another_account(access, "123456789012")
    real = replace(access, place=ACCOUNT)
    with pytest.raises(CheckFailed, match="--account says 123456789012"):
        refuse_another_account(real, "123456789012")


def test_every_check_with_machines_has_a_price() -> None:
    names = [check.name for check in CHECKS]
    assert names[0] == "identity" and names[-1] == "destroy" and len(names) == len(set(names))
    dollars = [check.dollars for check in CHECKS]
    # The dear one comes when the cheap ones have passed
    assert dollars.index(max(dollars)) == names.index("four-gpus")
    assert not any(by_name[name].dollars for name in names[: names.index("layers")])
