"""Settings of the stack, checked, and the account and region that the program runs in.

Types, defaults and descriptions are in Pulumi.yaml; this module has the valid values.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.attach import MODES, check_attach, is_one_address
from trainer.retrains.schedule import RetrainSchedule, read_schedules

# CloudWatch Logs, PutRetentionPolicy (looked up 2026-11-20); the periods up to a year.
LOG_RETENTION_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365)
SUBNETS_PER_VPC = 16  # the VPC's range is cut in sixteenths, one a zone
# Services that an instance can call, besides S3: secrets of prepare runs and Session Manager, then image
# builds.
ENDPOINTS = ("ssm", "ssmmessages", "ec2messages", "imagebuilder")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A check of a setting's value, with the words of its error."""

    holds: Callable[[Any], bool]
    words: str  # what follows "it must be"


@dataclass(frozen=True, kw_only=True)
class Combination:
    """A check of settings that depend on each other; the error names `key`."""

    key: str
    holds: Callable[[Settings], bool]
    words: str  # the text after the setting's value in the error: why, and what to do


def _matches(pattern: str, words: str) -> Rule:
    return Rule(holds=lambda text: re.fullmatch(pattern, text) is not None, words=words)


def _all_match(pattern: str, words: str) -> Rule:
    return Rule(holds=lambda texts: all(re.fullmatch(pattern, one) for one in texts), words=words)


def _one_of(*choices: object) -> Rule:
    return Rule(holds=choices.__contains__, words="one of " + ", ".join(map(str, choices)))


def _between(low: int, high: int) -> Rule:
    return Rule(holds=lambda number: low <= number <= high, words=f"between {low} and {high}")


def _is_private_range(cidr: str) -> bool:
    try:
        network = ipaddress.IPv4Network(cidr)
    except ValueError:
        return False
    return network.is_private and 16 <= network.prefixlen <= 24


