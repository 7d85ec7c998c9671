"""Evaluation of IAM policy documents, parsed once: Allow, Deny, wildcards, conditions, policy variables.
Pure.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html (looked up
2026-11-22). Identity policies, permissions boundaries, policies of resources and trust policies of roles: no
session policies, no service control policies. An unknown operator or element raises ValueError when the
document is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

Values = str | tuple[str, ...]
_VARIABLE = re.compile(r"\$\{([^}]+)\}")
_ELEMENTS = {"Sid", "Effect", "Action", "NotAction", "Resource", "NotResource", "Condition"}


@dataclass(frozen=True, kw_only=True)
class Authorization:
    """One question to IAM: may the caller perform this action on that resource? A call asks one or
    several.
    """

    action: str  # such as s3:GetObject
    resource: str  # its ARN, or "*"
    context: Mapping[str, Values] = field(default_factory=dict)  # condition key -> value; lower case keys


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One operator on one key, with the values that are wanted."""

    operator: str
    quantifier: Literal["", "ForAllValues", "ForAnyValue"]
    if_exists: bool
    key: str  # lower case
    wanted: tuple[str, ...]

    def holds(self, context: Mapping[str, Values]) -> bool:
        """Return whether a request's context meets the condition."""
        value = context.get(self.key)
        if self.operator == "Null":
            return (value is None) == (self.wanted[0].lower() == "true")
        negated = self.operator.startswith(("StringNot", "ArnNot"))
        if value is None:
            return self.if_exists or negated or self.quantifier == "ForAllValues"
        values = (value,) if isinstance(value, str) else value
        matches = (self._matches(one, context) != negated for one in values)
        return all(matches) if self.quantifier == "ForAllValues" else any(matches)

    def _matches(self, value: str, context: Mapping[str, Values]) -> bool:
        return any(_OPERATORS[self.operator](wanted, value, context) for wanted in self.wanted)


@dataclass(frozen=True, kw_only=True)
class PolicyStatement:
    """One statement of a policy."""

    sid: str
    allows: bool
    actions: tuple[str, ...]
    all_but_actions: bool
    resources: tuple[str, ...]
    all_but_resources: bool
    conditions: tuple[Condition, ...]

    def applies(self, asked: Authorization, context: Mapping[str, Values]) -> bool:
        """Return whether the statement applies to a question."""
        action = any(matches(one, asked.action.lower()) for one in self.actions)
        if action == self.all_but_actions:
            return False
        resource = any(matches_filled(one, asked.resource, context) for one in self.resources)
        return resource != self.all_but_resources and all(
            condition.holds(context) for condition in self.conditions
        )


@dataclass(frozen=True, kw_only=True)
class IamPolicy:
    """A policy by its name."""

    name: str
    statements: tuple[PolicyStatement, ...]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The answer to a question. `by` is (policy, Sid) of the deciding statement, None if none applies."""

    allowed: bool
    by: tuple[str, str] | None = None


def decide(policies: Iterable[IamPolicy], asked: Authorization, principal: Mapping[str, Values]) -> Decision:
    """Decide as IAM does: an explicit Deny wins, then an Allow; the default is no. `principal` is the
    caller's context.
    """
    context = {**principal, **asked.context}
    allowed = Decision(allowed=False)
    for policy in policies:
        for statement in policy.statements:
            if (statement.allows and allowed.allowed) or not statement.applies(asked, context):
                continue
            if not statement.allows:
                return Decision(allowed=False, by=(policy.name, statement.sid))
            allowed = Decision(allowed=True, by=(policy.name, statement.sid))
    return allowed


@lru_cache(maxsize=256)
def read_policy(name: str, text: str) -> IamPolicy:
    """Read a policy document (JSON text). Raises ValueError for an element or an operator that is not known
    here.
    """
    listed = _many(json.loads(text)["Statement"])
    return IamPolicy(name=name, statements=tuple(map(_statement, listed, range(len(listed)))))


@lru_cache(maxsize=256)
def read_resource_policy(name: str, text: str, callers: frozenset[str]) -> IamPolicy:
    """Read the policy of a resource, or a role's trust policy: the statements about one of these callers, or
    about everybody. A caller is an ARN, an account, or an AWS service such as `sns.amazonaws.com`. Raises
    ValueError as `read_policy` does.
    """
    about = []
    for number, one in enumerate(_many(json.loads(text)["Statement"])):
        rest = {name: value for name, value in one.items() if name != "Principal"}
        statement = _statement({"Resource": "*"} | rest, number)
        if _is_about(one.get("Principal", {}), callers):
            about.append(statement)
    return IamPolicy(name=name, statements=tuple(about))


def lets_service(text: str, service: str, asked: Authorization) -> bool:
    """Return whether a resource policy, or a role's trust policy, allows an AWS service, or a caller by ARN,
    an action.

    `service` is such as `sns.amazonaws.com`; its question carries `aws:sourcearn` and `aws:sourceaccount`.
    Raises ValueError.
    """
    return decide([read_resource_policy("", text, frozenset({service}))], asked, {}).allowed


def _is_about(principal: Any, callers: Collection[str]) -> bool:
    """Return whether a statement's principal is everybody or one of the callers."""
    if not isinstance(principal, dict):
        return bool(principal == "*")
    named = {*_many(principal.get("Service")), *_many(principal.get("AWS"))}
    return "*" in named or not named.isdisjoint(callers)


