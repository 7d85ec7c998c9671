"""Create each resource type of infra/ on the embedded AWS: one function per type, which calls the service
through boto3.

A type or a property that is not handled here is an error: a rehearsal must not skip what `pulumi up` would
do. The provider's own rules (exclusive arguments, forced replacements) are not checked.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import operator
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import botocore.session
from botocore import xform_name
from botocore.exceptions import ClientError, ParamValidationError

from trainer.aws.access import Access
from trainer.base.errors import ConfigError
from trainer.rehearsal.applied_program import OWNED_ALREADY, Recorder
from trainer.rehearsal.pulumi_shapes import tag_list, to_parameters, zip_archive


class Properties(dict[str, Any]):
    """A resource's inputs, taken one by one; an input that is not taken is an error."""

    def take(self, *names: str) -> dict[str, Any]:
        """Take these inputs, if given."""
        return {name: self.pop(name) for name in names if name in self}

    def rest(self) -> dict[str, Any]:
        """Take all remaining inputs."""
        rest = dict(self)
        self.clear()
        return rest


Made = tuple[str, dict[str, Any]]  # a resource's id, and the outputs that AWS gave it
Maker = Callable[["Resources", str, Properties], Made]
MAKERS: dict[str, Maker] = {}


def makes(resource_type: str) -> Callable[[Maker], Maker]:
    """Register a function as the one that makes a resource type."""

    def register(maker: Maker) -> Maker:
        MAKERS[resource_type] = maker
        return maker

    return register


class Resources:
    """Makes resources on one account of the embedded AWS."""

    def __init__(self, access: Access, *, account: str, recorder: Recorder | None = None) -> None:
        self.account, self.region = account, access.region or "us-east-1"
        self._access, self._recorder = access, recorder
        self._clients: dict[str, Any] = {}
        self._models = botocore.session.get_session()

    def make(self, resource_type: str, name: str, inputs: dict[str, Any]) -> Made:
        """Make one resource. Raises ConfigError for an unknown type or property."""
        maker = MAKERS.get(resource_type)
        if maker is None:
            raise ConfigError(
                f"the embedded AWS does not know the resource type {resource_type}",
                why=f"'{name}' in infra/",
                do="Add it to trainer/rehearsal/pulumi_resources.py.",
            )
        properties = Properties({key: value for key, value in inputs.items() if value is not None})
        try:
            made = maker(self, name, properties)
        except (ClientError, ParamValidationError) as error:
            raise ConfigError(f"the embedded AWS refused {resource_type} '{name}'", why=str(error)) from error
        if properties:
            raise ConfigError(
                f"the embedded AWS can't apply {resource_type} '{name}'",
                why=f"unknown property {', '.join(sorted(properties))}",
                do="Correct it in infra/, or handle it in trainer/rehearsal/pulumi_resources.py.",
            )
        return made

    def client(self, service: str) -> Any:
        """Return the account's client of a service."""
        if service not in self._clients:
            self._clients[service] = self._access.client(service)
            if self._recorder is not None:
                self._recorder.watch(self._clients[service])
        return self._clients[service]

    def send(self, service: str, operation: str, given: dict[str, Any], **fixed: Any) -> Any:
        """Send a request: `given` in Pulumi's names, converted by the request's shape, and `fixed` in AWS's
        own.
        """
        model = self._models.get_service_model(service).operation_model(operation)
        parameters = to_parameters(given, model.input_shape, operation)
        return getattr(self.client(service), xform_name(operation))(**parameters, **fixed)

    def shaped(self, service: str, shape: str, given: Any, path: str) -> Any:
        """Convert a Pulumi value to one of the service's named shapes."""
        return to_parameters(given, self._models.get_service_model(service).shape_for(shape), path)

    def arn(self, service: str, resource: str) -> str:
        """Write the ARN of a resource of this account and region."""
        return f"arn:aws:{service}:{self.region}:{self.account}:{resource}"


def tag_specifications(kind: str, properties: Properties) -> dict[str, Any]:
    """Take the tags; return them as the argument TagSpecifications of EC2's calls."""
    tags = properties.pop("tags", {})
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": tag_list(tags)}]} if tags else {}


