"""Process a retrain's scheduled time: refuse, skip, wait, or plan and register its runs.

Each call advances the entry as far as possible without waiting; the next one continues. The run itself, a
prepare run before it and a score run after it are ordinary ones whose driver is control: settling starts and
closes them. Two calls at once register one run, since its id follows from the schedule and the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from trainer.aws.objects import Conflict
from trainer.base.errors import BudgetError, ConfigError, ConnectionFailed, DataError, TrainerError
from trainer.control.gate import after_scoring, begin_scoring, reserved_usd
from trainer.control.keep import keep_models
from trainer.control.published import publication
from trainer.control.retrain_home import RetrainHome
from trainer.control.takeover import take_over
from trainer.job.pieces import kind_of
from trainer.launch.cpu_run import PREPARE, needs_prepare_run, plan_cpu_run
from trainer.launch.inputs import list_inputs
from trainer.launch.planning import Planned, offers_for, plan_work, resolve, within_budget
from trainer.launch.work import Refresh
from trainer.retrains.decision import Verdict, decide, refuse_beyond_month
from trainer.retrains.entries import (
    ScheduledRun,
    change_entry,
    entry_key,
    prepare_run_id_of,
    read_entry,
    run_id_of,
)
from trainer.retrains.published import PublishedRetrain, other_image, read_published, verified_job
from trainer.retrains.schedule import BETTER, RetrainSchedule
from trainer.retrains.summary import run_notes
from trainer.runs.receipt import Receipt
from trainer.runs.store import UnreadableRecord, read_record
from trainer.runs.stored_receipt import read_receipt


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
    except TrainerError as error:  # what a run of it cost can't be read: its month counts the most
        most = max(entry.spent_usd, entry.most_usd)
        following = _unplanned(replace(entry, spent_usd=most), error, home.cloud.now())
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
    if entry.state == "scoring":
        return _after_score_run(home, entry)
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
    if home.is_registered(run_id):  # an earlier call ended between this write and the entry's
        return replace(entry, state="preparing", prepare_run_id=run_id, most_usd=schedule.budget)
    job = verified_job(objects, published)
    inputs = list_inputs(objects, job.data.set, job.data.columns) if kind_of(job).reads_candles else ()
    if not needs_prepare_run(job, inputs):
        return _registered(home, entry, schedule, published, others)
    account = home.account
    image = published.image_id
    offers, plan = plan_cpu_run(PREPARE, account, budget_usd=schedule.budget, pinned_image=image)
    refuse_beyond_month(schedule, entry, others, plan.hard_stop_usd)
    code = publication(published, objects).bundle
    planned = Planned(work=Refresh(job=job, code=code, inputs=inputs), offers=offers, plan=plan)
    home.register(planned, run_id, began)
    return replace(entry, state="preparing", prepare_run_id=run_id, most_usd=plan.hard_stop_usd)


def _after_prepare_run(home: RetrainHome, entry: ScheduledRun) -> ScheduledRun:
    """Take over the prepare run's output, then plan the run itself; unchanged while the prepare run is open.

    If the refresh failed, the job's `stale` decides.
    """
    objects = home.cloud.objects
    receipt = _receipt_of(home, entry.prepare_run_id)
    if receipt is None:
        return entry
    cost = float(receipt["dollars"]["spent_high"])
    entry = replace(entry, prepare_usd=cost, spent_usd=cost)
    record, _ = read_record(objects, entry.prepare_run_id, seen=True)
    if (works := {record.work, receipt["work"]}) != {"prepare"}:
        why = f"its record and receipt are of the work {' and '.join(sorted(works))}"
        raise ConfigError(
            f"{record.run_id} is not a prepare run", why=why, do="mayfly retrains run starts anew."
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


def _receipt_of(home: RetrainHome, run_id: str) -> Receipt | None:
    """Return the receipt of a run, None while it is open. Raises UnreadableRecord for an open one that nobody
    can settle: it would stay open for ever, and no later time would begin.
    """
    receipt = read_receipt(home.cloud.objects, run_id)
    if receipt is None:
        read_record(home.cloud.objects, run_id, seen=True)
    return receipt


def _left_out(entry: ScheduledRun, verdict: Verdict, now: datetime) -> ScheduledRun:
    """Return an entry whose run is not to begin."""
    return entry.ended("skipped" if verdict.step == "skip" else "refused", verdict.error, now)


def _unplanned(entry: ScheduledRun, error: TrainerError, now: datetime) -> ScheduledRun:
    """Return an entry whose run can't begin."""
    return entry.ended("refused" if isinstance(error, BudgetError) else "failed", error, now)


