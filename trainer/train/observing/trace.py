"""A torch profiler trace of steps of each worker's first pack, on request (`--set expert.trace_steps=5`).

View OUT/trace/worker-0.json.gz in https://ui.perfetto.dev. Recorded steps are slower than others, so the
event understates the share of time in which the GPU computed.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch.profiler import ProfilerActivity, profile

from trainer.train.packs.pack import Member, Pack

WARM_UP_STEPS = 3  # not recorded: they compile, capture a graph and fill the allocator

Form = Callable[[Sequence[Member]], Pack]


def traced(
    form: Form, *, steps: int, file: Path, report: Callable[[dict[str, Any]], None], on_gpu: bool
) -> Form:
    """Return `form` with packs that record their steps after the warm-up to `file`, once, and report a
    `trace` event.

    On a GPU the event has `kernel_share`, the share of the recorded time in which a kernel ran. A worker that
    takes too few steps writes no trace.
    """
    recorder = _Recorder(steps, file, report, on_gpu)
    return lambda members: cast(Pack, _Traced(form(members), recorder))


def kernel_seconds(trace_events: Iterable[Mapping[str, Any]]) -> float:
    """Return the seconds in which at least one GPU kernel ran, from a Chrome trace's events (times in
    microseconds).
    """
    spans = sorted(
        (event["ts"], event["ts"] + event["dur"]) for event in trace_events if event.get("cat") == "kernel"
    )
    busy, until = 0.0, float("-inf")
    for begin, end in spans:  # kernels of several streams overlap
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return busy / 1e6


class _Traced:
    """A pack whose steps are recorded; everything else is delegated."""

    def __init__(self, pack: Pack, recorder: _Recorder) -> None:
        self._pack, self._recorder = pack, recorder

    def step(self, active: Sequence[bool], starts: Sequence[torch.Tensor]) -> torch.Tensor:
        """See `Pack.step`."""
        self._recorder.before()
        losses = self._pack.step(active, starts)
        self._recorder.after()
        return losses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pack, name)


class _Recorder:
    def __init__(
        self, steps: int, file: Path, report: Callable[[dict[str, Any]], None], on_gpu: bool
    ) -> None:
        self._steps, self._file, self._report, self._on_gpu = steps, file, report, on_gpu
        self._taken = 0
        self._profiler: profile | None = None
        self._began = 0.0

    def before(self) -> None:
        self._taken += 1
        if self._taken == WARM_UP_STEPS + 1:
            activities = [ProfilerActivity.CPU]
            if self._on_gpu:
                torch.cuda.synchronize()
                activities.append(ProfilerActivity.CUDA)
            self._profiler = profile(activities=activities)
            self._profiler.start()
            self._began = time.perf_counter()

    def after(self) -> None:
        if self._profiler is None or self._taken < WARM_UP_STEPS + self._steps:
            return
        if self._on_gpu:
            torch.cuda.synchronize()  # otherwise the last kernels are missing
        seconds = time.perf_counter() - self._began
        self._profiler.stop()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        part = self._file.with_name(f"part.{self._file.name}")  # keeps the suffix, by which torch compresses
        self._profiler.export_chrome_trace(str(part))
        part.replace(self._file)
        self._profiler = None
        trace_event = {
            "event": "trace",
            "file": f"{self._file.parent.name}/{self._file.name}",
            "steps": self._steps,
        }
        if self._on_gpu:
            recorded = json.loads(gzip.decompress(self._file.read_bytes()))["traceEvents"]
            trace_event["kernel_share"] = round(kernel_seconds(recorded) / seconds, 3)
        self._report(trace_event)
