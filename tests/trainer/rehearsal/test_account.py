"""Permissions and quotas, which a rehearsal leaves out and names as left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from trainer.aws.access import Access
from trainer.rehearsal.nodes import role_credentials
from trainer.rehearsal.server import EmbeddedAws


@pytest.fixture(scope="module")
def rehearsed() -> Iterator[EmbeddedAws]:
    """The product's server, without the rules of the tests' one."""
    with EmbeddedAws(run_nodes=False, fire_schedules=False) as server:
        yield server


@pytest.fixture
def access(rehearsed: EmbeddedAws) -> Access:
    """An account of that server, numbered beside those of the session's."""
    return rehearsed.access("900000000021")


def test_a_role_is_not_held_to_its_policies(rehearsed: EmbeddedAws, desk: Any) -> None:
    instance_id = desk.launched()
    cloud = rehearsed.cloud(desk.access)
    lent = role_credentials(cloud, cloud.world.instances[instance_id])
    assert lent is not None
    node = replace(desk.access, access_key=lent.access_key, secret_key=lent.secret_key)
    node.client("s3").create_bucket(Bucket="of-a-role-without-policies")
    assert node.client("sts").get_caller_identity()["Arn"].endswith(f":assumed-role/node/{instance_id}")
    stranger = rehearsed.keyring.credentials(cloud.account, "NODE", "i-never-lent")
    other = replace(desk.access, access_key=stranger.access_key, secret_key=stranger.secret_key)
    with pytest.raises(ClientError, match="InvalidAccessKeyId"):
        other.client("s3").list_buckets()


def test_quotas_are_described_and_not_enforced(access: Access) -> None:
    quota = access.client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode="L-417A185B")
    assert quota["Quota"]["Value"] == 768
