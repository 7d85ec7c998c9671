"""Launches as EC2 takes them: its refusals, and the values that it adds."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from trainer.rehearsal.world import AwsError, Pool

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount

USER_DATA_LIMIT_BYTES = 16 * 1024  # before base64 (EC2 user guide, looked up 2026-11-20)


def check_request(cloud: CheckedAccount, request: dict[str, Any], pool: Pool) -> None:
    """Raise AwsError for a request that EC2 would refuse."""
    if len(base64.b64decode(request.get("UserData", ""))) > USER_DATA_LIMIT_BYTES:
        raise AwsError("InvalidUserData.Malformed", f"User data is limited to {USER_DATA_LIMIT_BYTES} bytes")
    _check_profile(cloud, request)
    if pool.market != "spot":
        return
    if not cloud.has_spot_role:
        message = (
            "The provided credentials do not have permission to create the service-linked role for EC2 Spot"
            " Instances."
        )
        raise AwsError("AuthFailure.ServiceLinkedRoleCreationNotPermitted", message, 403)
    if request.get("InstanceInitiatedShutdownBehavior") == "stop":
        raise AwsError(
            "InvalidParameterCombination", "A shutdown behavior of stop is not supported for spot instances."
        )


def _check_profile(cloud: CheckedAccount, request: dict[str, Any]) -> None:
    profile = request.get("IamInstanceProfile", {})
    name = profile.get("Name") or profile.get("Arn", "").rpartition("/")[2]
    if not name:
        return
    try:
        cloud.moto("iam", "GetInstanceProfile", {"InstanceProfileName": name})
    except AwsError as error:
        raise AwsError(
            "InvalidParameterValue", f"Value ({name}) for parameter iamInstanceProfile.name is invalid."
        ) from error


def add_root_device(request: dict[str, Any], root_device: str) -> None:
    """Keep the image's root volume where no mapping names it: a wrong device name adds a second volume, as on
    AWS.
    """
    mappings = request.get("BlockDeviceMappings", [])
    if mappings and root_device not in [one.get("DeviceName") for one in mappings]:
        root = {
            "DeviceName": root_device,
            "Ebs": {"VolumeSize": 15, "VolumeType": "gp2", "DeleteOnTermination": True},
        }
        request["BlockDeviceMappings"] = [root, *mappings]
