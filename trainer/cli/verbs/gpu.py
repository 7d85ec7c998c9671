"""`mayfly gpu RUN`: use, memory, power and temperature of a running node's GPUs, from its progress in S3."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any

from rich.console import RenderableType

from trainer.aws.access import Access
from trainer.aws.stack import read_stack
from trainer.base.errors import UsageError
from trainer.cli.connect import connected
from trainer.cli.output import duration, say_json
from trainer.cli.terminal import Console, show
from trainer.cli.views.table import FittedTable, Inline, TableColumn, lines, styled
from trainer.control.cloud import AwsCloud, Cloud
from trainer.control.settle import settle_run
from trainer.runs.record import iso
from trainer.runs.reports import Heartbeat
from trainer.runs.samples import CpuSample, GpuSample, NodeSample

COLUMNS = (
    TableColumn(title="gpu"),
    TableColumn(title="name", leaves=2),
    TableColumn(title="use", right=True),
    TableColumn(title="memory", right=True),
    TableColumn(title="power", right=True),
    TableColumn(title="temperature", right=True, leaves=1),
)
NONE_YET = "no figures yet: they come every few seconds once the node's agent has started"


def run(arguments: argparse.Namespace) -> int:
    """Show a running node's last sample; with --follow each new one, until the run ends. Raises UsageError if
    it has ended.
    """
    if arguments.follow and arguments.json:
        raise UsageError(
            "--follow and --json don't go together", why="--json prints one document", do="Leave one out."
        )
    with connected(rehearse=arguments.rehearse, program=False, local=arguments.local) as access:
        cloud = AwsCloud(access, read_stack(access, stack=arguments.stack))
        beat, ended = _look(cloud, arguments.run)
        if ended:
            raise UsageError(
                f"{arguments.run} has ended: its machine is gone",
                do=(
                    f"mayfly pull {arguments.run} brings its GPUs' use over time, for TensorBoard and in"
                    " observed/gpus.jsonl."
                ),
            )
        if arguments.json:
            say_json(_document(arguments.run, beat, cloud.now()))
        elif arguments.follow:
            _follow(cloud, access, arguments.run, beat)
        else:
            show(_now(cloud, beat))
    return 0


def _look(cloud: Cloud, run_id: str) -> tuple[Heartbeat | None, bool]:
    settled = settle_run(cloud, run_id)
    return settled.look.observed.heartbeat, settled.receipt is not None


def _follow(cloud: Cloud, access: Access, run_id: str, beat: Heartbeat | None) -> None:
    """Show each new sample until the run has ended: redrawn on a terminal, elsewhere one table after the
    other.
    """
    console, shown, ended = Console(sys.stdout), object(), False
    try:
        while not ended:
            sample = beat.sample if beat else None
            console.draw(partial(_now, cloud, beat))
            if not console.live and sample != shown:
                show(_now(cloud, beat))
            shown = sample
            time.sleep(access.place.poll_seconds)
            beat, ended = _look(cloud, run_id)
    finally:
        console.close()


def _now(cloud: Cloud, beat: Heartbeat | None) -> RenderableType:
    return gpu_view(beat, cloud.now())


def gpu_view(beat: Heartbeat | None, now: datetime) -> RenderableType:
    """Return the table of one sample, with its age, which shows whether the node still reports."""
    sample = beat.sample if beat else None
    if beat is None or sample is None:
        return styled(NONE_YET, "")
    age = f"{duration((now - sample.at).total_seconds())} ago"
    rows = [_gpu_row(gpu) for gpu in sample.gpus] + ([_cpu_row(sample.cpu)] if sample.cpu else [])
    note = [styled(sample.note, "")] if sample.note else []
    return lines(Inline([beat.instance_id, beat.phase, age]), FittedTable(COLUMNS, rows), *note)


def _gpu_row(gpu: GpuSample) -> list[str]:
    watts = "-" if gpu.power_watts is None else f"{gpu.power_watts:.0f} W"
    celsius = "-" if gpu.temperature_celsius is None else f"{gpu.temperature_celsius:.0f} °C"
    return [
        str(gpu.gpu),
        gpu.name,
        _percent(gpu.use_percent),
        _memory(gpu.memory_used_mib, gpu.memory_mib),
        watts,
        celsius,
    ]


def _cpu_row(cpu: CpuSample) -> list[str]:
    return [
        "cpu",
        f"{cpu.cores} cores",
        _percent(cpu.use_percent),
        _memory(cpu.memory_used_mib, cpu.memory_mib),
        "-",
        "-",
    ]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}%"


def _memory(used: float | None, total: float | None) -> str:
    parts = ["-" if value is None else f"{value / 1024:.1f}" for value in (used, total)]
    return "-" if parts == ["-", "-"] else f"{parts[0]}/{parts[1]} GiB"


def _document(run_id: str, beat: Heartbeat | None, now: datetime) -> dict[str, Any]:
    sample = (beat.sample if beat else None) or NodeSample(at=now)
    known = beat is not None and beat.sample is not None
    return {
        "run_id": run_id,
        "instance_id": beat.instance_id if beat else None,
        "at": iso(sample.at) if known else None,
        "gpus": [asdict(gpu) for gpu in sample.gpus],
        "cpu": asdict(sample.cpu) if sample.cpu else None,
        "note": sample.note if known else NONE_YET,
    }
