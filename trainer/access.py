"""Which AWS a command speaks to: the caller's own account, by the SDK's variables, or the embedded one of a rehearsal."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainer.errors import ConfigError, ConnectionFailed, PermissionDenied, TrainerError


@dataclass(frozen=True, kw_only=True)
class Access:
    """How to reach one AWS. Without an endpoint the SDK finds region, credentials and endpoints itself."""

    region: str | None = None
    endpoint_url: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    rehearsal: bool = False

    def client(self, service: str, *, total_max_attempts: int = 5, timeout_seconds: float = 30.0) -> Any:
        """Return a boto3 client. `total_max_attempts=1` leaves every retry to the caller (launches need that)."""
        from botocore.config import Config  # late: 0.3 s, and --help must not pay for it

        config = Config(
            retries={"mode": "standard", "total_max_attempts": total_max_attempts},
            connect_timeout=10,
            read_timeout=timeout_seconds,
            s3={"addressing_style": "path"} if self.endpoint_url else {},
        )
        with _session_lock:  # a client may be used by many threads, but a session makes them one at a time
            return _session(own_settings=self.access_key is None).client(
                service,
                region_name=self.region,
                endpoint_url=self.endpoint_url,
                aws_access_key_id=self.access_key,
                aws_secret_access_key=self.secret_key,
                config=config,
            )


_session_lock = threading.Lock()


@cache
def _session(*, own_settings: bool) -> Any:
    """Return the one session of this process; without the user's settings, a profile that is wrong can't spoil a rehearsal."""
    import boto3
    import botocore.session

    if own_settings:
        return boto3.Session()
    nothing = {"profile": (None, None, None, None), "config_file": (None, None, os.devnull, None)}
    session = botocore.session.Session(session_vars={**nothing, "credentials_file": (None, None, os.devnull, None)})
    return boto3.Session(botocore_session=session)


PERMISSION_CODES = frozenset(
    {
        *("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthFailure", "OptInRequired", "403"),
        *("UnrecognizedClientException", "InvalidClientTokenId", "InvalidAccessKeyId", "SignatureDoesNotMatch"),
        *("ExpiredToken", "ExpiredTokenException", "RequestExpired"),
    }
)
THROTTLING_CODES = frozenset(
    {"RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequestsException", "SlowDown"}
)


def error_code(error: BaseException) -> str:
    """Return the AWS code of a botocore error ('NoSuchKey', '412'), or the class's name where AWS sent none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict) and "Error" in response:
        return str(response["Error"].get("Code", "") or response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
    return type(error).__name__


def aws_error(error: BaseException, doing: str) -> TrainerError:
    """Turn a botocore error into ours, by code: no permission, no connection (worth another try), or a setting.

    `doing` says what failed, with its value: "cannot read s3://bucket/key".
    """
    from botocore import exceptions  # late, like boto3 itself

    code = error_code(error)
    if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.TokenRetrievalError)):
        do = "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or add --rehearse."
        return PermissionDenied(doing, why="no AWS credentials", do=do)
    if isinstance(error, exceptions.NoRegionError):
        return ConfigError(doing, why="no AWS region", do="Set AWS_REGION, such as us-east-1.")
    if isinstance(error, (exceptions.HTTPClientError, exceptions.ConnectionError)):  # every connection and time-out error
        return ConnectionFailed(doing, why=f"{code}: {error}", do="Check the network; AWS may be out of reach.")
    if not isinstance(error, exceptions.ClientError):
        return ConfigError(doing, why=f"{code}: {error}", do="Check region, credentials and settings.")
    message = error.response.get("Error", {}).get("Message", "")
    why = f"{code}: {message}" if message else code
    if code in PERMISSION_CODES:
        return PermissionDenied(doing, why=why, do="Ask for this permission, or check which credentials AWS_PROFILE names.")
    if code in THROTTLING_CODES or error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
        return ConnectionFailed(doing, why=why, do="Try again in a minute.")
    return ConfigError(doing, why=why, do="Check the stack: pulumi up brings it in line with this version.")
