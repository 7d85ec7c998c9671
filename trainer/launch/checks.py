"""Checks of the account before a launch: the safety net works, and AWS would accept the request. They run
concurrently.

A check raises a TrainerError, or botocore's error, if the launch would fail; it returns a note for the user,
'' for none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from botocore.exceptions import ClientError

from trainer.aws.access import Access, error_code
from trainer.aws.place import Place
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConfigError
from trainer.launch.preflight import ask_at_once
from trainer.launch.quotas import quota_note
from trainer.runs.attempts import Rung

SWEEPER = "the sweeper"
Checks = Mapping[str, Callable[[], str]]  # by the check's name in errors
SPOT_ROLE = "AWSServiceRoleForEC2Spot"


def ask_all(checks: Checks, place: Place) -> list[str]:
    """Run the checks concurrently and return the notes. Raises the first error, or ConnectionFailed if an
    answer is late.
    """
    longer = {SWEEPER: place.function_seconds}
    notes = ask_at_once(checks, seconds=place.answer_seconds, longer=longer, doing="cannot check")
    return [note for note in notes.values() if note]


def account_checks(
    access: Access, outputs: StackOutputs, ladder: Sequence[Rung], *, sweep: bool, num_nodes: int = 1
) -> dict[str, Callable[[], str]]:
    """Return the checks of the account for so many instances; those that invoke the sweeper only with
    `sweep`, since it may end overdue instances.
    """
    seconds = access.place.answer_seconds
    checks: dict[str, Callable[[], str]] = {
        "the bucket's versioning": partial(versioning, access, outputs),
        "the quotas": partial(quota_note, access, ladder, seconds=seconds, nodes=num_nodes),
    }
    if sweep:
        checks[SWEEPER] = partial(sweeper, access, outputs)
    if any(rung.market == "spot" for rung in ladder):
        checks["the spot role"] = partial(spot_role, access)
    return checks


def versioning(access: Access, outputs: StackOutputs) -> str:
    """Check that the bucket keeps versions. Raises ConfigError if it does not."""
    s3 = access.client("s3", total_max_attempts=2, timeout_seconds=access.place.answer_seconds)
    status = s3.get_bucket_versioning(Bucket=outputs.bucket).get("Status", "Disabled")
    if status != "Enabled":
        why = f"its versioning is {status.lower()}: models could be lost, and inputs can't be pinned"
        raise ConfigError(
            f"the bucket {outputs.bucket} keeps no versions", why=why, do="Run pulumi up, which enables it."
        )
    return ""


def sweeper(access: Access, outputs: StackOutputs) -> str:
    """Invoke the sweeper, the last safety layer, and wait for its answer. Raises ConfigError if it fails."""
    return function_answers(
        access, outputs.sweeper_arn, "sweeper", {}, without="Nothing is launched without it."
    )


def function_answers(
    access: Access, arn: str, kind: str, event: Mapping[str, object], *, without: str
) -> str:
    """Invoke a function of the stack, and wait. Raises ConfigError if it fails; `without` names the
    consequence.
    """
    client = access.client("lambda", total_max_attempts=1, timeout_seconds=access.place.function_seconds)
    answer = client.invoke(
        FunctionName=arn, InvocationType="RequestResponse", Payload=json.dumps(event).encode()
    )
    if "FunctionError" not in answer:
        return ""
    try:
        failure = json.loads(answer["Payload"].read())
        why = f"{failure.get('errorType', answer['FunctionError'])}: {failure.get('errorMessage', '')}"
    except (ValueError, AttributeError):
        why = str(answer["FunctionError"])
    name = arn.rpartition(":")[2]
    do = f"{without} Read its log, /aws/lambda/{name}, or run pulumi up."
    raise ConfigError(f"the {kind} {name} fails", why=why[:500], do=do)


def spot_role(access: Access) -> str:
    """Check for the role by which EC2 buys spot instances. Raises ConfigError if there is none."""
    iam = access.client("iam", total_max_attempts=2, timeout_seconds=access.place.answer_seconds)
    try:
        iam.get_role(RoleName=SPOT_ROLE)
    except ClientError as error:
        if error_code(error) != "NoSuchEntity":
            return (
                f"whether the account has the role {SPOT_ROLE}, without which spot fails, is unknown"
                f" ({error_code(error)})"
            )
        raise ConfigError(
            f"the account has no role {SPOT_ROLE}, without which EC2 launches nothing on spot",
            why="NoSuchEntity",
            do=(
                "Create it once: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com, "
                "or launch with --on-demand."
            ),
        ) from error
    return ""
