"""The settings: declared with type, default and description, and refused where they make no sense."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from pulumi.runtime.config import set_all_config
from pulumi.runtime.mocks import set_mocks

from infra.settings import RULES, Account, Settings, read_settings
from infra.storage import beside_bucket
from tests.infra.pages import hold
from tests.infra.program import Recorded, Recorder
from trainer.rehearsal.pulumi_apply import settings

ROOT = Path(__file__).resolve().parents[2]
DECLARED: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]


@pytest.fixture
def configure() -> Any:
    """Set the stack's configuration over the defaults."""
    set_mocks(Recorder(Recorded()), project="mayfly", stack="dev")

    def set_config(**overrides: str) -> None:
        values = settings(ROOT, stack="dev", overrides={})
        set_all_config({f"mayfly:{key}": value for key, value in {**values, **overrides}.items()})

    return set_config


def test_every_setting_is_declared_with_type_default_and_description() -> None:
    assert DECLARED.keys() == {field.name for field in fields(Settings)} - {"project", "stack"}
    for declaration in DECLARED.values():
        assert declaration.keys() - {"items"} == {"type", "default", "description"}


def test_types_are_the_declared_ones() -> None:
    kinds = {
        "bool": "boolean",
        "int": "integer",
        "str": "string",
        "tuple[str, ...]": "string",
        "tuple[RetrainSchedule, ...]": "array",
    }
    assert {field.name: kinds[str(field.type)] for field in fields(Settings) if field.name in DECLARED} == {
        key: declaration["type"] for key, declaration in DECLARED.items()
    }


def test_defaults_make_sense(configure: Any) -> None:
    configure()
    read = read_settings()
    assert (read.project, read.stack, read.sweep_minutes, read.max_lifetime_minutes) == (
        "mayfly",
        "dev",
        2,
        720,
    )
    assert read.prefix == "mayfly-dev"
    assert read.tags == {"project": "mayfly", "stack": "dev", "owner": "mayfly"}


def test_retrains_are_read_and_a_senseless_one_is_named_by_its_number(configure: Any) -> None:
    weekly = {"name": "weekly", "weekdays": ["SUN"], "hour": 3, "budget": 5, "budget_month": 20}
    configure(retrains=json.dumps([weekly]))
    (schedule,) = read_settings().retrains
    assert (schedule.name, schedule.time_zone, schedule.overlap, schedule.budget) == (
        "weekly",
        "UTC",
        "skip",
        5,
    )
    configure(retrains=json.dumps([weekly, {**weekly, "name": "other", "hour": 25}]))
    with pytest.raises(pulumi.RunError, match=r"retrain 2: .*hour: 25.*hour: 23.*pulumi config set"):
        read_settings()


def test_a_setting_of_the_wrong_type_is_a_clear_error(configure: Any) -> None:
    configure(sweep_minutes="soon")
    with pytest.raises(pulumi.RunError, match=r"sweep_minutes.*soon.*int.*pulumi config set"):
        read_settings()


def test_a_setting_out_of_range_is_a_clear_error(configure: Any) -> None:
    configure(sweep_minutes="60")
    with pytest.raises(pulumi.RunError, match="'sweep_minutes' is 60; it must be between 1 and 15"):
        read_settings()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("stack", "Dev"),
        ("stack", "a-stack-with-a-long-name"),
        ("project", "1mayfly"),
        ("owner", ""),
        ("owner", "two words"),
        ("max_lifetime_minutes", 5),
        ("max_lifetime_minutes", 20_000),
        ("sweep_minutes", 0),
        ("volume_gib", 8),
        ("max_availability_zones", 17),
        ("noncurrent_days", 0),
        ("experiment_days", 0),
        ("log_days", 31),
        ("account_budget", -1),
        ("control_types", "g5"),
        ("storage", "efs"),
        ("efs_throughput", "provisioned"),
        ("kms_key", "my-key"),
        ("replicate_to", "Europe"),
        ("vpc_cidr", "10.86.0.0/28"),
        ("vpc_cidr", "10.86.0.1/16"),
        ("vpc_cidr", "8.8.0.0/16"),
        ("vpc_cidr", "everywhere"),
        ("vpc_id", "default"),
        ("subnet_ids", ("subnet-0a", "vpc-0a")),
        ("subnet_tags", ("private",)),
        ("endpoints", ("ssm", "s3")),
        ("endpoints", ("ssm", "ssm")),
    ],
)
def test_a_senseless_setting_is_named(configure: Any, key: str, value: object) -> None:
    configure()
    shown = ",".join(value) if isinstance(value, tuple) else value
    with pytest.raises(ValueError, match=f"Setting '{key}' is {shown!r}; it must be"):
        replace(read_settings(), **{key: value})


def test_project_and_stack_leave_the_bucket_a_legal_name() -> None:
    longest = f"{'p' * 16}-{'s' * 16}"
    assert len(f"{longest}-123456789012-ap-southeast-1") <= 63
    account = Account(id="123456789012", region="ap-southeast-1", availability_zones=())
    assert len(beside_bucket(longest, "replica", account)) <= 63


@pytest.mark.parametrize(
    ("key", "settings", "remedy"),
    [
        ("subnet_ids", {"subnet_ids": "subnet-0a"}, "Set 'vpc_id'"),
        ("subnet_tags", {"subnet_tags": "Tier=private"}, "Set 'vpc_id'"),
        ("vpc_id", {"vpc_id": "vpc-0a"}, "Set 'subnet_ids' or 'subnet_tags'"),
        (
            "subnet_tags",
            {"vpc_id": "vpc-0a", "subnet_ids": "subnet-0a", "subnet_tags": "a=b"},
            "Leave one of the two empty",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_named_with_the_remedy(
    configure: Any, key: str, settings: dict[str, str], remedy: str
) -> None:
    configure(**settings)
    with pytest.raises(pulumi.RunError, match=f"Setting '{key}' is .*{remedy}.*`pulumi config set`"):
        read_settings()


def test_a_list_may_have_spaces_after_its_commas(configure: Any) -> None:
    configure(vpc_id="vpc-0a", subnet_ids="subnet-0a, subnet-0b")
    assert read_settings().subnet_ids == ("subnet-0a", "subnet-0b")


def test_the_page_shows_the_settings_in_their_order(renew: bool) -> None:
    def cells(key: str, declaration: dict[str, Any]) -> list[str]:
        value = declaration["default"]
        default = (
            "none" if value in ("", []) else f"`{str(value).lower() if isinstance(value, bool) else value}`"
        )
        return [
            f"`{key}`",
            declaration["type"],
            default,
            RULES[key].words if key in RULES else "",
            declaration["description"],
        ]

    hold("Settings", [cells(key, declaration) for key, declaration in DECLARED.items()], renew=renew)
