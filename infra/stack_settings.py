"""Settings of the stack, checked; and the account and region that the program runs in.

Types, defaults and descriptions are in Pulumi.yaml; this module has the valid values.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.attach import MODES, SSM, is_one_address
from infra.launch_templates import GROUP_OF_RESERVATIONS, ONE_RESERVATION, OPEN
from infra.stack import Stack
from trainer.aws.stack_outputs import PROJECT
from trainer.base.environment import aws_region
from trainer.retrains.schedule import RetrainSchedule, read_schedules

# CloudWatch Logs, PutRetentionPolicy (looked up 2026-11-20); the periods up to a year.
LOG_RETENTION_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365)
CACHES = {"efs-cache": "elastic", "efs-cache-bursting": "bursting"}  # storage -> throughput of the cache
_MOUNTS_EFS = r"ubuntu|amazon-linux-2023"  # lines on which trainer/node/volumes.sh can install mount.efs


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A check of a setting's value, with the words of its error."""

    holds: Callable[[Any], bool]
    words: str  # what follows "it must be"


def _matches(pattern: str, words: str) -> Rule:
    return Rule(holds=lambda text: re.fullmatch(pattern, text) is not None, words=words)


def _all_match(pattern: str, words: str) -> Rule:
    def holds(texts: Sequence[Any]) -> bool:
        return all(isinstance(one, str) and re.fullmatch(pattern, one) for one in texts)

    return Rule(holds=holds, words=words)


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
_TYPE = r"[a-z][a-z0-9-]*\.[a-z0-9]+"
# Ends of names that a stack `dev` gives to its own resources, so that a stack `dev-prepare` would make them a
# second time.
_TAKEN = ("-prepare", "-retrains", "-score")
RULES: Mapping[str, Rule] = {
    "project": Rule(
        holds=PROJECT.__eq__, words=f"{PROJECT}, as `name` in Pulumi.yaml: commands look for its stacks alone"
    ),
    "stack": Rule(
        holds=lambda name: _NAME.holds(name) and not name.endswith(_TAKEN),
        words=f"{_NAME.words}, ending with none of {', '.join(_TAKEN)}",
    ),
    "owner": _matches(r"[\w.:/=+@-]{1,128}", "a tag value: 1 to 128 letters, digits or ._:/=+@-"),
    "max_lifetime_minutes": _between(10, 7 * 24 * 60),
    "volume_gib": _between(75, 16384),
    "image_line": _matches(
        r"[a-z0-9][a-z0-9.-]{0,99}", "a line's name, such as oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-26.04"
    ),
    "image_pipeline": _matches(
        rf"|{_TYPE}", "an x86_64 instance type with a GPU, such as g4dn.xlarge, or empty for no pipeline"
    ),
    "vpc_cidr": Rule(
        holds=_is_private_range, words="a private IPv4 range of /16 to /24, such as 10.86.0.0/16"
    ),
    "subnets": _all_match(r"subnet-[0-9a-f]+", "a list of subnets' ids, such as subnet-0a1b2c3d"),
    "retention.noncurrent_days": _between(1, 3650),
    "retention.experiment_days": _between(0, 3650),
    "retention.checkpoint_days": _between(1, 3650),
    "retention.log_days": _one_of(*LOG_RETENTION_DAYS),
    "control_types": _all_match(
        r"[a-z][a-z0-9-]*\.[a-z0-9*]+", "a list of instance types, such as g6.xlarge or g5.*"
    ),
    "capacity_reservation": _matches(
        rf"{OPEN}|{ONE_RESERVATION}|{GROUP_OF_RESERVATIONS}",
        "open, the id of a reservation such as cr-0a1b2c3d4e5f67890, or the ARN of a resource group of them",
    ),
    "prepare_type": _matches(_TYPE, "an instance type without a GPU, such as t3.large"),
    "notify_email": _matches(
        r"|[^@\s]+@[^@\s]+\.[^@\s]+", "an address such as name@example.com, or empty for none"
    ),
    "account_budget": _between(0, 10_000_000),
    "storage": _one_of("s3", *CACHES),
    "kms_key": _matches(
        r"|arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+",
        "the ARN of a key such as arn:aws:kms:us-east-1:123456789012:key/1234abcd-..., or empty for none",
    ),
    "attach": Rule(
        holds=lambda text: text in MODES or is_one_address(text),
        words=f"{', '.join(MODES)}, or one IPv4 address, such as 203.0.113.7, that may connect by SSH",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Days that things are kept, the leaves of the setting `retention`."""

    noncurrent_days: int = 90  # overwritten and deleted versions of objects
    experiment_days: int = 0  # models of ordinary runs; 0: for ever
    log_days: int = 30  # logs of functions and of image builds
    checkpoint_days: int = 7  # what a later attempt may begin with


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The stack's settings. Every field but the first two is a key of Pulumi.yaml."""

    project: str
    stack: str
    owner: str
    max_lifetime_minutes: int
    volume_gib: int
    image_line: str
    image_pipeline: str  # "": none
    vpc_cidr: str
    subnets: tuple[str, ...]  # (): those of a VPC of its own
    retention: Retention
    retrains: tuple[RetrainSchedule, ...]
    control_types: tuple[str, ...]
    template_condition: bool
    capacity_reservation: str  # open, an id or a group's ARN
    cluster: bool  # whether a run may have several machines
    prepare_type: str
    notify_email: str  # "": nobody
    account_budget: int  # dollars a month; 0: none
    storage: str
    kms_key: str  # "": AWS's own
    attach: str  # off, ssm or an address

    def __post_init__(self) -> None:
        for key, rule in RULES.items():
            value = attrgetter(key)(self)
            if not rule.holds(value):
                shown = list(value) if isinstance(value, tuple) else value
                raise ValueError(f"Setting '{key}' is {shown!r}; it must be {rule.words}.")
        least_days = self.max_lifetime_minutes // (24 * 60) + 1
        if self.retention.noncurrent_days < least_days:
            raise ValueError(
                f"Setting 'retention.noncurrent_days' is {self.retention.noncurrent_days}; it must be"
                f" {least_days} or more, since instances may live for {self.max_lifetime_minutes} minutes"
                " (max_lifetime_minutes) and read their inputs by version."
            )
        if self.efs_throughput and not re.search(_MOUNTS_EFS, self.image_line):
            raise ValueError(
                f"Setting 'storage' is {self.storage!r}, but nodes of image_line {self.image_line}"
                " can't mount it: only lines of Ubuntu and of Amazon Linux 2023 install the mount helper."
                " Set storage to s3, or another image_line."
            )

    @property
    def sessions(self) -> bool:
        """Return whether people attach through Session Manager."""
        return self.attach == SSM

    @property
    def ssh_from(self) -> str:
        """Return the one address that may connect by SSH; '' for none."""
        return "" if self.attach in MODES else self.attach

    @property
    def efs_throughput(self) -> str:
        """Return the throughput mode of the cache's file system; '' without a cache."""
        return CACHES.get(self.storage, "")


def read_settings() -> Settings:
    """Read the stack's settings. Raises pulumi.RunError, which Pulumi prints without a stack trace, for a
    senseless one.
    """
    config = pulumi.Config()
    read: Mapping[str, Callable[[str], Any]] = {
        "str": lambda key: config.get(key) or "",
        "int": config.require_int,
        "bool": config.require_bool,
        "Retention": lambda key: _retention(config, key),
        "tuple[str, ...]": lambda key: tuple(_list(config, key)),
        "tuple[RetrainSchedule, ...]": lambda key: read_schedules(_list(config, key)),
    }
    values: dict[str, Any] = {"project": pulumi.get_project(), "stack": pulumi.get_stack()}
    try:
        for field in fields(Settings)[len(values) :]:
            values[field.name] = read[str(field.type)](field.name)
        return Settings(**values)
    except (pulumi.ConfigTypeError, ValueError) as error:
        raise pulumi.RunError(f"{error} Change it with `pulumi config set`.") from error


def _list(config: pulumi.Config, key: str) -> list[Any]:
    value = config.require_object(key)
    if not isinstance(value, list):
        raise ValueError(f"Setting '{key}' is {value!r}; it must be a list.")
    return value


def _retention(config: pulumi.Config, key: str) -> Retention:
    """Read the setting `retention`; leaves that it lacks have their defaults."""
    value = config.require_object(key)
    names = [field.name for field in fields(Retention)]
    if not isinstance(value, dict):
        raise ValueError(f"Setting '{key}' is {value!r}; it must be an object of {', '.join(names)}.")
    for name, days in value.items():
        if name not in names:
            raise ValueError(f"Setting '{key}' has no '{name}'; it has {', '.join(names)}.")
        if type(days) is not int:
            raise ValueError(f"Setting '{key}.{name}' is {days!r}; it must be a number of days.")
    return Retention(**value)


def check_region() -> None:
    """Raise pulumi.RunError unless Pulumi and Mayfly's commands use the same region.

    Pulumi prefers the stack's own `aws:region` to the environment, and commands see the environment alone.
    """
    chosen, (variable, exported) = pulumi.Config("aws").get("region") or "", aws_region()
    if not (chosen or exported):
        raise pulumi.RunError(
            "No AWS region is named: AWS_REGION and AWS_DEFAULT_REGION are not set, and a profile's region is"
            " not read here. Name it: export AWS_REGION=us-east-1"
        )
    if chosen and exported and chosen != exported:
        raise pulumi.RunError(
            f"The stack's 'aws:region' is {chosen}, and {variable} is {exported}, where commands would look"
            f" for the stack. For {exported}: pulumi config rm aws:region. If the stack is in {chosen}:"
            f" export {variable}={chosen}"
        )


def look_up_stack(settings: Settings) -> Stack:
    """Ask AWS for the account, the region and its zones (real ones: no Local or Wavelength zone, which sell
    few GPUs).

    Zones in every state: a temporarily impaired one must keep its subnet. Raises pulumi.RunError for a region
    that commands would not look in, and for a key of another one, which S3 would refuse.
    """
    check_region()
    zones = aws.get_availability_zones(filters=[{"name": "zone-type", "values": ["availability-zone"]}])
    region = aws.get_region().region
    if settings.kms_key and settings.kms_key.split(":")[3] != region:
        raise pulumi.RunError(
            f"Setting 'kms_key' is {settings.kms_key!r}, a key of another region; it must be one of {region}."
        )
    return Stack(
        account=aws.get_caller_identity().account_id,
        region=region,
        zones=tuple(sorted(zones.names)),
        project=settings.project,
        name=settings.stack,
        owner=settings.owner,
        log_days=settings.retention.log_days,
        kms_key=settings.kms_key,
    )
