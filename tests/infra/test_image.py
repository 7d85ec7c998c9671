"""The image pipeline, as the program registers it where the setting is on; and that nothing of it is there
where it is off.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest
from pulumi.runtime.mocks import set_mocks

from infra.image import KEPT, BakedImages, image_parts, version_of, zipped
from infra.image_policy import image_builder
from infra.launch_templates import ImageLine
from infra.policies import allow, document
from tests.aws.iam_policies import Authorization, decide, read_policy
from tests.iam import assert_known_to_aws
from tests.infra.program import STACK, Recorded, Recorder, RecordingMonitor
from trainer.aws.stack_outputs import baked_parameter, script_secrets_path, secrets_path, webhook_parameter

BUILDER = "aws:imagebuilder/"
LINE = ImageLine(name="line-2.13", parameter="/aws/line", root_device="/dev/xvda")
RECIPE = "mayfly-dev-line-2-13"


@pytest.fixture(scope="module")
def pipeline(program: Recorded) -> Recorded:
    """Register the component alone, after the program has run."""
    recorded = Recorded()
    mocks = Recorder(recorded)
    set_mocks(mocks, project="mayfly", stack="dev", preview=False, monitor=RecordingMonitor(mocks, recorded))
    network: Any = SimpleNamespace(vpc_id="vpc-1", subnet_ids={"eu-west-1a": "subnet-1"})

    def build() -> None:
        given = {"line": LINE, "build_type": "g4dn.12xlarge", "volume_gib": 100, "bucket": STACK.bucket}
        BakedImages("images", STACK, network=network, **given)

    pulumi.runtime.test(build)()
    return recorded


def test_without_the_setting_nothing_of_it_is_in_the_stack(program: Recorded) -> None:
    assert not [one.typ for one in program.resources if one.typ.startswith((BUILDER, "aws:s3/bucketObject"))]
    assert not any(subnet["mapPublicIpOnLaunch"] for subnet in program.all("aws:ec2/subnet:Subnet"))
    assert program.outputs["image_pipeline"] is False


def test_the_pipeline_builds_on_the_type_of_the_setting(pipeline: Recorded) -> None:
    recipe = pipeline.inputs(f"{BUILDER}imageRecipe:ImageRecipe")
    assert (recipe["name"], recipe["parentImage"]) == (RECIPE, "ssm:/aws/line")
    (disk,) = recipe["blockDeviceMappings"]
    assert disk["deviceName"] == "/dev/xvda"
    assert (disk["ebs"]["encrypted"], disk["ebs"]["deleteOnTermination"]) == ("true", "true")
    assert len(recipe["components"]) == 2
    parameters = {one["name"]: one["value"] for one in recipe["components"][0]["parameters"]}
    assert parameters["Source"] == f"s3://{STACK.bucket}/images/{parameters['Sha256']}.zip"
    machine = pipeline.inputs(f"{BUILDER}infrastructureConfiguration:InfrastructureConfiguration")
    assert (machine["instanceTypes"], machine["subnetId"]) == (["g4dn.12xlarge"], "subnet-1")


def test_a_build_is_tested_and_its_id_goes_where_launches_look(pipeline: Recorded) -> None:
    made = pipeline.inputs(f"{BUILDER}imagePipeline:ImagePipeline")
    assert made["imageTestsConfiguration"]["imageTestsEnabled"] is True and made["status"] == "ENABLED"
    assert made["schedule"]["pipelineExecutionStartCondition"] == "EXPRESSION_MATCH_ONLY"
    sent = pipeline.inputs(f"{BUILDER}distributionConfiguration:DistributionConfiguration")
    (distribution,) = sent["distributions"]
    (parameter,) = distribution["ssmParameterConfigurations"]
    name = baked_parameter("mayfly", "dev", "line-2.13")
    assert parameter == {"parameterName": name, "dataType": "aws:ec2:image"}
    assert distribution["amiDistributionConfiguration"]["amiTags"] == STACK.tags
    # Image Builder's own role may write parameters below this path alone, so that no role of ours has to.
    assert baked_parameter("mayfly", "dev", "x").startswith("/imagebuilder/")


def test_an_image_build_is_closed_has_imdsv2_and_ends(pipeline: Recorded) -> None:
    group = pipeline.inputs("aws:ec2/securityGroup:SecurityGroup")
    assert group["ingress"] == [] and [rule["fromPort"] for rule in group["egress"]] == [443]
    machine = pipeline.inputs(f"{BUILDER}infrastructureConfiguration:InfrastructureConfiguration")
    assert machine["instanceMetadataOptions"] == {"httpTokens": "required", "httpPutResponseHopLimit": 1}
    assert machine["terminateInstanceOnFailure"] is True and "keyPair" not in machine
    # The sweeper ends what has the stack's tags and no deadline, and a build has none: Image Builder ends
    # its instances.
    assert machine["resourceTags"] == {"owner": "mayfly", "image_build": "mayfly-dev"}


def test_everything_is_tagged_and_belongs_to_the_component(pipeline: Recorded) -> None:
    for resource in pipeline.resources:
        if not resource.typ.startswith("aws:iam/rolePolicy"):
            assert STACK.tags.items() <= resource.inputs["tags"].items(), resource.typ
    (component,) = [urn for urn, one in pipeline.urns.items() if one.type == "mayfly:image:BakedImages"]
    for urn, request in pipeline.urns.items():
        while request.type.startswith(("aws:", "mayfly:identity")):
            urn, request = request.parent, pipeline.urns[request.parent]
        assert urn == component or request.type == "pulumi:pulumi:Stack"


def test_the_builds_role_has_what_image_builder_asks_for(pipeline: Recorded) -> None:
    attached = pipeline.all("aws:iam/rolePolicyAttachment:RolePolicyAttachment")
    wanted = ("AmazonSSMManagedInstanceCore", "EC2InstanceProfileForImageBuilder")
    assert [one["policyArn"] for one in attached] == [f"arn:aws:iam::aws:policy/{name}" for name in wanted]
    profile, role = "aws:iam/instanceProfile:InstanceProfile", "aws:iam/role:Role"
    assert pipeline.inputs(profile)["role"] == pipeline.inputs(role, "image")["name"]
    # Without them an image can't be built, and Pulumi makes what does not wait side by side.
    assert pipeline.outlives("aws:iam/rolePolicyAttachment:RolePolicyAttachment", profile)


def test_the_builds_role_reads_own_parts_and_changes_nothing(pipeline: Recorded) -> None:
    written = json.loads(pipeline.inputs("aws:iam/rolePolicy:RolePolicy", "image")["policy"])
    assert written == image_builder(STACK)
    allowed = [one for one in written["Statement"] if one["Effect"] == "Allow"]
    reads = [(one["Action"], one["Resource"]) for one in allowed]
    assert reads == [("s3:GetObject", STACK.objects("images/*"))]
    assert_known_to_aws(written)
    trusted = json.loads(pipeline.inputs("aws:iam/role:Role", "image")["assumeRolePolicy"])["Statement"]
    assert [one["Principal"] for one in trusted] == [{"Service": "ec2.amazonaws.com"}]


# Of AmazonSSMManagedInstanceCore, what concerns parameters (AWS managed policy reference, 2026-11-24).
CORE = document(allow("", ["ssm:GetParameter", "ssm:GetParameters"], "*"))


@pytest.mark.parametrize("action", ["ssm:GetParameter", "ssm:GetParameters"])
@pytest.mark.parametrize("of_stack", ["dev", "prod"])
def test_image_builds_read_no_secret_of_any_stack(action: str, of_stack: str) -> None:
    policies = [read_policy("core", json.dumps(CORE)), read_policy("own", json.dumps(image_builder(STACK)))]

    def may_read(parameter: str) -> bool:
        return decide(policies, Authorization(action=action, resource=parameter), {}).allowed

    account = f"arn:aws:ssm:eu-west-1:{STACK.account}:parameter"
    for name in (secrets_path("mayfly", of_stack), script_secrets_path("mayfly", of_stack)):
        assert not may_read(f"{account}{name}API_KEY")
    assert not may_read(f"{account}{webhook_parameter('mayfly', of_stack)}")
    assert may_read("arn:aws:ssm:eu-west-1::parameter/aws/service/deeplearning/x")  # of no account


def test_builds_decrypt_the_parts_where_the_bucket_has_a_key() -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:key/1234abcd"
    *others, use = image_builder(replace(STACK, kms_key=key))["Statement"]
    assert others == image_builder(STACK)["Statement"]
    assert (use["Action"], use["Resource"]) == ("kms:Decrypt", key)


def test_old_images_of_the_stack_alone_are_deleted(pipeline: Recorded) -> None:
    policy = pipeline.inputs(f"{BUILDER}lifecyclePolicy:LifecyclePolicy")
    (recipe,) = policy["resourceSelection"]["recipes"]
    assert recipe == {"name": RECIPE, "semanticVersion": "x.x.x"}  # every version, as the recipe changes
    (detail,) = policy["policyDetails"]
    assert detail["action"] == {"type": "DELETE", "includeResources": {"amis": True, "snapshots": True}}
    assert detail["filter"] == {"type": "COUNT", "value": KEPT}
    written = json.loads(pipeline.inputs("aws:iam/rolePolicy:RolePolicy", "image-retention")["policy"])
    statements = {one["Sid"]: one for one in written["Statement"]}
    images = f"arn:aws:imagebuilder:eu-west-1:123456789012:image/{RECIPE}/*/*"
    assert statements["DeleteOwnImages"]["Resource"] == images
    tags = statements["DeregisterOwnImages"]["Condition"]["StringEquals"]
    assert tags["aws:ResourceTag/project"] == "mayfly" and tags["aws:ResourceTag/stack"] == "dev"
    assert_known_to_aws(written)


def test_zips_and_versions_follow_from_their_content() -> None:
    files = image_parts()
    assert zipped(files) == zipped(dict(reversed(files.items())))
    assert zipfile.ZipFile(io.BytesIO(zipped(files))).testzip() is None
    one, other = version_of("a"), version_of("b")
    assert one == version_of("a") != other
    assert all(int(node) < 2**30 for node in one.split("."))  # Image Builder's limit for each


def test_no_policy_names_baked_images_without_a_pipeline(program: Recorded) -> None:
    policies: list[dict[str, Any]] = program.all("aws:iam/policy:Policy")
    assert not [one for one in policies if "imagebuilder" in one["policy"]]
