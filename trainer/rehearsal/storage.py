"""Rules of S3 and SSM: objects lie in kept buckets, settings of buckets in moto, and both come back after a
restart.

What moto is told of a bucket is stored as the request that said it, and replayed. Bucket policies are kept
away from moto, which would apply a Deny without its Condition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from botocore import xform_name

from trainer.aws.checksums import sha256_sum
from trainer.base.instants import utc_now
from trainer.rehearsal import wire
from trainer.rehearsal.account import EmbeddedAccount, Rules, refuse
from trainer.rehearsal.catalogue import add_image_parameters
from trainer.rehearsal.home import reading
from trainer.rehearsal.kept_bucket import UNVERSIONED, KeptBucket
from trainer.rehearsal.wire import Answer, Call
from trainer.rehearsal.world import AwsError

_OBJECT_CALLS = (
    *("PutObject", "GetObject", "HeadObject", "DeleteObject", "DeleteObjects"),
    *("ListObjectsV2", "ListObjectVersions"),
    *("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload"),
)
_REFUSED = (
    *("DeleteBucket", "DeleteBucketPolicy", "ListObjects"),
    *("PutObjectTagging", "GetObjectTagging", "DeleteObjectTagging", "PutObjectAcl", "GetObjectAcl"),
    *("GetObjectAttributes", "UploadPartCopy", "ListParts", "ListMultipartUploads", "RestoreObject"),
)
_BUCKET_SETTINGS = (
    *("CreateBucket", "PutBucketVersioning", "PutBucketEncryption", "PutPublicAccessBlock"),
    *("PutBucketOwnershipControls", "PutBucketLifecycleConfiguration", "PutBucketTagging"),
)
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")  # of a bucket, and so of its folder
REMEMBERED_PARAMETERS = "/mayfly/"


# objects
# ----------------------------------------------------------------------------------------------------------


def on_objects(cloud: EmbeddedAccount, call: Call) -> dict[str, Any] | Answer:
    """Carry out a call on objects."""
    bucket, params = bucket_of(cloud, call.params["Bucket"]), {**call.params, "Metadata": _metadata(call)}
    if call.operation in ("PutObject", "UploadPart"):
        params["Body"] = call.body
    answer = _shown(getattr(bucket, xform_name(call.operation))(**params))
    if "Body" in answer:
        answer["Body"] = answer["Body"].read()
    if "ContentRange" not in answer:
        return answer
    _, headers, body = wire.encode(call, answer)
    return 206, headers, body


def copy_object(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Copy a version of an object, with its metadata unless the request has its own."""
    asked = call.params
    source, _, version_id = unquote(asked["CopySource"]).partition("?versionId=")
    name, _, key = source.lstrip("/").partition("/")
    version = bucket_of(cloud, name).find(key, version_id, "", "CopyObject")
    replaced = asked.get("MetadataDirective") == "REPLACE"
    summed = version.checksummed or asked.get("ChecksumAlgorithm") == "SHA256"
    own = {
        "Metadata": _metadata(call) if replaced else version.metadata,
        "ChecksumSHA256": sha256_sum(version.sha256) if summed else "",
    }
    assert version.file is not None
    with version.file.open("rb") as body:
        put = _shown(bucket_of(cloud, asked["Bucket"]).put_object(**{**asked, **own, "Body": body}))
    return {**put, "CopyObjectResult": {"ETag": put["ETag"], "LastModified": utc_now()}}


