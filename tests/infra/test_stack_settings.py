"""The settings: declared with type, default and description, and refused where they make no sense."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from pulumi.runtime.config import set_all_config
from pulumi.runtime.mocks import set_mocks

from infra.stack_settings import Settings, look_up_stack, read_settings
from tests.infra.program import STACK, Recorded, Recorder
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


def test_every_setting_has_type_default_and_description() -> None:
    assert DECLARED.keys() == {field.name for field in fields(Settings)} - {"project", "stack"}
    for declaration in DECLARED.values():
        assert declaration.keys() - {"items"} == {"type", "default", "description"}
    assert len(DECLARED) <= 18  # a new one needs a page under docs/adr


def test_types_are_the_declared_ones() -> None:
    kinds = {"int": "integer", "str": "string", "tuple[str, ...]": "array of strings"}
    kinds["tuple[RetrainSchedule, ...]"] = "array of objects"
    declared = {
        key: f"array of {one['items']['type']}s" if one["type"] == "array" else one["type"]
        for key, one in DECLARED.items()
    }
    assert declared == {one.name: kinds[str(one.type)] for one in fields(Settings) if one.name in DECLARED}


def test_defaults_make_sense(configure: Any) -> None:
    configure()
    read = read_settings()
    assert (read.project, read.stack, read.max_lifetime_minutes) == ("mayfly", "dev", 720)
    assert read.control_types == ("g4dn.*", "g5.*", "g6.*", "g6e.*")
    assert (read.sessions, read.ssh_from, read.efs_throughput) == (False, "", "")


def test_attach_is_off_session_manager_or_one_address(configure: Any) -> None:
    configure(attach="ssm")
    assert (read_settings().sessions, read_settings().ssh_from) == (True, "")
    configure(attach="203.0.113.7")
    assert (read_settings().sessions, read_settings().ssh_from) == (False, "203.0.113.7")


@pytest.mark.parametrize(
    ("storage", "throughput"), [("s3", ""), ("efs-cache", "elastic"), ("efs-cache-bursting", "bursting")]
)
def test_storage_says_how_a_cache_is_billed(configure: Any, storage: str, throughput: str) -> None:
    configure(storage=storage)
    assert read_settings().efs_throughput == throughput


def test_a_senseless_retrain_is_named_by_its_number(configure: Any) -> None:
    weekly = {"name": "weekly", "weekdays": ["SUN"], "hour": 3, "budget": 5, "budget_month": 20}
    configure(retrains=json.dumps([weekly]))
    (schedule,) = read_settings().retrains
    assert (schedule.name, schedule.time_zone) == ("weekly", "UTC")
    assert (schedule.overlap, schedule.budget) == ("skip", 5)
    configure(retrains=json.dumps([weekly, {**weekly, "name": "other", "hour": 25}]))
    with pytest.raises(pulumi.RunError, match=r"retrain 2: .*hour: 25.*is not accepted.*pulumi config set"):
        read_settings()


def test_a_setting_of_the_wrong_type_is_a_clear_error(configure: Any) -> None:
    configure(volume_gib="much")
    with pytest.raises(pulumi.RunError, match=r"volume_gib.*much.*int.*pulumi config set"):
        read_settings()
    for text in ("g5.*,g6.*", '"g5.*"', '{"g5.*": 1}', "[5]"):
        configure(control_types=text)
        with pytest.raises(pulumi.RunError, match=r"control_types.*pulumi config set"):
            read_settings()


def test_a_setting_out_of_range_is_a_clear_error(configure: Any) -> None:
    configure(volume_gib="60")
    with pytest.raises(pulumi.RunError, match="'volume_gib' is 60; it must be between 75 and 16384"):
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
        ("volume_gib", 8),
        ("noncurrent_days", 0),
        ("experiment_days", 0),
        ("log_days", 31),
        ("account_budget", -1),
        ("image_pipeline", "true"),
        ("control_types", ("g5",)),
        ("storage", "local"),
        ("kms_key", "create"),
        ("attach", "telnet"),
        ("attach", "0.0.0.0/0"),
        ("vpc_cidr", "10.86.0.0/28"),
        ("vpc_cidr", "10.86.0.1/16"),
        ("vpc_cidr", "8.8.0.0/16"),
        ("vpc_cidr", "everywhere"),
        ("subnets", ("subnet-0a", "vpc-0a")),
        ("subnets", ("Tier=private",)),
    ],
)
def test_a_senseless_setting_is_named(configure: Any, key: str, value: object) -> None:
    configure()
    shown = list(value) if isinstance(value, tuple) else value
    with pytest.raises(ValueError, match=re.escape(f"Setting '{key}' is {shown!r}; it must be")):
        replace(read_settings(), **{key: value})


@pytest.mark.parametrize(
    "line", ["ubuntu-24.04", "pytorch-2.13-ubuntu-26.04", "pytorch-2.13-amazon-linux-2023"]
)
def test_a_cache_is_for_lines_that_can_mount_it(configure: Any, line: str) -> None:
    configure(storage="efs-cache", image_line=line)
    assert read_settings().efs_throughput == "elastic"


def test_a_cache_that_no_node_could_mount_is_refused(configure: Any) -> None:
    other = {"image_line": "oss-nvidia-driver-gpu-pytorch-2.13-rocky-linux-9"}
    configure(**other)
    assert read_settings().image_line == other["image_line"]
    configure(**other, storage="efs-cache")
    error = (
        r"'storage' is 'efs-cache', but nodes of image_line .*-rocky-linux-9 can't mount it: only lines of"
    )
    with pytest.raises(pulumi.RunError, match=error):
        read_settings()


def test_project_and_stack_leave_the_bucket_a_legal_name() -> None:
    longest = replace(STACK, project="p" * 16, name="s" * 16, region="ap-southeast-1")
    assert len(longest.bucket) <= 63


def test_a_key_of_another_region_is_refused(configure: Any) -> None:
    configure(kms_key="arn:aws:kms:us-east-1:123456789012:key/1234abcd")
    with pytest.raises(pulumi.RunError, match=r"1234abcd', a key of another region; it must be one of eu-"):
        look_up_stack(read_settings())
