"""The table from API calls to IAM's questions: action, resource and condition keys, for each call of the
stack's users.

Source: AWS's Service Authorization Reference (looked up 2026-11-22). EC2's questions are in `ec2_actions`. A
call that is not in the table needs an action of the same name on its bucket, or else on every resource.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tests.aws.ec2_actions import (
    BY_ID,
    Asked,
    create_fleet,
    ec2_arn,
    instances_by_id,
    passing,
    resource_by_id,
    run_instances,
)
from tests.aws.iam_policies import Authorization, Values
from trainer.rehearsal.identities import SPOT_ROLE
from trainer.rehearsal.wire import Call

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount

PREFIXES = {"service-quotas": "servicequotas"}  # where IAM's name of a service differs from botocore's
NO_POLICY = {("sts", "GetCallerIdentity")}


def questions_of(cloud: CheckedAccount, call: Call) -> Asked:
    """Return IAM's questions about a call, all of which must be allowed. Raises AwsError as AWS does."""
    if (call.service, call.operation) in NO_POLICY:
        return []
    if questions := TABLE.get((call.service, call.operation)):
        return questions(cloud, call)
    service = PREFIXES.get(call.service, call.service)
    named = call.service == "s3" and "Bucket" in call.params
    return [Authorization(action=f"{service}:{call.operation}", resource=_bucket(call) if named else "*")]


# --- S3


def object_read(cloud: CheckedAccount, call: Call) -> Asked:
    """Ask for reading an object: HeadObject has no action of its own, and reading a version has
    another one.
    """
    action = "s3:GetObjectVersion" if call.params.get("VersionId") else "s3:GetObject"
    return [Authorization(action=action, resource=_object(call)), *_key_use(cloud, call, "kms:Decrypt")]


def _key_use(cloud: CheckedAccount, call: Call, *actions: str) -> Asked:
    """Ask for the use of the bucket's KMS key, which S3 calls on the caller's behalf.

    Objects that are older than the key count as encrypted by it, too. Bucket keys, which spare calls, are
    ignored.
    """
    key = cloud.bucket_keys.get(call.params["Bucket"], "")
    via: dict[str, Values] = {"kms:viaservice": f"s3.{call.region}.amazonaws.com"}
    return [Authorization(action=action, resource=key, context=dict(via)) for action in actions if key]


def object_write(cloud: CheckedAccount, call: Call) -> Asked:
    """Ask for writing an object; a policy can depend on whether the write may replace one."""
    condition = call.params.get("IfNoneMatch")
    context: dict[str, Values] = {} if condition is None else {"s3:if-none-match": condition}
    return [
        Authorization(action="s3:PutObject", resource=_object(call), context=context),
        *_key_use(cloud, call, "kms:GenerateDataKey"),
    ]


def object_copy(cloud: CheckedAccount, call: Call) -> Asked:
    """Ask for reading the source of a copy, by version where it names one, and for writing its key."""
    source, _, version = unquote(call.params["CopySource"]).partition("?versionId=")
    action = "s3:GetObjectVersion" if version else "s3:GetObject"
    read = Authorization(action=action, resource=f"arn:aws:s3:::{source.lstrip('/')}")
    return [read, *_key_use(cloud, call, "kms:Decrypt"), *object_write(cloud, call)]


def object_delete(cloud: CheckedAccount, call: Call) -> Asked:
    action = "s3:DeleteObjectVersion" if call.params.get("VersionId") else "s3:DeleteObject"
    return [Authorization(action=action, resource=_object(call))]


def bucket_list(cloud: CheckedAccount, call: Call) -> Asked:
    """Ask for listing a bucket. Without a prefix in the request there is no s3:prefix, and a condition on it
    does not hold.
    """
    return [listing(call, _prefix(call))]


def listing(call: Call, context: dict[str, Values] | None = None) -> Authorization:
    """Return the question whether the caller may list a call's bucket."""
    return Authorization(action="s3:ListBucket", resource=_bucket(call), context=context or {})


