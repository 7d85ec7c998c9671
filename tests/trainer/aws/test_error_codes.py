"""The table of AWS error codes against the reference: class, exit code, remedy and next step of every
code.
"""

from __future__ import annotations

from collections import Counter

import pytest

from trainer.aws import error_codes as aws_errors
from trainer.aws.error_codes import ROWS, UNKNOWN, meaning
from trainer.control.functions import sweep

# Section 3.3 of the AWS reference (2026-08), written down here because the reference is not part of the
# repository: code, class, exit code, next step after an answer, next step after an exception, a word of the
# remedy.
REFERENCE = [
    ("InsufficientInstanceCapacity", "capacity", 101, "next_rung", "next_rung", "--instance"),
    ("UnfulfillableCapacity", "capacity", 101, "next_rung", "next_rung", "--on-demand"),
    ("InsufficientFreeAddressesInSubnet", "capacity", 101, "next_rung", "next_rung", "subnet"),
    ("ReservationCapacityExceeded", "capacity", 101, "next_rung", "next_rung", "launch again later"),
    ("VcpuLimitExceeded", "quota", 102, "other_quota", "other_quota", "Service Quotas"),
    ("MaxSpotInstanceCountExceeded", "quota", 102, "other_quota", "other_quota", "Service Quotas"),
    ("InstanceLimitExceeded", "quota", 102, "other_quota", "other_quota", "smaller --instance"),
    ("MaxFleetCountExceeded", "quota", 102, "other_quota", "other_quota", "Delete EC2 fleets"),
    ("Unsupported", "type", 103, "next_rung", "next_rung", "another --instance"),
    ("InvalidInstanceType", "type", 103, "next_rung", "next_rung", "another --instance"),
    ("InvalidParameterValue", "type", 103, "next_rung", "next_rung", "another --instance"),
    ("InvalidFleetConfiguration", "type", 103, "next_rung", "next_rung", "this zone"),
    ("PlacementGroupLimitExceeded", "quota", 102, "stop", "stop", "Delete placement groups"),
    ("InvalidPlacementGroup.Unknown", "consistency", 103, "new_token", "new_token", "Launch again"),
    ("PartialFleet", "capacity", 101, "next_rung", "next_rung", "--instance"),
    ("SpotMaxPriceTooLow", "price", 103, "next_rung", "next_rung", "Remove the maximum spot price"),
    ("InvalidAMIID.NotFound", "config", 103, "stop", "stop", "image line"),
    ("InvalidAMIID.Malformed", "config", 103, "stop", "stop", "image line"),
    ("InvalidSubnetID.NotFound", "config", 103, "stop", "stop", "subnet is gone"),
    ("InvalidGroup.NotFound", "config", 103, "stop", "stop", "security group is gone"),
    ("InvalidLaunchTemplateId.NotFound", "config", 103, "stop", "stop", "launch template is gone"),
    ("InvalidLaunchTemplateName.NotFoundException", "config", 103, "stop", "stop", "launch template is gone"),
    ("OptInRequired", "config", 103, "stop", "stop", "Subscribe"),
    ("UnauthorizedOperation", "permission", 103, "stop", "stop", "decode-authorization-message"),
    (
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
        "permission",
        103,
        "stop",
        "stop",
        "Create the role",
    ),
    ("RequestLimitExceeded", "throttling", 103, "new_token", "new_token", "try again"),
    ("ThrottlingException", "throttling", 103, "new_token", "new_token", "try again"),
    ("InternalError", "throttling", 103, "new_token", "replay", "try again"),
    ("ServerInternal", "throttling", 103, "new_token", "replay", "try again"),
    ("Unavailable", "throttling", 103, "new_token", "replay", "try again"),
    ("ServiceUnavailable", "throttling", 103, "new_token", "replay", "try again"),
    ("DiskFull", "throttling", 103, "new_token", "replay", "set MAYFLY_HOME"),  # the embedded AWS's
    ("FolderFailed", "throttling", 103, "new_token", "replay", "Free space"),  # of a folder for a bucket
    ("NoClearAnswer", "unclear", 103, "new_token", "new_token", "try again"),  # ours
    ("PendingVerification", "account", 103, "stop", "stop", "verifying the account"),
    ("Blocked", "account", 103, "stop", "stop", "AWS Support"),
    ("InvalidBlockDeviceMapping", "account", 103, "stop", "stop", "root device"),
    ("Client.InternalError", "account", 103, "stop", "stop", "EBS encryption"),
    ("Client.VolumeLimitExceeded", "account", 102, "stop", "stop", "EBS volumes"),
    ("IdempotentParameterMismatch", "idempotency", 103, "stop", "stop", "fault of Mayfly"),
]


