"""The stack, its cloud and its topic, for every step of a scheduled run, and how its runs are registered."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from trainer.aws.access import Access
from trainer.aws.objects import Conflict
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConnectionFailed
from trainer.control.check_account import check_account
from trainer.control.cloud import Cloud
from trainer.launch.planning import Planned
from trainer.launch.start import record_of, register
from trainer.launch.work import Account
from trainer.retrains.entries import ScheduledRun, entry_key, entry_keys, read_entry
from trainer.retrains.schedule import RetrainSchedule, read_schedules
from trainer.retrains.summary import PersonMessage
from trainer.runs.store import record_key

LAST_ENTRIES = 40  # entries of a retrain that each call reads, however old
ENTRIES_AT_ONCE = 8
OPEN_AT_MOST = timedelta(days=2)  # of a scheduled time, besides the longest life of its instance


@dataclass(frozen=True, kw_only=True)
class RetrainHome:
    """The stack, its cloud and its topic, for every step of a scheduled run."""

    access: Access
    outputs: StackOutputs
    cloud: Cloud
    publish: Callable[[PersonMessage], None]

    @property
    def account(self) -> Account:
        return Account(access=self.access, outputs=self.outputs, objects=self.cloud.objects)

    def schedule(self, name: str) -> RetrainSchedule | None:
        """Return the stack's schedule of that name."""
        return next((one for one in read_schedules(self.outputs.retrains) if one.name == name), None)

    def entries(
        self, name: str, *, month_of: datetime | None = None, back: timedelta = timedelta(0)
    ) -> list[ScheduledRun]:
        """Return a retrain's last entries, oldest first: all that may be open, all of an instant's calendar
        month, and all of the time `back` from now.
        """
        longest_open = OPEN_AT_MOST + timedelta(minutes=self.outputs.max_lifetime_minutes)
        since = self.cloud.now() - max(longest_open, back)
        schedule = self.schedule(name)
        if month_of is not None and schedule is not None:
            since = min(since, schedule.month_start(month_of))
        keys, first = entry_keys(self.cloud.objects, name), entry_key(name, since)
        recent = [
            key for number, key in enumerate(keys) if key >= first or number >= len(keys) - LAST_ENTRIES
        ]
        with ThreadPoolExecutor(ENTRIES_AT_ONCE) as pool:
            return [entry for entry, _ in pool.map(partial(read_entry, self.cloud.objects), recent)]

    def others(self, entry: ScheduledRun) -> list[ScheduledRun]:
        """Return the other entries of its retrain that decide whether it begins: all open ones, and all of
        its month.
        """
        month = self.entries(entry.retrain, month_of=entry.scheduled_at)
        return [one for one in month if one.scheduled_at != entry.scheduled_at]

    def register(self, planned: Planned, run_id: str, began: datetime) -> list[str]:
        """Check planned work with the account and store its run; return notes. Raises ConnectionFailed while
        another call registers it.
        """
        account, now = self.account, self.cloud.now()
        record = record_of(
            planned.work,
            planned.plan,
            account,
            preflight_at=began,
            now=now,
            run_id=run_id,
            driver="control",
        )
        notes = check_account(account.access, account.outputs, record, sweep=True)
        try:
            register(record, planned, account)
        except Conflict:  # the same schedule, delivered twice at once
            if not self.is_registered(run_id):
                raise ConnectionFailed(f"the run {run_id} is being registered by another call") from None
        return notes

    def is_registered(self, run_id: str) -> bool:
        """Return whether a run has its record."""
        return self.cloud.objects.head(key=record_key(run_id)) is not None
