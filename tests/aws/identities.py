"""Callers and their policies: the identity behind a principal, and rules of IAM and STS.

Instances, functions and schedules have their role's policies within its permissions boundary, IAM users their
attached and inline ones; groups are ignored. The desk is an administrator.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tests.aws.iam_policies import Authorization, IamPolicy, decide, lets_service, read_policy
from trainer.base.instants import utc_now
from trainer.rehearsal.account import Principal, Rules, refuse
from trainer.rehearsal.identities import SPOT_ROLE, get_role, principal_of, unknown_key
from trainer.rehearsal.wire import Answer, Call, access_key_of, collect
from trainer.rehearsal.world import AwsError

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount


@dataclass(frozen=True, kw_only=True)
class CallerIdentity:
    """A principal in IAM: its STS identity, its part of each request's context, and its policies."""

    arn: str
    user_id: str
    context: Mapping[str, str]
    policies: tuple[IamPolicy, ...]
    boundary: IamPolicy | None = None


def identity_of(cloud: CheckedAccount, principal: Principal, service: str) -> CallerIdentity:
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
            raise cant_evaluate(error) from error
        cloud.identities[principal] = known
    return known


def cant_evaluate(error: ValueError) -> AwsError:
    """Return the error for a policy with something that is not known here: it never counts as no match."""
    return AwsError("UnsupportedOperation", f"The embedded AWS can't evaluate a policy: {error}")


