"""Which AWS a command speaks to: the caller's own account, by the SDK's variables, or the embedded one of a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
        import boto3  # late: 0.3 s, and --help must not pay for it
        from botocore.config import Config

        config = Config(
            retries={"mode": "standard", "total_max_attempts": total_max_attempts},
            connect_timeout=10,
            read_timeout=timeout_seconds,
            s3={"addressing_style": "path"} if self.endpoint_url else {},
        )
        return boto3.client(
            service,
            region_name=self.region,
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=config,
        )
