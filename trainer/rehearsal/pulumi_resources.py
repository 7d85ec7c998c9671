"""Create each resource type of infra/ on the embedded AWS: one function per type, which calls the service
through boto3.

A type or a property that is not handled here is an error: a rehearsal must not skip what `pulumi up` would
do. The provider's own rules (exclusive arguments, forced replacements) are not checked.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import botocore.session
from botocore import xform_name
from botocore.exceptions import ClientError, ParamValidationError

from trainer.aws.access import Access
from trainer.base.errors import ConfigError
from trainer.rehearsal.applied_program import Recorder
from trainer.rehearsal.pulumi_archives import zip_archive
from trainer.rehearsal.pulumi_shapes import tag_list, to_parameters


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


def tag_specifications(kind: str, properties: Properties) -> list[dict[str, Any]]:
    """Take the tags; return them as the TagSpecifications of EC2's calls."""
    tags = properties.pop("tags", {})
    return [{"ResourceType": kind, "Tags": tag_list(tags)}] if tags else []


def physical_name(properties: Properties, logical_name: str) -> str:
    """Take and return the physical name, or make one as Pulumi does: the logical name and seven hexadecimal
    digits.
    """
    return str(
        properties.pop("name", None)
        or f"{logical_name}-{hashlib.sha256(logical_name.encode()).hexdigest()[:7]}"
    )


def by_one_call(
    resource_type: str, service: str, operation: str, *, name: str = "", arn: str = "", inside: str = ""
) -> None:
    """Register a resource type whose inputs are one request.

    `name` is the request's member for the physical name, `arn` the answer's for the ARN, `inside` a member of
    the request that the inputs belong into, but for the bucket.
    """

    def make(cloud: Resources, logical_name: str, properties: Properties) -> Made:
        physical = physical_name(properties, logical_name) if name else logical_name
        outer = properties.take("bucket") if inside else {}
        given = {**outer, inside: properties.rest()} if inside else properties.rest()
        answer = cloud.send(service, operation, given | ({name: physical} if name else {}))
        return physical, ({"name": physical} if name else {}) | ({"arn": answer[arn]} if arn else {})

    MAKERS[resource_type] = make


# --- storage


@makes("aws:s3/bucket:Bucket")
def _bucket(cloud: Resources, name: str, properties: Properties) -> Made:
    bucket, s3 = properties.pop("bucket"), cloud.client("s3")
    properties.pop("forceDestroy", None)  # tells Pulumi how to delete, AWS nothing
    try:
        s3.create_bucket(Bucket=bucket)
    except ClientError as error:
        if (
            error.response["Error"]["Code"] != "BucketAlreadyOwnedByYou"
        ):  # restored from disk: buckets outlive the server
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


# --- roles


@makes("aws:iam/role:Role")
def _role(cloud: Resources, name: str, properties: Properties) -> Made:
    role_name, document = physical_name(properties, name), properties.pop("assumeRolePolicy")
    given = {**properties.rest(), "roleName": role_name, "assumeRolePolicyDocument": document}
    role = cloud.send("iam", "CreateRole", given)["Role"]
    return role_name, {"arn": role["Arn"], "name": role_name, "uniqueId": role["RoleId"]}


@makes("aws:iam/rolePolicy:RolePolicy")
def _role_policy(cloud: Resources, name: str, properties: Properties) -> Made:
    policy_name, role = physical_name(properties, name), properties.pop("role")
    cloud.client("iam").put_role_policy(
        RoleName=role, PolicyName=policy_name, PolicyDocument=properties.pop("policy")
    )
    return f"{role}:{policy_name}", {"name": policy_name}


@makes("aws:iam/instanceProfile:InstanceProfile")
def _instance_profile(cloud: Resources, name: str, properties: Properties) -> Made:
    profile_name, role = physical_name(properties, name), properties.pop("role")
    given = {**properties.rest(), "instanceProfileName": profile_name}
    profile = cloud.send("iam", "CreateInstanceProfile", given)["InstanceProfile"]
    cloud.client("iam").add_role_to_instance_profile(InstanceProfileName=profile_name, RoleName=role)
    return profile_name, {"arn": profile["Arn"], "name": profile_name}


