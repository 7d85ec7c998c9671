"""Query the account's offers for a launch: image, zones and spot prices. Reads only.

Every failure here is one line that names what is missing; nothing was launched, and nothing has to be undone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from trainer.aws.access import Access, aws_error, begin_calls, error_code
from trainer.aws.error_codes import NO_IMAGE, NO_PARAMETER
from trainer.aws.stack_outputs import StackOutputs, baked_parameter
from trainer.base.errors import ConfigError, ConnectionFailed
from trainer.base.instants import utc_now
from trainer.launch.prices import PricedTypes, disk_price, list_prices, with_disk
from trainer.machines.instances import InstanceType
from trainer.machines.storage import RootDisk

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Offers:
    """The account's offers: the image, and for each type the zones with a subnet of the stack and the price
    there, of the machine with its root disk.
    """

    image_line: str
    image_id: str
    launch_template_id: str
    zones: dict[str, tuple[str, ...]] = field(default_factory=dict)  # type -> zones, sorted
    # type -> zones without a subnet of the stack
    elsewhere: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # (type, zone) -> the latest price
    spot_usd_per_hour: dict[tuple[str, str], float] = field(default_factory=dict)
    disk: RootDisk = field(default_factory=RootDisk)  # of the machine, by the template
    baked: bool = False  # whether the image is one of the stack's own pipeline
    priced: PricedTypes  # the requested types, with their list prices in the region
    typical_spot: bool = False  # a spot price that is not known is the typical one
    where: str = ""  # that offers them, for a refusal; '': the stack's zones


def query_offers(
    access: Access,
    *,
    outputs: StackOutputs,
    machines: Sequence[InstanceType],
    spot: bool,
    pinned_image: str = "",
    template: str = "",
) -> Offers:
    """Query image, zones and spot prices concurrently. Raises a TrainerError if a call fails or the stack is
    unfit.

    A pinned image is used while it exists, otherwise the newest of the stack's line, a baked one if there is
    any. `template`: a launch template other than that of training.
    """
    names = [machine.name for machine in machines]
    template = template or outputs.launch_template
    ec2 = access.client("ec2")
    asked: dict[str, Callable[[], Any]] = {
        "the image": partial(
            find_image, access, ec2, outputs=outputs, pinned=pinned_image, template=template
        ),
        "the zones": partial(_zones, ec2, names=names),
        "the prices": partial(list_prices, access, machines, region=outputs.region, today=utc_now().date()),
    }
    if spot and access.place.spot_prices:
        asked["the spot prices"] = partial(_spot_prices, ec2, names=names)
    answers = ask_at_once(asked, seconds=access.place.answer_seconds, doing="cannot look up")
    if spot and (reservation := answers["the image"]["Reservation"]):
        raise ConfigError(
            f"no spot capacity in the capacity reservation {reservation}",
            why="the stack's setting capacity_reservation names it, and reservations hold on-demand capacity",
            do="Launch with --on-demand, or run pulumi config set capacity_reservation open, then pulumi up.",
        )
    disk: RootDisk = answers["the image"]["RootDisk"]
    disk_usd = disk_price(disk, region=outputs.region)
    return Offers(
        image_line=outputs.image_line,
        image_id=str(answers["the image"]["ImageId"]),
        launch_template_id=template,
        zones={
            name: tuple(one for one in zones if one in outputs.subnets)
            for name, zones in answers["the zones"].items()
        },
        elsewhere={
            name: tuple(one for one in zones if one not in outputs.subnets)
            for name, zones in answers["the zones"].items()
        },
        spot_usd_per_hour={
            pool: price + disk_usd for pool, price in answers.get("the spot prices", {}).items()
        },
        typical_spot=not access.place.spot_prices,
        disk=disk,
        baked=is_baked(answers["the image"], outputs),
        priced=with_disk(answers["the prices"], disk_usd),
    )


def ask_at_once(
    asked: Mapping[str, Callable[[], T]],
    *,
    seconds: float,
    doing: str,
    longer: Mapping[str, float] | None = None,
) -> dict[str, T]:
    """Run the queries concurrently and return the answers. Raises the first error, or ConnectionFailed if one
    is late: after `seconds`, or those that `longer` has for its name.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # late: half a second that --help need not pay

    futures = dict(zip(asked, begin_calls(list(asked.values()), most=len(asked)), strict=True))
    limits, began = {name: (longer or {}).get(name, seconds) for name in asked}, time.monotonic()
    late = {}
    for name in sorted(asked, key=lambda name: limits[name]):
        wait([futures[name]], timeout=max(0.0, began + limits[name] - time.monotonic()))
        if not futures[name].done():
            late[name] = limits[name]
    answers = {}
    for name, future in futures.items():
        if name in late:
            continue
        try:
            answers[name] = future.result()
        except (BotoCoreError, ClientError) as error:
            raise aws_error(error, f"{doing} {name}") from error
    if late:
        missing = ", ".join(name for name in asked if name in late)
        why, do = f"no answer within {max(late.values()):.0f} s", "Try again; AWS or the network is slow."
        raise ConnectionFailed(f"{doing} {missing}", why=why, do=do)
    return answers


