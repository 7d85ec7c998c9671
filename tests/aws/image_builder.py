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


def create_component(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Keep a component."""
    if len(call.params["data"].encode()) > _DOCUMENT_BYTES:
        raise AwsError(
            "InvalidParameterValueException",
            f"The component's data is longer than {_DOCUMENT_BYTES} bytes.",
            400,
        )
    return {
        "componentBuildVersionArn": _kept(cloud, call, "component", f"{call.params['semanticVersion']}/1")
    }


def create_image_recipe(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Keep a recipe, whose components must exist."""
    for component in call.params["components"]:
        _must_exist(cloud, component["componentArn"])
    return {"imageRecipeArn": _kept(cloud, call, "image-recipe", call.params["semanticVersion"])}


def create_infrastructure_configuration(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Keep an infrastructure configuration; its profile, subnet and security groups must exist."""
    params = call.params
    cloud.moto("iam", "GetInstanceProfile", {"InstanceProfileName": params["instanceProfileName"]})
    cloud.moto("ec2", "DescribeSubnets", {"SubnetIds": [params["subnetId"]]})
    cloud.moto("ec2", "DescribeSecurityGroups", {"GroupIds": params["securityGroupIds"]})
    return {"infrastructureConfigurationArn": _kept(cloud, call, "infrastructure-configuration")}


def create_distribution_configuration(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Keep a distribution configuration."""
    return {"distributionConfigurationArn": _kept(cloud, call, "distribution-configuration")}


def create_image_pipeline(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Keep a pipeline, whose three parts must exist."""
    for part in ("imageRecipeArn", "infrastructureConfigurationArn", "distributionConfigurationArn"):
        _must_exist(cloud, call.params[part])
    return {"imagePipelineArn": _kept(cloud, call, "image-pipeline")}


def create_lifecycle_policy(cloud: CheckedAccount, call: Call) -> dict[str, Any]:
    """Keep a lifecycle policy, whose role must exist."""
    cloud.moto("iam", "GetRole", {"RoleName": call.params["executionRole"].rpartition("/")[2]})
    return {"lifecyclePolicyArn": _kept(cloud, call, "lifecycle-policy")}


def _kept(cloud: CheckedAccount, call: Call, kind: str, version: str = "") -> str:
    """Keep a resource under the ARN that Image Builder makes from its name; return the ARN."""
    name = re.sub(r"[ _]", "-", call.params["name"].lower())
    if not re.fullmatch(r"[-a-z0-9]{3,128}", name):
        raise AwsError(
            "InvalidParameterValueException",
            f"The name {call.params['name']!r} has characters that are not allowed.",
            400,
        )
    arn = f"arn:aws:imagebuilder:{call.region}:{call.account}:{kind}/{name}{f'/{version}' if version else ''}"
    cloud.image_builder[arn] = {key: value for key, value in call.params.items() if key != "clientToken"}
    return arn


def _must_exist(cloud: CheckedAccount, arn: str) -> None:
    if arn not in cloud.image_builder:
        raise AwsError("InvalidParameterValueException", f"The resource {arn} does not exist.", 400)


RULES: Rules = {
    ("imagebuilder", "CreateComponent"): create_component,
    ("imagebuilder", "CreateImageRecipe"): create_image_recipe,
    ("imagebuilder", "CreateInfrastructureConfiguration"): create_infrastructure_configuration,
    ("imagebuilder", "CreateDistributionConfiguration"): create_distribution_configuration,
    ("imagebuilder", "CreateImagePipeline"): create_image_pipeline,
    ("imagebuilder", "CreateLifecyclePolicy"): create_lifecycle_policy,
}
