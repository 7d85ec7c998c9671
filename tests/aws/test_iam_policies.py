"""Policies are evaluated as IAM's evaluation logic says; what is not known is an error and never a match."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.aws.iam_policies import (
    Authorization,
    Decision,
    decide,
    matches,
    matches_filled,
    read_policy,
)

NODE = {"aws:userid": "AROA1:i-1", "aws:principaltag/team": "red"}


def statement(**elements: Any) -> dict[str, Any]:
    return {"Sid": "One", "Effect": "Allow", "Action": "s3:GetObject", "Resource": "*", **elements}


def asked(
    statements: list[dict[str, Any]], action: str = "s3:GetObject", resource: str = "arn:a", **context: Any
) -> Decision:
    policy = read_policy("p", json.dumps({"Version": "2012-10-17", "Statement": statements}))
    return decide([policy], Authorization(action=action, resource=resource, context=context), NODE)


@pytest.mark.parametrize(
    ("pattern", "value", "fits"),
    [
        ("*", "", True),
        ("a*c", "a/b/c", True),  # crosses slashes
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("a.c", "abc", False),
        ("a*", "a\nb", True),
        ("abc", "abcd", False),
    ],
)
def test_wildcards(pattern: str, value: str, fits: bool) -> None:
    assert matches(pattern, value) is fits


@pytest.mark.parametrize(
    ("pattern", "value", "fits"),
    [
        ("live/${aws:userid}/*", "live/AROA1:i-1/x", True),
        ("live/${aws:userid}/*", "live/AROA1:i-12/x", False),
        ("live/${AWS:UserId}/*", "live/AROA1:i-1/x", True),  # names of variables have no case
        ("x/${aws:username}/*", "x//y", False),  # without a value
        ("*/${aws:userid}/*", "live/AROA2:i-2/AROA1:i-1/x", True),  # why the id follows a fixed prefix
    ],
)
def test_variables(pattern: str, value: str, fits: bool) -> None:
    assert matches_filled(pattern, value, NODE) is fits


def test_a_variables_value_is_text_and_no_pattern() -> None:
    assert not matches_filled("live/${aws:userid}/*", "live/AROA2:i-2/x", {"aws:userid": "*"})
    assert matches_filled("live/${aws:userid}/*", "live/*/x", {"aws:userid": "*"})


def test_deny_wins_in_any_order() -> None:
    allow, deny = statement(), statement(Sid="No", Effect="Deny", Resource="arn:a")
    assert asked([statement(Action="s3:PutObject")]) == Decision(allowed=False)
    assert asked([allow]) == Decision(allowed=True, by=("p", "One"))
    assert asked([allow, deny]) == asked([deny, allow]) == Decision(allowed=False, by=("p", "No"))
    assert asked([allow, deny], resource="arn:b").allowed


@pytest.mark.parametrize(
    ("elements", "allowed"),
    [
        ({"Action": "S3:getobject"}, True),  # actions have no case
        ({"Action": ["s3:Put*", "s3:Get*"]}, True),
        ({"Resource": "arn:A"}, False),  # resources have
        ({"Resource": ["arn:b", "arn:?"]}, True),
    ],
)
def test_actions_and_resources(elements: dict[str, Any], allowed: bool) -> None:
    assert asked([statement(**elements)]).allowed is allowed


def test_all_but_some() -> None:
    but_reads = statement(Effect="Deny", NotAction="s3:Get*")
    del but_reads["Action"]
    assert asked([statement(Action="*"), but_reads]).allowed
    assert not asked([statement(Action="*"), but_reads], "s3:PutObject").allowed
    but_a = statement(NotResource="arn:a")
    del but_a["Resource"]
    assert not asked([but_a]).allowed and asked([but_a], resource="arn:b").allowed


@pytest.mark.parametrize(
    ("operator", "wanted", "value", "holds"),
    [
        ("StringEquals", "a", "a", True),
        ("StringEquals", ["b", "a"], "a", True),
        ("StringEquals", "a*", "ab", False),  # no pattern
        ("StringEquals", "${aws:PrincipalTag/team}", "red", True),
        ("StringEquals", "${aws:PrincipalTag/team}*", "red-2", False),
        ("StringEquals", "a", None, False),
        ("StringEqualsIfExists", "a", None, True),
        ("StringNotEquals", ["a", "b"], "a", False),
        ("StringNotEquals", ["a", "b"], "c", True),
        ("StringNotEquals", "a", None, True),
        ("StringLike", "raw/*", "raw/x", True),
        ("StringLike", ["${aws:userid}/*"], "AROA1:i-1/x", True),
        ("StringNotLike", "raw/*", "raw/x", False),
        ("ArnEquals", "arn:x:*", "arn:x:1", True),
        ("ArnNotLike", "arn:x:*", "arn:y:1", True),
        ("Bool", "false", "true", False),
        ("Bool", True, "true", True),
        ("Null", "true", None, True),
        ("Null", "true", "a", False),
        ("Null", False, "a", True),
        ("ForAllValues:StringEquals", ["a", "b"], ("a", "b"), True),
        ("ForAllValues:StringEquals", ["a", "b"], ("a", "c"), False),
        ("ForAllValues:StringEquals", ["a"], None, True),
        ("ForAnyValue:StringEquals", ["a"], ("a", "c"), True),
        ("ForAnyValue:StringEquals", ["a"], None, False),
    ],
)
def test_conditions(operator: str, wanted: Any, value: Any, holds: bool) -> None:
    context = {} if value is None else {"x:key": value}
    assert asked([statement(Condition={operator: {"x:Key": wanted}})], **context).allowed is holds


def test_every_condition_of_a_statement_has_to_hold() -> None:
    both = statement(Condition={"StringEquals": {"x:a": "1", "x:b": "2"}})
    assert asked([both], **{"x:a": "1", "x:b": "2"}).allowed
    assert not asked([both], **{"x:a": "1"}).allowed


@pytest.mark.parametrize(
    "operator", ["IpAddress", "DateGreaterThan", "StringEqual", "ForSome:StringEquals", "NotBool"]
)
def test_an_unknown_operator_is_an_error(operator: str) -> None:
    with pytest.raises(ValueError, match=operator):
        asked([statement(Condition={operator: {"x:a": "1"}})])


def test_an_unknown_element_is_an_error() -> None:
    with pytest.raises(ValueError, match="Principal"):
        asked([statement(Principal="*")])
