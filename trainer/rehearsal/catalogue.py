"""Catalogue of the embedded AWS: machine images, and the retired instance types that it still offers.

moto's dump of AWS (package built 2026-10-27) lacks the p3 family, which AWS stopped describing in 2026-04;
`retired_types.json` has it (figures: the last dump that had them, 2026-04-01). The images are those of
`images.json`, which moto loads too.
"""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Any

IMAGE_PARAMETERS = (
    "/aws/service/deeplearning/ami/"  # <architecture>/<line>/latest/ami-id (Deep Learning AMI guide)
)
_RETIRED_ZONES = ("us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d", "us-east-1f")


@functools.cache
def image_parameters() -> dict[str, str]:
    """Return the public SSM parameters that name images: parameter -> image id."""
    return {
        f"{IMAGE_PARAMETERS}{image['architecture']}/{image['description']}/latest/ami-id": image["ami_id"]
        for image in _read("images.json")
    }


def retired_types(names: list[str] | None = None) -> list[dict[str, Any]]:
    """Describe the retired types, all of them or those named, as DescribeInstanceTypes would."""
    return [one for name, one in _retired().items() if not names or name in names]


def retired_offerings(location_type: str, region: str) -> list[dict[str, str]]:
    """Return where the retired types are offered, as DescribeInstanceTypeOfferings would."""
    if region != "us-east-1":
        return []
    locations = _RETIRED_ZONES if location_type == "availability-zone" else (region,)
    return [
        {"InstanceType": name, "LocationType": location_type, "Location": location}
        for name in _retired()
        for location in locations
    ]


def gpu_count(instance_type: str) -> int:
    """Return the number of whole GPUs of a type; 0 for a type without, or an unknown one."""
    gpus = _types().get(instance_type, {}).get("GpuInfo", {}).get("Gpus", [])
    return int(sum(gpu["Count"] for gpu in gpus))


def is_known(instance_type: str) -> bool:
    """Return whether a type exists, offered or not."""
    return instance_type in _types()


def _read(name: str) -> Any:
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


@functools.cache
def _retired() -> dict[str, dict[str, Any]]:
    return {one["InstanceType"]: one for one in _read("retired_types.json")}


@functools.cache
def _types() -> dict[str, dict[str, Any]]:
    from moto import ec2  # late: 0.5 s, and only a server needs it

    path = Path(ec2.__file__).parent / "resources" / "instance_types.json.gz"
    return {**json.loads(gzip.decompress(path.read_bytes())), **_retired()}
