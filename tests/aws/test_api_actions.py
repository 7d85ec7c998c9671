"""The table from API calls to IAM's questions, beside the calls that the code makes and AWS's own list of
actions.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from botocore import xform_name
from botocore.loaders import create_loader

import trainer
from tests.aws.api_actions import NO_POLICY, PREFIXES, TABLE
from tests.iam import REFERENCE

PACKAGE = Path(trainer.__file__).parent
CALLERS = ("aws", "cli", "control", "launch", "node", "retrains", "runs", "store")


def operations() -> dict[str, tuple[str, str]]:
    """Return (service, operation) by the method of a boto3 client, of every service that the code has a
    client of.
    """
    loader = create_loader()
    services = {
        node.args[0].value
        for node in nodes()
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "client"
        and isinstance(node.args[0], ast.Constant)
    }
    services |= {"cloudwatch", "ec2", "s3", "scheduler"}  # the sweeper's, which it makes by their names
    return {
        xform_name(operation): (service, operation)
        for service in services
        for operation in loader.load_service_model(service, "service-2")["operations"]
    }


@cache
def nodes() -> list[ast.AST]:
    """Return all nodes of the code that calls AWS."""
    folders = (PACKAGE / name for name in CALLERS)
    files = (file for folder in folders for file in sorted(folder.rglob("*.py")))
    return [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]


@cache
def called() -> set[tuple[str, str]]:
    """Return every operation that the code calls: a method of its name, or its name as a text (paginators,
    getattr).
    """
    known = operations()
    names = set()
    for node in nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            names.add(node.func.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return {known[name] for name in names & known.keys()}


def test_every_call_on_a_resource_is_in_the_table() -> None:
    calls = called()
    each_kind = {("ec2", "CreateFleet"), ("s3", "ListObjectVersions"), ("ssm", "GetParametersByPath")}
    assert each_kind <= calls
    for service, operation in calls - TABLE.keys() - NO_POLICY:
        action = f"{PREFIXES.get(service, service)}:{operation}"
        assert REFERENCE[action]["resources"] == {}, f"{action} takes a resource, and is not in the table"


def test_the_table_has_nothing_that_nobody_calls() -> None:
    sessions = ("StartSession", "ResumeSession", "TerminateSession")  # `aws ssm start-session`
    by_hand = {("s3", "HeadBucket")}
    by_hand |= {("ssm", one) for one in (*sessions, "GetParameters")}
    assert TABLE.keys() - called() == by_hand
