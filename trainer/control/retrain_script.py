"""Register a scheduled run of a published script, planned from the current data and checked with the
account.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from trainer.aws.access import Access
from trainer.aws.stack_outputs import StackOutputs
from trainer.control.check_account import check_account
from trainer.job.job import Job
from trainer.launch.bundle import BundleName
from trainer.launch.script import script_record
from trainer.launch.script_retrain import plan_script_retrain
from trainer.launch.start import register
from trainer.launch.tasks import script_task
from trainer.retrains.published import PublishedRetrain, other_image, verified_script
from trainer.runs.store import Objects


def register_script_run(
    job: Job,
    published: PublishedRetrain,
    access: Access,
    outputs: StackOutputs,
    objects: Objects,
    *,
    run_id: str,
    now: Callable[[], datetime],
    refuse_beyond: Callable[[float], None],
) -> tuple[float, tuple[str, ...]]:
    """Plan and register the run; return the most that it can cost, in dollars, and notes. Raises a
    TrainerError, and Conflict.

    `refuse_beyond` raises BudgetError if that is more than may be spent.
    """
    began, script = now(), verified_script(objects, published)
    ready = plan_script_retrain(
        job,
        access,
        outputs,
        objects,
        files=script.files,
        inputs=script.inputs,
        sha256=script.sha256,
        retrain=published.name,
        pinned_image=published.image_id,
    )
    most = ready.plan.hard_stop_usd
    refuse_beyond(most)
    code = BundleName(sha256=published.code_sha256, lock_sha256=published.lock_sha256)
    record = script_record(
        job, ready.plan, code, outputs, preflight_at=began, now=now(), run_id=run_id, driver="control"
    )
    notes = [
        *check_account(access, outputs, record, sweep=True),
        *other_image(published, ready.offers.image_id),
    ]
    task = script_task(
        record, job, ready.files, ready.inputs, sha256=script.sha256, planned=ready.plan.pieces
    )
    register(record, task, code, objects, offers=ready.offers)
    return most, tuple(notes)
