"""A stack with retrains and every option of storage, as several tests have it: the program is applied once
with this.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.rehearsal.account import EmbeddedAccount

SUNDAYS = {"weekdays": ["SUN"], "hour": 3}
RETRAINS = [
    {"name": "weekly", **SUNDAYS, "budget": 0.2, "budget_month": 1},
    {
        "name": "waiting",
        **SUNDAYS,
        "budget": 1,
        "budget_month": 9,
        "overlap": "wait",
        "promote": "better",
    },
    {
        "name": "night",
        **SUNDAYS,
        "hour": 2,
        "minute": 30,
        "time_zone": "America/New_York",
        "budget": 1,
        "budget_month": 9,
    },
    *({"name": name, **SUNDAYS, "budget": 1, "budget_month": 9} for name in ("pair", "model")),
    {
        "name": "sunday",
        **SUNDAYS,
        "time_zone": "America/New_York",
        "budget": 5,
        "budget_month": 20,
    },
]
KEY = "arn:aws:kms:us-east-1:210987654321:key/1234abcd-12ab-34cd-56ef-1234567890ab"  # another account's
STORAGE = {"storage": "efs-cache", "kms_key": KEY}
CONFIG = {"retrains": json.dumps(RETRAINS), "account_budget": "250", "cluster": "true", **STORAGE}
JOB = """
name = "weekly-lstm"
[model]
hidden = 8
lookback = 20
[train]
epochs = 1
batch = 128
[machine]
instance = ["g6.xlarge"]
"""


def answering_sweeper(cloud: EmbeddedAccount) -> None:
    """Give a stack a sweeper that answers and does nothing: each start asks it to sweep, which takes half a
    second.
    """
    with cloud.lock:
        cloud.functions["mayfly-dev-sweeper"] = replace(
            cloud.functions["mayfly-dev-sweeper"], handler="operator.is_not"
        )
