"""Two stacks in one account, with names of which one begins with the other: no name is made twice, no role
reaches across.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from infra import wheels
from infra.stack_settings import RULES
from tests.aws.iam_policies import Authorization, Values, decide, lets_service, read_policy
from tests.iam import listed
from tests.infra.pairs import RETRAINS
from tests.infra.program import ACCOUNT, REGION, Recorded, run_program

pytestmark = pytest.mark.slow  # the program runs for each stack
PREFIX = "mayfly-dev"
NAMES = ("name", "bucket", "functionName")
# Of the account, of AWS, or of a person (a session), not of a stack.
SHARED = (
    "::image/",
    ":spot-instances-request/",
    ":servicequotas:",
    ":parameter/aws/",
    "AWSServiceRoleForEC2Spot",
    ":document/",
    ":session/",
)


@cache
def stack_of(name: str) -> Recorded:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wheels, "files_of", lambda *_: {})  # what the zips hold is tested with the functions
        more = {"account_budget": "10", "attach": "ssm", "storage": "efs-cache", "cluster": "true"}
        config = {"retrains": json.dumps(RETRAINS), "image_pipeline": "g4dn.xlarge", **more}
        return run_program(config, stack=name)


def policies_of(stack: Recorded) -> dict[str, dict[str, Any]]:
    """Return the documents of a stack's roles, and the launcher policy, by logical name."""
    kinds = ("aws:iam/rolePolicy:RolePolicy", "aws:iam/policy:Policy")
    return {one.name: json.loads(one.inputs["policy"]) for one in stack.resources if one.typ in kinds}


def questions(document: Mapping[str, Any]) -> Iterator[Authorization]:
    """Yield an example of everything that a policy allows on something of its own stack: with what its
    conditions ask for.
    """
    for statement in (one for one in document["Statement"] if one["Effect"] == "Allow"):
        context: dict[str, Values] = {}
        for operator, keys in statement.get("Condition", {}).items():
            for key, value in keys.items():
                context[key.lower()] = "x" if operator == "Null" else listed(value)[0]
        for action in listed(statement["Action"]):
            for pattern in listed(statement["Resource"]):
                about_nothing = pattern == "*" and not context
                if not about_nothing and not any(one in pattern for one in SHARED):
                    example = pattern.replace("${aws:userid}", "AROA1:i-1").replace("*", "x")
                    resource = "*" if pattern == "*" else example
                    yield Authorization(action=action, resource=resource, context=context)


@pytest.mark.parametrize(("own", "other"), [("dev", "dev-2"), ("dev-2", "dev")])
def test_no_role_may_act_on_another_stack(own: str, other: str) -> None:
    principal = {"aws:userid": "AROA1:i-1", "aws:principalaccount": ACCOUNT}
    theirs = {name: list(questions(document)) for name, document in policies_of(stack_of(other)).items()}
    assert sum(map(len, theirs.values())) > 100
    for asked in (one for several in theirs.values() for one in several):
        for role, document in policies_of(stack_of(own)).items():
            decision = decide([read_policy(role, json.dumps(document))], asked, principal)
            assert not decision.allowed, (role, own, asked, other, decision.by)
    # Or the questions would be none that a policy allows.
    for role, document in policies_of(stack_of(other)).items():
        policy = read_policy(role, json.dumps(document))
        refused = [one for one in theirs[role] if not decide([policy], one, principal).allowed]
        assert not refused, refused


def test_no_schedule_of_one_stack_has_the_others_role_act() -> None:
    for own, other in (("dev", "dev-2"), ("dev-2", "dev")):
        trust = stack_of(own).inputs("aws:iam/role:Role", "scheduler")["assumeRolePolicy"]
        for group, trusted in ((own, True), (other, False)):
            source = f"arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule-group/mayfly-{group}"
            context: dict[str, Values] = {"aws:sourceaccount": ACCOUNT, "aws:sourcearn": source}
            asked = Authorization(action="sts:AssumeRole", resource="*", context=context)
            assert lets_service(trust, "scheduler.amazonaws.com", asked) is trusted


def test_no_name_is_made_by_two_stacks() -> None:
    """Also where one stack is called as a part of the other: such names are refused."""
    resources = stack_of("dev").resources
    made = {(one.typ, one.inputs[key]) for one in resources for key in NAMES if key in one.inputs}
    own = {(kind, name) for kind, name in made if PREFIX in name}
    words = {match[1] for _, name in own if (match := re.search(rf"{PREFIX}-([a-z]+)", name))}
    assert words > {"prepare", "sweeper", "instances"}
    for word in words:
        collisions = own & {(kind, name.replace(PREFIX, f"{PREFIX}-{word}")) for kind, name in own}
        assert not collisions or not RULES["stack"].holds(f"dev-{word}"), (word, collisions)
    assert not own & {(kind, name.replace(PREFIX, f"{PREFIX}-2")) for kind, name in own}
    assert RULES["stack"].holds("dev-2")


def test_global_names_contain_the_region() -> None:
    of_iam = {f"aws:iam/{kind}" for kind in ("role:Role", "policy:Policy", "instanceProfile:InstanceProfile")}
    kinds = of_iam | {"aws:budgets/budget:Budget"}
    made = [one for one in stack_of("dev").resources if one.typ in kinds]
    assert {one.typ for one in made} == kinds
    assert not [one.inputs["name"] for one in made if REGION not in one.inputs["name"]]
