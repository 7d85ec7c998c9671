"""Launch templates: everything of an instance except what a launch decides (type, zone, market, image id,
tags).

User data belongs to the template, since CreateFleet can't override it. It is the same for every run; tags
carry the rest.
"""

from __future__ import annotations

import base64
import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pulumi
import pulumi_aws as aws

from infra.image_lines import ImageLine

# EC2 user guide, "User data": 16 KB before base64 (looked up 2026-11-20). A template may hold more, but can't
# be launched.
USER_DATA_LIMIT_BYTES = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class LaunchTemplatesArgs:
    prefix: str
    purpose: str  # in the templates' descriptions
    image_lines: tuple[ImageLine, ...]
    user_data: pulumi.Input[str]
    instance_profile_arn: pulumi.Input[str]
    security_group_id: pulumi.Input[str]
    public_address: bool  # the way out of a subnet whose route leads to an internet gateway
    ipv6: bool
    volume_gib: int
    tags: dict[str, str]


class LaunchTemplates(pulumi.ComponentResource):
    """One launch template for each line of images."""

    template_ids: dict[str, pulumi.Output[str]]  # by image line

    def __init__(
        self, name: str, args: LaunchTemplatesArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("mayfly:launch_templates:LaunchTemplates", name, None, opts)
        # Children don't inherit what their component depends on.
        child = pulumi.ResourceOptions(parent=self, depends_on=opts.depends_on if opts else None)
        self.template_ids = {line.name: _template(name, line, args, child).id for line in args.image_lines}
        self.register_outputs({"template_ids": self.template_ids})


def _template(
    name: str, line: ImageLine, args: LaunchTemplatesArgs, opts: pulumi.ResourceOptions
) -> aws.ec2.LaunchTemplate:
    return aws.ec2.LaunchTemplate(
        f"{name}-{line.name}",
        name=f"{args.prefix}-{line.name}",
        description=f"{args.purpose} on {line.name}",
        update_default_version=True,
        user_data=pulumi.Output.from_input(args.user_data).apply(
            lambda text: base64.b64encode(text.encode()).decode()
        ),
        iam_instance_profile=aws.ec2.LaunchTemplateIamInstanceProfileArgs(arn=args.instance_profile_arn),
        # A power-off from inside ends the instance, on spot too (which refuses only `stop`).
        instance_initiated_shutdown_behavior="terminate",
        metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(
            http_endpoint="enabled",
            http_tokens="required",
            http_put_response_hop_limit=1,
            instance_metadata_tags="enabled",  # how the bootstrap learns run, attempt, deadline and bundle
        ),
        block_device_mappings=[
            aws.ec2.LaunchTemplateBlockDeviceMappingArgs(
                device_name=line.root_device,
                ebs=aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
                    volume_size=args.volume_gib,
                    volume_type="gp3",
                    encrypted="true",
                    delete_on_termination="true",
                ),
            )
        ],
        network_interfaces=[
            aws.ec2.LaunchTemplateNetworkInterfaceArgs(
                device_index=0,
                associate_public_ip_address="true" if args.public_address else "false",
                ipv6_address_count=1 if args.ipv6 else None,
                delete_on_termination="true",
                security_groups=[args.security_group_id],
            )
        ],
        # A launch adds the run's tags to these. What is started by hand from this template is still found by
        # the sweeper.
        tag_specifications=[
            aws.ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=args.tags)
            for kind in ("instance", "volume", "network-interface")
        ],
        tags=args.tags,
        opts=opts,
    )


def bootstrap_template() -> str:
    """Return the text of trainer/node/bootstrap.sh, from the checkout or the installed package, without
    importing either.
    """
    package = importlib.util.find_spec("trainer")
    if package is None or not package.submodule_search_locations:
        raise pulumi.RunError(
            "The package `trainer` is not installed. Run `pip install -e .` in the project's folder."
        )
    return (Path(next(iter(package.submodule_search_locations))) / "node" / "bootstrap.sh").read_text(
        encoding="utf-8"
    )


def render_user_data(
    template: str,
    *,
    bucket: str,
    region: str,
    project: str,
    cap_minutes: int,
    lock: str,
    file_system: str = "",
) -> str:
    """Fill in the bootstrap's placeholders; `lock` is the file in trainer/node that names what it installs.

    `file_system` is the cache's "<file system>:<access point>", "" without one. Raises pulumi.RunError for a
    placeholder that is unknown or left over, or for more than 16 KB.
    """
    values = {
        "BUCKET": bucket,
        "REGION": region,
        "PROJECT": project,
        "CAP_MINUTES": str(cap_minutes),
        "LOCK": lock,
    }
    values |= {"FILE_SYSTEM": file_system}
    text = template
    for key, value in values.items():
        text = text.replace(f"@@{key}@@", value)
    if left := _placeholders(text):
        raise pulumi.RunError(f"bootstrap.sh has placeholders that nothing fills in: {', '.join(left)}.")
    if (size := len(text.encode())) > USER_DATA_LIMIT_BYTES:
        raise pulumi.RunError(
            f"User data takes {size} bytes; EC2 allows {USER_DATA_LIMIT_BYTES}. Shorten bootstrap.sh."
        )
    return text


def _placeholders(text: str) -> Iterable[str]:
    return sorted(set(re.findall(r"@@\w*@?@?", text)))
