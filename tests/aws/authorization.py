"""Authorization of a call by its caller's policies, and the refusal in the service's own words."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from tests.aws.api_actions import listing, questions_of
from tests.aws.ec2_actions import launches_of
from tests.aws.iam_policies import (
    Authorization,
    Decision,
    IamPolicy,
    decide,
    lets_service,
    read_resource_policy,
)
from tests.aws.identities import CallerIdentity, administrator, cant_evaluate, identity_of
from trainer.rehearsal.account import REGION, Principal
from trainer.rehearsal.wire import Call
from trainer.rehearsal.world import AwsError

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount

BUCKETS = "arn:aws:s3:::"
_OBJECT_READS = ("GetObject", "HeadObject")
# AWS's code and HTTP status for a call that no policy allows; services with JSON answers use the last.
_REFUSALS = {
    "ec2": ("UnauthorizedOperation", 403),
    "s3": ("AccessDenied", 403),
    "iam": ("AccessDenied", 403),
    "sts": ("AccessDenied", 403),
    "lambda": ("AccessDeniedException", 403),
    "scheduler": ("AccessDeniedException", 403),
    "sns": ("AuthorizationError", 403),
    "sqs": ("AccessDenied", 403),
    "cloudwatch": ("AccessDenied", 403),
}
_JSON_REFUSAL = ("AccessDeniedException", 400)


def authorize(cloud: CheckedAccount, call: Call, principal: Principal | None) -> None:
    """Raise AwsError unless the policies of a principal, and of what it calls, allow everything that its call
    asks for. The desk's own allow everything.
    """
    if principal is None and call.service != "s3":
        return
    identity = identity_of(cloud, principal, call.service) if principal else administrator(cloud)
    for asked in questions_of(cloud, call):
        _demand(cloud, call.service, principal, identity, asked)
    if principal and call.service == "s3" and call.operation in _OBJECT_READS:
        _hide_absence(cloud, call, principal, identity)


def refused_launches(cloud: CheckedAccount, call: Call, principal: Principal | None) -> AwsError | None:
    """Return the error with which EC2 refuses the launches of a fleet that its caller may create: it is in the
    fleet's answer.
    """
    if principal is None or call.operation != "CreateFleet" or call.params.get("DryRun"):
        return None
    try:
        for asked in launches_of(cloud, call):
            _demand(cloud, call.service, principal, identity_of(cloud, principal, call.service), asked)
    except AwsError as error:
        return error
    return None


def demand(cloud: CheckedAccount, principal: Principal, service: str, asked: Authorization) -> None:
    """Raise AwsError, in a service's words, unless a principal's policies allow an action of AWS on its
    behalf.
    """
    _demand(cloud, service, principal, identity_of(cloud, principal, service), asked)


def require_permission(cloud: CheckedAccount, name: str, service: str, source_arn: str) -> None:
    """Raise AwsError unless a function's own policy lets an AWS service call it on behalf of `source_arn`."""
    function_arn = f"arn:aws:lambda:{REGION}:{cloud.account}:function:{name}"
    context = {"aws:sourcearn": source_arn, "aws:sourceaccount": cloud.account}
    asked = Authorization(action="lambda:InvokeFunction", resource=function_arn, context=context)
    policy = str(cloud.moto("lambda", "GetPolicy", {"FunctionName": name})["Policy"])
    if not lets_service(policy, service, asked):
        what = f"The policy of {name} does not let {source_arn} call it."
        raise AwsError("AccessDeniedException", what, 403)


def _demand(
    cloud: CheckedAccount,
    service: str,
    principal: Principal | None,
    identity: CallerIdentity,
    asked: Authorization,
) -> None:
    decision, kind = _decide(cloud, identity, asked)
    if principal:
        cloud.decisions.append((principal, asked, decision))
    if not decision.allowed:
        raise _refusal(service, identity, asked, decision, kind)


def _decide(cloud: CheckedAccount, identity: CallerIdentity, asked: Authorization) -> tuple[Decision, str]:
    """Return the decision of a caller's policies within its permissions boundary, together with the policy of
    the resource; and the kind of policy that decided.
    """
    context = {**identity.context, "aws:securetransport": str(cloud.over_tls).lower()}
    own = _resource_policy(cloud, identity, asked.resource)
    decision = decide([*identity.policies, own], asked, context)
    if decision.by and decision.by[0] == own.name:
        return decision, own.name
    if decision.allowed and identity.boundary is not None:
        within = decide([identity.boundary], asked, context)
        if not within.allowed:
            return within, "permissions boundary"
    return decision, "identity-based policy"


def _resource_policy(cloud: CheckedAccount, identity: CallerIdentity, resource: str) -> IamPolicy:
    """Return what the policy of a bucket, or of a file system, says to a caller."""
    text = '{"Statement": []}'
    if resource.startswith(BUCKETS):
        text = cloud.bucket_policies.get(resource.removeprefix(BUCKETS).partition("/")[0], text)
    elif ":file-system/" in resource:
        asked = {"FileSystemId": resource.rpartition("/")[2]}
        with suppress(AwsError):  # it has none
            text = str(cloud.moto("efs", "DescribeFileSystemPolicy", asked)["Policy"])
    callers = frozenset({identity.arn, cloud.account, f"arn:aws:iam::{cloud.account}:root"})
    try:
        return read_resource_policy("resource-based policy", text, callers)
    except ValueError as error:
        raise cant_evaluate(error) from error


def _hide_absence(cloud: CheckedAccount, call: Call, principal: Principal, identity: CallerIdentity) -> None:
    """Raise AwsError for a missing object if the caller may not list the bucket: S3 then answers
    AccessDenied.

    A read has no s3:prefix, so that a permission to list by prefix does not count here.
    """
    asked = listing(call)
    decision, kind = _decide(cloud, identity, asked)
    if decision.allowed:
        cloud.decisions.append((principal, asked, decision))
        return
    bucket = cloud.buckets.get(call.params["Bucket"])
    try:
        if bucket:
            bucket.find(call.params["Key"], call.params.get("VersionId") or "", "", call.operation)
    except ClientError as error:
        raise _refusal(call.service, identity, asked, decision, kind) from error


def _refusal(
    service: str, identity: CallerIdentity, asked: Authorization, decision: Decision, kind: str
) -> AwsError:
    code, status = _REFUSALS.get(service, _JSON_REFUSAL)
    action = asked.action
    because = f"because no {kind} allows the {action} action"
    if decision.by:
        because = f"with an explicit deny in {'an' if kind[0] == 'i' else 'a'} {kind}"
    what = f"{action} on resource: {asked.resource} {because}"
    message = f"User: {identity.arn} is not authorized to perform: {what}"
    if service == "ec2":
        message = f"You are not authorized to perform this operation. {message}"
    return AwsError(code, message, status)
