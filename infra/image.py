"""Baked images, if the setting `image_pipeline` is on: an EC2 Image Builder pipeline for each image line.

A pipeline boots the line's newest Deep Learning image, installs the environments by ami/install.sh, tests an
instance of the result with ami/smoke_test.py, and writes the image's id into an SSM parameter, from which
launches take it. Until there is one they boot the line itself.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pulumi
import pulumi_aws as aws

from infra import policies
from infra.identity import ServiceRole, ServiceRoleArgs
from infra.image_lines import ImageLine
from infra.image_policy import LOG_GROUPS, PARTS, image_builder
from infra.image_retention import ImageRetention, ImageRetentionArgs
from infra.subnets import DEFAULT_ROUTE
from trainer.aws.stack_outputs import baked_parameter
from trainer.base.code_files import DATA, code_files, place_of

SCHEDULE = "cron(0 4 1 * ? *)"  # 04:00 UTC on the first of each month
ARM64_TYPE = "g5g.xlarge"  # the smallest arm64 type with a GPU
SMOKE_TEST = "trainer.train.smoke"
COMPONENTS = {"environment": "ami/build.yml", "smoke-test": "ami/test.yml"}


@dataclass(frozen=True, kw_only=True)
class ImagePipelinesArgs:
    account: str
    region: str
    project: str
    stack: str
    prefix: str
    bucket: pulumi.Input[str]
    bucket_name: str
    image_lines: tuple[ImageLine, ...]
    build_type: str  # instance type of x86_64 builds and tests
    volume_gib: int
    log_days: int
    vpc_id: pulumi.Input[str]
    subnet_id: pulumi.Input[str]
    tags: dict[str, str]


class ImagePipelines(pulumi.ComponentResource):
    """One pipeline for each image line, with the role, the network rules and the components that they
    share.
    """

    pipeline_arns: dict[str, pulumi.Output[str]]  # by image line

    def __init__(
        self, name: str, args: ImagePipelinesArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("mayfly:image:ImagePipelines", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, depends_on=opts.depends_on if opts else None)
        parts = zipped(image_parts())
        sha256 = hashlib.sha256(parts).hexdigest()
        uploaded = aws.s3.BucketObjectv2(
            "image-parts",
            bucket=args.bucket,
            key=f"{PARTS}{sha256}.zip",
            content_base64=base64.b64encode(parts).decode(),
            tags=args.tags,
            opts=child,
        )
        components = {kind: self._component(kind, args, child) for kind in COMPONENTS}
        role_name = f"{args.project}-{args.stack}-{args.region}-image"
        role = ServiceRole(
            "image",
            ServiceRoleArgs(
                role_name=role_name,
                description="Image builds: fetch the parts, log.",
                trust=policies.trust("ec2.amazonaws.com"),
                policy=image_builder(
                    account=args.account,
                    region=args.region,
                    bucket=args.bucket_name,
                    components=[component_name(args.prefix, kind) for kind in COMPONENTS],
                    recipes=[recipe_name(args.prefix, line) for line in args.image_lines],
                ),
                tags=args.tags,
            ),
            opts=pulumi.ResourceOptions(parent=self),
        )
        profile = aws.iam.InstanceProfile(
            "image", name=role_name, role=role.role_name, tags=args.tags, opts=child
        )
        # A group of its own: that of training instances lets SSH in where the setting `attach` says so.
        group = aws.ec2.SecurityGroup(
            "image-builds",
            name=f"{args.prefix}-image-builds",
            description="Image builds: nothing in, HTTPS out.",
            vpc_id=args.vpc_id,
            ingress=[],
            egress=[
                aws.ec2.SecurityGroupEgressArgs(
                    description="S3, Systems Manager and package indexes",
                    protocol="tcp",
                    from_port=443,
                    to_port=443,
                    cidr_blocks=[DEFAULT_ROUTE],
                )
            ],
            tags={**args.tags, "Name": f"{args.prefix}-image-builds"},
            opts=child,
        )
        source = pulumi.Output.concat("s3://", args.bucket, "/", uploaded.key)
        self.pipeline_arns = {
            line.name: self._pipeline(
                line, args, components, profile, group.id, {"Source": source, "Sha256": sha256}, child
            )
            for line in args.image_lines
        }
        ImageRetention(
            "retention",
            ImageRetentionArgs(
                account=args.account,
                region=args.region,
                project=args.project,
                stack=args.stack,
                recipes=tuple(recipe_name(args.prefix, line) for line in args.image_lines),
                tags=args.tags,
            ),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.register_outputs({"pipeline_arns": self.pipeline_arns})

    def _component(
        self, kind: str, args: ImagePipelinesArgs, opts: pulumi.ResourceOptions
    ) -> aws.imagebuilder.Component:
        document = place_of(COMPONENTS[kind], _package()).read_text(encoding="utf-8")
        return aws.imagebuilder.Component(
            kind,
            name=component_name(args.prefix, kind),
            platform="Linux",
            version=version_of(document),
            data=document,
            tags=args.tags,
            opts=opts,
        )

    def _pipeline(
        self,
        line: ImageLine,
        args: ImagePipelinesArgs,
        components: Mapping[str, aws.imagebuilder.Component],
        profile: aws.iam.InstanceProfile,
        group_id: pulumi.Input[str],
        parameters: Mapping[str, pulumi.Input[str]],
        opts: pulumi.ResourceOptions,
    ) -> pulumi.Output[str]:
        name = recipe_name(args.prefix, line)
        recipe = aws.imagebuilder.ImageRecipe(
            line.name,
            name=name,
            # A recipe never changes: its version follows from everything that it is made of.
            version=version_of(
                " ".join([line.parameter, str(args.volume_gib), str(parameters["Sha256"]), *_documents()])
            ),
            parent_image=f"ssm:{line.parameter}",
            components=[
                aws.imagebuilder.ImageRecipeComponentArgs(
                    component_arn=components["environment"].arn,
                    parameters=[
                        aws.imagebuilder.ImageRecipeComponentParameterArgs(name=key, value=value)
                        for key, value in parameters.items()
                    ],
                ),
                aws.imagebuilder.ImageRecipeComponentArgs(component_arn=components["smoke-test"].arn),
            ],
            block_device_mappings=[
                aws.imagebuilder.ImageRecipeBlockDeviceMappingArgs(
                    device_name=line.root_device,
                    ebs=aws.imagebuilder.ImageRecipeBlockDeviceMappingEbsArgs(
                        volume_size=args.volume_gib,
                        volume_type="gp3",
                        encrypted="true",
                        delete_on_termination="true",
                    ),
                )
            ],
            tags=args.tags,
            opts=opts,
        )
        log_group = aws.cloudwatch.LogGroup(
            f"{line.name}-builds",
            name=f"{LOG_GROUPS}{name}",
            retention_in_days=args.log_days,
            tags=args.tags,
            opts=opts,
        )
        infrastructure = aws.imagebuilder.InfrastructureConfiguration(
            line.name,
            name=name,
            instance_profile_name=profile.name,
            instance_types=[args.build_type if line.architecture == "x86_64" else ARM64_TYPE],
            instance_metadata_options=aws.imagebuilder.InfrastructureConfigurationInstanceMetadataOptionsArgs(
                http_tokens="required", http_put_response_hop_limit=1
            ),
            subnet_id=args.subnet_id,
            security_group_ids=[group_id],
            terminate_instance_on_failure=True,
            # Not the stack's tags: the sweeper would end the build as an instance of theirs without a
            # deadline.
            resource_tags={"owner": args.tags["owner"], "image_build": args.prefix},
            tags=args.tags,
            opts=opts,
        )
        distribution = aws.imagebuilder.DistributionConfiguration(
            line.name,
            name=name,
            distributions=[
                aws.imagebuilder.DistributionConfigurationDistributionArgs(
                    region=args.region,
                    ami_distribution_configuration=aws.imagebuilder.DistributionConfigurationDistributionAmiDistributionConfigurationArgs(
                        name=f"{args.prefix} {{{{ imagebuilder:buildDate }}}} {line.architecture}",
                        ami_tags=args.tags,
                    ),
                    ssm_parameter_configurations=[
                        aws.imagebuilder.DistributionConfigurationDistributionSsmParameterConfigurationArgs(
                            parameter_name=baked_parameter(args.project, args.stack, line.name),
                            data_type="aws:ec2:image",
                        )
                    ],
                )
            ],
            tags=args.tags,
            opts=opts,
        )
        pipeline = aws.imagebuilder.ImagePipeline(
            line.name,
            name=name,
            image_recipe_arn=recipe.arn,
            infrastructure_configuration_arn=infrastructure.arn,
            distribution_configuration_arn=distribution.arn,
            schedule=aws.imagebuilder.ImagePipelineScheduleArgs(
                schedule_expression=SCHEDULE, pipeline_execution_start_condition="EXPRESSION_MATCH_ONLY"
            ),
            image_tests_configuration=aws.imagebuilder.ImagePipelineImageTestsConfigurationArgs(
                image_tests_enabled=True, timeout_minutes=60
            ),
            status="ENABLED",
            tags=args.tags,
            opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[log_group])),
        )
        return pipeline.arn


def component_name(prefix: str, kind: str) -> str:
    """Return the name of one of the components that the pipelines share."""
    return f"{prefix}-{kind}"


def recipe_name(prefix: str, line: ImageLine) -> str:
    """Return the name of a line's recipe, which its log has, too. Image Builder's names have no dots."""
    return f"{prefix}-{line.name.replace('.', '-')}"


def image_parts() -> dict[str, bytes]:
    """Return what a build needs: name -> content of the script, the locks, and the smoke test with the code
    that it runs.
    """
    folder = _package()
    names = (*DATA["trainer/node/agent.py"], "ami/smoke_test.py")
    return code_files([SMOKE_TEST], package=folder) | {
        name: place_of(name, folder).read_bytes() for name in names
    }


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


def _documents() -> list[str]:
    return [place_of(name, _package()).read_text(encoding="utf-8") for name in COMPONENTS.values()]


def _package() -> Path:
    """Return the folder of the package `trainer`, without importing it."""
    spec = importlib.util.find_spec("trainer")
    if spec is None or not spec.submodule_search_locations:
        raise pulumi.RunError("The package `trainer` is not installed. Run `make setup`.")
    return Path(next(iter(spec.submodule_search_locations)))
