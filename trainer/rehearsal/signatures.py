"""Verification of AWS Signature Version 4, by botocore's own signer, for requests that carry it in the
Authorization header.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html (looked up
2026-11-22). A signature in the query (presigned URLs) is refused: nothing here uses one. About 0.1 ms a
request.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import datetime, timezone

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from trainer.rehearsal.keys import FRESH_SECONDS
from trainer.rehearsal.wire import Environ, account_of
from trainer.rehearsal.world import AwsError

# Limit of a body that is read before its sender is known; a function's zip is half of it.
MOST_UNHASHED_BYTES = 100 << 20
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^,\s]+), ?SignedHeaders=([a-z0-9;_.-]+), ?Signature=([0-9a-f]{64})"
)
# Values of S3's clients instead of a hash; signatures per chunk are not verified here, and so refused.
_NO_HASH = ("UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
_CONTENT_HASH = "HTTP_X_AMZ_CONTENT_SHA256"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Claims of a request's Authorization header, untrusted until `check_signature` returns."""

    access_key: str
    region: str
    service: str  # as it was signed
    at: str
    signed_headers: tuple[str, ...]
    signature: str


def claim_of(environ: Environ) -> Claim:
    """Read the claim. Raises AwsError for a request without one, and for one that omits a required header."""
    account_of(environ)
    match = _AUTHORIZATION.fullmatch(environ["HTTP_AUTHORIZATION"].strip())
    scope = match[1].split("/") if match else []
    at = environ.get("HTTP_X_AMZ_DATE", "")
    if match is None or len(scope) != 5 or scope[4] != "aws4_request" or scope[1] != at[:8]:
        what = "The Authorization header is not a signature of version 4."
        raise AwsError("IncompleteSignature", what, 403)
    signed = tuple(match[2].split(";"))
    needed = {"HTTP_HOST", *(name for name in environ if name.startswith("HTTP_X_AMZ_"))}
    if not needed <= {wsgi_name(name) for name in signed}:
        raise AwsError("SignatureDoesNotMatch", "Host and every x-amz- header must be signed.", 403)
    return Claim(
        access_key=scope[0],
        region=scope[2],
        service=scope[3],
        at=at,
        signed_headers=signed,
        signature=match[3],
    )


def check_time(claim: Claim, now: datetime) -> None:
    """Raise AwsError for a request that was signed more than a quarter of an hour before or after `now`."""
    try:
        at = datetime.strptime(claim.at, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    except ValueError as error:
        raise AwsError("IncompleteSignature", f"X-Amz-Date is {claim.at!r}.", 403) from error
    if abs((now - at).total_seconds()) > FRESH_SECONDS:
        message = "The difference between the request time and the current time is too large."
        raise AwsError("RequestTimeTooSkewed", message, 403)


def hashes_its_body(environ: Environ) -> bool:
    """Return whether the signature covers a hash of the body, so that it can be checked before the body is
    read.

    Raises AwsError for a body that is too large for an unknown sender.
    """
    if _CONTENT_HASH in environ:
        return True
    check_length(environ, MOST_UNHASHED_BYTES)
    return False


def check_length(environ: Environ, most_bytes: int) -> None:
    """Raise AwsError for a request that does not say that its body has at most so many bytes."""
    length = environ.get("CONTENT_LENGTH") or "0"
    if environ.get("HTTP_TRANSFER_ENCODING") or not length.isdecimal() or int(length) > most_bytes:
        what = f"A body whose hash is not signed has a length, of at most {most_bytes} bytes."
        raise AwsError("RequestEntityTooLarge", what, 413)


def check_signature(claim: Claim, environ: Environ, body: bytes, *, secret_key: str) -> None:
    """Raise AwsError unless the request was signed with this secret key. `body` is used if no header has its
    hash.
    """
    request = AWSRequest(
        method=environ["REQUEST_METHOD"],
        url=f"http://{environ['HTTP_HOST']}{environ['RAW_URI']}",
        headers={name: environ.get(wsgi_name(name), "") for name in claim.signed_headers},
        data=body,
    )
    request.context["timestamp"] = claim.at
    signer = (S3SigV4Auth if claim.service == "s3" else SigV4Auth)(
        Credentials(claim.access_key, secret_key), claim.service, claim.region
    )
    signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    if not hmac.compare_digest(signature, claim.signature):
        message = "The request signature we calculated does not match the signature you provided."
        raise AwsError("SignatureDoesNotMatch", message, 403)


def check_body(environ: Environ, body: bytes) -> None:
    """Raise AwsError if the signed hash is not the body's."""
    claimed_hash = environ.get(_CONTENT_HASH, "")
    if not claimed_hash or claimed_hash in _NO_HASH:
        return
    if claimed_hash.startswith("STREAMING-"):
        raise AwsError("NotImplemented", f"The embedded AWS does not take {claimed_hash}.", 501)
    if claimed_hash != hashlib.sha256(body).hexdigest():
        message = "The provided 'x-amz-content-sha256' header does not match what was computed."
        raise AwsError("XAmzContentSHA256Mismatch", message, 400)


def wsgi_name(header: str) -> str:
    """Return the name that a header has in a WSGI environment."""
    name = header.upper().replace("-", "_")
    return name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}"