def _statement(given: Mapping[str, Any], number: int) -> PolicyStatement:
    if unknown := given.keys() - _ELEMENTS:
        raise ValueError(f"a policy has an unknown element, {', '.join(sorted(unknown))}")
    return PolicyStatement(
        sid=given.get("Sid", str(number)),
        allows=given["Effect"] == "Allow",
        actions=tuple(one.lower() for one in _many(given.get("Action", given.get("NotAction")))),
        all_but_actions="NotAction" in given,
        resources=_many(given.get("Resource", given.get("NotResource"))),
        all_but_resources="NotResource" in given,
        conditions=tuple(
            _condition(operator, key, wanted)
            for operator, keys in given.get("Condition", {}).items()
            for key, wanted in keys.items()
        ),
    )


def _condition(operator: str, key: str, wanted: Any) -> Condition:
    quantifier, _, rest = operator.rpartition(":")
    name = rest.removesuffix("IfExists")
    if quantifier not in ("", "ForAllValues", "ForAnyValue") or name not in (*_OPERATORS, "Null"):
        raise ValueError(f"a policy has an unknown condition operator, {operator}")
    return Condition(
        operator=name,
        quantifier=quantifier,  # type: ignore[arg-type]  # one of three, as just checked
        if_exists=rest != name,
        key=key.lower(),
        wanted=tuple(str(one).lower() if isinstance(one, bool) else str(one) for one in _many(wanted)),
    )


def _many(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


@lru_cache(maxsize=4096)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def matches(pattern: str, value: str) -> bool:
    """Return whether a value fits a pattern with `*` (any characters, slashes too) and `?` (one
    character).
    """
    return _pattern(pattern).fullmatch(value) is not None


def matches_filled(pattern: str, value: str, context: Mapping[str, Values]) -> bool:
    """Return whether a value fits a pattern with policy variables; a pattern with an unset variable fits
    nothing.
    """
    if "${" not in pattern:
        return matches(pattern, value)
    pieces = _VARIABLE.split(pattern)  # text and names in turn
    filled = []
    for number, piece in enumerate(pieces):
        known = context.get(piece.lower()) if number % 2 else piece
        if not isinstance(known, str):
            return False
        # Substituted values are literal: a `*` in a session's name must not widen the pattern.
        filled.append(re.escape(known) if number % 2 else _pattern(piece).pattern)
    return re.fullmatch("".join(filled), value, re.DOTALL) is not None


def _equal(wanted: str, value: str, context: Mapping[str, Values]) -> bool:
    if "${" not in wanted:
        return wanted == value
    return matches_filled(
        wanted.replace("*", "${*}").replace("?", "${?}"), value, {**context, "*": "*", "?": "?"}
    )


def _bool(wanted: str, value: str, context: Mapping[str, Values]) -> bool:
    return wanted.lower() == value.lower()


# By operator, each with its "Not": StringNotEquals and so on.
_OPERATORS: dict[str, Callable[[str, str, Mapping[str, Values]], bool]] = {
    "StringEquals": _equal,
    "StringLike": matches_filled,
    "ArnEquals": matches_filled,
    "ArnLike": matches_filled,
    "Bool": _bool,
}
_OPERATORS |= {
    name.replace("String", "StringNot").replace("Arn", "ArnNot"): one for name, one in _OPERATORS.items()
}
