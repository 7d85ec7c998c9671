"""Catalogue of the embedded AWS: machine images, and the retired instance types that it still offers.

moto's dump of AWS (package built 2026-10-27) lacks the p3 family, which AWS stopped describing in 2026-04;
`retired_types.json` has it (figures: the last dump that had them, 2026-04-01). The images are those of
`images.json`, which moto loads too.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from trainer.base.instants import utc_now
from trainer.rehearsal.keys import REGION

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


def add_image_parameters(account: str, ssm: Any) -> None:
    """Give an account's SSM in moto the public parameters that name images, unless it has them."""
    from moto.ssm import models  # late: only a server needs it

    make: Any = models.Parameter
    for name, image_id in image_parameters().items():
        if name not in ssm._parameters:
            about: dict[str, Any] = dict.fromkeys(("description", "allowed_pattern", "keyid"))
            about |= {"parameter_type": "String", "version": 1, "data_type": "aws:ec2:image"}
            one = make(account, name, image_id, last_modified_date=utc_now(), **about)
            ssm._parameters[name].append(one)


@functools.cache
def types() -> dict[str, dict[str, Any]]:
    """Return the description of every type, by name; from the first call on moto has the retired ones,
    too.
    """
    from moto.ec2.models import instance_types as motos  # late: 0.5 s, and only a server needs it

    for one in _read("retired_types.json"):
        name = one["InstanceType"]
        motos.INSTANCE_TYPES[name] = one
        motos.InstanceTypeBackend.instance_types.append(motos.InstanceType(name))
        for kind, locations in (("availability-zone", _RETIRED_ZONES), ("region", (REGION,))):
            motos.INSTANCE_TYPE_OFFERINGS[kind][REGION] += [
                {"InstanceType": name, "LocationType": kind, "Location": location} for location in locations
            ]
    return motos.INSTANCE_TYPES


def is_offered(instance_type: str, zone: str) -> bool:
    """Return whether a type is offered in a zone."""
    from moto.ec2.models import instance_types as motos  # late, as above

    offered = motos.INSTANCE_TYPE_OFFERINGS["availability-zone"][REGION]
    return any((one["InstanceType"], one["Location"]) == (instance_type, zone) for one in offered)


def gpu_count(instance_type: str) -> int:
    """Return the number of whole GPUs of a type; 0 for a type without, or an unknown one."""
    gpus = types().get(instance_type, {}).get("GpuInfo", {}).get("Gpus", [])
    return int(sum(gpu["Count"] for gpu in gpus))


def _read(name: str) -> Any:
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
