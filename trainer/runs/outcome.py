"""The end of a run: its outcome and error, from the record and one look. Pure.

Receipt, exit code and command line print this decision.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from trainer.aws.error_codes import meaning
from trainer.base.errors import (
    BudgetError,
    ConfigError,
    Interrupted,
    Stopped,
    TerminationUnconfirmed,
    TrainerError,
    TrainingFailed,
)
from trainer.base.instants import iso
from trainer.base.strict_json import MOST_NAME
from trainer.base.text import some_of
from trainer.runs.actions import Store
from trainer.runs.attempts import Launch
from trainer.runs.deadline import CAUSES, REMEDIES
from trainer.runs.lease import silent
from trainer.runs.observation import ENDED, UNANSWERED, Observation
from trainer.runs.record import InstanceSeen, Outcome, RunRecord
from trainer.runs.reports import MOST_NAMED, NodeResult

STOP_GRACE = timedelta(seconds=120)  # for a node to end its workers and upload finished models
# an instance that the deadline ends may be seen to end a little before it
DEADLINE_SLACK = timedelta(seconds=10)
START_OVER = "Launch again to start over."
HERE_AGAIN = "Repeat its command on its machine: a new run resumes from the checkpoints of this one."
# of the first attempt: age of the record, since an older one may have left the index
START_WITHIN = timedelta(hours=1)
LAUNCHER_SILENT = timedelta(seconds=120)  # a starting run writes to its record more often than this
# classes of EC2's reasons for ending an instance that it could not start
AT_START = ("account", "config", "quota", "capacity")

Loss = Literal["", "taken", "died"]

EXIT_CODES: dict[Outcome, int] = {
    "done": 0,
    "failed": TrainingFailed.exit_code,
    "expired": BudgetError.exit_code,
    "interrupted": Interrupted.exit_code,
    "unconfirmed": TerminationUnconfirmed.exit_code,
    "stopped": Stopped.exit_code,
}
FAILED_CODES = range(100, 104)  # training, capacity, quota, configuration: all of them state "failed"


@dataclass(frozen=True, kw_only=True)
class Ending:
    """An outcome, and the error behind it where the run was not done.

    `loss`: it lost its machine, so that another may go on (`recovery`). AWS or somebody took it, or it died
    by itself, which alone may be a fault of the job.
    """

    outcome: Outcome
    error: dict[str, Any] | None = None
    loss: Loss = ""

    def stored(self, record: RunRecord, now: datetime) -> Store:
        """Return the action that decides it."""
        return Store(record=record.ended(self.outcome, self.error, now), why=f"the run ends: {self.outcome}")


def exit_code(outcome: Outcome, error: Mapping[str, Any] | None) -> int:
    """Return the exit code of an outcome; a failed run carries that of its error (100 to 103)."""
    if outcome == "failed" and error and error.get("code") in FAILED_CODES:
        return int(error["code"])
    return EXIT_CODES[outcome]


def ending_of(record: RunRecord, observed: Observation, now: datetime) -> Ending | None:
    """Return how the run ends, or None while it goes on."""
    if observed.result is not None:
        return ending_by_result(record, observed.result)
    launch = record.last_launch
    if launch is None or launch.outcome != "created":
        return _before_an_instance(record, observed, launch, now)
    instances = _of_attempt(record)
    if instances and all(seen.state in (*ENDED, "gone") for seen in instances):
        return gone_without_result(record, observed, instances[-1])
    if limit := by_limits(record, observed, now):
        return limit
    launched_at = min((seen.launched_at for seen in instances), default=launch.intended_at)
    return silent_node(observed) if is_silent(record, observed, launched_at=launched_at, now=now) else None


def by_limits(record: RunRecord, observed: Observation, now: datetime) -> Ending | None:
    """Return the end of a run by its deadline or by a request, or None before either."""
    launch, stop_at = record.last_launch, record.stop_requested_at
    if launch is not None and now >= launch.deadline:
        return expired(record)
    # without one, there is no agent to stop yet
    works = observed.heartbeat is not None and observed.heartbeat.phase
    if stop_at is not None and (not works or now >= stop_at + STOP_GRACE):
        return stopped(record)
    return None


def is_silent(record: RunRecord, observed: Observation, *, launched_at: datetime, now: datetime) -> bool:
    """Return whether the node missed its lease by then, sent none within the boot allowance of its type, or
    renewed it for twice its bound without progress.
    """
    launch, heartbeat = record.last_launch, observed.heartbeat
    assert launch is not None
    allowance = timedelta(seconds=record.ladder[launch.rung].boot_seconds)
    lease_until = heartbeat.lease_until if heartbeat else None
    if heartbeat is not None and heartbeat.is_stalled:
        return True
    return silent(launched_at=launched_at, lease_until=lease_until, now=now, boot_allowance=allowance)


def correction(record: RunRecord, observed: Observation) -> Ending | None:
    """Return the outcome that replaces the record's after a node's last report, or None.

    Finished work counts as done even if the deadline was faster; a done run fails if its models or files are
    not as reported.
    """
    if observed.result is None:
        return None
    spoiled = _models_spoiled(observed.result, observed) or _files_missing(observed)
    if spoiled is not None:
        # a run's error also names the machines that it lost before
        is_known = record.ended(spoiled.outcome, spoiled.error, record.created_at) == record
        return None if is_known else spoiled
    if "done" not in (observed.result.state, record.outcome) or observed.result.state == record.outcome:
        return None
    return ending_by_result(record, observed.result)


def _of_attempt(record: RunRecord) -> list[InstanceSeen]:
    """Return the instances that do the run's work."""
    return [seen for seen in record.instances if seen.instance_id in record.working_ids]


