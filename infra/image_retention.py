"""Removal of old baked images, each of which has a billed snapshot: Image Builder keeps the newest of
a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.identity import ServiceRole, ServiceRoleArgs
from infra.policies import Document, allow, document, trust

KEPT = 2  # images of a line: the newest, and one to go back to


@dataclass(frozen=True, kw_only=True)
class ImageRetentionArgs:
    account: str
    region: str
    project: str
    stack: str
    recipes: tuple[str, ...]  # names
    tags: dict[str, str]


class ImageRetention(pulumi.ComponentResource):
    """A lifecycle policy for the images of each recipe, and the role by which Image Builder carries
    them out.
    """

    def __init__(
        self, name: str, args: ImageRetentionArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("mayfly:image_retention:ImageRetention", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        role = ServiceRole(
            "image-retention",
            ServiceRoleArgs(
                role_name=f"{args.project}-{args.stack}-{args.region}-image-retention",
                description="Image Builder: delete old images of this stack.",
                trust=trust(
                    "imagebuilder.amazonaws.com", {"StringEquals": {"aws:SourceAccount": args.account}}
                ),
                policy=retention(
                    account=args.account,
                    region=args.region,
                    project=args.project,
                    stack=args.stack,
                    recipes=args.recipes,
                ),
                tags=args.tags,
            ),
            opts=child,
        )
        for recipe in args.recipes:
            aws.imagebuilder.LifecyclePolicy(
                recipe,
                name=recipe,
                description=f"Keep {KEPT} images.",
                execution_role=role.arn,
                resource_type="AMI_IMAGE",
                resource_selection=aws.imagebuilder.LifecyclePolicyResourceSelectionArgs(
                    recipes=[
                        aws.imagebuilder.LifecyclePolicyResourceSelectionRecipeArgs(
                            name=recipe, semantic_version="x.x.x"
                        )
                    ]
                ),
                policy_details=[
                    aws.imagebuilder.LifecyclePolicyPolicyDetailArgs(
                        action=aws.imagebuilder.LifecyclePolicyPolicyDetailActionArgs(
                            type="DELETE",
                            include_resources=aws.imagebuilder.LifecyclePolicyPolicyDetailActionIncludeResourcesArgs(
                                amis=True, snapshots=True
                            ),
                        ),
                        filter=aws.imagebuilder.LifecyclePolicyPolicyDetailFilterArgs(
                            type="COUNT", value=KEPT
                        ),
                    )
                ],
                status="ENABLED",
                tags=args.tags,
                opts=child,
            )
        self.register_outputs({})


def retention(*, account: str, region: str, project: str, stack: str, recipes: Sequence[str]) -> Document:
    """Return the policy: what AWS's EC2ImageBuilderLifecycleExecutionPolicy allows for images, held to this
    stack's.

    It goes by the tags that the pipeline gives its images. Not yet seen in an account: whether their
    snapshots get them, too.
    """
    own = {
        "aws:ResourceTag/CreatedBy": "EC2 Image Builder",
        "aws:ResourceTag/project": project,
        "aws:ResourceTag/stack": stack,
    }
    return document(
        allow(
            "DeleteOwnImages",
            "imagebuilder:DeleteImage",
            [f"arn:aws:imagebuilder:{region}:{account}:image/{recipe}/*/*" for recipe in recipes],
        ),
        allow(
            "DeregisterOwnImages",
            "ec2:DeregisterImage",
            f"arn:aws:ec2:{region}::image/*",
            {"StringEquals": own},
        ),
        allow(
            "DeleteOwnSnapshots",
            "ec2:DeleteSnapshot",
            f"arn:aws:ec2:{region}::snapshot/*",
            {"StringEquals": own},
        ),
        allow("LookUpHasNoResource", ["ec2:DescribeImages", "tag:GetResources"], "*"),
    )