@pytest.mark.parametrize(("code", "error_class", "exit_code", "answered", "raised", "remedy"), REFERENCE)
def test_every_code_of_the_reference_has_its_meaning(code, error_class, exit_code, answered, raised, remedy):
    found = meaning(code)
    assert (found.error_class, found.error.exit_code) == (error_class, exit_code)
    assert (found.step(exception=False), found.step(exception=True)) == (answered, raised)
    assert remedy in found.remedy


def test_a_new_instance_profile_is_worth_a_new_token():
    message = "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
    found = meaning("InvalidParameterValue", message)
    assert (found.error_class, found.step(exception=False)) == ("consistency", "new_token")
    assert found.step(exception=True) == "new_token"


@pytest.mark.parametrize("what", ["instance type", "image"])
def test_the_free_plan_has_its_own_remedy(what):
    message = (
        f"The specified {what} is not eligible for Free Tier. For a list of Free Tier instance types, run"
        " 'describe-instance-types' with the filter 'free-tier-eligible=true'."
    )
    found = meaning("InvalidParameterCombination", message)
    assert (found.error_class, found.error.exit_code) == ("account", 103)
    assert (found.step(exception=False), found.step(exception=True)) == ("stop", "stop")
    assert "free plan" in found.remedy and "Upgrade plan" in found.remedy
    assert meaning("InvalidParameterCombination", "another message").error_class == "config"


def test_an_unknown_code_asks_the_next_pool_or_stops():
    found = meaning("NeverHeardOf")
    assert found is UNKNOWN
    assert (found.error.exit_code, found.step(exception=False)) == (103, "next_rung")
    assert found.step(exception=True) == "stop"


def test_an_unknown_failure_of_aws_itself_is_retried():
    assert meaning("NeverHeardOf", status=502).error_class == "throttling"
    assert meaning("NeverHeardOf", status=502).step(exception=True) == "replay", "it may have taken effect"
    assert meaning("InsufficientInstanceCapacity", status=500).error_class == "capacity"


def test_a_code_with_the_prefix_of_a_state_reason_is_found():
    assert meaning("Server.InsufficientInstanceCapacity").error_class == "capacity"
    assert meaning("Client.InternalError").error_class != meaning("Server.InternalError").error_class


def test_each_code_is_in_one_row_and_each_remedy_is_a_sentence():
    counted = Counter(code for _, codes in ROWS for code in codes)
    assert [code for code, count in counted.items() if count > 1] == []
    assert all(row.remedy.endswith(".") for row, _ in ROWS)


def test_the_sweepers_own_codes_are_those_of_the_table():
    assert {sweep.NO_OBJECT} <= aws_errors.NO_OBJECT
    assert {sweep.NO_INSTANCE} <= aws_errors.NO_INSTANCE
    assert {sweep.NO_SCHEDULE} <= aws_errors.NO_SCHEDULE
    assert set(sweep.SPOILED_OBJECT) <= aws_errors.SPOILED_OBJECT
    assert sweep.SPOILED_KEY == aws_errors.SPOILED_KEY