def ending_by_result(record: RunRecord, result: NodeResult) -> Ending:
    """Return how a run ended, as its node reports it."""
    if result.state == "done":
        return Ending(outcome="done")
    if result.state == "failed":
        error = dict(result.error or {})
        code = next((code for code in (error.get("code"), result.exit_code) if code in FAILED_CODES), 100)
        if not error.get("what"):
            names = some_of(sorted({str(item["piece"]) for item in result.failed}), MOST_NAMED)
            error = TrainingFailed(
                f"training failed for {names}" if names else "training failed",
                do=f"mayfly logs {record.run_id} shows why.",
            ).as_dict()
        return Ending(outcome="failed", error={**error, "code": code})
    ended_at = result.phases.get("end")
    at_deadline = ended_at is not None and ended_at >= record.effective_deadline.at - DEADLINE_SLACK
    if result.state == "expired" or at_deadline:
        return expired(record)
    if record.stop_requested_at is not None:
        return stopped(record)
    if result.state == "interrupted":
        why = str((result.error or {}).get("what") or "its node heard of the interruption and saved its work")
        return _taken(record, "the spot instance was taken back", why)
    return _taken(record, "the instance was shut down before its work was done", "")


def _before_an_instance(
    record: RunRecord, observed: Observation, launch: Launch | None, now: datetime
) -> Ending | None:
    if record.stop_requested_at is not None:
        return stopped(record)
    # whether it looks for its instance, or did so before
    looks = launch is not None and (launch.is_open or launch.had_no_answer or launch.is_partial)
    silent_for = LAUNCHER_SILENT + (UNANSWERED if looks else timedelta(0))
    is_gone = record.driver == "desk" and not observed.may_start and now > record.last_sign + silent_for
    # the checkpoints of an earlier run, which may be large: START_WITHIN bounds it
    copies = launch is None and bool(record.parent)
    if is_gone and not (record.outlives_its_desk or copies):  # else control goes on
        return interrupted(record, "the launcher ended before an instance was started", "")
    if launch is None and not record.lost and now > record.created_at + START_WITHIN:
        return interrupted(record, "the launcher slept before an instance was started", "")
    return expired(record) if now >= record.effective_deadline.at else None


def gone_without_result(record: RunRecord, observed: Observation, seen: InstanceSeen) -> Ending:
    """Return how a run ended whose instance ended before its node reported."""
    ended_at = seen.terminated_at or record.deadline
    if ended_at >= record.effective_deadline.at - DEADLINE_SLACK:
        return expired(record)
    if record.stop_requested_at is not None:
        return stopped(record)
    by_api = seen.reason.startswith("Client.UserInitiated")  # as by the sweeper, which ends a silent node
    by_aws = seen.reason.startswith("Server.")  # EC2 does not date these ends: a late look finds a lease past
    if (
        (observed.heartbeat or by_api)
        and not by_aws
        and is_silent(record, observed, launched_at=seen.launched_at, now=ended_at)
    ):
        return silent_node(observed)
    refused = meaning(seen.reason)
    if refused.error_class in AT_START:
        what = f"AWS ended instance {seen.instance_id} as it started"
        error = refused.error(what, why=seen.reason, do=refused.remedy)
        return _ending("failed", error, "taken" if refused.error_class == "capacity" else "")
    if seen.market == "spot" and (seen.reason.startswith("Server.SpotInstance") or not seen.reason):
        return _taken(record, f"the spot instance {seen.instance_id} was taken back", seen.reason)
    if by_api or by_aws:
        return _taken(record, f"instance {seen.instance_id} was ended from outside", seen.reason)
    reasons = (seen.reason or "no reason given", last_complaint(observed.boot_log))
    return _ending(
        "failed",
        TrainingFailed(
            f"instance {seen.instance_id} powered off without a result",
            why="; ".join(filter(None, reasons)),
            do=f"mayfly logs {record.run_id} shows its last lines.",
        ),
        "died" if _by_signal(observed.boot_log) else "",
    )


