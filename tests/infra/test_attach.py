"""A way onto instances: nothing of it in a stack with attach = off, and no more than needed with the
others.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from infra import policies
from infra.attach import AWS_DOCUMENTS, agent_messages, check_attach, is_one_address, sessions, ssh_ingress
from infra.settings import read_settings
from tests.iam import condition_keys, kind_of, listed

if TYPE_CHECKING:
    from tests.infra.program import Recorded

OWN = {"account": "123456789012", "region": "eu-west-1", "project": "mayfly", "stack": "dev"}


def test_with_attach_off_nothing_comes_in_and_no_role_or_policy_knows_of_sessions(program: Recorded) -> None:
    assert program.outputs["attach"] == "off" and "attach_policy_arn" not in program.outputs
    for resource in program.resources:
        assert not resource.inputs.get("ingress"), resource.name
        assert "keyName" not in resource.inputs and "KeyPair" not in resource.typ
        for name in ("policy", "assumeRolePolicy"):
            text = str(resource.inputs.get(name, ""))
            assert (
                "ssmmessages" not in text
                and "Session" not in text
                and "UpdateInstanceInformation" not in text
            )
    assert [one["name"] for one in program.all("aws:iam/policy:Policy")] == ["mayfly-dev-eu-west-1-launcher"]


@pytest.mark.parametrize(
    "text", ["203.0.113.7", "203.0.113.7/32", "2001:db8::7", "2001:db8::7/128", "10.1.2.3"]
)
def test_one_address_may_connect(text: str) -> None:
    assert is_one_address(text)
    (rule,) = ssh_ingress(text)
    assert (rule.protocol, rule.from_port, rule.to_port) == ("tcp", 22, 22)
    four, six = rule.cidr_blocks or [], rule.ipv6_cidr_blocks or []
    assert [str(one) for one in (*four, *six)] == [f"{text.partition('/')[0]}/{128 if ':' in text else 32}"]  # type: ignore[misc]


RANGES = ("0.0.0.0/0", "::/0", "203.0.113.0/24", "203.0.113.7/31", "203.0.113.7/24", "2001:db8::/64")
NOBODYS = ("0.0.0.0", "::", "127.0.0.1", "::1", "224.0.0.1", "me", "1.2.3")


@pytest.mark.parametrize("text", [*RANGES, *NOBODYS])
def test_more_than_one_address_may_not(text: str) -> None:
    assert not is_one_address(text)


def test_an_address_belongs_to_ssh_and_ssh_to_an_address() -> None:
    check_attach("off", "", ipv6=False)
    check_attach("ssm", "", ipv6=False)
    check_attach("ssh", "203.0.113.7", ipv6=False)
    check_attach("ssh", "2001:db8::7", ipv6=True)
    for attach, attach_from, words in (
        ("ssh", "", r"'attach_from' is ''; with attach = ssh it must be one address"),
        ("ssm", "203.0.113.7", "with attach = ssm it must be empty"),
        ("ssh", "2001:db8::7", "machines have an IPv6 address only with ipv6 = true"),
    ):
        with pytest.raises(ValueError, match=words):
            check_attach(attach, attach_from, ipv6=False)


def test_the_settings_are_checked_together(program: Recorded) -> None:
    settings = read_settings()
    with pytest.raises(ValueError, match="Setting 'attach' is 'telnet'; it must be one of off, ssm, ssh"):
        replace(settings, attach="telnet")
    with pytest.raises(
        ValueError, match="Setting 'attach_from' is '0.0.0.0/0'; it must be one IPv4 or IPv6 address"
    ):
        replace(settings, attach="ssh", attach_from="0.0.0.0/0")
    with pytest.raises(ValueError, match="it must be one address"):
        replace(settings, attach="ssh")


def test_a_role_and_people_get_sessions_and_nothing_else() -> None:
    role = policies.instance(bucket="store", also=(agent_messages(),))
    added = role["Statement"][len(policies.instance(bucket="store")["Statement"]) :]
    assert [one["Sid"] for one in added] == ["CarrySessionsHasNoResource"]
    people = sessions(**OWN)["Statement"]
    assert len(json.dumps(sessions(**OWN), separators=(",", ":"))) < 6144
    allowed = {action for one in (*added, *people) for action in listed(one["Action"])}
    assert not any("*" in action for action in allowed)
    assert {action.partition(":")[0] for action in allowed} == {"ssm", "ssmmessages"}
    assert not allowed & {
        "ssm:SendCommand",
        "ssm:GetParameter",
        "ssm:GetParameters",
    }  # no command without a session, no secret
    for one in people:
        assert one["Resource"] != "*"
        for action in listed(one["Action"]):
            kinds = [kind_of(action, resource) for resource in listed(one["Resource"])]
            keys: dict[str, Any] = {key: 1 for test in one.get("Condition", {}).values() for key in test}
            known = {key.partition("/")[0] for kind in kinds for key in condition_keys(action, kind)}
            assert {key.lower().partition("/")[0] for key in keys} <= known
    start = {one["Sid"]: one for one in people}["StartSessionsOnOwnInstances"]
    assert start["Condition"]["StringEquals"] == {
        "ssm:resourceTag/project": "mayfly",
        "ssm:resourceTag/stack": "dev",
    }
    assert "AWS-StartSSHSession" not in AWS_DOCUMENTS
