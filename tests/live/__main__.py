"""The first day on an account, check by check.

    python -m tests.live                                   # list: price, time, quota
    python -m tests.live --embedded                        # all that the embedded AWS can show; costs nothing
    python -m tests.live --account 123456789012 --cap 5    # on the account of AWS's own variables, for 5 dollars

A check that was seen is not run again (--again does). See tests/live/README.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.live.checks import CHECKS, Check
from tests.live.context import FAILURES, CheckFailed, Live, one_line
from tests.live.runs import SMALL
from trainer.aws.access import Access, aws_errors, own_access
from trainer.aws.place import REHEARSAL
from trainer.base import environment
from trainer.base.instants import iso


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks that were not seen yet, in order; return 0, or 1 at the first that fails, 2 for a
    misuse, 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.live", description="The first day on an account, as checks."
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--embedded", action="store_true", help="on the embedded AWS of this machine")
    where.add_argument(
        "--account", metavar="ID", help="on this account, with AWS's own variables; it costs money"
    )
    parser.add_argument(
        "--cap", type=float, default=0.0, metavar="USD", help="the most that all checks together may cost"
    )
    parser.add_argument("--stack", default="dev", help="Pulumi stack (default: dev)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", choices=[check.name for check in CHECKS]
    )
    parser.add_argument("--again", action="store_true", help="also those that were seen")
    parser.add_argument(
        "--folder", type=Path, default=Path("live-checks"), help="what was seen (default: ./live-checks)"
    )
    options = parser.parse_args(arguments)
    place = "embedded" if options.embedded else options.account or ""
    if not place:
        return listing()
    diary = Diary(options.folder / f"{place}-{options.stack}.json")
    chosen = [check for check in CHECKS if not options.only or check.name in options.only]
    try:
        with _embedded(options.folder) if options.embedded else _account(options) as live:
            return run(chosen, live, diary, cap_usd=options.cap, again=options.again)
    except FAILURES as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; what the check had started was ended. The same command continues.", file=sys.stderr)
        return 130


@contextmanager
def _account(options: argparse.Namespace) -> Iterator[Live]:
    access = own_access()
    refuse_another_account(access, options.account)
    folder = options.folder.resolve()
    yield Live(access=access, stack=options.stack, embedded=False, folder=folder, say=print)


@contextmanager
def _embedded(folder: Path) -> Iterator[Live]:
    """Start an embedded AWS that checks permissions, with the stack that has every option."""
    from tests.aws.server import CheckedAws  # late: moto and its rules are for this alone
    from tests.retrains import CONFIG

    with CheckedAws(fork_nodes=True, grace_seconds=60) as aws:
        access = aws.account()
        aws.apply_program(access, CONFIG)
        yield embedded_live(access, folder=folder.resolve(), say=print)


def embedded_live(access: Access, *, folder: Path, say: Callable[[str], None], **more: Any) -> Live:
    """Return an account of the embedded AWS, whose runs are small, and whose end is looked for more often."""

    def pause(seconds: float) -> None:
        time.sleep(min(seconds, 0.5))

    own = {"environment": variables_of(access), "small": SMALL, "pause": pause} | more
    return Live(access=access, stack="dev", embedded=True, folder=folder, say=say, **own)


class Diary:
    """The results so far, in a file: check -> its answer, its times, and the most that it cost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seen: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    @property
    def dollars(self) -> float:
        return sum(float(entry["dollars"]) for entry in self.seen.values())

    def begin(self, name: str, dollars: float, now: str) -> None:
        """Write down that a check begins, which may start what costs something. Earlier tries' cost and
        receipts stay.
        """
        before = self.seen.get(name, {"dollars": 0.0, "began": now, "spent": {}})
        same = {"began": before["began"], "spent": before["spent"]}
        self._write(
            name, {"passed": False, "dollars": before["dollars"] + dollars, **same, "problem": "cut off"}
        )

    def end(self, name: str, **found: Any) -> None:
        """Write down how it ended."""
        spent = self.seen[name]["spent"] | found.pop("spent")
        self._write(name, {**self.seen[name], **found, "spent": spent})

    def _write(self, name: str, entry: dict[str, Any]) -> None:
        self.seen[name] = entry
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.seen, indent=1))


