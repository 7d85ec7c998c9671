"""The policies of image builds: of their instances, and of Image Builder where it deletes old images."""

from __future__ import annotations

from collections.abc import Sequence

from infra.attach import agent_messages
from infra.policies import Document, allow, document, use_key, write_own_log
from infra.stack import Stack

PARTS = "images/"  # prefix of the zips that builds install from; Pulumi alone writes there


def image_builder(stack: Stack, *, components: Sequence[str], log_group: str) -> Document:
    """Return the policy of instances that build images: fetch the parts, read the components, log, and let
    Image Builder command them, as by a session. AWS's tools lie in a bucket of Image Builder's own.

    What AWS's managed policy EC2InstanceProfileForImageBuilder allows, limited to this stack's components,
    log and bucket, by full names: another stack's names may begin with this one's.
    """
    own = [stack.arn("imagebuilder", f"component/{name}/*/*") for name in components]
    return document(
        allow("ReadParts", "s3:GetObject", [stack.objects(f"{PARTS}*"), "arn:aws:s3:::ec2imagebuilder*/*"]),
        allow("ReadOwnComponents", "imagebuilder:GetComponent", own),
        write_own_log(stack, log_group),
        agent_messages(),
        *use_key(stack, writes=False),  # of the parts
    )


def image_retention(stack: Stack, *, recipe: str) -> Document:
    """Return the policy: what AWS's EC2ImageBuilderLifecycleExecutionPolicy allows for images, held to this
    stack's.

    It goes by the tags that the pipeline gives its images. Not yet seen in an account: whether their
    snapshots get them, too.
    """
    tags = {"CreatedBy": "EC2 Image Builder", "project": stack.project, "stack": stack.name}
    own = {"StringEquals": {f"aws:ResourceTag/{key}": value for key, value in tags.items()}}
    of_ec2 = f"arn:aws:ec2:{stack.region}:"
    return document(
        allow(
            "DeleteOwnImages", "imagebuilder:DeleteImage", stack.arn("imagebuilder", f"image/{recipe}/*/*")
        ),
        allow("DeregisterOwnImages", "ec2:DeregisterImage", f"{of_ec2}:image/*", own),
        allow("DeleteOwnSnapshots", "ec2:DeleteSnapshot", f"{of_ec2}:snapshot/*", own),
        allow("LookUpHasNoResource", ["ec2:DescribeImages", "tag:GetResources"], "*"),
    )