@makes("aws:iam/policy:Policy")
def _policy(cloud: Resources, name: str, properties: Properties) -> Made:
    policy_name, document = physical_name(properties, name), properties.pop("policy")
    given = {**properties.rest(), "policyName": policy_name, "policyDocument": document}
    policy = cloud.send("iam", "CreatePolicy", given)["Policy"]
    return policy["Arn"], {"arn": policy["Arn"], "name": policy_name}


# --- inputs of instances


@makes("aws:ec2/launchTemplate:LaunchTemplate")
def _launch_template(cloud: Resources, name: str, properties: Properties) -> Made:
    template_name, tags = physical_name(properties, name), tag_specifications("launch-template", properties)
    properties.pop("updateDefaultVersion", None)  # a new template's first version is its default
    description = properties.pop("description", "")
    made = cloud.client("ec2").create_launch_template(
        LaunchTemplateName=template_name,
        VersionDescription=description,
        LaunchTemplateData=cloud.shaped(
            "ec2", "RequestLaunchTemplateData", properties.rest(), f"LaunchTemplate {name}"
        ),
        TagSpecifications=tags,
    )["LaunchTemplate"]
    template = made["LaunchTemplateId"]
    versions = {"latestVersion": 1, "defaultVersion": 1}
    return template, {
        "arn": cloud.arn("ec2", f"launch-template/{template}"),
        "name": template_name,
        **versions,
    }


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


# --- the safety net


@makes("aws:cloudwatch/logGroup:LogGroup")
def _log_group(cloud: Resources, name: str, properties: Properties) -> Made:
    logs, group = cloud.client("logs"), physical_name(properties, name)
    days = properties.pop("retentionInDays", None)
    cloud.send("logs", "CreateLogGroup", {**properties.rest(), "logGroupName": group})
    if days:
        logs.put_retention_policy(logGroupName=group, retentionInDays=int(days))
    return group, {"arn": cloud.arn("logs", f"log-group:{group}"), "name": group}


@makes("aws:lambda/function:Function")
def _function(cloud: Resources, name: str, properties: Properties) -> Made:
    function, code = physical_name(properties, name), zip_archive(properties.pop("code"))
    made = cloud.send(
        "lambda", "CreateFunction", {**properties.rest(), "functionName": function}, Code={"ZipFile": code}
    )
    return function, {"arn": made["FunctionArn"], "name": function}


by_one_call(
    "aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig", "lambda", "PutFunctionEventInvokeConfig"
)
by_one_call(
    "aws:scheduler/scheduleGroup:ScheduleGroup",
    *("scheduler", "CreateScheduleGroup"),
    name="name",
    arn="ScheduleGroupArn",
)
by_one_call("aws:scheduler/schedule:Schedule", "scheduler", "CreateSchedule", name="name", arn="ScheduleArn")
by_one_call("aws:cloudwatch/eventRule:EventRule", "events", "PutRule", name="name", arn="RuleArn")


@makes("aws:lambda/permission:Permission")
def _permission_to_call(cloud: Resources, name: str, properties: Properties) -> Made:
    function = properties.pop("function")
    cloud.send(
        "lambda", "AddPermission", {**properties.rest(), "functionName": function, "statementId": name}
    )
    return name, {}


@makes("aws:cloudwatch/eventTarget:EventTarget")
def _event_target(cloud: Resources, name: str, properties: Properties) -> Made:
    rule, arn = properties.pop("rule"), properties.pop("arn")
    cloud.client("events").put_targets(Rule=rule, Targets=[{"Id": name, "Arn": arn}])
    return f"{rule}-{name}", {}


@makes("aws:ssm/parameter:Parameter")
def _parameter(cloud: Resources, name: str, properties: Properties) -> Made:
    parameter = physical_name(properties, name)
    outputs = {
        **json.loads(properties.pop("insecureValue")),
        "rehearsal": True,
    }  # whoever reads it sees what it is
    value = {
        "value": json.dumps(outputs, sort_keys=True)
    }  # `value` itself would be a secret, and this program has none
    cloud.send("ssm", "PutParameter", {**properties.rest(), **value, "name": parameter})
    return parameter, {"arn": cloud.arn("ssm", f"parameter{parameter}"), "name": parameter}