def run(checks: Sequence[Check], live: Live, diary: Diary, *, cap_usd: float, again: bool = False) -> int:
    """Run checks in order, each within the cap and its quota; return 0, or 1 at the first that fails or would
    cost too much.
    """
    live.seen, live.chosen, skipped = diary.seen, tuple(check.name for check in checks), []
    for check in checks:
        if check.name in diary.seen and diary.seen[check.name]["passed"] and not again:
            live.say(f"== {check.name}: seen {diary.seen[check.name]['at']}")
            continue
        try:
            reason, problem = check.reason_to_skip(live), ""
        except FAILURES as error:
            reason, problem = "", f"cannot tell whether it can run: {one_line(error)}"
        if reason:
            live.say(f"== {check.name}: skipped: {reason}")
            skipped.append(check.name)
            continue
        dollars = 0.0 if live.embedded else check.dollars
        if diary.dollars + dollars > cap_usd and dollars:
            more = f"{diary.dollars:.2f} $ so far and {dollars:.2f} $ are more than --cap {cap_usd:g}"
            live.say(f"== {check.name}: not run: {more}")
            return 1
        if problem := problem or _carry_out(check, live, diary, dollars):
            live.say(f"== {check.name} FAILED: {problem}")
            return 1
    if skipped:
        live.say(f"== not seen, for the reasons above: {', '.join(skipped)}")
    return 0


def _carry_out(check: Check, live: Live, diary: Diary, dollars: float) -> str:
    """Run one check and write down what it said; return why it failed, '' if it did not."""
    say, lines = live.say, []

    def both(line: str) -> None:
        lines.append(line)
        say(f"   {line}")

    say(f"== {check.name}: {check.what} (at most {dollars:.2f} $, about {check.minutes:g} min)")
    began, spent = time.monotonic(), {}
    diary.begin(check.name, dollars, iso(live.now()))
    try:
        check.run(live.other(check.stack, say=both, spent=spent))
        problem = ""
    except FAILURES as error:
        problem = one_line(error)
    seconds, at = round(time.monotonic() - began, 1), iso(live.now())
    told = {"lines": lines, "problem": problem, "spent": spent}
    diary.end(check.name, passed=not problem, at=at, seconds=seconds, **told)
    return problem


def listing() -> int:
    """Print every check with its price, time and quota."""
    for number, check in enumerate(CHECKS, start=1):
        more = [f"{vcpus} vCPU of {code}" for code, vcpus in check.quota.items()]
        more += [f"stack *-{check.stack}"] if check.stack else []
        more += [f"not embedded: {check.not_embedded}"] if check.not_embedded else []
        about = "; ".join([check.what, *more])
        print(f"{number:2}  {check.name:<13} {check.dollars:5.2f} $ {check.minutes:4g} min  {about}")
    total, minutes = sum(check.dollars for check in CHECKS), sum(check.minutes for check in CHECKS)
    print(f"    {'together':<13} {total:5.2f} $ {minutes:4g} min at most. {missing_tools()}".rstrip())
    return 0


def missing_tools() -> str:
    """Return what an account's checks need and this machine lacks, as text; '' where nothing is missing."""
    missing = f"pulumi is not on PATH ({sys.platform}): https://www.pulumi.com/docs/install/"
    return "" if shutil.which("pulumi") else missing


def refuse_another_account(access: Access, account: str) -> None:
    """Raise CheckFailed where AWS's own variables name another account than the one on the command line."""
    if access.place is REHEARSAL:
        raise CheckFailed("this shell rehearses: use --embedded")
    with aws_errors("cannot sign in to AWS"):
        found = access.client("sts").get_caller_identity()["Account"]
    if found != account:
        raise CheckFailed(f"AWS's own variables name account {found}, --account says {account}")


def variables_of(access: Access) -> dict[str, str]:
    """Return the variables by which the commands of a check find the embedded AWS; none for an account."""
    if access.place is not REHEARSAL:
        return {}
    return {
        "AWS_ENDPOINT_URL": access.endpoint_url or "",
        "AWS_ACCESS_KEY_ID": access.access_key or "",
        "AWS_SECRET_ACCESS_KEY": access.secret_key or "",
        "AWS_REGION": access.region or "",
        "AWS_DEFAULT_REGION": access.region or "",
        **environment.without_proxy("127.0.0.1"),
    }


if __name__ == "__main__":
    sys.exit(main())
