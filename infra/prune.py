"""The policy of people who may delete old models (`mayfly models prune`); that of launchers does not."""

from __future__ import annotations

from infra.policies import Document, allow, document, use_key
from infra.stack import Stack

DELETED = ("models/experiments/*", "models/retrains/*")  # never models/production


def pruner(stack: Stack) -> Document:
    """Return the policy: read what runs and models say, and delete versions of models, of production none."""
    bucket, models = f"arn:aws:s3:::{stack.bucket}", stack.objects("models/*")
    found = stack.arn("ssm", f"parameter/mayfly/{stack.project}/{stack.name}")
    return document(
        allow("FindStack", "ssm:GetParameter", found),
        allow("LookAtBucket", ["s3:ListBucket", "s3:ListBucketVersions"], bucket),
        allow("ReadRuns", "s3:GetObject", stack.objects("runs/*")),
        allow("ReadModels", ["s3:GetObject", "s3:GetObjectVersion"], models),
        allow("DeleteModels", "s3:DeleteObjectVersion", [stack.objects(pattern) for pattern in DELETED]),
        *use_key(stack, writes=False),
    )
