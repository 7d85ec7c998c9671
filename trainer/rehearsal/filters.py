"""The filters of DescribeInstances, over an instance's description and state. Pure; an unknown filter is an
error.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def matches(description: dict[str, Any], state: str, name: str, values: Sequence[str]) -> bool:
    """Return whether an instance in a state matches a filter, with wildcards * and ?. Raises ValueError for
    an unknown one.
    """
    candidates: Iterable[str]
    tags = {tag["Key"]: tag["Value"] for tag in description.get("Tags", [])}
    if name.startswith("tag:"):
        candidates = [value for key, value in tags.items() if key == name[4:]]
    elif name == "tag-key":
        candidates = list(tags)
    elif name == "tag-value":
        candidates = list(tags.values())
    elif name == "instance-state-name":
        candidates = [state]
    elif name in _FILTERS:
        candidates = [str(_FILTERS[name](description) or "")]
    else:
        raise ValueError(f"The filter '{name}' is invalid")
    return any(fnmatch.fnmatchcase(one, value) for one in candidates for value in values)


_FILTERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "instance-id": lambda one: one["InstanceId"],
    "instance-type": lambda one: one["InstanceType"],
    "availability-zone": lambda one: one["Placement"]["AvailabilityZone"],
    "image-id": lambda one: one.get("ImageId"),
    "subnet-id": lambda one: one.get("SubnetId"),
    "vpc-id": lambda one: one.get("VpcId"),
    "client-token": lambda one: one.get("ClientToken"),
    "instance-lifecycle": lambda one: one.get("InstanceLifecycle"),
    "iam-instance-profile.arn": lambda one: one.get("IamInstanceProfile", {}).get("Arn"),
}