# Project and stack go into the bucket's name, which S3 limits to 63 characters with account and region.
_NAME = _matches(
    r"[a-z][a-z0-9-]{0,14}[a-z0-9]", "2 to 16 lower case letters, digits and dashes, beginning with a letter"
)
_LINE = r"[a-z0-9][a-z0-9.-]{0,99}"
_KEY = r"|create|arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+"
_TYPE = r"[a-z][a-z0-9-]*\.[a-z0-9*]+"
# Ends of names that a stack `dev` gives to its own resources, so that a stack `dev-prepare` would make them a
# second time.
_TAKEN = ("-prepare", "-replica", "-retrains")
RULES: Mapping[str, Rule] = {
    "project": _NAME,
    "stack": Rule(
        holds=lambda name: _NAME.holds(name) and not name.endswith(_TAKEN),
        words=f"{_NAME.words}, ending with none of {', '.join(_TAKEN)}",
    ),
    "owner": _matches(r"[\w.:/=+@-]{1,128}", "a tag value: 1 to 128 letters, digits or ._:/=+@-"),
    "max_lifetime_minutes": _between(10, 7 * 24 * 60),
    "sweep_minutes": _between(1, 15),
    "image_line": _matches(_LINE, "a line's name, such as oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-26.04"),
    "image_line_arm64": _matches(rf"|{_LINE}", "a line's name, or empty for none"),
    "image_build_type": _matches(
        r"[a-z][a-z0-9-]*\.[a-z0-9]+", "an x86_64 instance type with a GPU, such as g4dn.xlarge"
    ),
    "volume_gib": _between(75, 16384),
    "max_availability_zones": _between(1, SUBNETS_PER_VPC),
    "noncurrent_days": _between(1, 3650),
    "experiment_days": _between(1, 3650),
    "account_budget": _between(0, 10_000_000),
    "log_days": _one_of(*LOG_RETENTION_DAYS),
    "storage": _one_of("s3", "efs-cache", "local"),
    "efs_throughput": _one_of("elastic", "bursting"),
    "kms_key": _matches(
        _KEY, "empty, create, or the ARN of a key such as arn:aws:kms:us-east-1:123456789012:key/1234abcd-..."
    ),
    "replicate_to": _matches(r"|[a-z]{2}(-[a-z]+)+-\d", "a region such as eu-west-1, or empty for none"),
    "control_types": _all_match(_TYPE, "instance types with commas between, such as g6.xlarge,g5.*"),
    "prepare_type": _matches(
        r"[a-z][a-z0-9-]*\.[a-z0-9]+", "an instance type without a GPU, such as t3.large"
    ),
    "notify_email": _matches(
        r"|[^@\s]+@[^@\s]+\.[^@\s]+", "an address such as name@example.com, or empty for none"
    ),
    "attach": Rule(holds=MODES.__contains__, words="one of " + ", ".join(MODES)),
    "attach_from": Rule(
        holds=lambda text: not text or is_one_address(text),
        words=(
            "one IPv4 or IPv6 address, such as 203.0.113.7 (or 203.0.113.7/32), for attach = ssh, else empty"
        ),
    ),
    "vpc_cidr": Rule(
        holds=_is_private_range, words="a private IPv4 range of /16 to /24, such as 10.86.0.0/16"
    ),
    "vpc_id": _matches(
        r"|vpc-[0-9a-f]+", "the id of a VPC, such as vpc-0a1b2c3d, or empty for one of its own"
    ),
    "subnet_ids": _all_match(
        r"subnet-[0-9a-f]+", "ids of subnets with commas between, such as subnet-0a1b,subnet-2c3d"
    ),
    "subnet_tags": _all_match(
        r"[^=,]{1,128}=[^,]{0,256}", "tags with commas between, such as Tier=private,Team=ml"
    ),
    "endpoints": Rule(
        holds=lambda names: set(names) <= set(ENDPOINTS) and len(set(names)) == len(names),
        words="services with commas between, of " + ", ".join(ENDPOINTS),
    ),
}
COMBINATIONS = (
    Combination(
        key="subnet_ids",
        holds=lambda settings: bool(settings.vpc_id) or not settings.subnet_ids,
        words="it names subnets of an existing VPC. Set 'vpc_id' to that VPC, or leave it empty.",
    ),
    Combination(
        key="subnet_tags",
        holds=lambda settings: bool(settings.vpc_id) or not settings.subnet_tags,
        words="it finds subnets of an existing VPC. Set 'vpc_id' to that VPC, or leave it empty.",
    ),
    Combination(
        key="vpc_id",
        holds=lambda settings: not settings.vpc_id or bool(settings.subnet_ids or settings.subnet_tags),
        words="it does not say in which subnets. Set 'subnet_ids' or 'subnet_tags'.",
    ),
    Combination(
        key="subnet_tags",
        holds=lambda settings: not (settings.subnet_ids and settings.subnet_tags),
        words="'subnet_ids' already names the subnets. Leave one of the two empty.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The stack's settings. Every field but the first two is a key of Pulumi.yaml."""

    project: str
    stack: str
    owner: str
    max_lifetime_minutes: int
    sweep_minutes: int
    image_line: str
    image_line_arm64: str  # "": none
    image_pipeline: bool
    image_build_type: str
    volume_gib: int
    max_availability_zones: int
    vpc_cidr: str
    vpc_id: str  # "": a VPC of its own
    subnet_ids: tuple[str, ...]
    subnet_tags: tuple[str, ...]  # key=value
    endpoints: tuple[str, ...]
    ipv6: bool
    noncurrent_days: int
    experiment_days: int
    log_days: int
    control_types: tuple[str, ...]
    prepare_type: str
    retrains: tuple[RetrainSchedule, ...]
    notify_email: str  # "": nobody
    account_budget: int  # dollars a month; 0: none
    storage: str
    kms_key: str  # "": S3's own; "create", or an ARN
    access_logs: bool
    replicate_to: str  # "": nowhere
    efs_throughput: str
    attach: str  # off, ssm or ssh
    attach_from: str  # the one address that may connect by SSH; "": none

    def __post_init__(self) -> None:
        check(self)

    @property
    def prefix(self) -> str:
        """Return the prefix of physical names, such as `mayfly-dev`."""
        return f"{self.project}-{self.stack}"

    @property
    def tags(self) -> dict[str, str]:
        """Return the tags of every resource. The sweeper and its permissions use the first two."""
        return {"project": self.project, "stack": self.stack, "owner": self.owner}


@dataclass(frozen=True, kw_only=True)
class Account:
    """The account and region that the program runs in."""

    id: str
    region: str
    availability_zones: tuple[str, ...]


def read_settings() -> Settings:
    """Read the stack's settings. Raises pulumi.RunError, which Pulumi prints without a stack trace, for a
    senseless one.
    """
    config = pulumi.Config()
    try:
        return Settings(
            project=pulumi.get_project(),
            stack=pulumi.get_stack(),
            owner=config.require("owner"),
            max_lifetime_minutes=config.require_int("max_lifetime_minutes"),
            sweep_minutes=config.require_int("sweep_minutes"),
            image_line=config.require("image_line"),
            image_line_arm64=config.get("image_line_arm64") or "",
            image_pipeline=config.require_bool("image_pipeline"),
            image_build_type=config.require("image_build_type"),
            volume_gib=config.require_int("volume_gib"),
            max_availability_zones=config.require_int("max_availability_zones"),
            vpc_cidr=config.require("vpc_cidr"),
            vpc_id=config.get("vpc_id") or "",
            subnet_ids=_listed(config.get("subnet_ids")),
            subnet_tags=_listed(config.get("subnet_tags")),
            endpoints=_listed(config.get("endpoints")),
            ipv6=config.require_bool("ipv6"),
            noncurrent_days=config.require_int("noncurrent_days"),
            experiment_days=config.require_int("experiment_days"),
            log_days=config.require_int("log_days"),
            account_budget=config.require_int("account_budget"),
            notify_email=config.get("notify_email") or "",
            attach=config.require("attach"),
            attach_from=config.get("attach_from") or "",
            retrains=read_schedules(config.get_object("retrains") or []),
            control_types=_listed(config.require("control_types")),
            prepare_type=config.require("prepare_type"),
            storage=config.require("storage"),
            kms_key=config.get("kms_key") or "",
            access_logs=config.require_bool("access_logs"),
            replicate_to=config.get("replicate_to") or "",
            efs_throughput=config.require("efs_throughput"),
        )
    except (pulumi.ConfigTypeError, ValueError) as error:
        raise pulumi.RunError(f"{error} Change it with `pulumi config set`.") from error


def _listed(text: str | None) -> tuple[str, ...]:
    """Return the items of a list with commas; spaces around one do not count."""
    return tuple(item.strip() for item in text.split(",")) if text else ()


def look_up_account() -> Account:
    """Ask AWS for the account, the region and its zones (real ones: no Local or Wavelength zone, which sell
    few GPUs).

    Zones in every state: a temporarily impaired one must keep its subnet.
    """
    zones = aws.get_availability_zones(
        filters=[aws.GetAvailabilityZonesFilterArgs(name="zone-type", values=["availability-zone"])]
    )
    return Account(
        id=aws.get_caller_identity().account_id,
        region=aws.get_region().region,
        availability_zones=tuple(sorted(zones.names)),
    )


def check(settings: Settings) -> None:
    """Raise ValueError for the first setting that is invalid, alone or combined with another."""
    for key, rule in RULES.items():
        value = getattr(settings, key)
        if not rule.holds(value):
            raise ValueError(f"Setting '{key}' is {_shown(value)}; it must be {rule.words}.")
    for combination in COMBINATIONS:
        if not combination.holds(settings):
            value = _shown(getattr(settings, combination.key))
            raise ValueError(f"Setting '{combination.key}' is {value}; {combination.words}")
    check_attach(settings.attach, settings.attach_from, ipv6=settings.ipv6)


def _shown(value: Any) -> str:
    """Return a value as written by the user."""
    return repr(",".join(value) if isinstance(value, tuple) else value)