def _after_run(home: RetrainHome, entry: ScheduledRun) -> ScheduledRun:
    """Return a training entry with the outcome of its run; unchanged while the run is open."""
    receipt = _receipt_of(home, entry.run_id)
    if receipt is None:
        return entry
    spent = replace(entry, spent_usd=entry.prepare_usd + float(receipt["dollars"]["spent_high"]))
    if receipt["state"] != "done":
        return spent.ended("failed", receipt["error"], home.cloud.now())
    try:
        keep_models(home.cloud.objects, receipt, retrain=entry.retrain)
    except ConnectionFailed:
        raise
    except TrainerError as error:  # keep the cost of the run
        return spent.ended("failed", error, home.cloud.now())
    spent = replace(spent, notes=(*_met(home, entry.run_id), *entry.notes))
    schedule = home.schedule(entry.retrain)
    if schedule is not None and schedule.promote == BETTER and receipt["models"]:
        spent = _unless_it_fails(spent, partial(begin_scoring, home, spent, schedule))
    return spent if spent.state == "scoring" else spent.ended("done", None, home.cloud.now())


def _after_score_run(home: RetrainHome, entry: ScheduledRun) -> ScheduledRun:
    """Carry out the decisions by a score run's scores; unchanged while it is open. If it failed in any way,
    the champions stay.
    """
    receipt = _receipt_of(home, entry.score_run_id)
    if receipt is None:
        return entry
    entry = replace(entry, spent_usd=entry.spent_usd + float(receipt["dollars"]["spent_high"]))
    schedule, error = home.schedule(entry.retrain), receipt["error"] or {}
    if receipt["state"] != "done":
        why = f"{error.get('what', 'it is ' + receipt['state'])}; mayfly logs {entry.score_run_id}"
        entry = replace(entry, gate=f"the champions stay, their scoring failed: {why}")
    elif schedule is None or schedule.promote != BETTER:
        entry = replace(entry, gate="the champions stay, the retrain promotes nothing any more")
    else:
        entry = _unless_it_fails(entry, partial(after_scoring, home, entry, schedule))
    return entry.ended("done", None, home.cloud.now())


def _unless_it_fails(entry: ScheduledRun, step: Callable[[], ScheduledRun]) -> ScheduledRun:
    """Return the result of a step of the gate, or the entry with the reason why the champions stay."""
    try:
        return step()
    except ConnectionFailed:
        raise
    except TrainerError as error:
        why = f"{error.what} ({error.why})" if error.why else error.what
        return replace(entry, gate=f"the champions stay: {why}")


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
    if home.is_registered(run_id):  # an earlier call ended between this write and the entry's
        return replace(entry, state="training", run_id=run_id, most_usd=schedule.budget)
    began, objects = home.cloud.now(), home.cloud.objects
    job, account = verified_job(objects, published), home.account
    scoring = 0.0 if job.script.command else reserved_usd(home, schedule, pinned_image=published.image_id)
    left = schedule.budget - entry.prepare_usd - scoring
    if left <= 0:
        costs = {"its prepare run cost": entry.prepare_usd, "its score run may cost": scoring}
        why = ", ".join(f"{what} ${usd:.2f}" for what, usd in costs.items() if usd)
        do = "Raise budget of the stack's setting `retrains`."
        raise BudgetError(f"nothing is left of the budget of retrain {entry.retrain}", why=why, do=do)
    job = within_budget(job, left)
    work = resolve(job, publication(published, objects), account)
    offers = offers_for(work.job, account, pinned_image=published.image_id)
    planned = Planned(work=work, offers=offers, plan=plan_work(work, offers, account))
    most = entry.prepare_usd + planned.plan.hard_stop_usd + scoring
    refuse_beyond_month(schedule, entry, others, most)
    notes = [*home.register(planned, run_id, began), *work.refused]
    notes += other_image(published, offers.image_id)
    return replace(entry, state="training", run_id=run_id, most_usd=most, notes=tuple(notes))
