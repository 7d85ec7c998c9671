"""The image pipeline, as the program registers it where the setting is on; and that nothing of it is there
where it is off.
"""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import pulumi
import pytest
from pulumi.runtime.mocks import set_mocks

from infra.image import ARM64_TYPE, ImagePipelines, ImagePipelinesArgs, image_parts, version_of, zipped
from infra.image_lines import ImageLine
from infra.image_policy import image_builder
from infra.image_retention import KEPT
from tests.iam import condition_keys, kind_of, listed
from tests.infra.program import Recorded, Recorder, RecordingMonitor
from trainer.aws.stack_outputs import baked_parameter

BUILDER = "aws:imagebuilder/"
X86 = ImageLine(name="line-2.13", parameter="/aws/x86", root_device="/dev/sda1")
ARM = ImageLine(name="line-2.13-arm64", parameter="/aws/arm", root_device="/dev/xvda")
TAGS = {"project": "mayfly", "stack": "dev", "owner": "me"}


@pytest.fixture(scope="module")
def pipelines(program: Recorded) -> Recorded:
    """Register the component alone, for a line of each architecture, after the program has run."""
    recorded = Recorded()
    mocks = Recorder(recorded)
    set_mocks(mocks, project="mayfly", stack="dev", preview=False, monitor=RecordingMonitor(mocks, recorded))

    def build() -> None:
        ImagePipelines(
            "images",
            ImagePipelinesArgs(
                account="123456789012",
                region="eu-west-1",
                project="mayfly",
                stack="dev",
                prefix="mayfly-dev",
                bucket="store",
                bucket_name="store",
                image_lines=(X86, ARM),
                build_type="g4dn.12xlarge",
                volume_gib=100,
                log_days=30,
                vpc_id="vpc-1",
                subnet_id="subnet-1",
                tags=TAGS,
            ),
        )

    pulumi.runtime.test(build)()
    return recorded


def test_without_the_setting_nothing_of_it_is_in_the_stack(program: Recorded) -> None:
    assert not [one.typ for one in program.resources if one.typ.startswith((BUILDER, "aws:s3/bucketObject"))]
    assert not any(subnet["mapPublicIpOnLaunch"] for subnet in program.all("aws:ec2/subnet:Subnet"))
    assert program.outputs["image_pipeline"] is False


def test_each_line_has_a_pipeline_of_its_own_on_a_type_of_its_architecture(pipelines: Recorded) -> None:
    recipes = pipelines.all(f"{BUILDER}imageRecipe:ImageRecipe")
    assert [recipe["parentImage"] for recipe in recipes] == ["ssm:/aws/x86", "ssm:/aws/arm"]
    assert [recipe["blockDeviceMappings"][0]["deviceName"] for recipe in recipes] == [
        "/dev/sda1",
        "/dev/xvda",
    ]
    types = [
        one["instanceTypes"]
        for one in pipelines.all(f"{BUILDER}infrastructureConfiguration:InfrastructureConfiguration")
    ]
    assert types == [["g4dn.12xlarge"], [ARM64_TYPE]]
    names = [one["name"] for one in pipelines.all(f"{BUILDER}imagePipeline:ImagePipeline")]
    assert names == ["mayfly-dev-line-2-13", "mayfly-dev-line-2-13-arm64"]


def test_a_build_is_tested_and_its_id_goes_where_launches_look(pipelines: Recorded) -> None:
    for pipeline in pipelines.all(f"{BUILDER}imagePipeline:ImagePipeline"):
        assert (
            pipeline["imageTestsConfiguration"]["imageTestsEnabled"] is True
            and pipeline["status"] == "ENABLED"
        )
        assert pipeline["schedule"]["pipelineExecutionStartCondition"] == "EXPRESSION_MATCH_ONLY"
    (distribution,) = pipelines.all(f"{BUILDER}distributionConfiguration:DistributionConfiguration")[0][
        "distributions"
    ]
    assert distribution["ssmParameterConfigurations"] == [
        {"parameterName": baked_parameter("mayfly", "dev", "line-2.13"), "dataType": "aws:ec2:image"}
    ]
    # Image Builder's own role may write parameters below this path alone, so that no role of ours has to.
    assert baked_parameter("mayfly", "dev", "x").startswith("/imagebuilder/")
    for recipe in pipelines.all(f"{BUILDER}imageRecipe:ImageRecipe"):
        assert len(recipe["components"]) == 2
        parameters = {one["name"]: one["value"] for one in recipe["components"][0]["parameters"]}
        assert parameters["Source"] == f"s3://store/images/{parameters['Sha256']}.zip"


def test_nobody_reaches_an_instance_that_builds_and_it_has_imdsv2_and_ends(pipelines: Recorded) -> None:
    group = pipelines.inputs("aws:ec2/securityGroup:SecurityGroup")
    assert group["ingress"] == [] and [rule["fromPort"] for rule in group["egress"]] == [443]
    for one in pipelines.all(f"{BUILDER}infrastructureConfiguration:InfrastructureConfiguration"):
        assert one["instanceMetadataOptions"] == {"httpTokens": "required", "httpPutResponseHopLimit": 1}
        assert one["terminateInstanceOnFailure"] is True and "keyPair" not in one
        # The sweeper ends what has the stack's tags and no deadline, and a build has none: Image Builder ends
        # its instances.
        assert one["resourceTags"] == {"owner": "me", "image_build": "mayfly-dev"}
    ebs = [
        recipe["blockDeviceMappings"][0]["ebs"]
        for recipe in pipelines.all(f"{BUILDER}imageRecipe:ImageRecipe")
    ]
    assert all(one["encrypted"] == "true" and one["deleteOnTermination"] == "true" for one in ebs)