def bucket_versions(cloud: CheckedAccount, call: Call) -> Asked:
    return [Authorization(action="s3:ListBucketVersions", resource=_bucket(call), context=_prefix(call))]


def bucket_versioning(cloud: CheckedAccount, call: Call) -> Asked:
    return [Authorization(action="s3:GetBucketVersioning", resource=_bucket(call))]


def _prefix(call: Call) -> dict[str, Values]:
    prefix = call.params.get("Prefix")
    return {} if prefix is None else {"s3:prefix": prefix}


def _bucket(call: Call) -> str:
    return f"arn:aws:s3:::{call.params['Bucket']}"


def _object(call: Call) -> str:
    return f"{_bucket(call)}/{call.params['Key']}"


# --- the others


def _on(cloud: CheckedAccount, call: Call, service: str, resource: str, action: str = "") -> Authorization:
    """Return the question for a call's action, unless another is named, on a resource of the account."""
    arn = f"arn:aws:{service}:{call.region}:{cloud.account}:{resource}"
    return Authorization(action=f"{service}:{action or call.operation}", resource=arn)


def schedule(cloud: CheckedAccount, call: Call) -> Asked:
    group = call.params.get("GroupName") or "default"
    asked = [_on(cloud, call, "scheduler", f"schedule/{group}/{call.params['Name']}")]
    if "Target" in call.params:
        asked.append(passing(call.params["Target"]["RoleArn"], "scheduler.amazonaws.com"))
    return asked


def invoke(cloud: CheckedAccount, call: Call) -> Asked:
    name = call.params["FunctionName"].partition(":function:")[2] or call.params["FunctionName"]
    return [_on(cloud, call, "lambda", f"function:{name}", "InvokeFunction")]


def metric_data(cloud: CheckedAccount, call: Call) -> Asked:
    """Ask for writing metrics: on no resource, so that a policy can only depend on the namespace."""
    context: dict[str, Values] = {"cloudwatch:namespace": call.params["Namespace"]}
    return [Authorization(action="cloudwatch:PutMetricData", resource="*", context=context)]


def placement_group(cloud: CheckedAccount, call: Call) -> Asked:
    return [_on(cloud, call, "ec2", f"placement-group/{call.params['GroupName']}")]


def alarms(cloud: CheckedAccount, call: Call) -> Asked:
    names = call.params.get("AlarmNames") or ["*"]
    return [_on(cloud, call, "cloudwatch", f"alarm:{name}") for name in names]


def queue(cloud: CheckedAccount, call: Call) -> Asked:
    """Ask for a queue by its name, the end of its URL."""
    name = call.params.get("QueueName") or call.params["QueueUrl"].rpartition("/")[2]
    return [_on(cloud, call, "sqs", name)]


def topic(cloud: CheckedAccount, call: Call) -> Asked:
    return [Authorization(action=f"sns:{call.operation}", resource=call.params["TopicArn"])]


def file_system(cloud: CheckedAccount, call: Call) -> Asked:
    return [_on(cloud, call, "elasticfilesystem", f"file-system/{call.params['FileSystemId']}")]


def quota(cloud: CheckedAccount, call: Call) -> Asked:
    return [_on(cloud, call, "servicequotas", f"{call.params['ServiceCode']}/{call.params['QuotaCode']}")]


def role(cloud: CheckedAccount, call: Call) -> Asked:
    """Ask for a role by its ARN; a missing role has no path."""
    name = call.params["RoleName"]
    resource = f"arn:aws:iam::{cloud.account}:role/{name}"
    if name == SPOT_ROLE and cloud.has_spot_role:
        resource = f"arn:aws:iam::{cloud.account}:role/aws-service-role/spot.amazonaws.com/{name}"
    return [Authorization(action="iam:GetRole", resource=resource)]


