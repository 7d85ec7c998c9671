"""Process a retrain's scheduled time: refuse, skip, wait, or plan and register its runs.

Each call advances the entry as far as possible without waiting; the next one continues. The run itself, and a
prepare run before it, are ordinary ones whose driver is control: settling starts and closes them. Two calls
at once register one run, since its id follows from the schedule and the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from trainer.aws.access import Access
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import BudgetError, ConfigError, ConnectionFailed, DataError, TrainerError
from trainer.control.check_account import check_account
from trainer.control.cloud import Cloud
from trainer.control.keep import keep_models
from trainer.control.published import publication
from trainer.control.takeover import take_over
from trainer.job.pieces import kind_of
from trainer.launch.inputs import list_inputs
from trainer.launch.planning import Planned, offers_for, plan_work, resolve, within_budget
from trainer.launch.prepare_run import needs_prepare_run, plan_prepare_run
from trainer.launch.start import record_of, register
from trainer.launch.work import Account, Refresh
from trainer.retrains.decision import Verdict, decide, refuse_beyond_month
from trainer.retrains.entries import (
    ScheduledRun,
    change_entry,
    entry_key,
    entry_keys,
    prepare_run_id_of,
    read_entry,
    run_id_of,
)
from trainer.retrains.published import PublishedRetrain, other_image, read_published, verified_job
from trainer.retrains.schedule import RetrainSchedule, read_schedules
from trainer.retrains.summary import PersonMessage, run_notes
from trainer.runs.store import Conflict, UnreadableRecord, read_record, record_key
from trainer.runs.stored_receipt import read_receipt

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

    def entries(self, name: str, *, month_of: datetime | None = None) -> list[ScheduledRun]:
        """Return a retrain's last entries, oldest first: all that may be open, and all of an instant's
        calendar month.
        """
        since = self.cloud.now() - OPEN_AT_MOST - timedelta(minutes=self.outputs.max_lifetime_minutes)
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


def advance(home: RetrainHome, entry: ScheduledRun) -> ScheduledRun:
    """Advance an entry as far as possible. Raises ConnectionFailed if AWS can't be reached: the next call
    retries.
    """
    objects = home.cloud.objects
    entry, etag = read_entry(objects, entry_key(entry.retrain, entry.scheduled_at))
    try:
        following = _following(home, entry)
    except ConnectionFailed:
        raise
    except TrainerError as error:
        following = _unplanned(entry, error, home.cloud.now())
    if following == entry:
        return entry
    try:
        return change_entry(objects, following, etag, home.cloud.now())
    except Conflict:  # another call was faster: return what it stored
        return read_entry(objects, entry_key(entry.retrain, entry.scheduled_at))[0]


def _following(home: RetrainHome, entry: ScheduledRun) -> ScheduledRun:
    """Return the entry after its next step."""
    if entry.state == "training":
        return _after_run(home, entry)
    if entry.state == "preparing":
        return _after_prepare_run(home, entry)
    if not entry.is_open:
        return entry
    schedule = home.schedule(entry.retrain)
    others = home.others(entry)
    stored = read_published(home.cloud.objects, entry.retrain)
    published = stored[0] if stored else None
    verdict = decide(entry, schedule, published, others, home.cloud.now())
    if verdict.step in ("skip", "refuse"):
        return _left_out(entry, verdict, home.cloud.now())
    if verdict.step == "wait" or schedule is None or published is None:
        return replace(entry, state="waiting")
    return _begun(home, entry, schedule, published, others)


def _begun(
    home: RetrainHome,
    entry: ScheduledRun,
    schedule: RetrainSchedule,
    published: PublishedRetrain,
    others: Sequence[ScheduledRun],
) -> ScheduledRun:
    """Begin a scheduled time: with a prepare run if its data has to be refreshed or checked, else with its
    run.
    """
    began, objects = home.cloud.now(), home.cloud.objects
    run_id = prepare_run_id_of(entry.retrain, entry.scheduled_at)
    if _is_registered(home, run_id):  # an earlier call ended between this write and the entry's
        return replace(entry, state="preparing", prepare_run_id=run_id, most_usd=schedule.budget)
    job = verified_job(objects, published)
    inputs = list_inputs(objects, job.data.set) if kind_of(job).reads_candles else ()
    if not needs_prepare_run(job, inputs):
        return _registered(home, entry, schedule, published, others)
    account = home.account
    offers, plan = plan_prepare_run(account, budget_usd=schedule.budget, pinned_image=published.image_id)
    refuse_beyond_month(schedule, entry, others, plan.hard_stop_usd)
    code = publication(published, objects).bundle
    planned = Planned(work=Refresh(job=job, code=code, inputs=inputs), offers=offers, plan=plan)
    _register(home, planned, run_id, began)
    return replace(entry, state="preparing", prepare_run_id=run_id, most_usd=plan.hard_stop_usd)


def _after_prepare_run(home: RetrainHome, entry: ScheduledRun) -> ScheduledRun:
    """Take over the prepare run's output, then plan the run itself; unchanged while the prepare run is open.

    If the refresh failed, the job's `stale` decides.
    """
    objects = home.cloud.objects
    receipt = read_receipt(objects, entry.prepare_run_id)
    if receipt is None:
        return entry
    cost = float(receipt["dollars"]["spent_high"])
    entry = replace(entry, prepare_usd=cost, spent_usd=cost)
    record, _ = read_record(objects, entry.prepare_run_id, seen=True)
    if (works := {record.work, receipt["work"]}) != {"prepare"}:
        why = f"its record and receipt are of the work {' and '.join(sorted(works))}"
        raise ConfigError(
            f"{record.run_id} is no prepare run", why=why, do="mayfly retrains run starts anew."
        )
    try:
        if error := receipt["error"]:
            raise DataError(error["what"], why=error["why"], do=error["do"])
        entry = replace(entry, refreshed=take_over(objects, record, receipt))
    except ConnectionFailed:
        raise
    except TrainerError as failure:
        if record.job["data"]["stale"] == "skip":
            return replace(entry, refreshed="not refreshed").ended("skipped", failure, home.cloud.now())
        why = f"{failure.what} ({failure.why})" if failure.why else failure.what
        entry = replace(
            entry, refreshed=f"as it was, not refreshed: {why}; mayfly logs {entry.prepare_run_id}"
        )
    try:
        schedule, stored = home.schedule(entry.retrain), read_published(objects, entry.retrain)
        verdict = decide(entry, schedule, stored[0] if stored else None, (), home.cloud.now())
        if verdict.step != "begin" or schedule is None or stored is None:  # paused meanwhile, or gone
            return _left_out(entry, verdict, home.cloud.now())
        return _registered(home, entry, schedule, stored[0], home.others(entry))
    except ConnectionFailed:
        raise
    except TrainerError as error:  # keep the cost of the prepare run
        return _unplanned(entry, error, home.cloud.now())


def _left_out(entry: ScheduledRun, verdict: Verdict, now: datetime) -> ScheduledRun:
    """Return an entry whose run is not to begin."""
    return entry.ended("skipped" if verdict.step == "skip" else "refused", verdict.error, now)


def _unplanned(entry: ScheduledRun, error: TrainerError, now: datetime) -> ScheduledRun:
    """Return an entry whose run can't begin."""
    return entry.ended("refused" if isinstance(error, BudgetError) else "failed", error, now)


