"""Launch templates: everything of an instance except what a launch decides (type, zone, market, image id,
tags).

User data belongs to the template, since CreateFleet can't override it. It is the same for every run; tags
carry the rest.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.efs import EfsCache
from infra.identity import Identity
from infra.network import Network
from infra.packing import package_file
from infra.stack import Component, Stack

# EC2 user guide, "User data": 16 KB before base64 (looked up 2026-11-20). A template may hold more, but can't
# be launched.
USER_DATA_LIMIT_BYTES = 16 * 1024
# After its boot, the instance of a prepare or score run powers itself off whatever happens.
PREPARE_MINUTES, SCORE_MINUTES = 30, 120
# Of a training's root volume: the first import of torch reads thousands of files, some gigabytes, on a billed
# machine. 3,000 IOPS and 125 MB/s are free; these add $0.027 an hour (trainer/machines/storage.py).
TRAINING_RATES = {"iops": 4000, "throughput": 500}
OPEN = "open"  # any open capacity reservation that matches: what AWS does where a template says nothing
ONE_RESERVATION = r"cr-[0-9a-f]{8,17}"
GROUP_OF_RESERVATIONS = r"arn:aws[a-z-]*:resource-groups:[a-z0-9-]+:\d{12}:group/[\w.-]{1,128}"
_DLAMI_PARAMETER = "/aws/service/deeplearning/ami/x86_64/{line}/latest/ami-id"


@dataclass(frozen=True, kw_only=True)
class ImageLine:
    """A line of machine images that AWS keeps rebuilding. Each launch looks up the newest image again."""

    name: str
    parameter: str  # SSM parameter that holds the newest image's id
    root_device: str  # a wrong name would add a second volume and leave the root at its default size


def read_image_line(name: str) -> ImageLine:
    """Read a line of Deep Learning AMIs. Raises pulumi.RunError."""
    parameter = _DLAMI_PARAMETER.format(line=name)
    try:
        image_id = aws.ssm.get_parameter(name=parameter).insecure_value
        image = aws.ec2.get_ami(owners=["amazon"], filters=[{"name": "image-id", "values": [image_id]}])
    except Exception as error:  # Pulumi raises no narrower class where a look-up fails
        raise pulumi.RunError(
            f"Setting 'image_line' is '{name}', whose image can't be read from {parameter} ({error}). "
            "Change it with `pulumi config set`."
        ) from error
    return ImageLine(name=name, parameter=parameter, root_device=image.root_device_name)


class LaunchTemplates(Component):
    """The launch templates of trainings, of prepare runs and of score runs, and those of trainings on several
    machines.
    """

    training: pulumi.Output[str]  # its id
    prepare: pulumi.Output[str]
    score: pulumi.Output[str]
    cluster: dict[str, pulumi.Output[str]]  # by the names of the network's cluster groups

    def __init__(
        self,
        name: str,
        stack: Stack,
        opts: pulumi.ResourceOptions,
        *,
        line: ImageLine,
        volume_gib: int,
        cap_minutes: int,  # after its boot, a training's instance powers itself off
        reservation: str,  # the setting capacity_reservation
        identity: Identity,
        network: Network,
        cache: EfsCache | None,
    ) -> None:
        super().__init__(name, stack, opts)
        boot = partial(user_data, stack, cap_minutes=cap_minutes, lock="requirements.lock")
        training: dict[str, Any] = {
            "user_data": cache.source.apply(lambda source: boot(file_system=source)) if cache else boot(),
            "profile": identity.instance_profile,
            "network": network,
            "disk": root_disk(volume_gib, **TRAINING_RATES),
            **in_reservation(reservation),
        }
        self.training = self._template(
            "training", stack, line, description=f"Training instances on {line.name}", **training
        )
        self.cluster = {
            name: self._template(
                f"cluster-{name}",
                stack,
                line,
                description=f"Training instances of several machines a run on {line.name}",
                also_in=(group,),
                **training,
            )
            for name, group in network.cluster_group_ids.items()
        }
        self.prepare = self._template(
            "prepare",
            stack,
            line,
            description=f"Prepare runs' instances on {line.name}",
            user_data=user_data(stack, cap_minutes=PREPARE_MINUTES, lock="prepare.lock"),
            profile=identity.prepare_profile,
            network=network,
            disk=root_disk(volume_gib),  # it imports no torch
        )
        self.score = self._template(
            "score",
            stack,
            line,
            description=f"Score runs' instances on {line.name}",
            user_data=user_data(stack, cap_minutes=SCORE_MINUTES, lock="requirements.lock"),
            profile=identity.score_profile,
            network=network,
            disk=root_disk(volume_gib),
        )
        made = {"training": self.training, "prepare": self.prepare, "score": self.score, **self.cluster}
        self.register_outputs(made)

    def _template(
        self,
        purpose: str,
        stack: Stack,
        line: ImageLine,
        *,
        description: str,
        user_data: pulumi.Input[str],
        profile: aws.iam.InstanceProfile,
        network: Network,
        disk: Any,
        also_in: Sequence[pulumi.Input[str]] = (),  # further security groups
        **more: Any,
    ) -> pulumi.Output[str]:
        infix = "" if purpose == "training" else f"-{purpose}"
        template = aws.ec2.LaunchTemplate(
            f"{purpose}-{line.name}",
            name=f"{stack.prefix}{infix}-{line.name}",
            description=description,
            update_default_version=True,
            user_data=pulumi.Output.from_input(user_data).apply(
                lambda text: base64.b64encode(text.encode()).decode()
            ),
            iam_instance_profile={"arn": profile.arn},
            # A power-off from inside ends the instance, on spot too (which refuses only `stop`).
            instance_initiated_shutdown_behavior="terminate",
            metadata_options={
                "http_endpoint": "enabled",
                "http_tokens": "required",
                "http_put_response_hop_limit": 1,
                "instance_metadata_tags": "enabled",  # by which the bootstrap learns run, deadline and bundle
            },
            block_device_mappings=[{"device_name": line.root_device, "ebs": disk}],
            network_interfaces=[
                {
                    "device_index": 0,
                    "associate_public_ip_address": "true" if network.public_address else "false",
                    "delete_on_termination": "true",
                    "security_groups": [network.security_group_id, *also_in],
                }
            ],
            # A launch adds the run's tags to these. What is started by hand from this template is still found
            # by the sweeper.
            tag_specifications=[
                {"resource_type": kind, "tags": stack.tags}
                for kind in ("instance", "volume", "network-interface")
            ],
            opts=self.child,
            **more,
        )
        return template.id


def in_reservation(reservation: str) -> dict[str, Any]:
    """Return the arguments of a template whose instances run in a named capacity reservation or in one of a
    group; {} for `open`, AWS's own default, which spot has no use for.
    """
    if reservation == OPEN:
        return {}
    name = "id" if re.fullmatch(ONE_RESERVATION, reservation) else "resource_group_arn"
    target = {f"capacity_reservation_{name}": reservation}
    return {"capacity_reservation_specification": {"capacity_reservation_target": target}}


def root_disk(volume_gib: int, **rates: int) -> Any:
    """Return an encrypted root volume that goes with its instance; `rates`: iops and throughput (MB/s), where
    they are not gp3's own.
    """
    size = {"volume_size": volume_gib, "volume_type": "gp3", **rates}
    return {**size, "encrypted": "true", "delete_on_termination": "true"}


def user_data(stack: Stack, *, cap_minutes: int, lock: str, file_system: str = "") -> str:
    """Return trainer/node/bootstrap.sh for a stack; `lock` is the file in trainer/node that names what it
    installs, `file_system` the cache's "<file system>:<access point>".
    """
    values = {"BUCKET": stack.bucket, "REGION": stack.region, "PROJECT": stack.project}
    values |= {"CAP_MINUTES": str(cap_minutes), "LOCK": lock, "FILE_SYSTEM": file_system}
    return filled_in(without_comments(package_file("trainer/node/bootstrap.sh").read_text("utf-8")), values)


def without_comments(script: str) -> str:
    """Return a script without the lines that are comments, for which user data has no room."""
    return re.sub(r"(?m)^ *#(?!!).*\n", "", script)


def filled_in(template: str, values: Mapping[str, str]) -> str:
    """Fill in a template's placeholders. Raises pulumi.RunError for one that is unknown or left over, or for
    more than 16 KB.
    """
    text = template
    for key, value in values.items():
        text = text.replace(f"@@{key}@@", value)
    if left := sorted(set(re.findall(r"@@\w*@?@?", text))):
        raise pulumi.RunError(f"bootstrap.sh has placeholders that nothing fills in: {', '.join(left)}.")
    if (size := len(text.encode())) > USER_DATA_LIMIT_BYTES:
        limit = f"EC2 allows {USER_DATA_LIMIT_BYTES}"
        raise pulumi.RunError(f"User data takes {size} bytes; {limit}. Shorten bootstrap.sh.")
    return text