def parameters(cloud: CheckedAccount, call: Call) -> Asked:
    """Ask for parameters by name or path; those that AWS publishes belong to no account."""
    named = next(call.params[name] for name in ("Names", "Name", "Path") if name in call.params)
    names = [named] if isinstance(named, str) else named
    owners = {name: "" if name.startswith("/aws/service/") else cloud.account for name in names}
    return [
        Authorization(
            action=f"ssm:{call.operation}",
            resource=f"arn:aws:ssm:{call.region}:{owner}:parameter/{name.removeprefix('/')}",
        )
        for name, owner in owners.items()
    ]


def start_session(cloud: CheckedAccount, call: Call) -> Asked:
    """Ask for the instance, by its tags, and for the session's document; without one for the account's
    default.
    """
    name = call.params.get("DocumentName") or "SSM-SessionManagerRunShell"
    with cloud.lock:
        known = cloud.world.instances.get(call.params["Target"])
        tags = {f"ssm:resourcetag/{key.lower()}": value for key, value in known.tags.items()} if known else {}
    context: dict[str, Values] = {**tags, "ssm:sessiondocumentaccesscheck": "true"}
    instance = ec2_arn(cloud, call, f"instance/{call.params['Target']}")
    target = Authorization(action="ssm:StartSession", resource=instance, context=context)
    owner = "" if name.startswith("AWS-") else cloud.account
    document = f"arn:aws:ssm:{call.region}:{owner}:document/{name}"
    return [target, Authorization(action="ssm:StartSession", resource=document)]


def own_session(cloud: CheckedAccount, call: Call) -> Asked:
    """Ask for a session by its tag: its owner's id, with which its own id begins (`sessions`)."""
    session = call.params["SessionId"]
    context: dict[str, Values] = {"ssm:resourcetag/aws:ssmmessages:session-id": session.rpartition("-")[0]}
    resource = f"arn:aws:ssm:{call.region}:{cloud.account}:session/{session}"
    return [Authorization(action=f"ssm:{call.operation}", resource=resource, context=context)]


def _table() -> Iterator[tuple[tuple[str, str], Callable[[CheckedAccount, Call], Asked]]]:
    for service, asks, operations in (
        ("s3", object_read, "GetObject HeadObject"),
        ("s3", object_write, "PutObject CreateMultipartUpload UploadPart CompleteMultipartUpload"),
        ("s3", object_copy, "CopyObject"),
        ("s3", object_delete, "DeleteObject"),
        ("s3", bucket_list, "ListObjectsV2 HeadBucket"),
        ("s3", bucket_versions, "ListObjectVersions"),
        ("s3", bucket_versioning, "GetBucketVersioning"),
        ("ec2", create_fleet, "CreateFleet"),
        ("ec2", run_instances, "RunInstances"),
        ("ec2", instances_by_id, "TerminateInstances GetConsoleOutput ModifyInstanceAttribute"),
        ("ec2", resource_by_id, " ".join(BY_ID)),
        ("ec2", placement_group, "CreatePlacementGroup DeletePlacementGroup"),
        ("scheduler", schedule, "CreateSchedule UpdateSchedule GetSchedule DeleteSchedule"),
        ("lambda", invoke, "Invoke"),
        ("cloudwatch", metric_data, "PutMetricData"),
        ("cloudwatch", alarms, "DescribeAlarms"),
        ("sqs", queue, "GetQueueUrl GetQueueAttributes"),
        ("sns", topic, "Publish ListSubscriptionsByTopic"),
        ("efs", file_system, "DescribeFileSystems DescribeMountTargets"),
        ("service-quotas", quota, "GetServiceQuota"),
        ("iam", role, "GetRole"),
        ("ssm", start_session, "StartSession"),
        ("ssm", own_session, "ResumeSession TerminateSession"),
        ("ssm", parameters, "GetParameter GetParameters GetParametersByPath"),
    ):
        for operation in operations.split():
            yield (service, operation), asks


TABLE = dict(_table())
