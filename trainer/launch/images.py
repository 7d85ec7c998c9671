"""Types that the images are known to support: for others a plan has a note, and a launch asks."""

from __future__ import annotations

from trainer.cost.instances import InstanceType

# Release notes of 2026-10-03, "Deep Learning OSS Nvidia Driver AMI GPU PyTorch 2.12". G7, G7e and P6-B300 are not among them.
SUPPORTED_FAMILIES = frozenset(
    ("g4dn", "g5", "g6", "gr6", "gr6f", "g6e", "g6f", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200")  # as they are named there
)


def is_supported(machine: InstanceType) -> bool:
    """Return whether the release notes of the image lines name a type's family."""
    return machine.name.split(".")[0] in SUPPORTED_FAMILIES
