"""How a run ended: the one function that turns what was observed into an outcome with its error, or says that it goes on.

Pure. What the receipt, the exit code and the story at the desk call a run's end is decided here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from trainer.errors import (
    BudgetError,
    ConfigError,
    Interrupted,
    Stopped,
    TerminationUnconfirmed,
    TrainerError,
    TrainingFailed,
)
from trainer.runs.lease import silent
from trainer.runs.observed import last_deadline
from trainer.runs.record import InstanceSeen, Launch, Outcome, RunRecord, iso
from trainer.runs.world import ENDED, NodeResult, World

STOP_GRACE = timedelta(seconds=120)  # for a node to end its workers and upload what is finished
DEADLINE_SLACK = timedelta(seconds=10)  # an instance that the deadline ends may be seen to end a little before it
LAUNCHER_SILENT = timedelta(seconds=120)  # a run that starts shows a new intent or an instance more often than this

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
class Verdict:
    """An outcome, and the error behind it where the run was not done."""

    outcome: Outcome
    error: dict[str, Any] | None = None


def exit_code(outcome: Outcome, error: Mapping[str, Any] | None) -> int:
    """Return the exit code of an outcome; a failed run carries that of its error (100 to 103)."""
    if outcome == "failed" and error and error.get("code") in FAILED_CODES:
        return int(error["code"])
    return EXIT_CODES[outcome]


def verdict(record: RunRecord, world: World, now: datetime) -> Verdict | None:
    """Return how the run ended, or None while it goes on."""
    if world.result is not None:
        return _by_result(record, world.result)
    launch = _last_launch(record)
    if launch is None or launch.outcome != "created":
        return _before_an_instance(record, world, launch, now)
    instances = _of_attempt(record)
    if instances and all(seen.state in (*ENDED, "gone") for seen in instances):
        return _gone_without_result(record, world, instances[-1])
    if now >= min(record.deadline, launch.deadline):
        return _expired(record)
    if record.stop_requested_at is not None and (world.heartbeat is None or now >= record.stop_requested_at + STOP_GRACE):
        return _stopped(record)
    launched_at = min((seen.launched_at for seen in instances), default=launch.intended_at)
    if silent(launched_at=launched_at, lease_until=world.heartbeat.lease_until if world.heartbeat else None, now=now):
        return _silent(world)
    return None


def refused(error: Mapping[str, Any]) -> Verdict:
    """Return the verdict on a run that could not be started, with the error that says why."""
    outcome: Outcome = "expired" if error.get("code") == BudgetError.exit_code else "failed"
    return Verdict(outcome=outcome, error=dict(error))


def _last_launch(record: RunRecord) -> Launch | None:
    return record.attempt.launches[-1] if record.attempt and record.attempt.launches else None


def _of_attempt(record: RunRecord) -> list[InstanceSeen]:
    return [seen for seen in record.instances if record.attempt and seen.attempt == record.attempt.number]


def _by_result(record: RunRecord, result: NodeResult) -> Verdict:
    if result.state == "done":
        return Verdict(outcome="done")
    if result.state == "failed":
        error = dict(result.error or {})
        code = next((code for code in (error.get("code"), result.exit_code) if code in FAILED_CODES), 100)
        if not error.get("what"):
            names = ", ".join(sorted({str(item.get("symbol", "?")) for item in result.failed}))
            error = TrainingFailed(
                f"training failed for {names}" if names else "training failed", do=f"mayfly logs {record.run_id} says why."
            ).as_dict()
        return Verdict(outcome="failed", error={**error, "code": code})
    ended_at = result.phases.get("end")
    at_deadline = ended_at is not None and ended_at >= last_deadline(record) - DEADLINE_SLACK
    if result.state == "expired" or at_deadline:
        return _expired(record)
    if record.stop_requested_at is not None:
        return _stopped(record)
    return _interrupted(record, "the instance was shut down before its work was done", "")


def _before_an_instance(record: RunRecord, world: World, launch: Launch | None, now: datetime) -> Verdict | None:
    if record.stop_requested_at is not None:
        return _stopped(record)
    last_sign = max(record.created_at, launch.intended_at if launch else record.created_at)
    if not world.may_start and now > last_sign + LAUNCHER_SILENT:
        return _interrupted(record, "the launcher ended before an instance was started", "")
    if now >= record.deadline or (launch is not None and launch.outcome == "intended" and now >= launch.deadline):
        return _expired(record)
    return None


def _gone_without_result(record: RunRecord, world: World, seen: InstanceSeen) -> Verdict:
    ended_at = seen.terminated_at or record.deadline
    if ended_at >= last_deadline(record) - DEADLINE_SLACK:
        return _expired(record)
    if record.stop_requested_at is not None:
        return _stopped(record)
    if world.heartbeat and silent(launched_at=seen.launched_at, lease_until=world.heartbeat.lease_until, now=ended_at):
        return _silent(world)
    if seen.market == "spot" and not seen.reason.startswith("Client.InstanceInitiated"):
        return _interrupted(record, f"the spot instance {seen.instance_id} was taken back", seen.reason)
    if seen.reason.startswith(("Server.", "Client.UserInitiated")):
        return _interrupted(record, f"instance {seen.instance_id} was ended from outside", seen.reason)
    return _failed(
        TrainingFailed(
            f"instance {seen.instance_id} powered off without a result",
            why=seen.reason or "no reason given",
            do=f"mayfly logs {record.run_id} shows its last lines.",
        )
    )


def _expired(record: RunRecord) -> Verdict:
    deadline = last_deadline(record)
    cause = "budget" if deadline < record.deadline.replace(microsecond=0) else "deadline"
    do = "Raise --budget." if cause == "budget" else "Raise --max-duration, or train less."
    return Verdict(
        outcome="expired",
        error=BudgetError(f"the run reached its {cause} at {iso(deadline)}", why=f"state expired, {cause}", do=do).as_dict(),
    )


def _stopped(record: RunRecord) -> Verdict:
    return Verdict(
        outcome="stopped", error=Stopped("the run was stopped on request", do="Launch again to start over.").as_dict()
    )


def _interrupted(record: RunRecord, what: str, why: str) -> Verdict:
    return Verdict(outcome="interrupted", error=Interrupted(what, why=why, do="Launch again to start over.").as_dict())


def _silent(world: World) -> Verdict:
    heard = f"its last heartbeat is of {iso(world.heartbeat.at)}" if world.heartbeat else "it never sent a heartbeat"
    return _failed(TrainingFailed("the node fell silent", why=heard, do="Its log in S3 ends where it stopped; launch again."))


def _failed(error: TrainerError) -> Verdict:
    return Verdict(outcome="failed", error=error.as_dict())


def models_spoiled(result: NodeResult, world: World) -> Verdict | None:
    """Return the failure of a run whose node reports models that S3 does not hold as reported, or None."""
    in_bucket = {(model.key, model.version_id): model.sha256 for model in world.models or ()}
    for model in result.models:
        found = in_bucket.get((model["key"], model["version_id"]))
        if found is None:
            why = f"version {model['version_id']} is not in the bucket"
        elif found != model["sha256"]:
            why = f"sha256 is {found or 'unknown'}, the node reported {model['sha256']}"
        else:
            continue
        return _failed(ConfigError(f"model {model['key']} is not what the node reported", why=why, do="Launch again."))
    return None