def find_image(
    access: Access, ec2: Any, *, outputs: StackOutputs, pinned: str = "", template: str = ""
) -> dict[str, Any]:
    """Describe the image of the stack's line, and check that the template's volume replaces its root disk and
    is large enough.

    A wrong device name adds a second volume and leaves the root at its default size, without an error. A
    volume smaller than the image's snapshot is refused at the launch.
    """
    image_id, images = pinned, _images(ec2, pinned) if pinned else []
    if not images and outputs.image_pipeline:
        image_id = _baked_image_id(
            access, baked_parameter(outputs.project, outputs.stack, outputs.image_line)
        )
        images = _images(ec2, image_id) if image_id else []
    if not images:
        image_id = str(access.client("ssm").get_parameter(Name=outputs.image_parameter)["Parameter"]["Value"])
        images = ec2.describe_images(ImageIds=[image_id])["Images"]
    if not images:
        raise ConfigError(
            f"image {image_id} does not exist",
            why=f"{outputs.image_parameter} names it",
            do="Set another image line in Pulumi.",
        )
    versions = ec2.describe_launch_template_versions(
        LaunchTemplateId=template or outputs.launch_template, Versions=["$Default"]
    )
    template_data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    target = template_data.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
    disks = template_data.get("BlockDeviceMappings", [])
    root = images[0].get("RootDeviceName", "")
    names = [disk.get("DeviceName", "") for disk in disks]
    if names and root not in names:
        why = f"the template sizes {', '.join(names)}"
        raise ConfigError(
            f"the root disk of {image_id} is {root}", why=why, do="Run pulumi up, which reads it again."
        )
    needed, given = _root_disk(images[0], root).gib, _root_disk({"BlockDeviceMappings": disks}, root)
    if 0 < given.gib < needed:
        why, do = (
            f"its snapshot takes {needed} GiB",
            f"Run pulumi config set volume_gib {needed}, then pulumi up.",
        )
        raise ConfigError(
            f"the template's volume of {given.gib} GiB is too small for {image_id}", why=why, do=do
        )
    return {
        **images[0],
        "ImageId": image_id,
        "RootDisk": given,
        "Reservation": next(iter(target.values()), ""),  # that the template names
    }


def is_baked(image: Mapping[str, Any], outputs: StackOutputs) -> bool:
    """Return whether an image carries the stack's tags, as those of its pipeline do."""
    tags = {tag["Key"]: tag["Value"] for tag in image.get("Tags", [])}
    return (tags.get("project"), tags.get("stack")) == (outputs.project, outputs.stack)


def _baked_image_id(access: Access, parameter: str) -> str:
    """Return the id of a line's newest baked image, '' if there is none yet."""
    from botocore.exceptions import ClientError

    try:
        return str(access.client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"])
    except ClientError as error:
        if error_code(error) in NO_PARAMETER:
            return ""
        raise


def _images(ec2: Any, image_id: str) -> list[Any]:
    """Return an image, or an empty list if it does not exist any more."""
    from botocore.exceptions import ClientError

    try:
        return list(ec2.describe_images(ImageIds=[image_id])["Images"])
    except ClientError as error:
        if error_code(error) in NO_IMAGE:
            return []
        raise


def _root_disk(mapped: Any, root: str) -> RootDisk:
    """Return the root volume in a list of block devices."""
    disks = [disk.get("Ebs", {}) for disk in mapped["BlockDeviceMappings"] if disk["DeviceName"] == root]
    if not disks:
        return RootDisk()
    gib, iops, throughput = (int(disks[0].get(key, 0)) for key in ("VolumeSize", "Iops", "Throughput"))
    return RootDisk(gib=gib, iops=iops, throughput=throughput)


def _zones(ec2: Any, *, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the zones of the region that sell each type."""
    pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": list(names)}]
    )
    by_name: dict[str, set[str]] = {name: set() for name in names}
    for page in pages:
        for offering in page["InstanceTypeOfferings"]:
            if offering["InstanceType"] in by_name:
                by_name[offering["InstanceType"]].add(offering["Location"])
    return {name: tuple(sorted(zones)) for name, zones in by_name.items()}


def _spot_prices(ec2: Any, *, names: Sequence[str]) -> dict[tuple[str, str], float]:
    """Return the newest Linux spot price of each type and zone."""
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=list(names), ProductDescriptions=["Linux/UNIX"], StartTime=utc_now()
    )
    newest: dict[tuple[str, str], Any] = {}
    for page in pages:
        for price in page["SpotPriceHistory"]:
            pool = (price["InstanceType"], price["AvailabilityZone"])
            if pool not in newest or newest[pool]["Timestamp"] < price["Timestamp"]:
                newest[pool] = price
    return {pool: float(price["SpotPrice"]) for pool, price in newest.items()}
