"""Catalogue of the embedded AWS: machine images, and the retired instance types that `historic` still offers.

`today` is moto's dump of AWS (package built 2026-10-27); `historic` adds the p3 family, which AWS stopped
describing in 2026-04 (figures: the last dump that had them, 2026-04-01). The images are those of
`images.json`, which moto loads too.
"""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Any, Literal

Catalogue = Literal["historic", "today"]
IMAGE_PARAMETERS = (
    "/aws/service/deeplearning/ami/"  # <architecture>/<line>/latest/ami-id (Deep Learning AMI guide)
)
_RETIRED_ZONES = ("us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d", "us-east-1f")
# type: vCPUs, memory MiB, GPUs, network, EBS Mb/s
_RETIRED = {
    "p3.2xlarge": (8, 61 * 1024, 1, "Up to 10 Gigabit", 1750),
    "p3.8xlarge": (32, 244 * 1024, 4, "10 Gigabit", 7000),
    "p3.16xlarge": (64, 488 * 1024, 8, "25 Gigabit", 14000),
}
_V100_MEMORY_MIB = 16 * 1024


@functools.cache
def image_parameters() -> dict[str, str]:
    """Return the public SSM parameters that name images: parameter -> image id."""
    images = json.loads(Path(__file__).with_name("images.json").read_text(encoding="utf-8"))
    return {
        f"{IMAGE_PARAMETERS}{image['architecture']}/{image['description']}/latest/ami-id": image["ami_id"]
        for image in images
    }


def retired_types(catalogue: Catalogue, names: list[str] | None = None) -> list[dict[str, Any]]:
    """Describe the retired types a catalogue adds, all of them or those named, as DescribeInstanceTypes
    would.
    """
    if catalogue == "today":
        return []
    return [_describe(name) for name in _RETIRED if not names or name in names]


def retired_offerings(catalogue: Catalogue, location_type: str, region: str) -> list[dict[str, str]]:
    """Return where the retired types are offered, as DescribeInstanceTypeOfferings would."""
    if catalogue == "today" or region != "us-east-1":
        return []
    locations = _RETIRED_ZONES if location_type == "availability-zone" else (region,)
    return [
        {"InstanceType": name, "LocationType": location_type, "Location": location}
        for name in _RETIRED
        for location in locations
    ]


def gpu_count(instance_type: str) -> int:
    """Return the number of whole GPUs of a type; 0 for a type without, or an unknown one."""
    if instance_type in _RETIRED:
        return _RETIRED[instance_type][2]
    gpus = _moto_types().get(instance_type, {}).get("GpuInfo", {}).get("Gpus", [])
    return int(sum(gpu["Count"] for gpu in gpus))


def vcpu_count(instance_type: str) -> int:
    """Return the number of vCPUs of a type; 0 for an unknown one."""
    if instance_type in _RETIRED:
        return _RETIRED[instance_type][0]
    return int(_moto_types().get(instance_type, {}).get("VCpuInfo", {}).get("DefaultVCpus", 0))


def is_known(instance_type: str, catalogue: Catalogue) -> bool:
    """Return whether a type exists in a catalogue, offered or not."""
    return instance_type in _moto_types() or (catalogue == "historic" and instance_type in _RETIRED)


@functools.cache
def _moto_types() -> dict[str, Any]:
    from moto import ec2  # late: 0.5 s, and only a server needs it

    path = Path(ec2.__file__).parent / "resources" / "instance_types.json.gz"
    types: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return types


def _describe(name: str) -> dict[str, Any]:
    vcpus, memory_mib, gpus, network, ebs_mbps = _RETIRED[name]
    return {
        "InstanceType": name,
        "CurrentGeneration": False,
        "FreeTierEligible": False,
        "SupportedUsageClasses": ["on-demand", "spot"],
        "SupportedRootDeviceTypes": ["ebs"],
        "SupportedVirtualizationTypes": ["hvm"],
        "BareMetal": False,
        "Hypervisor": "xen",
        "ProcessorInfo": {
            "SupportedArchitectures": ["x86_64"],
            "SustainedClockSpeedInGhz": 2.7,
            "Manufacturer": "Intel",
        },
        "VCpuInfo": {"DefaultVCpus": vcpus, "DefaultCores": vcpus // 2, "DefaultThreadsPerCore": 2},
        "MemoryInfo": {"SizeInMiB": memory_mib},
        "InstanceStorageSupported": False,
        "EbsInfo": {
            "EbsOptimizedSupport": "default",
            "EncryptionSupport": "supported",
            "EbsOptimizedInfo": {"BaselineBandwidthInMbps": ebs_mbps, "MaximumBandwidthInMbps": ebs_mbps},
        },
        "NetworkInfo": {"NetworkPerformance": network, "EnaSupport": "supported", "EfaSupported": False},
        "GpuInfo": {
            "Gpus": [
                {
                    "Name": "V100",
                    "Manufacturer": "NVIDIA",
                    "Count": gpus,
                    "MemoryInfo": {"SizeInMiB": _V100_MEMORY_MIB},
                }
            ],
            "TotalGpuMemoryInMiB": gpus * _V100_MEMORY_MIB,
        },
    }
