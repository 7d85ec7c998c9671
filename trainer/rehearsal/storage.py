"""Rules of S3 and SSM: writes are serialized and stored, conditions enforced, bucket policies kept away from
moto.

Everything else, reads included, passes to moto unchanged.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from trainer.rehearsal import wire
from trainer.rehearsal.account import EmbeddedAccount, Rules
from trainer.rehearsal.catalogue import IMAGE_PARAMETERS, image_parameters
from trainer.rehearsal.home import reading
from trainer.rehearsal.wire import Answer, Call
from trainer.rehearsal.world import AwsError

_OBJECT_WRITES = (
    "PutObject", "CopyObject", "CompleteMultipartUpload", "DeleteObject", "DeleteObjects", "PutObjectTagging",
    "DeleteObjectTagging",
)  # fmt: skip
_BUCKET_SETTINGS = (
    "CreateBucket", "PutBucketVersioning",
    "PutBucketEncryption", "PutPublicAccessBlock", "PutBucketOwnershipControls",
    "PutBucketLifecycleConfiguration", "PutBucketTagging",
)  # fmt: skip
REMEMBERED_PARAMETERS = "/mayfly/"


def write_object(cloud: EmbeddedAccount, call: Call) -> Answer:
    """Write, copy, tag or delete, one request at a time: S3 is atomic, and moto checks a condition before it
    acts.
    """
    with cloud.storage_lock:
        if call.operation == "CopyObject":
            _check_conditions(cloud, call.params)
        if call.operation == "PutObject":
            _check_checksum(call)
        answer = wire.collect(call.environ, call.account)
        if cloud.objects and answer[0] < 300:
            keys = (
                [one["Key"] for one in call.params["Delete"]["Objects"]]
                if call.operation == "DeleteObjects"
                else []
            )
            for key in keys or [call.params["Key"]]:
                cloud.objects.sync(call.params["Bucket"], key)
        return answer


def set_up_bucket(cloud: EmbeddedAccount, call: Call) -> Answer:
    """Change a bucket's settings and store them: a later session needs its versioning, for example."""
    with cloud.storage_lock:
        answer = wire.collect(call.environ, call.account)
        if call.operation == "PutBucketEncryption" and answer[0] < 300:
            cloud.bucket_keys[call.params["Bucket"]] = _key_of(call.params)
        if cloud.objects and answer[0] < 300:
            params = {
                name: value
                for name, value in call.params.items()
                if name not in ("ContentMD5", "ChecksumAlgorithm")
            }
            cloud.objects.save_setting("s3", call.operation, call.params["Bucket"], params)
        return answer


def delete_bucket(cloud: EmbeddedAccount, call: Call) -> Answer:
    """Delete a bucket and its stored settings."""
    with cloud.storage_lock:
        answer = wire.collect(call.environ, call.account)
        if answer[0] < 300:
            cloud.bucket_policies.pop(call.params["Bucket"], None)
            if cloud.objects:
                cloud.objects.drop_settings(call.params["Bucket"])
        return answer


