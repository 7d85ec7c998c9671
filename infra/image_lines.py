"""Lines of machine images: each setting names one, and its newest image is read at `up` for its root device
and architecture.

Each launch looks up the newest image again.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from trainer.aws.stack_outputs import architecture_of

_DLAMI_PARAMETER = "/aws/service/deeplearning/ami/{architecture}/{line}/latest/ami-id"


@dataclass(frozen=True, kw_only=True)
class ImageLine:
    """A line of machine images that AWS keeps rebuilding."""

    name: str  # in the stack's outputs; that of an arm64 line ends in -arm64
    parameter: str  # SSM parameter that holds the newest image's id
    root_device: str  # a wrong name would add a second volume and leave the root at its default size

    @property
    def architecture(self) -> str:
        """Return the architecture of its machines."""
        return architecture_of(self.name)


def read_image_lines(*, x86_64: str, arm64: str) -> tuple[ImageLine, ...]:
    """Read the lines of Deep Learning AMIs that the settings name; an empty name is none. Raises
    pulumi.RunError.
    """
    lines = [_read("image_line", x86_64, "x86_64")]
    return (*lines, _read("image_line_arm64", arm64, "arm64")) if arm64 else tuple(lines)


def _read(setting: str, line: str, architecture: str) -> ImageLine:
    parameter = _DLAMI_PARAMETER.format(architecture=architecture, line=line)
    try:
        image_id = aws.ssm.get_parameter(name=parameter).insecure_value
        image = aws.ec2.get_ami(
            owners=["amazon"], filters=[aws.ec2.GetAmiFilterArgs(name="image-id", values=[image_id])]
        )
    except Exception as error:  # Pulumi raises no narrower class where a look-up fails
        raise pulumi.RunError(
            f"Setting '{setting}' is '{line}', whose image can't be read from {parameter} ({error}). "
            "Change it with `pulumi config set`."
        ) from error
    if image.architecture != architecture:
        raise pulumi.RunError(
            f"Setting '{setting}' is '{line}', whose image {image_id} is for {image.architecture}."
        )
    name = line if architecture == "x86_64" else f"{line}-{architecture}"
    return ImageLine(name=name, parameter=parameter, root_device=image.root_device_name)