def physical_name(properties: Properties, logical_name: str) -> str:
    """Take and return the physical name, or make one as Pulumi does: the logical name and seven hexadecimal
    digits.
    """
    return str(
        properties.pop("name", None)
        or f"{logical_name}-{hashlib.sha256(logical_name.encode()).hexdigest()[:7]}"
    )


def by_one_call(
    resource_type: str,
    service: str,
    operation: str,
    *,
    name: str = "",
    id: str = "",
    tags: str = "",
    inside: str = "",
    outputs: Mapping[str, str] | None = None,
) -> None:
    """Register a resource type whose inputs are one request.

    `name` is the request's member for the physical name. `id` (default: that name) and `outputs` are paths in
    the answer, such as Vpc.VpcId. `tags` is EC2's word for the resource in TagSpecifications, `inside` a
    member of the request that all inputs but the bucket belong into.
    """

    def make(cloud: Resources, logical_name: str, properties: Properties) -> Made:
        named = {name: physical_name(properties, logical_name)} if name else {}
        tagged = tag_specifications(tags, properties) if tags else {}
        outer = properties.take("bucket") if inside else {}
        inputs = {**outer, inside: properties.rest()} if inside else properties.rest()
        answer = cloud.send(service, operation, inputs | named, **tagged)
        known = {output: _part(answer, path) for output, path in (outputs or {}).items()}
        if named:
            known["name"] = named[name]
        return _part(answer, id) if id else named.get(name, logical_name), known

    MAKERS[resource_type] = make


def _part(answer: Any, path: str) -> Any:
    return functools.reduce(operator.getitem, path.split("."), answer)


# --- storage


@makes("aws:s3/bucket:Bucket")
def _bucket(cloud: Resources, name: str, properties: Properties) -> Made:
    bucket, s3 = properties.pop("bucket"), cloud.client("s3")
    properties.pop("forceDestroy", None)  # tells Pulumi how to delete, AWS nothing
    try:
        s3.create_bucket(Bucket=bucket)
    except ClientError as error:  # a bucket outlives the server: an earlier one may have made it
        if error.response["Error"]["Code"] != OWNED_ALREADY:
            raise
    if tags := properties.pop("tags", {}):
        s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": tag_list(tags)})
    return bucket, {"bucket": bucket, "arn": f"arn:aws:s3:::{bucket}"}


for _kind, _operation, _inside in (
    ("Versioning", "PutBucketVersioning", ""),
    ("Policy", "PutBucketPolicy", ""),
    ("ServerSideEncryptionConfiguration", "PutBucketEncryption", "serverSideEncryptionConfiguration"),
    ("PublicAccessBlock", "PutPublicAccessBlock", "publicAccessBlockConfiguration"),
    ("LifecycleConfiguration", "PutBucketLifecycleConfiguration", "lifecycleConfiguration"),
):
    by_one_call(f"aws:s3/bucket{_kind}:Bucket{_kind}", "s3", _operation, inside=_inside)


@makes("aws:s3/bucketOwnershipControls:BucketOwnershipControls")
def _bucket_ownership(cloud: Resources, name: str, properties: Properties) -> Made:
    rules = {"rules": [properties.pop("rule")]}
    cloud.send("s3", "PutBucketOwnershipControls", {**properties.rest(), "ownershipControls": rules})
    return name, {}


@makes("aws:s3/bucketObjectv2:BucketObjectv2")
def _object(cloud: Resources, name: str, properties: Properties) -> Made:
    bucket, key, tags = properties.pop("bucket"), properties.pop("key"), properties.pop("tags", {})
    body = base64.b64decode(properties.pop("contentBase64"))
    cloud.client("s3").put_object(Bucket=bucket, Key=key, Body=body, Tagging=urlencode(tags))
    return key, {"bucket": bucket, "key": key}


