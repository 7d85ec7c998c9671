"""Sample the use, memory and power of GPUs and the use of processors every few seconds, for `mayfly status`.

Sources: nvidia-smi and Linux's /proc. If a driver does not answer, the sample has a note; nothing else waits
for it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from trainer.node.devices import NoDriver, nvidia_smi
from trainer.node.shared import Node
from trainer.runs.record import utc_now
from trainer.runs.samples import GPU_FIGURES, CpuSample, GpuSample, NodeSample

SAMPLE_SECONDS = 5.0
ANSWER_SECONDS = 30.0  # for a driver; a GPU that hangs keeps nvidia-smi waiting
# Number, name, and in the order of GPU_FIGURES: percent, MiB, W, degrees Celsius (nvidia-smi
# --help-query-gpu, looked up 2026-11-22).
FIELDS = "index,name,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu"
IN_A_REHEARSAL = "GPUs are CPU processes in a rehearsal: the processors are those of this whole machine"
CpuTimes = tuple[int, int]  # ticks of all cores since the boot: at work, altogether


class Sampling:
    """A thread that takes a sample every few seconds and puts it into the node's status, while the `with`
    lasts.
    """

    def __init__(self, node: Node, *, proc: Path = Path("/proc")) -> None:
        self._node, self._proc = node, proc
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="sampling", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()  # and no wait: nvidia-smi may hang, and the thread dies with the process

    def _sample(self) -> None:
        times: CpuTimes = (0, 0)
        while not self._ended.is_set():
            gpus, note = ((), IN_A_REHEARSAL) if self._node.place.chip else sample_gpus()
            now = cpu_times(self._proc / "stat")
            self._node.status.sample = NodeSample(
                at=utc_now(), gpus=gpus, cpu=cpu_sample(times, now, self._proc / "meminfo"), note=note
            )
            times = now
            self._ended.wait(SAMPLE_SECONDS)


def sample_gpus() -> tuple[tuple[GpuSample, ...], str]:
    """Ask nvidia-smi; return the GPUs, and a reason if there are none. Figures that are not numbers ([N/A])
    are None.
    """
    try:
        rows = nvidia_smi(FIELDS, seconds=ANSWER_SECONDS)
    except NoDriver as error:
        return (), f"nvidia-smi shows no GPU: {error}"
    gpus = tuple(
        GpuSample(gpu=int(index), name=name, **dict(zip(GPU_FIGURES, map(_number, figures), strict=True)))
        for index, name, *figures in rows
    )
    return gpus, "" if gpus else "nvidia-smi shows no GPU"


def cpu_times(stat: Path) -> CpuTimes:
    """Return the busy and the total ticks of all cores from /proc/stat (proc(5)); (0, 0) if it can't
    be read.
    """
    try:
        # user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in user's already
        ticks = [int(text) for text in stat.read_text().split("\n", 1)[0].split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
    except (OSError, ValueError, IndexError):
        return 0, 0


def cpu_sample(before: CpuTimes, now: CpuTimes, meminfo: Path) -> CpuSample:
    """Return the use of all cores between two readings, and the machine's memory from /proc/meminfo."""
    passed = now[1] - before[1]
    use = 100 * (now[0] - before[0]) / passed if before[1] and passed > 0 else None
    total, available = _mib(meminfo, "MemTotal"), _mib(meminfo, "MemAvailable")
    return CpuSample(
        cores=os.cpu_count() or 1,
        use_percent=None if use is None else round(min(max(use, 0.0), 100.0), 1),
        memory_used_mib=None if total is None or available is None else round(total - available, 1),
        memory_mib=None if total is None else round(total, 1),
    )


def _mib(meminfo: Path, name: str) -> float | None:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        return int(lines[name].split()[0]) / 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