def test_everything_is_tagged_and_belongs_to_the_component(pipelines: Recorded) -> None:
    for resource in pipelines.resources:
        if resource.typ not in ("aws:iam/rolePolicy:RolePolicy",):
            assert TAGS.items() <= resource.inputs["tags"].items(), resource.typ
    (component,) = [urn for urn, one in pipelines.urns.items() if one.type == "mayfly:image:ImagePipelines"]
    for urn, request in pipelines.urns.items():
        while request.type.startswith(("aws:", "mayfly:identity", "mayfly:image_retention")):
            urn, request = request.parent, pipelines.urns[request.parent]
        assert urn == component or request.type == "pulumi:pulumi:Stack"


def test_the_role_reads_parts_and_components_of_this_stack_and_can_start_or_change_nothing(
    pipelines: Recorded,
) -> None:
    written = json.loads(pipelines.inputs("aws:iam/rolePolicy:RolePolicy", "image")["policy"])
    names = {"components": ["mayfly-dev-environment", "mayfly-dev-smoke-test"]}
    names["recipes"] = ["mayfly-dev-line-2-13", "mayfly-dev-line-2-13-arm64"]
    assert written == image_builder(account="123456789012", region="eu-west-1", bucket="store", **names)
    allowed = {action for one in written["Statement"] for action in listed(one["Action"])}
    assert {action.partition(":")[0] for action in allowed} == {
        "s3",
        "imagebuilder",
        "logs",
        "ssm",
        "ssmmessages",
    }
    assert not [
        action
        for action in allowed
        if any(verb in action for verb in ("Delete", "Terminate", "Run", "Pass", "PutObject"))
    ]
    for statement in written["Statement"]:
        for action in listed(statement["Action"]):
            for resource in listed(statement["Resource"]):
                assert resource != "*" or statement["Sid"].endswith("HasNoResource")
                if resource != "*":
                    assert condition_keys(action, kind_of(action, resource)) is not None
    trusted = json.loads(pipelines.inputs("aws:iam/role:Role", "image")["assumeRolePolicy"])["Statement"]
    assert [one["Principal"] for one in trusted] == [{"Service": "ec2.amazonaws.com"}]


def test_old_images_are_deleted_with_their_snapshots_by_a_role_that_reaches_this_stacks_alone(
    pipelines: Recorded,
) -> None:
    for policy in pipelines.all(f"{BUILDER}lifecyclePolicy:LifecyclePolicy"):
        (recipe,) = policy["resourceSelection"]["recipes"]
        assert recipe == {
            "name": policy["name"],
            "semanticVersion": "x.x.x",
        }  # of every version, as the recipe changes
        (detail,) = policy["policyDetails"]
        assert detail["action"] == {"type": "DELETE", "includeResources": {"amis": True, "snapshots": True}}
        assert detail["filter"] == {"type": "COUNT", "value": KEPT}
    written = json.loads(pipelines.inputs("aws:iam/rolePolicy:RolePolicy", "image-retention")["policy"])
    statements = {one["Sid"]: one for one in written["Statement"]}
    names = [recipe["name"] for recipe in pipelines.all(f"{BUILDER}imageRecipe:ImageRecipe")]
    images = [f"arn:aws:imagebuilder:eu-west-1:123456789012:image/{name}/*/*" for name in names]
    assert statements["DeleteOwnImages"]["Resource"] == images
    tags = statements["DeregisterOwnImages"]["Condition"]["StringEquals"]
    assert tags["aws:ResourceTag/project"] == "mayfly" and tags["aws:ResourceTag/stack"] == "dev"
    for statement in written["Statement"]:
        for action in listed(statement["Action"]):
            for resource in listed(statement["Resource"]):
                keys = {key.lower() for named in statement.get("Condition", {}).values() for key in named}
                known = condition_keys(action, kind_of(action, resource))
                assert {key.partition("/")[0] + "/" for key in keys} <= known


def test_a_zip_has_the_same_bytes_for_the_same_files_and_a_version_follows_from_its_text() -> None:
    files = image_parts()
    assert zipped(files) == zipped(dict(reversed(files.items())))
    assert zipfile.ZipFile(io.BytesIO(zipped(files))).testzip() is None
    one, other = version_of("a"), version_of("b")
    assert one == version_of("a") != other
    assert all(int(node) < 2**30 for node in one.split("."))  # Image Builder's limit for each


def test_the_policies_of_launchers_name_the_baked_parameters_where_there_are_any(program: Recorded) -> None:
    policies: list[dict[str, Any]] = program.all("aws:iam/policy:Policy")
    assert not [one for one in policies if "imagebuilder" in one["policy"]]
