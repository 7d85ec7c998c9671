"""The whole program in every pair of its settings, against mocks; the defaults, and everything at once, on the
embedded AWS. `scripts/settings-pairs`, a part of `make nightly`, applies each pair there.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import wheels
from scripts.settings_pairs import applied
from tests.aws.server import CheckedAws
from tests.infra.pairs import EVERYTHING, VALUES, pairwise
from tests.infra.program import ROOT, run_program
from tests.infra.standing import assert_stands

COMBINATIONS = pairwise(VALUES)
# Seven of eight pairs meet in these, for 0.4 core-seconds each; the script holds the others, too.
IN_SUITE = COMBINATIONS[:8]
DECLARED: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]


def test_every_setting_is_there_both_ways() -> None:
    for name, values in VALUES.items():
        assert values[0] == {} and len(values) > 1, f"{name} begins with its default"
    changed = {(key, text) for values in VALUES.values() for one in values for key, text in one.items()}
    assert {key for key, _ in changed} == DECLARED.keys()
    assert not [key for key, text in changed if text == str(DECLARED[key]["default"])]


def test_each_two_values_meet_in_some_combination() -> None:
    for one, other in combinations(VALUES, 2):
        for left, right in product(VALUES[one], VALUES[other]):
            keys = {key for group in (VALUES[one], VALUES[other]) for value in group for key in value}
            wanted = {**left, **right}
            met = ({key: row[key] for key in keys & row.keys()} == wanted for row in COMBINATIONS)
            assert any(met), (left, right)


@pytest.mark.slow  # the program runs once for each
@pytest.mark.parametrize("config", IN_SUITE, ids=lambda config: "-".join(config) or "defaults")
def test_the_program_holds_its_rules_whatever_its_settings(
    config: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "files_of", lambda *_: {})  # what the zips hold is tested with the functions
    assert_stands(run_program(config), config)


@pytest.mark.nightly  # seven core-seconds each; tests/live has the program with every option
@pytest.mark.parametrize(
    "config",
    [pytest.param({}, id="defaults"), pytest.param(EVERYTHING, id="everything")],
)
def test_the_program_applies_to_an_account(
    aws_server: CheckedAws, fork_server: Path, config: Mapping[str, str]
) -> None:
    assert config.keys() in (set(), DECLARED.keys() - {"vpc_cidr"})
    assert_stands(run_program(config), config)
    assert list(applied(aws_server, config, server=fork_server)) == [], "nothing refers to what is not there"


def test_a_broken_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "files_of", lambda *_: {})
    stack = run_program()
    group = stack.inputs("aws:ec2/securityGroup:SecurityGroup")
    monkeypatch.setitem(group, "ingress", [{"cidrBlocks": ["203.0.113.7/32"]}])
    with pytest.raises(AssertionError, match=r"mayfly-dev-instances lets \['203.0.113.7/32'\] in"):
        assert_stands(stack, {})
    monkeypatch.setitem(group, "ingress", [])
    monkeypatch.setitem(stack.inputs("aws:sqs/queue:Queue"), "tags", {})
    with pytest.raises(AssertionError, match="aws:sqs/queue:Queue"):
        assert_stands(stack, {})
    monkeypatch.undo()
    bucket = stack.request("aws:s3/bucket:Bucket")
    bucket.retainOnDelete = bucket.protect = False  # while its versioning and the rest of it stay
    with pytest.raises(AssertionError):
        assert_stands(stack, {})