def _after_run(home: RetrainHome, entry: ScheduledRun) -> ScheduledRun:
    """Return a training entry with the outcome of its run; unchanged while the run is open."""
    receipt = read_receipt(home.cloud.objects, entry.run_id)
    if receipt is None:
        return entry
    spent = replace(entry, spent_usd=entry.prepare_usd + float(receipt["dollars"]["spent_high"]))
    if receipt["state"] == "done":
        schedule = home.schedule(entry.retrain)
        rule = schedule.promote if schedule else "never"
        try:
            promoted, notes = keep_models(home.cloud.objects, receipt, retrain=entry.retrain, rule=rule)
        except ConnectionFailed:
            raise
        except TrainerError as error:  # keep the cost of the run
            return spent.ended("failed", error, home.cloud.now())
        spent = replace(spent, promoted=promoted, notes=(*_met(home, entry.run_id), *notes, *entry.notes))
    return spent.ended("done" if receipt["state"] == "done" else "failed", receipt["error"], home.cloud.now())


def _met(home: RetrainHome, run_id: str) -> tuple[str, ...]:
    """Return what a run that is done met on its way. A record that can't be read takes nothing from its
    end.
    """
    try:
        return run_notes(read_record(home.cloud.objects, run_id, seen=True)[0])
    except UnreadableRecord:
        return ()


def _registered(
    home: RetrainHome,
    entry: ScheduledRun,
    schedule: RetrainSchedule,
    published: PublishedRetrain,
    others: Sequence[ScheduledRun],
) -> ScheduledRun:
    """Plan the run from the data set's current files, check it with the account, and store its record."""
    run_id = run_id_of(entry.retrain, entry.scheduled_at)
    if _is_registered(home, run_id):  # an earlier call ended between this write and the entry's
        return replace(entry, state="training", run_id=run_id, most_usd=schedule.budget)
    began, objects = home.cloud.now(), home.cloud.objects
    if entry.prepare_usd >= schedule.budget:
        why, do = (
            f"its prepare run cost ${entry.prepare_usd:.2f}",
            "Raise budget of the stack's setting `retrains`.",
        )
        raise BudgetError("nothing is left of its budget", why=why, do=do)
    job = within_budget(verified_job(objects, published), schedule.budget - entry.prepare_usd)
    account = home.account
    work = resolve(job, publication(published, objects), account)
    offers = offers_for(work.job, account, pinned_image=published.image_id)
    planned = Planned(work=work, offers=offers, plan=plan_work(work, offers, account))
    most = entry.prepare_usd + planned.plan.hard_stop_usd
    refuse_beyond_month(schedule, entry, others, most)
    notes = [*_register(home, planned, run_id, began), *work.refused]
    notes += other_image(published, offers.image_id)
    return replace(entry, state="training", run_id=run_id, most_usd=most, notes=tuple(notes))


def _register(home: RetrainHome, planned: Planned, run_id: str, began: datetime) -> list[str]:
    """Check planned work with the account and store its run; return notes. Raises ConnectionFailed while
    another call registers it.
    """
    account, now = home.account, home.cloud.now()
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
        if not _is_registered(home, run_id):
            raise ConnectionFailed(f"the run {run_id} is being registered by another call") from None
    return notes


def _is_registered(home: RetrainHome, run_id: str) -> bool:
    return home.cloud.objects.head(key=record_key(run_id)) is not None
