"""The bucket, as the program registers it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from infra.stack_settings import Retention
from infra.storage import expiry

if TYPE_CHECKING:
    from tests.infra.program import Recorded


def rules(program: Recorded) -> dict[str, dict[str, Any]]:
    configuration = program.inputs("aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration")
    return {rule["id"]: rule for rule in configuration["rules"]}


def test_bucket_survives_the_stack(program: Recorded) -> None:
    request = program.request("aws:s3/bucket:Bucket")
    assert request.protect
    assert request.retainOnDelete
    assert program.inputs("aws:s3/bucket:Bucket")["forceDestroy"] is False


SETTINGS = (
    "bucketVersioning:BucketVersioning",
    "bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
    "bucketPublicAccessBlock:BucketPublicAccessBlock",
    "bucketOwnershipControls:BucketOwnershipControls",
    "bucketPolicy:BucketPolicy",
    "bucketLifecycleConfiguration:BucketLifecycleConfiguration",
)


def test_the_buckets_settings_survive_the_stack(program: Recorded) -> None:
    held = [request for request in program.requests if request.type.startswith("aws:s3/bucket")]
    assert {request.type.rpartition("/")[2] for request in held} == {"bucket:Bucket", *SETTINGS}
    for request in held:
        assert request.protect and request.retainOnDelete, request.type


def test_no_two_settings_of_the_bucket_change_at_once(program: Recorded) -> None:
    for index, later in enumerate(SETTINGS):
        for earlier in SETTINGS[:index]:
            one, other = (f"aws:s3/{name[0].lower()}{name[1:]}" for name in (earlier, later))
            assert program.outlives(one, other) or program.outlives(other, one), (one, other)


def test_bucket_is_versioned_encrypted_private_and_its_owners(program: Recorded) -> None:
    def settings(kind: str) -> dict[str, Any]:
        return program.inputs(f"aws:s3/bucket{kind}:Bucket{kind}")

    assert settings("Versioning")["versioningConfiguration"] == {"status": "Enabled"}
    (encrypted,) = settings("ServerSideEncryptionConfiguration")["rules"]
    assert encrypted == {"applyServerSideEncryptionByDefault": {"sseAlgorithm": "AES256"}}
    for switch in ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets"):
        assert settings("PublicAccessBlock")[switch] is True
    assert settings("OwnershipControls")["rule"] == {"objectOwnership": "BucketOwnerEnforced"}


def test_bucket_refuses_requests_without_tls(program: Recorded) -> None:
    (statement,) = json.loads(program.inputs("aws:s3/bucketPolicy:BucketPolicy")["policy"])["Statement"]
    assert statement["Effect"] == "Deny"
    assert (statement["Principal"], statement["Action"]) == ("*", "s3:*")
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    bucket = "arn:aws:s3:::mayfly-dev-123456789012-eu-west-1"
    assert statement["Resource"] == [bucket, f"{bucket}/*"]


def test_old_versions_and_their_markers_go_after_ninety_days(program: Recorded) -> None:
    rule = rules(program)["old-versions"]
    assert rule["filter"] == {"prefix": ""}
    assert rule["noncurrentVersionExpiration"] == {"noncurrentDays": 90}
    assert rule["expiration"] == {"expiredObjectDeleteMarker": True}


def test_unfinished_uploads_go_after_a_week(program: Recorded) -> None:
    rule = rules(program)["unfinished-uploads"]
    assert rule["abortIncompleteMultipartUpload"] == {"daysAfterInitiation": 7}


def test_overwritten_heartbeats_go_after_a_day(program: Recorded) -> None:
    rule = rules(program)["heartbeats"]
    assert rule["filter"] == {"prefix": "live/"}
    assert rule["noncurrentVersionExpiration"] == {"noncurrentDays": 1}


def test_nothing_of_value_expires_by_default(program: Recorded) -> None:
    expiring = [name for name, rule in rules(program).items() if "days" in rule.get("expiration", {})]
    assert expiring == ["heartbeats", "checkpoints", "resumed"]
    assert all(rule["status"] == "Enabled" for rule in rules(program).values())


def test_checkpoints_go_after_days_that_can_be_set() -> None:
    """So many after the run: what it sent when it began counts from then on."""
    for days, minutes, retention in (
        (8, 720, Retention()),
        (37, 7 * 24 * 60, Retention(checkpoint_days=30)),
    ):
        made = {one["id"]: one for one in expiry(retention, life_minutes=minutes)}
        for name in ("checkpoints", "resumed"):
            assert made[name]["filter"] == {"prefix": f"{name}/"}
            assert made[name]["expiration"] == {"days": days}
            assert made[name]["noncurrent_version_expiration"] == {"noncurrent_days": 1}


def test_models_of_runs_expire_where_days_are_set() -> None:
    default = {one["id"] for one in expiry(Retention(), life_minutes=720)}
    more = {
        one["id"]: one
        for one in expiry(Retention(experiment_days=30), life_minutes=720)
        if one["id"] not in default
    }
    assert list(more) == ["experiments"]
    assert more["experiments"]["filter"] == {"prefix": "models/experiments/"}
    assert more["experiments"]["expiration"] == {"days": 30}


def test_tokens_that_nobody_deletes_end_within_two_days() -> None:
    def tokens(**by: bool) -> list[Any]:
        return [
            rule
            for rule in expiry(Retention(), life_minutes=60, **by)
            if rule["filter"]["prefix"] == "tokens/"
        ]

    (rule,) = tokens(nodes=True)
    assert rule["expiration"] == {"days": 1}
    assert rule["noncurrent_version_expiration"] == {"noncurrent_days": 1}
    assert not tokens()
