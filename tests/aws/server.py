"""The server of the embedded AWS with all rules: what a rehearsal leaves out is checked for the tests.

The product's server knows nothing of this one. In a process of its own, on the folder of a desk whose
commands then find it:

    python -m tests.aws.server --root FOLDER
"""

from __future__ import annotations

import sys

from tests.aws import (
    alarms,
    bucket_keys,
    compute,
    experiments,
    identities,
    image_builder,
    quotas,
    retries,
    schedules,
    sessions,
    topics,
)
from tests.aws.account import CheckedAccount
from tests.aws.faults import FaultyWorld
from trainer.aws.access import Access
from trainer.rehearsal.account import Rules
from trainer.rehearsal.front import RULES
from trainer.rehearsal.server import EmbeddedAws, main

_OWNERS = (
    *(compute, schedules, identities, quotas, topics, alarms, sessions),
    *(image_builder, bucket_keys, experiments),
)
ALL_RULES: Rules = RULES | {key: rule for owner in _OWNERS for key, rule in owner.RULES.items()}


class CheckedAws(EmbeddedAws):
    """An embedded AWS whose accounts check what AWS checks."""

    account_type = CheckedAccount
    rules = ALL_RULES
    applier = "tests.aws.pulumi_apply"

    def cloud(self, access: Access) -> CheckedAccount:
        """Return the account behind an access."""
        cloud = super().cloud(access)
        assert isinstance(cloud, CheckedAccount)
        return cloud

    def world(self, access: Access) -> FaultyWorld:
        """Return the world behind an access, for its faults."""
        return self.cloud(access).world

    def fire_due(self, cloud: CheckedAccount) -> None:
        """Let everything happen that an account's clock makes due, retries and alarms included."""
        super().fire_due(cloud)
        retries.retry_due(cloud)
        alarms.evaluate_due(cloud)


if __name__ == "__main__":
    sys.exit(main(aws_type=CheckedAws))
