"""Baked images, if the setting `image_pipeline` names a type: an EC2 Image Builder pipeline.

It boots the image line's newest Deep Learning image, installs the environments by ami/install.sh, tests an
instance of the result with ami/smoke_test.py, and writes the image's id into an SSM parameter, from which
launches take it. Until there is one they boot the line itself. The two newest images stay: each has a billed
snapshot.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping

import pulumi
import pulumi_aws as aws

from infra import policies
from infra.identity import ServiceRole
from infra.image_policy import MANAGED, PARTS, image_builder, image_retention
from infra.launch_templates import ImageLine, root_disk
from infra.network import Network, https_out
from infra.packing import package_file
from infra.stack import Component, Stack
from trainer.aws.stack_outputs import baked_parameter, image_log, image_recipe
from trainer.base.code_files import DATA, code_files

SCHEDULE = "cron(0 4 1 * ? *)"  # 04:00 UTC on the first of each month
KEPT = 2  # images: the newest, and one to go back to
SMOKE_TEST = "trainer.train.smoke"
COMPONENTS = {"environment": "ami/build.yml", "smoke-test": "ami/test.yml"}


class BakedImages(Component):
    """The pipeline, with its role, its network rules, its components, and the removal of old images."""

    def __init__(
        self,
        name: str,
        stack: Stack,
        *,
        line: ImageLine,
        build_type: str,  # instance type of builds and tests
        volume_gib: int,
        bucket: pulumi.Input[str],
        network: Network,
    ) -> None:
        super().__init__(name, stack)
        recipe_name = image_recipe(stack.project, stack.name, line.name)
        log = aws.cloudwatch.LogGroup(
            f"{line.name}-builds",
            name=image_log(stack.project, stack.name, line.name),
            retention_in_days=stack.log_days,
            opts=self.importable,  # a build under way makes it again after the stack is gone
        )
        pipeline = aws.imagebuilder.ImagePipeline(
            line.name,
            name=recipe_name,
            image_recipe_arn=self._recipe(stack, recipe_name, line, volume_gib, bucket).arn,
            infrastructure_configuration_arn=self._machine(stack, recipe_name, build_type, network).arn,
            distribution_configuration_arn=self._distribution(stack, recipe_name, line).arn,
            schedule={
                "schedule_expression": SCHEDULE,
                "pipeline_execution_start_condition": "EXPRESSION_MATCH_ONLY",
            },
            image_tests_configuration={"image_tests_enabled": True, "timeout_minutes": 60},
            status="ENABLED",
            opts=pulumi.ResourceOptions.merge(self.child, pulumi.ResourceOptions(depends_on=[log])),
        )
        self._retention(stack, recipe_name)
        self.register_outputs({"pipeline_arn": pipeline.arn})

    def _recipe(
        self, stack: Stack, name: str, line: ImageLine, volume_gib: int, bucket: pulumi.Input[str]
    ) -> aws.imagebuilder.ImageRecipe:
        parts = zipped(image_parts())
        sha256 = hashlib.sha256(parts).hexdigest()
        uploaded = aws.s3.BucketObjectv2(
            "image-parts",
            bucket=bucket,
            key=f"{PARTS}{sha256}.zip",
            content_base64=base64.b64encode(parts).decode(),
            opts=self.child,
        )
        documents = {kind: package_file(file).read_text("utf-8") for kind, file in COMPONENTS.items()}
        components = {
            kind: aws.imagebuilder.Component(
                kind,
                name=f"{stack.prefix}-{kind}",
                platform="Linux",
                version=version_of(text),
                data=text,
                opts=self.child,
            )
            for kind, text in documents.items()
        }
        source = pulumi.Output.concat("s3://", bucket, "/", uploaded.key)
        return aws.imagebuilder.ImageRecipe(
            line.name,
            name=name,
            # A recipe never changes: its version follows from everything that it is made of.
            version=version_of(" ".join([line.parameter, str(volume_gib), sha256, *documents.values()])),
            parent_image=f"ssm:{line.parameter}",
            components=[
                {
                    "component_arn": components["environment"].arn,
                    "parameters": [
                        {"name": "Source", "value": source},
                        {"name": "Sha256", "value": sha256},
                    ],
                },
                {"component_arn": components["smoke-test"].arn},
            ],
            block_device_mappings=[{"device_name": line.root_device, "ebs": root_disk(volume_gib)}],
            opts=self.child,
        )

    def _machine(
        self, stack: Stack, name: str, build_type: str, network: Network
    ) -> aws.imagebuilder.InfrastructureConfiguration:
        role = ServiceRole(
            "image",
            stack,
            self.child,
            description="Image builds: fetch the parts, and what Image Builder needs.",
            trust=policies.trust("ec2.amazonaws.com"),
            policy=image_builder(stack),
            managed=MANAGED,
        )
        profile = aws.iam.InstanceProfile(
            "image", name=stack.role("image"), role=role.role_name, opts=self.child
        )
        # A group of its own: that of training instances lets SSH in where the setting `attach` says so.
        group = aws.ec2.SecurityGroup(
            "image-builds",
            name=f"{stack.prefix}-image-builds",
            description="Image builds: nothing in, HTTPS out.",
            vpc_id=network.vpc_id,
            ingress=[],
            egress=[https_out("S3, Systems Manager and package indexes")],
            tags={"Name": f"{stack.prefix}-image-builds"},
            opts=self.child,
        )
        return aws.imagebuilder.InfrastructureConfiguration(
            name,
            name=name,
            instance_profile_name=profile.name,
            instance_types=[build_type],
            instance_metadata_options={"http_tokens": "required", "http_put_response_hop_limit": 1},
            subnet_id=next(iter(network.subnet_ids.values())),
            security_group_ids=[group.id],
            terminate_instance_on_failure=True,
            # Not the stack's tags: the sweeper would end the build as an instance of theirs without a
            # deadline.
            resource_tags={"owner": stack.owner, "image_build": stack.prefix},
            opts=self.child,
        )

    def _distribution(
        self, stack: Stack, name: str, line: ImageLine
    ) -> aws.imagebuilder.DistributionConfiguration:
        image_name = f"{stack.prefix} {{{{ imagebuilder:buildDate }}}}"
        parameter = baked_parameter(stack.project, stack.name, line.name)
        return aws.imagebuilder.DistributionConfiguration(
            line.name,
            name=name,
            distributions=[
                {
                    "region": stack.region,
                    "ami_distribution_configuration": {"name": image_name, "ami_tags": stack.tags},
                    "ssm_parameter_configurations": [
                        {"parameter_name": parameter, "data_type": "aws:ec2:image"}
                    ],
                }
            ],
            opts=self.child,
        )

    def _retention(self, stack: Stack, recipe: str) -> None:
        own = {"StringEquals": {"aws:SourceAccount": stack.account}}
        role = ServiceRole(
            "image-retention",
            stack,
            self.child,
            description="Image Builder: delete old images of this stack.",
            trust=policies.trust("imagebuilder.amazonaws.com", own),
            policy=image_retention(stack, recipe=recipe),
        )
        aws.imagebuilder.LifecyclePolicy(
            recipe,
            name=recipe,
            description=f"Keep {KEPT} images.",
            execution_role=role.arn,
            resource_type="AMI_IMAGE",
            resource_selection={"recipes": [{"name": recipe, "semantic_version": "x.x.x"}]},
            policy_details=[
                {
                    "action": {"type": "DELETE", "include_resources": {"amis": True, "snapshots": True}},
                    "filter": {"type": "COUNT", "value": KEPT},
                }
            ],
            status="ENABLED",
            opts=self.child,
        )


def image_parts() -> dict[str, bytes]:
    """Return what a build needs: name -> content of the script, the locks, and the smoke test with the code
    that it runs.
    """
    names = (*DATA["trainer/node/agent.py"], "ami/smoke_test.py")
    return code_files([SMOKE_TEST]) | {name: package_file(name).read_bytes() for name in names}


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Return a zip of the same bytes for the same files: its name and its version follow from its hash."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)
    return memory.getvalue()


def version_of(text: str) -> str:
    """Return a semantic version that follows from a text: components and recipes can't be changed under one
    version.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"1.{int(digest[:7], 16)}.{int(digest[7:14], 16)}"
