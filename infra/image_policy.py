"""The policies of image builds: of their instances, and of Image Builder where it deletes old images."""

from __future__ import annotations

from infra.policies import Document, allow, document, use_key
from infra.stack import Stack

PARTS = "images/"  # prefix of the zips that builds install from; Pulumi alone writes there
# What Image Builder requires of the instances that build (user guide, "IAM for EC2 Image Builder", looked up
# 2026-11-24): its tools, components and log, and Systems Manager, by which it commands them.
MANAGED = ("EC2InstanceProfileForImageBuilder", "AmazonSSMManagedInstanceCore")


def image_builder(stack: Stack) -> Document:
    """Return the policy of instances that build images, besides AWS's own two: fetch the parts.

    The second of those allows to read every parameter of the account, Mayfly's secrets included: refused
    here. AWS's public parameters belong to no account, and stay readable.
    """
    parameters = f"arn:aws:ssm:*:{stack.account}:parameter/*"
    read = [f"ssm:GetParameter{kind}" for kind in ("", "s", "sByPath")]
    return document(
        allow("ReadParts", "s3:GetObject", stack.objects(f"{PARTS}*")),
        {"Sid": "ReadNoParameters", "Effect": "Deny", "Action": read, "Resource": parameters},
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
