"""Use of a node's GPUs and processors at one instant, as in its progress object, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from trainer.base.instants import iso
from trainer.base.strict_json import MOST_TEXT, Fields

GPU_FIGURES = ("use_percent", "memory_used_mib", "memory_mib", "power_watts", "temperature_celsius")
MOST_GPUS, MOST_CORES = 1024, 65_536


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One GPU. A figure that its driver does not report is None (the use of a MIG slice)."""

    gpu: int
    name: str
    use_percent: float | None = None
    memory_used_mib: float | None = None
    memory_mib: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None


@dataclass(frozen=True, kw_only=True)
class CpuSample:
    """The processors and the memory of the whole machine; `use_percent` is of all cores together."""

    cores: int
    use_percent: float | None = None
    memory_used_mib: float | None = None
    memory_mib: float | None = None


@dataclass(frozen=True, kw_only=True)
class NodeSample:
    """One look at a node's hardware; `note` says why no GPU is in it."""

    at: datetime
    gpus: tuple[GpuSample, ...] = ()
    cpu: CpuSample | None = None
    note: str = ""

    @property
    def shown(self) -> str:
        """Return the GPUs in one line, such as `GPU 0: 98 %, 4,100 MiB`, or why there is none."""
        shown = [
            f"GPU {one.gpu}: {_of(one.use_percent)} %, {_of(one.memory_used_mib)} MiB" for one in self.gpus
        ]
        return "; ".join(shown) or self.note or "no GPU"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {**asdict(self), "at": iso(self.at), "gpus": [asdict(one) for one in self.gpus]}


def read_sample(fields: Fields) -> NodeSample | None:
    """Return a sample, or None for an empty object. Raises Unsound."""
    if not fields.values:
        return None
    cpu = fields.table("cpu")
    return NodeSample(
        at=fields.instant("at"),
        gpus=tuple(
            GpuSample(gpu=item.whole("gpu", most=MOST_GPUS), name=item.text("name"), **gpu_figures(item))
            for item in fields.rows("gpus", most=MOST_GPUS)
        ),
        cpu=CpuSample(cores=cpu.whole("cores", most=MOST_CORES), **_figures(cpu, GPU_FIGURES[:3]))
        if cpu.values
        else None,
        note=fields.text("note", "", most=MOST_TEXT),
    )


def gpu_figures(fields: Fields) -> Mapping[str, float | None]:
    """Return the figures of one GPU by name. Raises Unsound for one that is not a number of at least 0."""
    return _figures(fields, GPU_FIGURES)


def _of(figure: float | None) -> str:
    return "?" if figure is None else f"{figure:,.0f}"


def _figures(fields: Fields, names: tuple[str, ...]) -> dict[str, float | None]:
    return {name: fields.number(name, least=0) for name in names}
