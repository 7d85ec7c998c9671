"""The first day on an account, check by check.

    python -m tests.live                                     # list: price, time, what was seen already
    python -m tests.live --embedded                        # all that the embedded AWS can show; costs nothing
    python -m tests.live --account 123456789012 --cap 5  # on the account of AWS's own variables, for 5 dollars

A check that was seen is not run again (--again does). See tests/live/README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.live.checks import CHECKS, Check, missing_tools
from tests.live.context import CheckFailed, Live
from trainer.aws.access import Access, own_access
from trainer.aws.place import REHEARSAL
from trainer.base import environment
from trainer.base.errors import TrainerError
from trainer.runs.record import iso, utc_now


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks that were not seen yet, in order; return 0, or 1 at the first that fails, 2 for a
    misuse.
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
    diary = Diary(options.folder / f"{place or 'none'}-{options.stack}.json")
    if not place:
        return listing(diary)
    with ExitStack() as stack:
        try:
            if options.embedded:
                from trainer.rehearsal import client  # late: moto is for rehearsals alone

                client.SERVER = "tests.aws.server"  # the one that checks permissions
                access = stack.enter_context(client.rehearsal())
            else:
                access = own_access()
                refuse_another_account(access, options.account)
        except (TrainerError, CheckFailed) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        own = {"folder": options.folder.resolve(), "say": print, "environment": variables_of(access)}
        live = Live(access=access, stack=options.stack, embedded=options.embedded, **own)
        chosen = [check for check in CHECKS if not options.only or check.name in options.only]
        return run(chosen, live, diary, cap_usd=options.cap, again=options.again)


class Diary:
    """The results so far, in a file: check -> its answer, its time, and the most that it cost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seen: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    @property
    def dollars(self) -> float:
        return sum(float(entry["dollars"]) for entry in self.seen.values())

    def add(self, name: str, entry: dict[str, Any]) -> None:
        """Keep one; what an earlier try cost is added."""
        before = float(self.seen.get(name, {}).get("dollars", 0))
        self.seen[name] = {**entry, "dollars": entry["dollars"] + before}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.seen, indent=1))


def run(checks: Sequence[Check], live: Live, diary: Diary, *, cap_usd: float, again: bool = False) -> int:
    """Run checks in order, each within the cap; return 0, or 1 at the first that fails or would cost too
    much.
    """
    say = live.say
    for check in checks:
        if check.name in diary.seen and diary.seen[check.name]["passed"] and not again:
            say(f"== {check.name}: seen {diary.seen[check.name]['at']}")
            continue
        if live.embedded and check.not_embedded:
            say(f"== {check.name}: not on the embedded AWS: {check.not_embedded}")
            continue
        dollars = 0.0 if live.embedded else check.dollars
        if diary.dollars + dollars > cap_usd and dollars:
            more = f"{diary.dollars:.2f} $ so far and {dollars:.2f} $ are more than --cap {cap_usd:g}"
            say(f"== {check.name}: not run: {more}")
            return 1
        say(f"== {check.name}: {check.what} (at most {dollars:.2f} $, about {check.minutes:g} min)")
        began, lines = time.monotonic(), []
        live.say = _both(say, lines)
        try:
            check.run(live)
            problem = ""
        except (CheckFailed, TrainerError) as error:
            problem = str(error)
        finally:
            live.say = say
        seconds = round(time.monotonic() - began, 1)
        seen = {"passed": not problem, "at": iso(utc_now()), "seconds": seconds, "dollars": dollars}
        diary.add(check.name, {**seen, "lines": lines, "problem": problem})
        if problem:
            say(f"== {check.name} FAILED after {seconds} s: {problem}")
            return 1
    return 0


def _both(say: Callable[[str], None], lines: list[str]) -> Callable[[str], None]:
    def both(line: str) -> None:
        lines.append(line)
        say(f"   {line}")

    return both


def listing(diary: Diary) -> int:
    """Print every check with its price and time."""
    for number, check in enumerate(CHECKS, start=1):
        here = f"; not embedded: {check.not_embedded}" if check.not_embedded else ""
        cost = f"{check.dollars:5.2f} $ {check.minutes:4g} min"
        print(f"{number:2}  {check.name:<10} {cost}  {check.what}{here}")
    total, minutes = sum(check.dollars for check in CHECKS), sum(check.minutes for check in CHECKS)
    print(f"    together   {total:5.2f} $ {minutes:4g} min at most. {missing_tools()}".rstrip())
    return 0


def refuse_another_account(access: Access, account: str) -> None:
    """Raise CheckFailed where AWS's own variables name another account than the one on the command line."""
    if access.place is REHEARSAL:
        raise CheckFailed("this shell rehearses: use --embedded")
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
