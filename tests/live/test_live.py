"""The first day on the embedded AWS: every check that can run there, and what holds the day together."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError, NoRegionError

from tests.aws.server import CheckedAws
from tests.live.__main__ import Diary, embedded_live, main, refuse_another_account, run
from tests.live.bill import bill, bounds, not_yet
from tests.live.checks import CHECKS, Check
from tests.live.context import STANDARD, CheckFailed, Live
from tests.retrains import CONFIG
from tests.sessions import forget_sessions
from trainer.aws.place import ACCOUNT
from trainer.base.instants import from_iso
from trainer.rehearsal.world import Delays

by_name = {check.name: check for check in CHECKS}
# Those without a run, whose waits end when the embedded AWS's clock is moved. `make nightly` has every check.
LOOKS = ("identity", "quotas", "bucket", "sweeper", "policies", "dry-run", "doctor")
WITHOUT_RUNS = (*LOOKS, "fleet", "hung-boot", "layers")


@pytest.fixture(scope="module")
def aws(programs: Path, fork_server: Path) -> Iterator[CheckedAws]:
    """An embedded AWS whose machines run, as forks."""
    own = {"programs": programs, "fork_server": lambda: fork_server}
    with CheckedAws(fork_nodes=True, grace_seconds=120, **own) as server:
        yield server


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def embedded(aws: CheckedAws, python: list[str], tmp_path: Path, lines: list[str]) -> Live:
    """An account with the stack that has every option."""
    access = aws.account()
    aws.apply_program(access, CONFIG)
    return embedded_live(access, folder=tmp_path, say=lines.append, python=tuple(python))


def all_pass(names: tuple[str, ...], live: Live, lines: list[str], folder: Path) -> Diary:
    diary = Diary(folder / "seen.json")
    code = run([by_name[name] for name in names], live, diary, cap_usd=0)
    assert code == 0, "\n".join(lines)
    assert tuple(diary.seen) == names
    assert all(entry["passed"] and entry["dollars"] == 0 for entry in diary.seen.values())
    return diary


def test_checks_that_only_look_pass(embedded: Live, lines: list[str], tmp_path: Path) -> None:
    all_pass(LOOKS, embedded, lines, tmp_path)


@pytest.mark.nightly
def test_checks_without_a_run_pass(aws: CheckedAws, embedded: Live, lines: list[str], tmp_path: Path) -> None:
    cloud = aws.cloud(embedded.access)

    # A machine is pending until the clock is moved, so that it is looked at before its work begins.
    cloud.world.delays = Delays(pending_seconds=30, shutting_down_seconds=0)

    def pause(seconds: float) -> None:
        """Move the clock, unless something is under way that ends by itself: a call, a machine."""
        try:
            called = any(thread.is_alive() for thread in [*cloud.in_flight, *cloud.invocations])
            time.sleep(0.1) if called else cloud.advance(seconds)
        except RuntimeError:  # a machine works, in real time
            time.sleep(0.1)

    live = replace(embedded, now=cloud.clock.now, pause=pause)
    diary = all_pass(WITHOUT_RUNS, live, lines, tmp_path)
    said = "\n".join(lines)
    ends = ("its own power-off", "the standing sweep", "the kill schedule", "the sweep schedule")
    assert all(f"by {end}" in said for end in ends)
    assert not cloud.retries  # no function failed on an event about these machines
    again = Diary(tmp_path / "seen.json")
    assert run([by_name[name] for name in WITHOUT_RUNS], live, again, cap_usd=0) == 0
    assert lines[-1] == f"== layers: seen {diary.seen['layers']['at']}"


def test_a_role_that_may_more_is_named(embedded: Live, lines: list[str], tmp_path: Path) -> None:
    more = {"Effect": "Allow", "Action": "s3:DeleteObject", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [more]})
    role = embedded.role("control")
    embedded.client("iam").put_role_policy(RoleName=role, PolicyName="more", PolicyDocument=document)
    assert run([by_name["policies"]], embedded, Diary(tmp_path / "seen.json"), cap_usd=0) == 1
    assert "== policies FAILED: control: s3:DeleteObject on arn:aws:s3:::" in lines[-1]
    assert lines[-1].endswith(" is allowed, not refused")


def test_a_check_without_its_quota_is_skipped(
    aws: CheckedAws, embedded: Live, lines: list[str], tmp_path: Path
) -> None:
    aws.cloud(embedded.access).quotas[STANDARD] = 1
    diary = Diary(tmp_path / "seen.json")
    assert run([by_name["fleet"], check("next")], embedded, diary, cap_usd=0) == 0
    assert list(diary.seen) == ["next"]
    has = "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances (L-1216C47A) is 1 vCPU"
    asks = "Ask for more in Service Quotas, then start this again"
    assert lines[0] == f"== fleet: skipped: {has}, and it needs 2. {asks}"
    assert lines[-1] == "== not seen, for the reasons above: fleet"


def test_the_first_error_is_reported_and_the_next_a_note(
    embedded: Live, lines: list[str], tmp_path: Path
) -> None:
    pulumi = tmp_path / "pulumi"
    pulumi.write_text('#!/bin/sh\n[ "$1" = up ] && echo "no such subnet" >&2 && exit 1\nexit 0\n')
    pulumi.chmod(0o755)
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    live = replace(embedded, stack="dev-vpc", environment={**embedded.environment, **path})
    own = replace(by_name["existing-vpc"], not_embedded="", stack="")
    assert run([own], live, Diary(tmp_path / "seen.json"), cap_usd=0) == 1
    assert lines[-1] == "== existing-vpc FAILED: exit code 1: no such subnet"
    (note,) = [line for line in lines if line.startswith("   note: ")]
    assert "mayfly down --stack dev-vpc failed as well: exit code 2: this shell's AWS is a reh" in note


# --- the day, by checks of the tests' own


@pytest.fixture
def live(tmp_path: Path, lines: list[str]) -> Live:
    """Nothing to check."""
    nothing: Any = None
    return Live(access=nothing, stack="dev", folder=tmp_path, embedded=False, say=lines.append)


def check(name: str, dollars: float = 0.0, *, fails: BaseException | None = None, **more: Any) -> Check:
    def look(live: Live) -> None:
        live.say(f"{name} looked")
        if fails:
            raise fails

    return Check(name, "a look", look, dollars=dollars, minutes=1, **more)


def test_a_check_that_would_pass_the_cap_is_not_run(live: Live, lines: list[str], tmp_path: Path) -> None:
    diary = Diary(tmp_path / "seen.json")
    assert run([check("one", 0.4), check("free"), check("two", 0.7)], live, diary, cap_usd=1.0) == 1
    assert list(diary.seen) == ["one", "free"]
    assert "0.40 $ so far and 0.70 $ are more than --cap 1" in lines[-1]
    assert run([check("two", 0.7)], live, Diary(tmp_path / "seen.json"), cap_usd=1.2) == 0


def test_a_failed_check_ends_the_day_and_costs(live: Live, lines: list[str], tmp_path: Path) -> None:
    diary, bad = Diary(tmp_path / "seen.json"), check("bad", 0.4, fails=CheckFailed("no such\nthing"))
    assert run([bad, check("next")], live, diary, cap_usd=1.0) == 1
    assert lines[-1] == "== bad FAILED: no such thing" and "   bad looked" in lines
    assert run([check("bad", 0.4), check("next")], live, diary, cap_usd=1.0) == 0
    assert diary.seen["bad"]["dollars"] == pytest.approx(0.8) and list(diary.seen) == ["bad", "next"]


def test_an_error_of_aws_is_a_failed_check(live: Live, lines: list[str], tmp_path: Path) -> None:
    answer: Any = {"Error": {"Code": "Throttling", "Message": "Rate\nexceeded"}}
    for error in (ClientError(answer, "RunInstances"), NoRegionError()):
        diary = Diary(tmp_path / f"{type(error).__name__}.json")
        assert run([check("bad", fails=error)], live, diary, cap_usd=0) == 1
    assert lines[2] == "== bad FAILED: Throttling: Rate exceeded"
    assert lines[-1] == "== bad FAILED: You must specify a region."


def test_a_check_that_is_cut_off_has_cost_its_price(live: Live, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        cut = check("cut", 0.4, fails=KeyboardInterrupt())
        run([cut], live, Diary(tmp_path / "seen.json"), cap_usd=1.0)
    kept = Diary(tmp_path / "seen.json")
    assert (kept.dollars, kept.seen["cut"]["passed"]) == (0.4, False)


def test_what_cannot_run_now_says_why(live: Live, lines: list[str], tmp_path: Path) -> None:
    live.embedded = True
    checks = [check("real", 9.0, not_embedded="nobody bills"), check("later", skip=lambda _: "not today")]
    assert run(checks, live, Diary(tmp_path / "seen.json"), cap_usd=0) == 0
    assert lines[0] == "== real: skipped: not on the embedded AWS: nobody bills"
    assert lines[1] == "== later: skipped: not today"
    assert lines[2] == "== not seen, for the reasons above: real, later"


def test_the_throwaway_stack_stays_while_checks_want_it(live: Live, lines: list[str], tmp_path: Path) -> None:
    again, used = by_name["again"], [one.name for one in CHECKS if one.stack == by_name["again"].stack]
    live.chosen, live.seen = tuple(by_name), {name: {"passed": name != "retrain"} for name in used}
    wanted = "its stack is still wanted by retrain. --only again takes it down now"
    assert again.reason_to_skip(live) == wanted
    live.chosen = ("again",)
    assert again.reason_to_skip(live) == ""
    checks = [check("retrain", skip=lambda _: "no quota"), check("again", skip=again.skip)]
    assert run(checks, live, Diary(tmp_path / "seen.json"), cap_usd=0) == 0
    assert lines[1] == f"== again: skipped: {wanted}"


def test_an_error_of_the_clean_up_alone_fails_a_check(live: Live, lines: list[str]) -> None:
    def clean() -> None:
        raise CheckFailed("still there")

    with pytest.raises(CheckFailed, match="still there"), live.cleaning("the end", clean):
        pass
    with pytest.raises(ZeroDivisionError), live.cleaning("the end", clean):
        1 / 0  # noqa: B018
    assert lines == ["note: the end failed as well: still there"]


def paid(dollars: float, *spent: tuple[float, float], passed: bool = True, at: str = "T10:00:00Z") -> Any:
    runs = {f"run-{number}": list(one) for number, one in enumerate(spent)}
    return {"dollars": dollars, "began": f"2026-11-20{at}", "passed": passed, "spent": runs}


def test_the_bill_waits_for_twenty_hours(live: Live) -> None:
    live.seen = {"identity": paid(0, at="T08:00:00Z")}
    assert not_yet(live) == "no check has cost anything yet"
    live.seen = {**live.seen, "fleet": paid(0.03), "bill": paid(0.01, at="T09:00:00Z")}
    live.now = lambda: from_iso("2026-11-21T05:59:59Z")
    assert not_yet(live) == "AWS's figures come late: try again from 2026-11-21T06:00:00Z on"
    live.now = lambda: from_iso("2026-11-21T06:00:00Z")
    assert not_yet(live) == ""


def test_the_bill_is_bounded_by_receipts_and_prices() -> None:
    seen = {"identity": paid(0), "fleet": paid(0.03), "spot": paid(0.41, (0.05, 0.1)), "bill": paid(0.01)}
    assert bounds(seen) == pytest.approx((0.05, 0.13))
    # What a failed one has started may have no receipt
    seen["stop"] = paid(0.82, (0.1, 0.2), passed=False)
    assert bounds(seen) == pytest.approx((0.15, 0.95))


@pytest.mark.parametrize(
    ("billed", "problem"),
    [("0.10", ""), ("0.44", ""), ("0.52", "by a tenth"), ("0", "billed nothing")],
)
def test_a_bill_beyond_its_bound_fails(live: Live, billed: str, problem: str) -> None:
    class Costs:
        def get_cost_and_usage(self, TimePeriod: Any, Filter: Any, **asked: Any) -> Any:
            assert TimePeriod == {"Start": "2026-11-20", "End": "2026-11-22"}
            assert len(Filter["And"]) == 3
            return {"ResultsByTime": [{"Total": {"UnblendedCost": {"Amount": billed}}}]}

    live.access = cast(Any, SimpleNamespace(client=lambda service: Costs()))
    live.seen, live.now = {"launcher": paid(0.41)}, lambda: from_iso("2026-11-21T07:00:00Z")
    if not problem:
        bill(live)
        return
    with pytest.raises(CheckFailed, match=problem):
        bill(live)


# --- which account, and the table


def test_the_named_account_must_be_the_signed_in_one(access: Any) -> None:
    with pytest.raises(CheckFailed, match="rehearses"):
        refuse_another_account(access, "123456789012")
    real = replace(access, place=ACCOUNT)
    with pytest.raises(CheckFailed, match="--account says 123456789012"):
        refuse_another_account(real, "123456789012")


def test_no_credentials_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    forget_sessions()
    assert main(["--account", "123456789012"]) == 2
    forget_sessions()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: cannot sign in to AWS")


def test_free_checks_come_first_then_by_price() -> None:
    *day, again, bill_check = CHECKS
    assert (again.name, bill_check.name) == ("again", "bill")
    dollars = [one.dollars for one in day]
    assert dollars == sorted(dollars)
    assert len(by_name) == len(CHECKS)
    # A machine costs money and counts against a quota
    assert all(one.quota for one in day if one.dollars and one.name != "toggles")
    assert not any(one.quota for one in CHECKS if not one.dollars)


def test_the_page_names_price_time_and_every_paid_check() -> None:
    page = (Path(__file__).parent / "README.md").read_text()
    dollars, minutes = sum(one.dollars for one in CHECKS), sum(one.minutes for one in CHECKS)
    assert f"{dollars:.2f} dollars at most, about {minutes / 60:.0f} hours" in page
    rows = "".join(line for line in page.splitlines() if line.startswith("| "))
    named = set(re.findall(r"`([\w-]+)`", rows))
    assert named <= by_name.keys() and named >= {one.name for one in CHECKS if one.dollars}