@makes("aws:efs/fileSystem:FileSystem")
def _file_system(cloud: Resources, name: str, properties: Properties) -> Made:
    lifecycle = properties.pop("lifecyclePolicies", [])
    made = cloud.send("efs", "CreateFileSystem", properties.rest())
    rules = {"fileSystemId": made["FileSystemId"], "lifecyclePolicies": lifecycle}
    cloud.send("efs", "PutLifecycleConfiguration", rules)
    return made["FileSystemId"], {"arn": made["FileSystemArn"]}


by_one_call(
    "aws:efs/accessPoint:AccessPoint",
    *("efs", "CreateAccessPoint"),
    name="clientToken",
    id="AccessPointId",
    outputs={"arn": "AccessPointArn"},
)
by_one_call("aws:efs/mountTarget:MountTarget", "efs", "CreateMountTarget", id="MountTargetId")
by_one_call("aws:efs/fileSystemPolicy:FileSystemPolicy", "efs", "PutFileSystemPolicy", id="FileSystemId")

# --- roles

by_one_call(
    "aws:iam/role:Role",
    *("iam", "CreateRole"),
    name="roleName",
    outputs={"arn": "Role.Arn", "uniqueId": "Role.RoleId"},
)
by_one_call("aws:iam/rolePolicy:RolePolicy", "iam", "PutRolePolicy", name="policyName")
by_one_call(
    "aws:iam/policy:Policy",
    *("iam", "CreatePolicy"),
    name="policyName",
    id="Policy.Arn",
    outputs={"arn": "Policy.Arn"},
)


@makes("aws:iam/instanceProfile:InstanceProfile")
def _instance_profile(cloud: Resources, name: str, properties: Properties) -> Made:
    profile_name, role = physical_name(properties, name), properties.pop("role")
    named = {"instanceProfileName": profile_name}
    profile = cloud.send("iam", "CreateInstanceProfile", properties.rest() | named)["InstanceProfile"]
    cloud.send("iam", "AddRoleToInstanceProfile", {**named, "roleName": role})
    return profile_name, {"arn": profile["Arn"], "name": profile_name}


@makes("aws:iam/rolePolicyAttachment:RolePolicyAttachment")
def _policy_of_aws(cloud: Resources, name: str, properties: Properties) -> Made:
    """Make nothing: policies of AWS's own are those of image builds alone."""
    return f"{properties.pop('role')}-{properties.pop('policyArn')}", {}


# --- inputs of instances


@makes("aws:ec2/launchTemplate:LaunchTemplate")
def _launch_template(cloud: Resources, name: str, properties: Properties) -> Made:
    tags = tag_specifications("launch-template", properties)
    named = {"launchTemplateName": physical_name(properties, name)}
    properties.pop("updateDefaultVersion", None)  # a new template's first version is its default
    described = {"versionDescription": properties.pop("description", "")}
    given = {**named, **described, "launchTemplateData": properties.rest()}
    made = cloud.send("ec2", "CreateLaunchTemplate", given, **tags)["LaunchTemplate"]
    return made["LaunchTemplateId"], {"name": made["LaunchTemplateName"]}


def _image_build(cloud: Resources, name: str, properties: Properties) -> Made:
    """Make nothing: instances are processes of this machine, so there is no image to bake."""
    properties.rest()
    arn = cloud.arn("imagebuilder", name)
    return arn, {"arn": arn}


for _kind in (
    *("component", "imageRecipe", "infrastructureConfiguration", "distributionConfiguration"),
    *("imagePipeline", "lifecyclePolicy"),
):
    makes(f"aws:imagebuilder/{_kind}:{_kind[0].upper()}{_kind[1:]}")(_image_build)


# --- functions, their calls, the stack's outputs


@makes("aws:cloudwatch/logGroup:LogGroup")
def _log_group(cloud: Resources, name: str, properties: Properties) -> Made:
    named, days = {"logGroupName": physical_name(properties, name)}, properties.take("retentionInDays")
    cloud.send("logs", "CreateLogGroup", properties.rest() | named)
    if days:
        cloud.send("logs", "PutRetentionPolicy", days | named)
    return named["logGroupName"], {"name": named["logGroupName"]}


