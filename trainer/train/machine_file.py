"""The machine's facts for a node's training: `--machine FILE`, JSON that the agent writes from the manifest.

Without one, at a desk, nothing is expected of the devices and nothing is paid.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.errors import UsageError
from trainer.reading import Unsound, read_object

MOST_BYTES = 16 * 1024
MOST_USD = 100_000.0


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """An instance type, as far as a training is concerned."""

    instance_type: str = ""
    gpus: int = 0
    gpu_model: str = ""
    link: str = ""  # between its GPUs: NVSwitch, NVLink, PCIe, or none
    bus_gb_per_s: float = 0.0  # that an all-reduce over them should reach, an estimate; 0: nothing is expected
    usd_per_hour: float | None = None  # on demand
    paid_seconds: float = 0.0  # since user data began, when the training did


def read_machine(path: Path | None) -> MachineFacts:
    """Read a machine file; without one nothing is known. Raises UsageError for one that no agent writes."""
    if path is None:
        return MachineFacts()
    try:
        fields = read_object(path.read_bytes(), most_bytes=MOST_BYTES, name="the machine file")
        return MachineFacts(
            instance_type=fields.text("instance_type"),
            gpus=fields.whole("gpu_count", 0, most=1_024),
            gpu_model=fields.text("gpu_model", ""),
            link=fields.text("link", ""),
            bus_gb_per_s=fields.number("bus_gb_per_s", least=0, most=1e6) or 0.0,
            usd_per_hour=fields.number("usd_per_hour", least=0, most=MOST_USD),
            paid_seconds=fields.number("paid_seconds", least=0, most=1e9) or 0.0,
        )
    except OSError as error:
        raise UsageError(f"cannot read machine file {path}", why=str(error.strerror), do="Leave --machine out.") from error
    except Unsound as error:
        raise UsageError(f"machine file {path} is none of ours", why=str(error), do="Leave --machine out.") from error