def administrator(cloud: CheckedAccount) -> CallerIdentity:
    """Return the desk's identity: it may do everything that no resource refuses it."""
    everything = {"Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}
    return CallerIdentity(
        arn=f"arn:aws:sts::{cloud.account}:user/moto",  # as STS tells it
        user_id="",
        context={"aws:principalaccount": cloud.account},
        policies=(read_policy("administrator", json.dumps(everything)),),
    )


def _of_role(cloud: CheckedAccount, principal: Principal) -> CallerIdentity:
    role = cloud.moto("iam", "GetRole", {"RoleName": principal.role})["Role"]
    user_id, bounds = f"{role['RoleId']}:{principal.name}", role.get("PermissionsBoundary")
    return CallerIdentity(
        arn=f"arn:aws:sts::{cloud.account}:assumed-role/{principal.role}/{principal.name}",
        user_id=user_id,
        context=_context(cloud, role, user_id),
        policies=_policies(cloud, "Role", principal.role),
        boundary=_managed(cloud, bounds["PermissionsBoundaryArn"]) if bounds else None,
    )


def _of_user(cloud: CheckedAccount, principal: Principal) -> CallerIdentity:
    user = cloud.moto("iam", "GetUser", {"UserName": principal.name})["User"]
    return CallerIdentity(
        arn=user["Arn"],
        user_id=user["UserId"],
        context=_context(cloud, user, user["UserId"]) | {"aws:username": principal.name},
        policies=_policies(cloud, "User", principal.name),
    )


def _context(cloud: CheckedAccount, described: dict[str, Any], user_id: str) -> dict[str, str]:
    """Return a caller's part of a request's context."""
    own = {
        "userid": user_id,
        "principalarn": described["Arn"],
        "principalaccount": cloud.account,
    }
    tags = {f"aws:principaltag/{tag['Key'].lower()}": tag["Value"] for tag in described.get("Tags", [])}
    return {f"aws:{name}": value for name, value in own.items()} | tags


def _policies(cloud: CheckedAccount, kind: str, name: str) -> tuple[IamPolicy, ...]:
    """Return the inline and the attached policies of a "Role" or a "User"."""
    who = {f"{kind}Name": name}
    policies = []
    for inline in cloud.moto("iam", f"List{kind}Policies", who)["PolicyNames"]:
        text = cloud.moto("iam", f"Get{kind}Policy", {**who, "PolicyName": inline})["PolicyDocument"]
        policies.append(read_policy(inline, _json_text(text)))
    for attached in cloud.moto("iam", f"ListAttached{kind}Policies", who)["AttachedPolicies"]:
        policies.append(_managed(cloud, attached["PolicyArn"]))
    return tuple(policies)


def _managed(cloud: CheckedAccount, policy_arn: str) -> IamPolicy:
    policy = cloud.moto("iam", "GetPolicy", {"PolicyArn": policy_arn})["Policy"]
    version = {"PolicyArn": policy_arn, "VersionId": policy["DefaultVersionId"]}
    text = cloud.moto("iam", "GetPolicyVersion", version)["PolicyVersion"]["Document"]
    return read_policy(policy["PolicyName"], _json_text(text))


def trusts(cloud: CheckedAccount, role_name: str, service: str, source_arn: str) -> bool:
    """Return whether an AWS service may assume a role on behalf of `source_arn`; False for a missing role."""
    try:
        role = cloud.moto("iam", "GetRole", {"RoleName": role_name})["Role"]
    except AwsError:
        return False
    context = {"aws:sourcearn": source_arn, "aws:sourceaccount": cloud.account}
    asked = Authorization(action="sts:AssumeRole", resource="*", context=context)
    return lets_service(_trust_of(role), service, asked)


def _trust_of(role: dict[str, Any]) -> str:
    document = role["AssumeRolePolicyDocument"]
    return _json_text(document) if isinstance(document, str) else json.dumps(document)


def _json_text(document: str) -> str:
    """Return a document as it was written: IAM URL-encodes some in its answers."""
    return document if document.lstrip().startswith("{") else json.dumps(json.loads(unquote(document)))


def get_caller_identity(cloud: CheckedAccount, call: Call) -> dict[str, Any] | Answer:
    """Return the caller's identity. No policy applies, as on AWS."""
    principal = principal_of(cloud, access_key_of(call.environ), call.service)
    if principal is None:
        return collect(call.environ, call.account)
    identity = identity_of(cloud, principal, call.service)
    return {"UserId": identity.user_id, "Account": cloud.account, "Arn": identity.arn}


def get_own_role(cloud: CheckedAccount, call: Call) -> dict[str, Any] | Answer:
    """Describe a role; EC2's service-linked role for spot may be missing."""
    missing = call.params["RoleName"] == SPOT_ROLE and not cloud.has_spot_role
    return collect(call.environ, call.account) if missing else get_role(cloud, call)


def create_access_key(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
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


def assume_role(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Lend a role to a caller of the account that its trust policy names. Its session is like an
    instance's.
    """
    name, session = call.params["RoleArn"].rpartition("/")[2], call.params["RoleSessionName"]
    role = cloud.moto("iam", "GetRole", {"RoleName": name})["Role"]
    asked = Authorization(action="sts:AssumeRole", resource="*")
    if not lets_service(_trust_of(role), f"arn:aws:iam::{cloud.account}:root", asked):
        what = f"is not authorized to perform: sts:AssumeRole on resource: {role['Arn']}"
        raise AwsError("AccessDenied", f"User: arn:aws:iam::{cloud.account}:root {what}", 403)
    own = cloud.credentials("NODE", session, role=name, mark=f" of {name}")
    lent = {"AccessKeyId": own.access_key, "SecretAccessKey": own.secret_key, "SessionToken": "rehearsal"}
    ends = utc_now() + timedelta(seconds=call.params.get("DurationSeconds", 3600))
    arn = f"arn:aws:sts::{cloud.account}:assumed-role/{name}/{session}"
    who = {"AssumedRoleId": f"{role['RoleId']}:{session}", "Arn": arn}
    return {"Credentials": {**lent, "Expiration": ends}, "AssumedRoleUser": who}


def simulate_principal_policy(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Simulate questions to the policies of a role, within its boundary; the context is what the call gives."""
    name = call.params["PolicySourceArn"].rpartition("/")[2]
    identity = _of_role(cloud, Principal(kind="NODE", name="simulated", role=name))
    within = [identity.boundary] if identity.boundary else []
    return _simulated(call, identity.policies, *within)


def simulate_custom_policy(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Simulate questions to the policies that a call brings."""
    texts = enumerate(call.params["PolicyInputList"], start=1)
    return _simulated(call, tuple(read_policy(f"PolicyInputList.{number}", text) for number, text in texts))


def _simulated(call: Call, policies: tuple[IamPolicy, ...], *boundary: IamPolicy) -> dict[str, Any]:
    context = {
        entry["ContextKeyName"].lower(): tuple(entry["ContextKeyValues"])
        if entry["ContextKeyType"].endswith("List")
        else entry["ContextKeyValues"][0]
        for entry in call.params.get("ContextEntries", [])
    }
    results = []
    for action in call.params["ActionNames"]:
        for resource in call.params.get("ResourceArns") or ["*"]:
            asked = Authorization(action=action, resource=resource, context=context)
            decisions = [decide(one, asked, {}) for one in (policies, *([one] for one in boundary))]
            refused = next((one for one in decisions if not one.allowed), None)
            denied = "explicitDeny" if refused and refused.by else "implicitDeny"
            answer = {"EvalActionName": action, "EvalResourceName": resource}
            results.append({**answer, "EvalDecision": denied if refused else "allowed"})
    return {"EvaluationResults": results, "IsTruncated": False}


RULES: Rules = {
    ("sts", "AssumeRole"): assume_role,
    ("iam", "SimulatePrincipalPolicy"): simulate_principal_policy,
    ("iam", "SimulateCustomPolicy"): simulate_custom_policy,
    ("sts", "GetCallerIdentity"): get_caller_identity,
    ("iam", "GetRole"): get_own_role,
    ("iam", "CreateAccessKey"): create_access_key,
    ("iam", "PutUserPermissionsBoundary"): refuse,
    ("iam", "DeleteAccessKey"): refuse,
    ("iam", "UpdateAccessKey"): refuse,
}
