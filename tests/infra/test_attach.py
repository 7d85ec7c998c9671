"""A way onto instances: nothing of it in a stack with attach = off, and no more than needed with the
others.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from infra import policies
from infra.attach import AWS_DOCUMENTS, agent_messages, is_one_address, sessions, ssh_ingress
from tests.iam import assert_known_to_aws, listed
from tests.infra.program import STACK

if TYPE_CHECKING:
    from tests.infra.program import Recorded


def test_attach_off_leaves_no_way_in_and_no_sessions(program: Recorded) -> None:
    assert program.outputs["attach"] == "off" and "attach_policy_arn" not in program.outputs
    for resource in program.resources:
        assert not resource.inputs.get("ingress"), resource.name
        assert "keyName" not in resource.inputs and "KeyPair" not in resource.typ
        for name in ("policy", "assumeRolePolicy"):
            text = str(resource.inputs.get(name, ""))
            assert not re.search("ssmmessages|Session|UpdateInstanceInformation", text)
    policies = [one["name"] for one in program.all("aws:iam/policy:Policy")]
    assert policies == [f"mayfly-dev-eu-west-1-{name}" for name in ("launcher", "prune")]


@pytest.mark.parametrize("text", ["203.0.113.7", "203.0.113.7/32", "10.1.2.3"])
def test_one_address_may_connect(text: str) -> None:
    assert is_one_address(text)
    (rule,) = ssh_ingress(text)
    assert (rule.protocol, rule.from_port, rule.to_port) == ("tcp", 22, 22)
    assert rule.cidr_blocks == [f"{text.partition('/')[0]}/32"] and rule.ipv6_cidr_blocks is None
    assert ssh_ingress("") == []


RANGES = ("0.0.0.0/0", "203.0.113.0/24", "203.0.113.7/31", "203.0.113.7/24", "2001:db8::/64")
NOBODYS = ("", "0.0.0.0", "127.0.0.1", "224.0.0.1", "me", "1.2.3", "2001:db8::7")  # machines have no IPv6


@pytest.mark.parametrize("text", [*RANGES, *NOBODYS])
def test_more_than_one_address_may_not(text: str) -> None:
    assert not is_one_address(text)


def test_a_role_and_people_get_sessions_and_nothing_else() -> None:
    role = policies.instance(STACK, agent_messages())
    added = role["Statement"][len(policies.instance(STACK)["Statement"]) :]
    assert [one["Sid"] for one in added] == ["CarrySessionsHasNoResource"]
    people = sessions(STACK)["Statement"]
    assert len(json.dumps(sessions(STACK), separators=(",", ":"))) < 6144
    allowed = {action for one in (*added, *people) for action in listed(one["Action"])}
    assert not any("*" in action for action in allowed)
    assert {action.partition(":")[0] for action in allowed} == {"ssm", "ssmmessages"}
    # No command without a session, no secret.
    assert not allowed & {"ssm:SendCommand", "ssm:GetParameter", "ssm:GetParameters"}
    assert "*" not in [one["Resource"] for one in people]
    assert_known_to_aws(sessions(STACK))
    start = {one["Sid"]: one for one in people}["StartSessionsOnOwnInstances"]
    own = {"ssm:resourceTag/project": "mayfly", "ssm:resourceTag/stack": "dev"}
    assert start["Condition"]["StringEquals"] == own
    assert "AWS-StartSSHSession" not in AWS_DOCUMENTS
