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

from infra.stack_settings import Retention, Settings, look_up_stack, read_settings
from tests.infra.program import REGION, STACK, Recorded, Recorder
from trainer.base.environment import REGION_VARIABLES
from trainer.rehearsal.pulumi_apply import settings

ROOT = Path(__file__).resolve().parents[2]
DECLARED: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the stack's configuration over the defaults, in a shell without a region."""
    set_mocks(Recorder(Recorded()), project="mayfly", stack="dev")
    for name in REGION_VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def set_config(region: str = REGION, **overrides: str) -> None:
        values = settings(ROOT, stack="dev", overrides={})
        own = {f"mayfly:{key}": value for key, value in {**values, **overrides}.items()}
        set_all_config({**own, **({"aws:region": region} if region else {})})

    return set_config


def test_every_setting_has_type_default_and_description() -> None:
    assert DECLARED.keys() == {field.name for field in fields(Settings)} - {"project", "stack"}
    for declaration in DECLARED.values():
        assert declaration.keys() - {"items"} == {"type", "default", "description"}
    assert len(DECLARED) <= 19  # a new one needs a page under docs/adr
    assert len(DECLARED) - 1 + len(fields(Retention)) <= 26  # with the leaves of the one that is an object


def test_types_are_the_declared_ones() -> None:
    kinds = {"int": "integer", "str": "string", "tuple[str, ...]": "array of strings"}
    kinds |= {"tuple[RetrainSchedule, ...]": "array of objects", "Retention": "object", "bool": "boolean"}
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
        ("project", "trading"),  # no command would find its stacks
        ("owner", ""),
        ("owner", "two words"),
        ("max_lifetime_minutes", 5),
        ("max_lifetime_minutes", 20_000),
        ("volume_gib", 8),
        ("account_budget", -1),
        ("image_pipeline", "true"),
        ("control_types", ("g5",)),
        ("capacity_reservation", ""),
        ("capacity_reservation", "none"),
        ("capacity_reservation", "cr-12"),
        (
            "capacity_reservation",
            "arn:aws:ec2:us-east-1:123456789012:capacity-reservation/cr-0123456789abcdef0",
        ),
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


def test_models_of_runs_are_kept_for_ever_by_default(configure: Any) -> None:
    configure()
    assert read_settings().retention == Retention(noncurrent_days=90, experiment_days=0, log_days=30)


def test_leaves_of_retention_that_are_not_set_keep_their_default(configure: Any) -> None:
    configure(retention='{"log_days": 90}')
    assert read_settings().retention == Retention(log_days=90)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ('{"log_days": 31}', "'retention.log_days' is 31; it must be one of 1, 3"),
        ('{"noncurrent_days": 0}', "'retention.noncurrent_days' is 0; it must be between 1 and 3650"),
        ('{"experiment_days": -1}', "'retention.experiment_days' is -1; it must be between 0 and 3650"),
        ('{"experiment_days": true}', "'retention.experiment_days' is True; it must be a number of days"),
        ('{"checkpoint_days": 0}', "'retention.checkpoint_days' is 0; it must be between 1 and 3650"),
        ('{"log_day": 30}', "'retention' has no 'log_day'; it has noncurrent_days, experiment_days, log"),
        ("[30]", "'retention' is [30]; it must be an object of noncurrent_days, experiment"),
    ],
)
def test_senseless_retention_is_named(configure: Any, given: str, words: str) -> None:
    configure(retention=given)
    with pytest.raises(pulumi.RunError, match=re.escape(words)):
        read_settings()


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


def test_the_checkouts_own_stack_names_no_region() -> None:
    """It would beat AWS_REGION, by which commands find the stack."""
    tracked = yaml.safe_load((ROOT / "Pulumi.dev.yaml").read_text(encoding="utf-8"))
    assert not [key for key in tracked["config"] if key.startswith("aws:")]


@pytest.mark.parametrize("variable", REGION_VARIABLES)
def test_a_region_that_commands_would_not_use_is_refused(
    configure: Any, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    configure(region="us-east-1")
    monkeypatch.setenv(variable, "eu-west-1")
    with pytest.raises(pulumi.RunError) as refused:
        look_up_stack(read_settings())
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"The stack's 'aws:region' is us-east-1, and {variable} is eu-west-1")
    assert "pulumi config rm aws:region" in line and f"export {variable}=us-east-1" in line


def test_the_region_comes_from_either_place(configure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(region="eu-west-1")
    assert look_up_stack(read_settings()).region == "eu-west-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")  # AWS's tools read the other one first
    assert look_up_stack(read_settings()).region == "eu-west-1"
    configure(region="")
    assert look_up_stack(read_settings()).region == "eu-west-1"


def test_a_stack_without_a_region_is_one_line(configure: Any) -> None:
    configure(region="")
    with pytest.raises(pulumi.RunError, match=r"^No AWS region is named.*export AWS_REGION=us-east-1$"):
        look_up_stack(read_settings())


def test_versions_that_a_run_reads_outlive_the_longest_run(configure: Any) -> None:
    configure(retention='{"noncurrent_days": 2}', max_lifetime_minutes="2880")
    words = (
        "'retention.noncurrent_days' is 2; it must be 3 or more, since instances may live for 2880 minutes"
    )
    with pytest.raises(pulumi.RunError, match=re.escape(words)):
        read_settings()
    configure(retention='{"noncurrent_days": 3}', max_lifetime_minutes="2880")
    assert read_settings().retention.noncurrent_days == 3
