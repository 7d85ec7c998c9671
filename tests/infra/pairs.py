"""Settings of the stack in pairs: few combinations, in which any two values of any two settings meet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations, product

from tests.infra.program import EXISTING_SUBNETS

Values = Mapping[str, str]  # settings that only make sense together, as `pulumi config set` takes them
RETRAINS = [{"name": "weekly", "weekdays": ["SUN"], "hour": 3, "budget": 5, "budget_month": 20}]
EXISTING_KEY = "arn:aws:kms:eu-west-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
# A line for each setting, or group of settings: the default first, as {}. A new setting comes in by a line of
# its own.
VALUES: Mapping[str, Sequence[Values]] = {
    "network": ({}, {"subnets": json.dumps(list(EXISTING_SUBNETS))}, {"vpc_cidr": "192.168.0.0/20"}),
    "retrains": ({}, {"retrains": json.dumps(RETRAINS)}),
    "people": ({}, {"notify_email": "ops@example.com", "account_budget": "100"}),
    "machines": (
        {},
        {
            "control_types": '["g6.xlarge"]',
            "prepare_type": "t3.xlarge",
            "volume_gib": "200",
            "capacity_reservation": "cr-0123456789abcdef0",
        },
    ),
    "image_line": ({}, {"image_line": "oss-nvidia-driver-gpu-pytorch-2.12-amazon-linux-2023"}),
    "image_pipeline": ({}, {"image_pipeline": "g4dn.12xlarge"}),
    "storage": ({}, {"storage": "efs-cache"}, {"storage": "efs-cache-bursting"}),
    "kms_key": ({}, {"kms_key": EXISTING_KEY}),
    "attach": ({}, {"attach": "ssm"}, {"attach": "203.0.113.7"}),
    "retention": (
        {},
        {"retention": json.dumps({"noncurrent_days": 30, "experiment_days": 30, "log_days": 90})},
    ),
    "template_condition": ({}, {"template_condition": "false"}),
    "cluster": ({}, {"cluster": "true"}),
    "other": ({}, {"owner": "research", "max_lifetime_minutes": "60"}),
}

# Every setting away from its default at once.
EVERYTHING: Values = {key: text for values in VALUES.values() for key, text in values[1].items()}


def pairwise(values: Mapping[str, Sequence[Values]]) -> list[dict[str, str]]:
    """Return combinations in which each two values of two lines meet: greedily, the same ones each time.

    The first one is all defaults.
    """
    names = list(values)
    sizes = {name: range(len(values[name])) for name in names}
    open_pairs = {
        (one, left, other, right)
        for one, other in combinations(names, 2)
        for left, right in product(sizes[one], sizes[other])
    }
    rows = [dict.fromkeys(names, 0)]
    open_pairs -= _pairs(rows[0], names)
    while open_pairs:
        one, left, other, right = min(open_pairs)
        row = {one: left, other: right}
        for name in names:
            if name not in row:
                row[name] = max(
                    sizes[name],
                    key=lambda choice, name=name: len(_pairs({**row, name: choice}, names) & open_pairs),
                )
        rows.append(row)
        open_pairs -= _pairs(row, names)
    return [{key: text for name in names for key, text in values[name][row[name]].items()} for row in rows]


def _pairs(row: Mapping[str, int], names: Sequence[str]) -> set[tuple[str, int, str, int]]:
    chosen = [name for name in names if name in row]
    return {(one, row[one], other, row[other]) for one, other in combinations(chosen, 2)}
