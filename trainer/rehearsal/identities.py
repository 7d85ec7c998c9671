"""Callers: the identity behind an access key, with its policies; and rules of IAM and STS.

Instances, functions and schedules have their role's policies within its permissions boundary, IAM users their
attached and inline ones; groups are ignored. The desk is an administrator.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from trainer.rehearsal.account import CallerIdentity, EmbeddedAccount, Principal, Rules, refuse
from trainer.rehearsal.iam_policies import Authorization, IamPolicy, lets_service, read_policy
from trainer.rehearsal.wire import Answer, Call, access_key_of, collect
from trainer.rehearsal.world import AwsError
from trainer.runs.record import utc_now

SPOT_ROLE = "AWSServiceRoleForEC2Spot"
_CHECKED = ("NODE", "FUNC", "TIME", "USER")
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
    """Return the principal whose policies apply to this access key, None for the desk. Raises AwsError for an
    unknown key.
    """
    if not access_key[16:].startswith(_CHECKED):
        return None
    if access_key not in cloud.principals:
        raise unknown_key(service)
    return cloud.principals[access_key]


def identity_of(cloud: EmbeddedAccount, principal: Principal, service: str) -> CallerIdentity:
    """Return a principal's identity and policies, read once until IAM changes. Raises AwsError if IAM no
    longer has it.
    """
    known = cloud.identities.get(principal)
    if known is None:
        try:
            known = _of_user(cloud, principal) if principal.kind == "USER" else _of_role(cloud, principal)
        except AwsError as error:
            raise unknown_key(service) from error
        except ValueError as error:
            raise AwsError(
                "UnsupportedOperation", f"The embedded AWS can't evaluate a policy: {error}"
            ) from error
        cloud.identities[principal] = known
    return known


def _of_role(cloud: EmbeddedAccount, principal: Principal) -> CallerIdentity:
    role = cloud.moto("iam", "GetRole", {"RoleName": principal.role})["Role"]
    user_id, bounds = f"{role['RoleId']}:{principal.name}", role.get("PermissionsBoundary")
    return CallerIdentity(
        arn=f"arn:aws:sts::{cloud.account}:assumed-role/{principal.role}/{principal.name}",
        user_id=user_id,
        context=_context(cloud, role, user_id),
        policies=_policies(cloud, "Role", principal.role),
        boundary=_managed(cloud, bounds["PermissionsBoundaryArn"]) if bounds else None,
    )


def _of_user(cloud: EmbeddedAccount, principal: Principal) -> CallerIdentity:
    user = cloud.moto("iam", "GetUser", {"UserName": principal.name})["User"]
    return CallerIdentity(
        arn=user["Arn"],
        user_id=user["UserId"],
        context=_context(cloud, user, user["UserId"]) | {"aws:username": principal.name},
        policies=_policies(cloud, "User", principal.name),
    )


def _context(cloud: EmbeddedAccount, described: dict[str, Any], user_id: str) -> dict[str, str]:
    """Return a caller's part of a request's context. Loopback counts as encrypted."""
    own = {
        "userid": user_id,
        "principalarn": described["Arn"],
        "principalaccount": cloud.account,
        "securetransport": "true",
    }
    tags = {f"aws:principaltag/{tag['Key'].lower()}": tag["Value"] for tag in described.get("Tags", [])}
    return {f"aws:{name}": value for name, value in own.items()} | tags


def _policies(cloud: EmbeddedAccount, kind: str, name: str) -> tuple[IamPolicy, ...]:
    """Return the inline and the attached policies of a "Role" or a "User"."""
    who = {f"{kind}Name": name}
    policies = []
    for inline in cloud.moto("iam", f"List{kind}Policies", who)["PolicyNames"]:
        text = cloud.moto("iam", f"Get{kind}Policy", {**who, "PolicyName": inline})["PolicyDocument"]
        policies.append(read_policy(inline, _json_text(text)))
    for attached in cloud.moto("iam", f"ListAttached{kind}Policies", who)["AttachedPolicies"]:
        policies.append(_managed(cloud, attached["PolicyArn"]))
    return tuple(policies)


def _managed(cloud: EmbeddedAccount, policy_arn: str) -> IamPolicy:
    policy = cloud.moto("iam", "GetPolicy", {"PolicyArn": policy_arn})["Policy"]
    version = {"PolicyArn": policy_arn, "VersionId": policy["DefaultVersionId"]}
    text = cloud.moto("iam", "GetPolicyVersion", version)["PolicyVersion"]["Document"]
    return read_policy(policy["PolicyName"], _json_text(text))


def trusts(cloud: EmbeddedAccount, role_name: str, service: str, source_arn: str) -> bool:
    """Return whether an AWS service may assume a role on behalf of `source_arn`; False for a missing role."""
    try:
        role = cloud.moto("iam", "GetRole", {"RoleName": role_name})["Role"]
    except AwsError:
        return False
    document = role["AssumeRolePolicyDocument"]
    context = {"aws:sourcearn": source_arn, "aws:sourceaccount": cloud.account}
    asked = Authorization(action="sts:AssumeRole", resource="*", context=context)
    return lets_service(
        _json_text(document) if isinstance(document, str) else json.dumps(document), service, asked
    )


def _json_text(document: str) -> str:
    """Return a document as it was written: IAM URL-encodes some in its answers."""
    return document if document.lstrip().startswith("{") else json.dumps(json.loads(unquote(document)))


def get_caller_identity(cloud: EmbeddedAccount, call: Call) -> dict[str, Any] | Answer:
    """Return the caller's identity. No policy applies, as on AWS."""
    principal = principal_of(cloud, access_key_of(call.environ), call.service)
    if principal is None:
        return collect(call.environ, call.account)
    identity = identity_of(cloud, principal, call.service)
    return {"UserId": identity.user_id, "Account": cloud.account, "Arn": identity.arn}


def get_role(cloud: EmbeddedAccount, call: Call) -> dict[str, Any] | Answer:
    """Describe a role; EC2's service-linked role for spot belongs to AWS."""
    if call.params["RoleName"] != SPOT_ROLE or not cloud.has_spot_role:
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


def create_access_key(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Give an IAM user a key of this server."""
    name = call.params.get("UserName", "")
    cloud.moto("iam", "GetUser", {"UserName": name})
    with cloud.lock:
        number = sum(one == Principal(kind="USER", name=name) for one in cloud.principals.values())
        own = cloud.credentials("USER", name, mark=f" {number}")
    key = {
        "UserName": name,
        "AccessKeyId": own.access_key,
        "Status": "Active",
        "SecretAccessKey": own.secret_key,
    }
    return {"AccessKey": key}


RULES: Rules = {
    ("sts", "GetCallerIdentity"): get_caller_identity,
    ("iam", "GetRole"): get_role,
    ("iam", "CreateAccessKey"): create_access_key,
    ("iam", "PutUserPermissionsBoundary"): refuse("bound users, only roles"),
    ("iam", "DeleteAccessKey"): refuse("take access keys back"),
    ("iam", "UpdateAccessKey"): refuse("take access keys back"),
}
