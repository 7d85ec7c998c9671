"""Sample the use, memory and power of GPUs and the use of processors every few seconds, for `mayfly status`.

Sources: nvidia-smi and Linux's /proc. If a driver does not answer, the sample has a note; nothing else waits
for it.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from trainer.base.errors import TrainingFailed
from trainer.base.instants import utc_now
from trainer.node.devices import NoDriver, nvidia_smi
from trainer.node.shared import Node
from trainer.runs.samples import GPU_FIGURES, CpuSample, GpuSample, NodeSample

log = logging.getLogger("trainer.node")
PROC = Path("/proc")
SAMPLE_SECONDS = 5.0
ANSWER_SECONDS = 30.0  # for a driver; a GPU that hangs keeps nvidia-smi waiting
# Number, name, and in the order of GPU_FIGURES: percent, MiB, W, degrees Celsius (nvidia-smi
# --help-query-gpu, looked up 2026-11-22).
FIELDS = "index,name,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu"
IN_A_REHEARSAL = "GPUs are CPU processes in a rehearsal: the processors are those of this whole machine"
IDLE_PERCENT = 5.0  # use of a GPU below which it is nearly idle
IDLE_SECONDS = 900.0  # of all GPUs, after which it is said
SLEPT = timedelta(minutes=5)  # between two samples: a driver answers sooner, so a laptop was asleep
WORKING = ("boot", "stage", "train")  # phases that idle GPUs may end: in the others the work is being saved
CpuTimes = tuple[int, int]  # ticks of all cores since the boot: at work, altogether


@dataclass(kw_only=True)
class IdleWatch:
    """Measures how long all GPUs of a node have been nearly idle. Pure."""

    _since: datetime | None = None
    _last: datetime | None = None  # of the last sample
    _most: float = 0.0  # percent, of any GPU since then

    def seconds(self, sample: NodeSample) -> float:
        """Take in a sample; return the seconds since which all of its GPUs are nearly idle, 0 if one works or
        its use is unknown.
        """
        before, self._last = self._last or sample.at, sample.at
        if sample.at - before > SLEPT:
            self._since, self._most = None, 0.0
        uses = [gpu.use_percent for gpu in sample.gpus]
        known = [use for use in uses if use is not None]
        if not uses or len(known) < len(uses) or max(known) >= IDLE_PERCENT:
            self._since, self._most = None, 0.0
            return 0.0
        self._since, self._most = self._since or sample.at, max(self._most, *known)
        return (sample.at - self._since).total_seconds()

    def words(self, seconds: float, phase: str) -> str:
        """Return what is said of them, with the phase that holds them."""
        return f"GPUs nearly idle for {seconds / 60:.0f} min (at most {self._most:.0f} %) in phase {phase}"


class Sampling:
    """A thread that takes a sample every few seconds and puts it into the node's status, while the `with`
    lasts.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._ended = threading.Event()
        self._idle = IdleWatch()
        self._thread = threading.Thread(target=self._sample, name="sampling", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()  # and no wait: nvidia-smi may hang, and the thread dies with the process

    def _sample(self) -> None:
        times: CpuTimes = (0, 0)
        while not self._ended.is_set():
            gpus, note = ((), IN_A_REHEARSAL) if self._node.place.chip else sample_gpus()
            now = cpu_times(PROC / "stat")
            cpu = cpu_sample(times, now, PROC / "meminfo")
            self._node.status.sample = NodeSample(at=utc_now(), gpus=gpus, cpu=cpu, note=note)
            self.look_at_idle_gpus(self._node.status.sample)
            times = now
            self._ended.wait(SAMPLE_SECONDS)

    def look_at_idle_gpus(self, sample: NodeSample) -> None:
        """Say that the GPUs stand nearly idle, and end the run where its job asks for it."""
        node, status = self._node, self._node.status
        seconds = self._idle.seconds(sample)
        said, words = bool(status.idle), self._idle.words(seconds, status.phase)
        status.idle = words if seconds >= IDLE_SECONDS else ""
        if status.idle and not said:
            log.warning("%s", words)
        if 0 < node.idle_seconds <= seconds and status.phase in WORKING:
            why = f"machine.idle_stop allows {node.idle_seconds / 60:g} min"
            do = "Read in `mayfly logs` what held them, or raise machine.idle_stop."
            node.fail(TrainingFailed(words, why=why, do=do))


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
