"""Rules of EC2 Image Builder, which moto lacks: the resources of infra/image.py are kept, and those they name
must exist.

A rehearsal's machines are processes of this machine, so there is no image to bake. A test that needs one
writes the pipeline's parameter itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trainer.rehearsal.account import Rules
from trainer.rehearsal.wire import Call
from trainer.rehearsal.world import AwsError

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount

_DOCUMENT_BYTES = 16_000  # of a component given inline (API reference, CreateComponent, looked up 2026-11-22)


# Operation -> the kind in the ARN, and the members by which it names other resources of Image Builder.
_MADE = {
    "CreateComponent": ("component", ()),
    "CreateImageRecipe": ("image-recipe", ()),
    "CreateInfrastructureConfiguration": ("infrastructure-configuration", ()),
    "CreateDistributionConfiguration": ("distribution-configuration", ()),
    "CreateImagePipeline": (
        "image-pipeline",
        ("imageRecipeArn", "infrastructureConfigurationArn", "distributionConfigurationArn"),
    ),
    "CreateLifecyclePolicy": ("lifecycle-policy", ()),
}


def create(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Keep a resource. Raises AwsError where one that it names is missing."""
    kind, parts = _MADE[call.operation]
    named = [call.params[part] for part in parts]
    for arn in (*named, *(one["componentArn"] for one in call.params.get("components", []))):
        if arn not in cloud.image_builder:
            raise AwsError("InvalidParameterValueException", f"The resource {arn} does not exist.")
    if kind == "infrastructure-configuration":
        profile = {"InstanceProfileName": call.params["instanceProfileName"]}
        cloud.moto("iam", "GetInstanceProfile", profile)
        cloud.moto("ec2", "DescribeSubnets", {"SubnetIds": [call.params["subnetId"]]})
        cloud.moto("ec2", "DescribeSecurityGroups", {"GroupIds": call.params["securityGroupIds"]})
    if kind == "lifecycle-policy":
        cloud.moto("iam", "GetRole", {"RoleName": call.params["executionRole"].rpartition("/")[2]})
    version = call.params.get("semanticVersion", "")
    if kind == "component":
        if len(call.params["data"].encode()) > _DOCUMENT_BYTES:
            what = f"The component's data is longer than {_DOCUMENT_BYTES} bytes."
            raise AwsError("InvalidParameterValueException", what)
        return {"componentBuildVersionArn": _kept(cloud, call, kind, f"{version}/1")}
    member = call.operation.removeprefix("Create")
    return {f"{member[0].lower()}{member[1:]}Arn": _kept(cloud, call, kind, version)}


def _kept(cloud: CheckedAccount, call: Call, kind: str, version: str = "") -> str:
    """Keep a resource under the ARN that Image Builder makes from its name; return the ARN."""
    name = re.sub(r"[ _]", "-", call.params["name"].lower())
    if not re.fullmatch(r"[-a-z0-9]{3,128}", name):
        what = f"The name {call.params['name']!r} has characters that are not allowed."
        raise AwsError("InvalidParameterValueException", what)
    arn = f"arn:aws:imagebuilder:{call.region}:{call.account}:{kind}/{name}{f'/{version}' if version else ''}"
    cloud.image_builder[arn] = {key: value for key, value in call.params.items() if key != "clientToken"}
    return arn


RULES: Rules = {("imagebuilder", operation): create for operation in _MADE}