@makes("aws:lambda/function:Function")
def _function(cloud: Resources, name: str, properties: Properties) -> Made:
    code = {"ZipFile": zip_archive(properties.pop("code"))}
    named = {"functionName": physical_name(properties, name)}
    made = cloud.send("lambda", "CreateFunction", properties.rest() | named, Code=code)
    return made["FunctionName"], {"arn": made["FunctionArn"], "name": made["FunctionName"]}


by_one_call("aws:lambda/permission:Permission", "lambda", "AddPermission", name="statementId")
by_one_call(
    "aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig", "lambda", "PutFunctionEventInvokeConfig"
)
by_one_call("aws:scheduler/scheduleGroup:ScheduleGroup", "scheduler", "CreateScheduleGroup", name="name")
by_one_call("aws:scheduler/schedule:Schedule", "scheduler", "CreateSchedule", name="name")
by_one_call(
    "aws:cloudwatch/eventRule:EventRule", "events", "PutRule", name="name", outputs={"arn": "RuleArn"}
)


@makes("aws:cloudwatch/eventTarget:EventTarget")
def _event_target(cloud: Resources, name: str, properties: Properties) -> Made:
    rule, arn = properties.pop("rule"), properties.pop("arn")
    cloud.client("events").put_targets(Rule=rule, Targets=[{"Id": name, "Arn": arn}])
    return f"{rule}-{name}", {}


@makes("aws:ssm/parameter:Parameter")
def _parameter(cloud: Resources, name: str, properties: Properties) -> Made:
    parameter = physical_name(properties, name)
    # Pulumi's `value` would be a secret, and this program has none.
    outputs = {**json.loads(properties.pop("insecureValue")), "rehearsal": True}  # which its readers see
    named = {"name": parameter, "value": json.dumps(outputs, sort_keys=True)}
    cloud.send("ssm", "PutParameter", properties.rest() | named)
    return parameter, {"name": parameter}


# --- messages and alarms


@makes("aws:sqs/queue:Queue")
def _queue(cloud: Resources, name: str, properties: Properties) -> Made:
    queue, tags = physical_name(properties, name), properties.pop("tags", {})
    attributes = {
        "MessageRetentionPeriod": str(int(properties.pop("messageRetentionSeconds"))),
        "SqsManagedSseEnabled": str(properties.pop("sqsManagedSseEnabled")).lower(),
    }
    cloud.client("sqs").create_queue(QueueName=queue, Attributes=attributes, tags=tags)
    return queue, {"arn": cloud.arn("sqs", queue), "name": queue}


@makes("aws:sns/topic:Topic")
def _topic(cloud: Resources, name: str, properties: Properties) -> Made:
    given = {"name": physical_name(properties, name), "attributes": {"Policy": properties.pop("policy")}}
    topic = cloud.send("sns", "CreateTopic", properties.rest() | given)["TopicArn"]
    return topic, {"arn": topic, "name": given["name"]}


by_one_call("aws:sns/topicSubscription:TopicSubscription", "sns", "Subscribe", id="SubscriptionArn")
by_one_call("aws:cloudwatch/metricAlarm:MetricAlarm", "cloudwatch", "PutMetricAlarm", name="alarmName")


@makes("aws:budgets/budget:Budget")
def _budget(cloud: Resources, name: str, properties: Properties) -> Made:
    budget, tags = physical_name(properties, name), tag_list(properties.pop("tags", {}))
    limit = {"amount": properties.pop("limitAmount"), "unit": properties.pop("limitUnit")}
    notifications = []
    for notification in map(dict, properties.pop("notifications")):
        topics = notification.pop("subscriberSnsTopicArns")
        subscribers = [{"subscriptionType": "SNS", "address": topic} for topic in topics]
        notifications.append({"subscribers": subscribers, "notification": notification})
    given = {**properties.rest(), "budgetName": budget, "budgetLimit": limit}
    request = {"accountId": cloud.account, "budget": given, "notificationsWithSubscribers": notifications}
    cloud.send("budgets", "CreateBudget", request, ResourceTags=tags)
    return f"{cloud.account}:{budget}", {"name": budget}
