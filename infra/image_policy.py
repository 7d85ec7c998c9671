"""The policy of instances that build images: fetch the parts, read the components, log, and let Image Builder
command them.
"""

from __future__ import annotations

from collections.abc import Sequence

from infra.attach import agent_messages
from infra.policies import Document, allow, document, write_own_log

PARTS = "images/"  # prefix of the zips that builds install from; Pulumi alone writes there
LOG_GROUPS = "/aws/imagebuilder/"


def image_builder(
    *, account: str, region: str, bucket: str, components: Sequence[str], recipes: Sequence[str]
) -> Document:
    """Return the policy. Its agent is commanded as by a session; AWS's tools lie in a bucket of Image
    Builder's own.

    What AWS's managed policy EC2InstanceProfileForImageBuilder allows, limited to this stack's components,
    logs and bucket, by full names: another stack's names may begin with this one's.
    """
    logs = [
        write_own_log(account=account, region=region, log_group=f"{LOG_GROUPS}{recipe}") for recipe in recipes
    ]
    return document(
        allow(
            "ReadParts",
            "s3:GetObject",
            [f"arn:aws:s3:::{bucket}/{PARTS}*", "arn:aws:s3:::ec2imagebuilder*/*"],
        ),
        allow(
            "ReadOwnComponents",
            "imagebuilder:GetComponent",
            [f"arn:aws:imagebuilder:{region}:{account}:component/{name}/*/*" for name in components],
        ),
        {**logs[0], "Resource": [one["Resource"] for one in logs]},
        agent_messages(),
    )