def _shown(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer as S3 gives it: a bucket without versioning names no version."""
    return {name: value for name, value in answer.items() if (name, value) != ("VersionId", UNVERSIONED)}


def bucket_of(cloud: EmbeddedAccount, name: str) -> KeptBucket:
    """Return a bucket. Raises AwsError for an unknown one."""
    if name not in cloud.buckets:
        raise AwsError("NoSuchBucket", "The specified bucket does not exist", 404)
    return cloud.buckets[name]


def _metadata(call: Call) -> dict[str, str]:
    """Return an object's metadata, whose names S3 keeps in lower case."""
    return {name.lower(): value for name, value in call.params.get("Metadata", {}).items()}


# buckets
# ----------------------------------------------------------------------------------------------------------


def set_up_bucket(cloud: EmbeddedAccount, call: Call) -> Answer:
    """Change a bucket's settings and store them: a later session needs its versioning, for example."""
    if not _NAME.fullmatch(call.params["Bucket"]):
        raise AwsError("InvalidBucketName", "The specified bucket is not valid.")
    with cloud.lock:
        answer = wire.collect(call.environ, call.account)
        if answer[0] < 300:
            left_out = ("ContentMD5", "ChecksumAlgorithm")
            params = {name: value for name, value in call.params.items() if name not in left_out}
            _apply_setting(cloud, call.operation, params)
            cloud.settings.save("s3", call.operation, call.params["Bucket"], params)
        return answer


def _apply_setting(cloud: EmbeddedAccount, operation: str, params: dict[str, Any]) -> None:
    """Apply what a setting means to a bucket's objects."""
    name = params["Bucket"]
    if operation == "CreateBucket" and not _NAME.fullmatch(name):
        raise ValueError(f"it tells of a bucket {name!r}")
    if operation == "CreateBucket":
        cloud.buckets.setdefault(name, KeptBucket(cloud.root / "s3" / cloud.account / name))
    elif operation == "PutBucketVersioning":
        cloud.buckets[name].versioned = params["VersioningConfiguration"].get("Status") == "Enabled"
    elif operation == "PutBucketPolicy":
        cloud.bucket_policies[name] = params["Policy"]


def put_bucket_policy(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Keep a bucket's policy here."""
    bucket, policy = call.params["Bucket"], call.params["Policy"]
    bucket_of(cloud, bucket)
    params = {"Bucket": bucket, "Policy": policy.decode() if isinstance(policy, bytes) else str(policy)}
    with cloud.lock:
        _apply_setting(cloud, "PutBucketPolicy", params)
        cloud.settings.save("s3", "PutBucketPolicy", bucket, params)
    return {}


def get_bucket_policy(cloud: EmbeddedAccount, call: Call) -> Answer:
    """Return the bucket's policy."""
    bucket_of(cloud, call.params["Bucket"])
    if call.params["Bucket"] not in cloud.bucket_policies:
        raise AwsError("NoSuchBucketPolicy", "The bucket policy does not exist", 404)
    return 200, [("Content-Type", "application/json")], cloud.bucket_policies[call.params["Bucket"]].encode()


def restore(cloud: EmbeddedAccount) -> None:
    """Restore an earlier session: buckets with their settings, object versions, the stack's parameter."""
    days: dict[str, list[tuple[str, int]]] = {}
    upload_days: dict[str, int] = {}
    with cloud.lock:
        for path, service, operation, params in cloud.settings.read():
            with reading(path):
                if operation != "PutBucketPolicy":
                    _tell_moto(cloud, service, operation, params)
                if operation == "PutParameter":
                    cloud.restored_parameters.add(params["Name"])
                    continue
                _apply_setting(cloud, operation, params)
                if operation == "PutBucketLifecycleConfiguration":
                    rules = params["LifecycleConfiguration"]["Rules"]
                    days[params["Bucket"]] = list(_days_kept(rules))
                    upload_days[params["Bucket"]] = _days_of_uploads(rules)
        for name, bucket in cloud.buckets.items():
            bucket.restore(cloud.clock.now(), days.get(name, ()), upload_days=upload_days.get(name, 0))


def _tell_moto(cloud: EmbeddedAccount, service: str, operation: str, params: dict[str, Any]) -> None:
    try:
        cloud.moto(service, operation, params)
    except AwsError as error:
        raise ValueError(f"{operation}: {error}") from error


def _days_kept(rules: Iterable[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    """Yield the prefixes whose replaced versions a lifecycle deletes, with the days that it keeps them."""
    for rule in rules:
        if rule["Status"] == "Enabled" and "NoncurrentVersionExpiration" in rule:
            prefix = rule.get("Filter", {}).get("Prefix", "")
            yield prefix, rule["NoncurrentVersionExpiration"]["NoncurrentDays"]


def _days_of_uploads(rules: Iterable[dict[str, Any]]) -> int:
    """Return after how many days a lifecycle deletes uploads that nobody completed; 0: it keeps them."""
    asked = (rule.get("AbortIncompleteMultipartUpload", {}) for rule in rules if rule["Status"] == "Enabled")
    return min((int(one["DaysAfterInitiation"]) for one in asked if one), default=0)


# parameters
# ----------------------------------------------------------------------------------------------------------


def get_parameters(cloud: EmbeddedAccount, call: Call) -> Answer:
    """Read parameters, among them AWS's public ones of image ids."""
    with cloud.lock:  # none is missing while `put_parameter` creates it again
        add_image_parameters(cloud.account, wire.state_of(cloud.account, "ssm"))
        return wire.collect(call.environ, call.account)


def put_parameter(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Write a parameter. The stack's own is stored, and one stored by an earlier session may be created
    again.
    """
    name = call.params["Name"]
    with cloud.lock:
        if name in cloud.restored_parameters:
            cloud.moto("ssm", "DeleteParameter", {"Name": name})
            cloud.restored_parameters.discard(name)
        answer = cloud.moto("ssm", "PutParameter", call.params)
        if name.startswith(REMEMBERED_PARAMETERS):
            cloud.settings.save("ssm", "PutParameter", name, call.params)
    return {"Version": answer["Version"], "Tier": answer.get("Tier", "Standard")}


RULES: Rules = {
    **{("s3", operation): on_objects for operation in _OBJECT_CALLS},
    **{("s3", operation): refuse for operation in _REFUSED},
    **{("s3", operation): set_up_bucket for operation in _BUCKET_SETTINGS},
    ("s3", "CopyObject"): copy_object,
    ("s3", "PutBucketPolicy"): put_bucket_policy,
    ("s3", "GetBucketPolicy"): get_bucket_policy,
    ("ssm", "GetParameter"): get_parameters,
    ("ssm", "GetParameters"): get_parameters,
    ("ssm", "PutParameter"): put_parameter,
}
