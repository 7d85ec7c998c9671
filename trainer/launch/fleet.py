"""What an answer of CreateFleet means: created, refused (and why), or ambiguous. Pure; it calls nothing.

An instant fleet without capacity is an HTTP 200 with `Errors`, and a lost answer may hide a machine: only these three kinds
of answer exist, and only "refused" may lead to the next rung.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from botocore.exceptions import (
    ClientError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
)

from trainer.errors import CapacityError, ConfigError, PermissionDenied, QuotaError, TrainerError
from trainer.runs.record import Rung

Kind = Literal["created", "refused", "ambiguous"]
ErrorClass = Literal[
    "", "capacity", "quota", "type", "config", "permission", "throttle", "consistency", "idempotency", "unknown"
]

# EC2 error codes and what they call for; capacity and type sets after Karpenter pkg/errors/errors.go (read 2026-08).
_CODES: dict[ErrorClass, tuple[str, ...]] = {
    "capacity": (
        "InsufficientInstanceCapacity",
        "UnfulfillableCapacity",
        "InsufficientFreeAddressesInSubnet",
        "ReservationCapacityExceeded",
        "InsufficientCapacity",
        "SpotMaxPriceTooLow",
    ),
    "quota": ("VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "InstanceLimitExceeded", "MaxFleetCountExceeded"),
    "type": ("Unsupported", "InvalidInstanceType", "InvalidParameterValue"),
    "config": (
        "InvalidAMIID.NotFound",
        "InvalidAMIID.Malformed",
        "InvalidAMIID.Unavailable",
        "InvalidSubnetID.NotFound",
        "InvalidGroup.NotFound",
        "InvalidLaunchTemplateId.NotFound",
        "InvalidLaunchTemplateId.Malformed",
        "InvalidLaunchTemplateName.NotFoundException",
        "InvalidUserData.Malformed",
        "InvalidParameterCombination",
        "MissingParameter",
        "OptInRequired",
    ),
    "permission": (
        "UnauthorizedOperation",
        "AuthFailure",
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
        "AccessDenied",
        "AccessDeniedException",
        "ExpiredToken",
        "RequestExpired",
        "InvalidClientTokenId",
    ),
    "throttle": ("RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequestsException"),
    "idempotency": ("IdempotentParameterMismatch", "IdempotentInstanceTerminated"),
}
_CLASS_OF: dict[str, ErrorClass] = {code: name for name, codes in _CODES.items() for code in codes}
# The service may have acted before it failed: the answer is not known, whatever it says.
_AMBIGUOUS_CODES = ("InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable", "RequestTimeout")


@dataclass(frozen=True, kw_only=True)
class FleetOutcome:
    """One answer, understood. `code` and `message` are AWS's own; empty where it created."""

    kind: Kind
    instance_ids: tuple[str, ...] = ()
    error_class: ErrorClass = ""
    code: str = ""
    message: str = ""


def outcome(answer: Mapping[str, Any] | Exception) -> FleetOutcome:
    """Say what a CreateFleet response, or the exception in its place, means for the intent behind it."""
    if isinstance(answer, Exception):
        return _outcome_of_error(answer)
    ids = tuple(instance_id for entry in answer.get("Instances", ()) for instance_id in entry.get("InstanceIds", ()))
    if ids:
        return FleetOutcome(kind="created", instance_ids=ids)
    errors = answer.get("Errors", ())
    code = errors[0].get("ErrorCode", "") if errors else "EmptyFleet"
    message = errors[0].get("ErrorMessage", "") if errors else "CreateFleet returned neither an instance nor an error"
    kind: Kind = "ambiguous" if code in _AMBIGUOUS_CODES else "refused"
    return FleetOutcome(kind=kind, error_class=error_class(code, message), code=code, message=message)


def error_class(code: str, message: str = "") -> ErrorClass:
    """Sort an EC2 error code by what it calls for: another rung (capacity, type), waiting (throttle, consistency), the end."""
    if code == "InvalidParameterValue" and "instance profile" in message.lower():
        return "consistency"  # a role made seconds ago is not everywhere yet
    return "capacity" if code == "EmptyFleet" else _CLASS_OF.get(code, "unknown")


def refusal(rung: Rung, code: str, message: str) -> TrainerError:
    """Return the error that a refused rung ends a run with, if no other rung is left."""
    pool = f"{rung.instance_type} {rung.market.replace('_', '-')} in {rung.availability_zone}"
    match error_class(code, message):
        case "capacity":
            other = "--on-demand" if rung.market == "spot" else "a second --instance"
            return CapacityError(f"no capacity for {pool}", why=code, do=f"Try {other}, or launch again later.")
        case "quota":
            return QuotaError(
                f"the account's quota does not allow {pool}",
                why=f"{code}: {message}",
                do="Ask for more at Service Quotas, Amazon EC2, in vCPUs, or use a smaller type.",
            )
        case "permission":
            return PermissionDenied(
                f"not allowed to launch {pool}", why=f"{code}: {message}", do="Check the launcher's IAM policy."
            )
        case _:
            return ConfigError(f"AWS refused {pool}", why=f"{code}: {message}", do="Check --instance and run `pulumi up`.")


def _outcome_of_error(error: Exception) -> FleetOutcome:
    if isinstance(error, ClientError):
        details = error.response.get("Error", {})
        code, message = details.get("Code", ""), details.get("Message", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        kind = error_class(code, message)
        # No capacity comes as HTTP 500 too, and is an answer; a 5xx that we don't know is none.
        if code in _AMBIGUOUS_CODES or (kind == "unknown" and status >= 500):
            return FleetOutcome(kind="ambiguous", error_class=kind, code=code, message=message)
        return FleetOutcome(kind="refused", error_class=kind, code=code, message=message)
    code, message = type(error).__name__, str(error)
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return FleetOutcome(kind="refused", error_class="permission", code=code, message=message)
    if isinstance(error, (ParamValidationError, NoRegionError)):  # never left this machine
        return FleetOutcome(kind="refused", error_class="config", code=code, message=message)
    return FleetOutcome(kind="ambiguous", error_class="unknown", code=code, message=message)
