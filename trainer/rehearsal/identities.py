"""Callers: the principal behind an access key; and rules of IAM and STS.

The desk is an administrator. Instances, functions and schedules are their roles, whose policies are not
evaluated here.
"""

from __future__ import annotations

from typing import Any

from trainer.base.instants import utc_now
from trainer.rehearsal.account import EmbeddedAccount, Principal, Rules
from trainer.rehearsal.wire import Answer, Call, access_key_of, collect
from trainer.rehearsal.world import AwsError

SPOT_ROLE = "AWSServiceRoleForEC2Spot"
_LENT = ("NODE", "FUNC", "TIME", "USER")
# Errors of services for an unknown access key; those with JSON answers share one.
_UNKNOWN_KEY = {
    "ec2": ("AuthFailure", 401),
    "s3": ("InvalidAccessKeyId", 403),
    "iam": ("InvalidClientTokenId", 403),
    "sts": ("InvalidClientTokenId", 403),
}


def unknown_key(service: str) -> AwsError:
    """Return a service's error for an unknown access key."""
    code, status = _UNKNOWN_KEY.get(service, ("UnrecognizedClientException", 403))
    return AwsError(code, "The security token included in the request is invalid.", status)


def principal_of(cloud: EmbeddedAccount, access_key: str, service: str) -> Principal | None:
    """Return the principal that has this access key, None for the desk. Raises AwsError for an unknown
    key.
    """
    if not access_key[16:].startswith(_LENT):
        return None
    if access_key not in cloud.principals:
        raise unknown_key(service)
    return cloud.principals[access_key]


def get_caller_identity(cloud: EmbeddedAccount, call: Call) -> dict[str, Any] | Answer:
    """Return the caller's identity: a role's under the principal's name."""
    principal = principal_of(cloud, access_key_of(call.environ), call.service)
    if principal is None:
        return collect(call.environ, call.account)
    role = cloud.moto("iam", "GetRole", {"RoleName": principal.role})["Role"]
    arn = f"arn:aws:sts::{cloud.account}:assumed-role/{principal.role}/{principal.name}"
    return {"UserId": f"{role['RoleId']}:{principal.name}", "Account": cloud.account, "Arn": arn}


def get_role(cloud: EmbeddedAccount, call: Call) -> dict[str, Any] | Answer:
    """Describe a role; EC2's service-linked role for spot belongs to AWS."""
    if call.params["RoleName"] != SPOT_ROLE:
        return collect(call.environ, call.account)
    path = "/aws-service-role/spot.amazonaws.com/"
    return {
        "Role": {
            "Path": path,
            "RoleName": SPOT_ROLE,
            "RoleId": "AROASPOT",
            "Arn": f"arn:aws:iam::{cloud.account}:role{path}{SPOT_ROLE}",
            "CreateDate": utc_now(),
        }
    }


RULES: Rules = {
    ("sts", "GetCallerIdentity"): get_caller_identity,
    ("iam", "GetRole"): get_role,
}