def put_bucket_policy(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Keep a bucket's policy here: moto would apply its Deny without its Condition, and refuse every
    request.
    """
    bucket, policy = call.params["Bucket"], call.params["Policy"]
    cloud.moto("s3", "GetBucketLocation", {"Bucket": bucket})  # an unknown bucket is an error
    text = policy.decode() if isinstance(policy, bytes) else str(policy)
    with cloud.storage_lock:
        cloud.bucket_policies[bucket] = text
        if cloud.objects:
            cloud.objects.save_setting("s3", "PutBucketPolicy", bucket, {"Bucket": bucket, "Policy": text})
    return {}


def get_bucket_policy(cloud: EmbeddedAccount, call: Call) -> Answer:
    """Return the bucket's policy."""
    bucket = call.params["Bucket"]
    cloud.moto("s3", "GetBucketLocation", {"Bucket": bucket})
    if bucket not in cloud.bucket_policies:
        raise AwsError("NoSuchBucketPolicy", "The bucket policy does not exist", 404)
    return 200, [("Content-Type", "application/json")], cloud.bucket_policies[bucket].encode()


def delete_bucket_policy(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Drop the policy."""
    cloud.bucket_policies.pop(call.params["Bucket"], None)
    return {}


def get_parameter(cloud: EmbeddedAccount, call: Call) -> dict[str, Any] | Answer:
    """Read a parameter; AWS's public parameters of image ids exist here, too."""
    name = call.params["Name"]
    if not name.startswith(IMAGE_PARAMETERS):
        return wire.collect(call.environ, call.account)
    return {"Parameter": _image_parameter(call, name)}


def get_parameters(cloud: EmbeddedAccount, call: Call) -> dict[str, Any] | Answer:
    """Read several parameters, as `get_parameter` does."""
    names = call.params["Names"]
    public = [name for name in names if name in image_parameters()]
    if not public:
        return wire.collect(call.environ, call.account)
    rest = [name for name in names if name not in public]
    answer = cloud.moto("ssm", "GetParameters", {**call.params, "Names": rest}) if rest else {}
    return {
        "Parameters": [*(_image_parameter(call, name) for name in public), *answer.get("Parameters", [])],
        "InvalidParameters": answer.get("InvalidParameters", []),
    }


def put_parameter(cloud: EmbeddedAccount, call: Call) -> dict[str, Any]:
    """Write a parameter. The stack's own is stored, and one stored by an earlier session may be created
    again.
    """
    name = call.params["Name"]
    with cloud.storage_lock:
        restored = name in cloud.restored_parameters
        params = {**call.params, "Overwrite": True} if restored else call.params
        if restored:  # AWS refuses tags beside Overwrite
            params.pop("Tags", None)
        answer = cloud.moto("ssm", "PutParameter", params)
        cloud.restored_parameters.discard(name)
        if cloud.objects and name.startswith(REMEMBERED_PARAMETERS):
            cloud.objects.save_setting("ssm", "PutParameter", name, call.params)
    return {"Version": answer["Version"], "Tier": answer.get("Tier", "Standard")}


def restore(cloud: EmbeddedAccount) -> int:
    """Restore an earlier session: buckets with their settings, object versions, the stack's parameter."""
    if cloud.objects is None:
        return 0
    with cloud.storage_lock:
        for path, service, operation, params in cloud.objects.settings():
            with reading(path):
                _restore_setting(cloud, service, operation, params)
        return cloud.objects.restore(cloud.clock.now())


def _restore_setting(cloud: EmbeddedAccount, service: str, operation: str, params: dict[str, Any]) -> None:
    if operation == "PutBucketPolicy":
        cloud.bucket_policies[params["Bucket"]] = params["Policy"]
        return
    if operation == "PutBucketEncryption":
        cloud.bucket_keys[params["Bucket"]] = _key_of(params)
    try:
        cloud.moto(service, operation, params)
    except AwsError as error:
        raise ValueError(f"{operation}: {error}") from error
    if operation == "PutParameter":
        cloud.restored_parameters.add(params["Name"])


def _key_of(params: dict[str, Any]) -> str:
    """Return the ARN of the KMS key that a bucket's encryption names, '' for S3's own."""
    (rule,) = params["ServerSideEncryptionConfiguration"]["Rules"]
    return str(rule["ApplyServerSideEncryptionByDefault"].get("KMSMasterKeyID", ""))


def _check_conditions(cloud: EmbeddedAccount, params: dict[str, Any]) -> None:
    """Check CopyObject's If-Match and If-None-Match against the destination; moto ignores them."""
    if "IfMatch" not in params and "IfNoneMatch" not in params:
        return
    try:
        head = cloud.moto("s3", "HeadObject", {"Bucket": params["Bucket"], "Key": params["Key"]})
        etag = head["ETag"].strip('"')
    except AwsError as error:
        if error.status != 404:
            raise
        etag = None
    if "IfMatch" in params and etag is None:
        raise AwsError("NoSuchKey", "The specified key does not exist.", 404)
    matched = params.get("IfMatch", etag)
    if (matched or "").strip('"') not in (etag or "", "*") or ("IfNoneMatch" in params and etag is not None):
        raise AwsError(
            "PreconditionFailed", "At least one of the pre-conditions you specified did not hold", 412
        )


def _check_checksum(call: Call) -> None:
    """Raise AwsError if a body's SHA-256 is not the one given; moto keeps it, beside another header only,
    unchecked.
    """
    given = call.params.get("ChecksumSHA256")
    if given is None:
        return
    if base64.b64encode(hashlib.sha256(call.body).digest()).decode() != given:
        raise AwsError("BadDigest", "The SHA256 you specified did not match the calculated checksum.", 400)
    call.environ["HTTP_X_AMZ_SDK_CHECKSUM_ALGORITHM"] = "SHA256"


def _image_parameter(call: Call, name: str) -> dict[str, Any]:
    image_id = image_parameters().get(name)
    if image_id is None:
        raise AwsError("ParameterNotFound", f"Parameter {name} not found.")
    arn = f"arn:aws:ssm:{call.region}::parameter{name}"
    return {
        "Name": name,
        "Type": "String",
        "Value": image_id,
        "Version": 1,
        "ARN": arn,
        "DataType": "aws:ec2:image",
    }


RULES: Rules = {
    **{("s3", operation): write_object for operation in _OBJECT_WRITES},
    **{("s3", operation): set_up_bucket for operation in _BUCKET_SETTINGS},
    ("s3", "DeleteBucket"): delete_bucket,
    ("s3", "PutBucketPolicy"): put_bucket_policy,
    ("s3", "GetBucketPolicy"): get_bucket_policy,
    ("s3", "DeleteBucketPolicy"): delete_bucket_policy,
    ("ssm", "GetParameter"): get_parameter,
    ("ssm", "GetParameters"): get_parameters,
    ("ssm", "PutParameter"): put_parameter,
}
