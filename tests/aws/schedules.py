"""Refusals of the Scheduler that a rehearsal leaves out: names, targets and roles of schedules."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from trainer.rehearsal.account import Rules
from trainer.rehearsal.scheduling import (
    SERVICE,
    UNIVERSAL_TARGET,
    create_schedule,
    group_arn,
    update_schedule,
)
from trainer.rehearsal.wire import Call
from trainer.rehearsal.world import AwsError

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount

# Prefixes of actions that the Scheduler does not call (Scheduler user guide, looked up 2026-11-20).
_READ_ONLY = (
    "get", "describe", "list", "poll", "receive", "search",
    "scan", "query", "select", "read", "lookup", "discover", "validate",
    "batchGet", "batchDescribe", "batchRead", "transactGet",
    "adminGet", "adminList", "testMigration", "retrieve",
    "testConnection", "translateDocument", "isAuthorized", "invokeModel",
)  # fmt: skip


def create_checked(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Create a schedule, if the Scheduler would."""
    _check(cloud, call.params)
    return create_schedule(cloud, call)


def update_checked(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Replace a schedule, if the Scheduler would."""
    _check(cloud, call.params)
    return update_schedule(cloud, call)


def _check(cloud: CheckedAccount, params: dict[str, Any]) -> None:
    """Refuse what AWS refuses and moto accepts."""
    if not re.fullmatch(r"[0-9a-zA-Z\-_.]{1,64}", params["Name"]):
        raise AwsError(
            "ValidationException",
            f"Name '{params['Name']}' must be 1 to 64 letters, digits, '-', '_' or '.'.",
        )
    target = params["Target"]
    if target["Arn"].startswith(UNIVERSAL_TARGET):
        service, _, action = target["Arn"].removeprefix(UNIVERSAL_TARGET).partition(":")
        if not service or not action or action.startswith(_READ_ONLY):
            raise AwsError("ValidationException", f"{target['Arn']} is not a supported target.")
        json.loads(target.get("Input") or "{}")
    elif not re.fullmatch(r"arn:aws:lambda:[a-z0-9-]+:\d{12}:function:[\w-]+(:.+)?", target["Arn"]):
        raise AwsError("ValidationException", f"Provided Arn is not in correct format: {target['Arn']}.")
    source = group_arn(cloud, params.get("GroupName") or "default")
    if not cloud.trusts(target["RoleArn"].rpartition("/")[2], SERVICE, source):
        refusal = "The execution role you provide must allow AWS EventBridge Scheduler to assume the role."
        raise AwsError("ValidationException", refusal)


RULES: Rules = {
    ("scheduler", "CreateSchedule"): create_checked,
    ("scheduler", "UpdateSchedule"): update_checked,
}
