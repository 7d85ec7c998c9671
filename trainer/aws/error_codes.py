"""The one table of AWS error codes: class, our exception, remedy, and the next step of a launch. Pure data.

`access` translates botocore's exceptions by it, `control.fleet` interprets CreateFleet's answers by it, and
`runs.launching` takes the next step from it. The sweeper may not import it and has copies of some codes,
which a test compares with this table.

EC2 codes: EC2 API reference "Error codes", and Karpenter pkg/errors/errors.go for capacity and type (both
read 2026-08).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from trainer.base.errors import (
    CapacityError,
    ConfigError,
    ConnectionFailed,
    PermissionDenied,
    QuotaError,
    TrainerError,
)

ErrorClass = Literal[
    "capacity",
    "quota",
    "type",
    "price",
    "config",
    "consistency",
    "permission",
    "throttling",
    "unclear",
    "account",
    "idempotency",
    "connection",
    "not_found",
    "conflict",
    "unknown",
]
NextStep = Literal[
    "next_rung",  # ask the next pool of the ladder
    "other_quota",  # ask the next pool that needs less of this quota, or that counts against another one
    "new_token",  # ask the same pool again under a new token, after a pause
    "replay",  # the call may have taken effect: repeat it once under the same token, after a pause
    "stop",  # end the run with this error
]


@dataclass(frozen=True)
class Meaning:
    """The consequences of an error code."""

    error_class: ErrorClass
    error: type[TrainerError]
    next_step: NextStep  # of a launch that an answer of CreateFleet refused: its token is consumed
    remedy: str  # what the user can do, as a command or a setting
    step_after_exception: NextStep | None = None  # where it differs: the whole call failed with this code

    def step(self, *, exception: bool) -> NextStep:
        """Return the next step of a launch after an exception, or after an answer (HTTP 200) with this code
        in `Errors`.
        """
        return self.step_after_exception or self.next_step if exception else self.next_step


# Codes that callers expect: a missing object, or a conditional write that another writer won.
NO_OBJECT = frozenset({"NoSuchKey", "NoSuchVersion", "NotFound", "404"})
# S3's codes for an object that its writer made unreadable: archived, under a key of its own, empty, a delete
# marker. An answer to HEAD has no body: its code is the status (S3 API reference, "List of error codes").
ARCHIVED = frozenset({"InvalidObjectState", "ObjectNotInActiveTierError"})  # HEAD shows it, GET and COPY fail
SPOILED_OBJECT = ARCHIVED | {"InvalidRequest", "InvalidRange", "MethodNotAllowed", "400", "405"}
SPOILED_KEY = "KMS."  # begins S3's codes for an object under a KMS key that is disabled or gone
NO_INSTANCE = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
NO_SCHEDULE = frozenset({"ResourceNotFoundException"})
NO_IMAGE = frozenset({"InvalidAMIID.NotFound", "InvalidAMIID.Unavailable"})
NO_PARAMETER = frozenset({"ParameterNotFound"})
LOST_RACE = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})
SCHEDULE_EXISTS = frozenset({"ConflictException"})
NO_PLACEMENT = frozenset({"InvalidPlacementGroup.Unknown"})
PLACEMENT_EXISTS = frozenset({"InvalidPlacementGroup.Duplicate"})
EMPTY_FLEET = "EmptyFleet"  # ours: CreateFleet answered with neither an instance nor an error
PARTIAL_FLEET = "PartialFleet"  # ours: CreateFleet made fewer instances than were asked for, without an error
NO_CLEAR_ANSWER = (  # ours: no call under a token had a clear answer, and no instance of them appeared
    "NoClearAnswer"
)

_CHECK_STACK = "Check the stack: pulumi up brings it in line with this version."
_GONE = "is gone: pulumi refresh finds that out, and pulumi up makes a new one."
_SIGN_IN = "Sign in again, or check which credentials AWS_PROFILE names."

CAPACITY = Meaning(
    "capacity",
    CapacityError,
    "next_rung",
    "Add a second --instance, or --on-demand instead of --spot, or launch again later.",
)
QUOTA = Meaning(
    "quota",
    QuotaError,
    "other_quota",
    "Ask for more vCPUs at Service Quotas, Amazon EC2, or name a smaller --instance.",
)
TYPE = Meaning("type", ConfigError, "next_rung", "Name another --instance: this type is not sold there.")
PRICE = Meaning(
    "price",
    ConfigError,
    "next_rung",
    "Remove the maximum spot price from the launch template: pulumi up writes one without.",
)
CONFIG = Meaning("config", ConfigError, "stop", _CHECK_STACK)
CONSISTENCY = Meaning(
    "consistency",
    ConfigError,
    "new_token",
    "A role that was just created takes up to a minute to arrive: launch again, or run pulumi up if it"
    " stays.",
)
PERMISSION = Meaning(
    "permission",
    PermissionDenied,
    "stop",
    "Ask for this permission, or check which credentials AWS_PROFILE names.",
)
# the call was not carried out
THROTTLING = Meaning(
    "throttling", ConnectionFailed, "new_token", "AWS is busy or failing: try again in a few minutes."
)
AWS_FAILED = replace(THROTTLING, step_after_exception="replay")  # the call may have been carried out
UNCLEAR = replace(THROTTLING, error_class="unclear")
ACCOUNT = Meaning("account", ConfigError, "stop", "Open a case with AWS Support.")
FREE_PLAN = replace(  # of accounts made since July 2025; the code is InvalidParameterCombination
    ACCOUNT,
    remedy="The account is on AWS's free plan, which has no GPU types: choose Upgrade plan in the Billing"
    " console (credits stay), ask for a GPU quota, then launch again.",
)
IDEMPOTENCY = Meaning(
    "idempotency",
    ConfigError,
    "stop",
    "This is a fault of Mayfly's (a token used twice): launch again, and report the run's id.",
)
CONNECTION = Meaning("connection", ConnectionFailed, "replay", "Check the network; AWS may be out of reach.")
NOT_FOUND = Meaning("not_found", ConfigError, "stop", _CHECK_STACK)
CONFLICT = Meaning("conflict", ConfigError, "stop", "Another command was faster: try again.")
# inside an answer it concerns one pool; as an exception, the whole call
UNKNOWN = Meaning(
    "unknown",
    ConfigError,
    "next_rung",
    "Look the code up in AWS's lists of errors; pulumi up brings the stack in line with this version.",
    step_after_exception="stop",
)
# botocore failed in a way that no row names: the request may have been sent
SDK_FAILED = Meaning(
    "unknown", ConfigError, "stop", "Check region, credentials and settings.", step_after_exception="replay"
)


def _row(known: Meaning, *codes: str, **changed: Any) -> tuple[Meaning, tuple[str, ...]]:
    """Return a row: a meaning, with some of its fields changed, and its codes."""
    return replace(known, **changed) if changed else known, codes


ROWS: tuple[tuple[Meaning, tuple[str, ...]], ...] = (
    _row(
        CAPACITY,
        "InsufficientInstanceCapacity",
        "InsufficientCapacity",
        "UnfulfillableCapacity",
        "ReservationCapacityExceeded",
        EMPTY_FLEET,
        PARTIAL_FLEET,
    ),
    _row(
        CAPACITY,
        "InsufficientFreeAddressesInSubnet",
        remedy="Free addresses in the stack's subnet, or give it a larger one in Pulumi.",
    ),
    _row(QUOTA, "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "InstanceLimitExceeded"),
    _row(
        QUOTA,
        "MaxFleetCountExceeded",
        remedy="Delete EC2 fleets that are not needed any more, or ask for more at Service Quotas, Amazon"
        " EC2.",
    ),
    _row(TYPE, "Unsupported", "InvalidInstanceType", "InvalidParameterValue"),
    _row(
        TYPE,
        "InvalidFleetConfiguration",
        remedy="Name another --instance: this type is not sold in this zone, or not on this market.",
    ),
    _row(PRICE, "SpotMaxPriceTooLow"),
    # a group that was just created takes a moment to arrive
    _row(CONSISTENCY, *sorted(NO_PLACEMENT), remedy="Launch again: the placement group of a run is its own."),
    _row(
        QUOTA,
        "PlacementGroupLimitExceeded",
        next_step="stop",
        remedy="Delete placement groups that are not needed any more, or ask for more at Service Quotas,"
        " Amazon EC2.",
    ),
    _row(CONFLICT, "InvalidPlacementGroup.InUse", remedy="AWS still counts instances in it: try again soon."),
    _row(
        CONFIG,
        "InvalidAMIID.NotFound",
        "InvalidAMIID.Malformed",
        "InvalidAMIID.Unavailable",
        remedy="Set another image line in Pulumi, then pulumi up.",
    ),
    _row(
        CONFIG,
        "InvalidSnapshot.NotFound",
        remedy="The image's snapshot is gone: set another image line in Pulumi, then pulumi up.",
    ),
    _row(CONFIG, "InvalidSubnetID.NotFound", remedy=f"The stack's subnet {_GONE}"),
    _row(CONFIG, "InvalidGroup.NotFound", remedy=f"The stack's security group {_GONE}"),
    _row(
        CONFIG,
        "InvalidLaunchTemplateId.NotFound",
        "InvalidLaunchTemplateId.Malformed",
        "InvalidLaunchTemplateId.VersionNotFound",
        "InvalidLaunchTemplateName.NotFoundException",
        remedy=f"The stack's launch template {_GONE}",
    ),
    # the last is botocore's: the request never left this machine
    _row(
        CONFIG,
        "InvalidUserData.Malformed",
        "InvalidParameterCombination",
        "MissingParameter",
        "ParamValidationError",
    ),
    _row(
        CONFIG,
        "OptInRequired",
        remedy="Subscribe the account to this image or region in the AWS console, then launch again.",
    ),
    _row(CONFIG, "NoRegionError", remedy="Set AWS_REGION, such as us-east-1."),
    _row(PERMISSION, "AccessDenied", "AccessDeniedException", "403"),
    _row(
        PERMISSION,
        "UnauthorizedOperation",
        remedy="Ask for the permission that aws sts decode-authorization-message finds in this message.",
    ),
    _row(
        PERMISSION,
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
        remedy="Create the role once: aws iam create-service-linked-role --aws-service-name"
        " spot.amazonaws.com, or launch with --on-demand.",
    ),
    _row(
        PERMISSION,
        "AuthFailure",
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
        "400",  # of an expired token, where S3's answer has no code: to HEAD
        remedy=_SIGN_IN,
    ),
    # S3's words for a request that is more than 15 minutes off; other services refuse its signature
    _row(
        PERMISSION,
        "RequestTimeTooSkewed",
        remedy="This machine's clock is wrong. Set the clock, such as by timedatectl set-ntp true.",
    ),
    _row(
        PERMISSION,
        "NoCredentialsError",
        "PartialCredentialsError",
        "TokenRetrievalError",
        "ProfileNotFound",
        remedy="Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or add --rehearse.",
    ),
    _row(
        THROTTLING,
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "EC2ThrottledException",
        "TooManyRequestsException",
        "SlowDown",
    ),
    _row(
        AWS_FAILED,
        "InternalError",
        "InternalFailure",
        "ServerInternal",
        "Unavailable",
        "ServiceUnavailable",
        "RequestTimeout",
    ),
    # the embedded AWS's own
    _row(
        AWS_FAILED,
        "DiskFull",
        remedy="Free space on the disk of the rehearsal, or set MAYFLY_HOME to a folder on another one.",
    ),
    # of a folder instead of a bucket
    _row(
        AWS_FAILED,
        "FolderFailed",
        remedy="Free space on the folder's disk, or check that it is there and yours to write.",
    ),
    _row(UNCLEAR, NO_CLEAR_ANSWER),
    _row(
        ACCOUNT,
        "PendingVerification",
        remedy="AWS is still verifying the account for this region: wait for its e-mail, then launch again.",
    ),
    _row(
        ACCOUNT,
        "Blocked",
        remedy="AWS blocked the account: open a case with AWS Support, Account and billing.",
    ),
    _row(
        ACCOUNT,
        "InvalidBlockDeviceMapping",
        remedy="Set the image line's root device and disk size in Pulumi, then pulumi up.",
    ),
    _row(
        ACCOUNT,
        "Client.InternalError",
        remedy="The key of the account's default EBS encryption refuses: allow its use to the launcher,"
        " or choose another key in the EC2 settings.",
    ),
    _row(
        ACCOUNT,
        "Client.VolumeLimitExceeded",
        "VolumeLimitExceeded",
        error=QuotaError,
        remedy="Delete EBS volumes, or ask for more storage at Service Quotas, Amazon EBS.",
    ),
    _row(IDEMPOTENCY, "IdempotentParameterMismatch", "IdempotentInstanceTerminated"),
    _row(NOT_FOUND, *sorted(NO_OBJECT | NO_INSTANCE | NO_SCHEDULE | NO_PARAMETER)),
    _row(CONFLICT, *sorted(LOST_RACE | SCHEDULE_EXISTS | PLACEMENT_EXISTS)),
)
_BY_CODE: dict[str, Meaning] = {code: row for row, codes in ROWS for code in codes}
_PROFILE_NAME = re.compile(r"instance ?profile", re.IGNORECASE)
_FREE_TIER = re.compile(r"not eligible for free tier", re.IGNORECASE)


def meaning(code: str, message: str = "", *, status: int = 0) -> Meaning:
    """Return the meaning of an error code; UNKNOWN for a new one, AWS_FAILED where AWS failed itself
    (`status` from 500 on).

    The message decides where EC2's code says something else: InvalidParameterValue while a new role is
    propagating, InvalidParameterCombination for a type or image that the free plan does not have.
    """
    if _FREE_TIER.search(message):
        return FREE_PLAN
    if code == "InvalidParameterValue" and _PROFILE_NAME.search(message):
        return CONSISTENCY
    known = _BY_CODE.get(code) or _BY_CODE.get(code.removeprefix("Server.").removeprefix("Client."))
    return known or (AWS_FAILED if status >= 500 else UNKNOWN)