def _by_signal(boot_log: str) -> bool:
    """Return whether the bootstrap says that a signal ended the agent: out of memory, or a crash of it."""
    codes = re.findall(r"bootstrap: powering off, exit code (\d{1,3})\b", boot_log)
    return bool(codes) and int(codes[-1]) > 128


def last_complaint(boot_log: str) -> str:
    """Return the line in which the bootstrap, or the stage that failed, says why it ended, without its
    prefix; '' if there is none.
    """
    said = [line.strip() for line in re.findall(r"(?m)\b(?:bootstrap|install): (.*\S)", boot_log)]
    said = [line for line in said if not line.startswith("powering off")]
    if len(said) > 1 and said[-1].startswith("failed: ") and not said[-1].startswith(f"failed: {said[-2]} ("):
        said.pop()  # it names the stage, which has said more itself
    return said[-1][:MOST_NAME] if said else ""


def _ending(outcome: Outcome, error: TrainerError, loss: Loss = "") -> Ending:
    return Ending(outcome=outcome, error=error.as_dict(), loss=loss)


def again(record: RunRecord) -> str:
    """Return how to go on with a run that ended before its work was done. Only one that had a machine, or
    that continues another run, has something left to continue.
    """
    if not record.has_instances:
        return HERE_AGAIN
    if record.work in ("prepare", "score") or not (record.instances or record.parent):
        return START_OVER
    return f"Launch again with --resume {record.run_id} to continue it, or without to start over."


def expired(record: RunRecord) -> Ending:
    """Return the end of a run at its deadline."""
    deadline, go_on = record.effective_deadline, again(record)
    what = f"the run reached its deadline at {iso(deadline.at)}"
    why, do = f"set by {CAUSES[deadline.cause]}", REMEDIES[deadline.cause]
    do = do if go_on == START_OVER else f"{do} {go_on}"
    return _ending("expired", BudgetError(what, why=why, do=do))


def stopped(record: RunRecord) -> Ending:
    """Return the end of a run by a stop request."""
    return _ending("stopped", Stopped("the run was stopped on request", do=again(record)))


def interrupted(record: RunRecord, what: str, why: str) -> Ending:
    """Return the end of a run from outside, before its work was done."""
    return _ending("interrupted", Interrupted(what, why=why, do=again(record)))


def _taken(record: RunRecord, what: str, why: str) -> Ending:
    """Return the loss of a machine that somebody or AWS ended."""
    return replace(interrupted(record, what, why), loss="taken")


def silent_node(observed: Observation) -> Ending:
    """Return the loss of a machine whose node no longer reports."""
    heard = (
        f"its last heartbeat came at {iso(observed.heartbeat.at)}"
        if observed.heartbeat
        else "it never sent a heartbeat"
    )
    return _ending(
        "failed",
        TrainingFailed(_what(observed), why=heard, do="Its log in S3 ends where it stopped; launch again."),
        "died",
    )


def _what(observed: Observation) -> str:
    """Return what is wrong with a node that counts as silent."""
    if observed.heartbeat is None:
        return "the node never reported"
    if observed.heartbeat.is_stalled and observed.heartbeat.progress_at is not None:
        return f"the node made no progress after {iso(observed.heartbeat.progress_at)}"
    return "the node fell silent"


def _models_spoiled(result: NodeResult, observed: Observation) -> Ending | None:
    """Return the failure of a run whose node reports models that S3 does not hold as reported, or None."""
    in_bucket = {(model.key, model.version_id): model.sha256 for model in observed.models or ()}
    for model in result.models:
        stored = in_bucket.get((model["key"], model["version_id"]))
        if stored is None:
            why = f"version {model['version_id']} is not in the bucket, or can't be read"
        elif stored != model["sha256"]:
            why = f"sha256 is {stored or 'unknown'}, the node reported {model['sha256']}"
        else:
            continue
        return _ending(
            "failed",
            ConfigError(f"model {model['key']} is not what the node reported", why=why, do="Launch again."),
        )
    return None


def _files_missing(observed: Observation) -> Ending | None:
    """Return the failure of a run whose node lists files that S3 does not hold as listed, or None."""
    if not observed.missing:
        return None
    named = some_of([path or "their list" for path in observed.missing], 3)
    error = ConfigError(
        f"output files are not what the node reported: {named}",
        why="S3 does not have them, or can't read them",
        do="Launch again; with --resume, values whose files are all there are not made again.",
    )
    return _ending("failed", error)
