"""A torch profiler trace of a few steps of each worker's first pack, on request (`--set trace_steps=5`).

Look at OUT/trace/worker-0.json.gz in https://ui.perfetto.dev. Recorded steps are slower than others, so
the true share of time in which a GPU computed is higher than in the event.
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

WARM_UP_STEPS = 3  # a first step compiles, captures its graph and fills the allocator: none of that is the step

Form = Callable[[Sequence[Member]], Pack]


def traced(form: Form, *, steps: int, file: Path, report: Callable[[dict[str, Any]], None], on_gpu: bool) -> Form:
    """Return `form` with the steps after the warm-up recorded to `file`, once; then a `trace` event is reported.

    On a GPU the event has the share of the recorded time in which a kernel ran. A worker that takes fewer steps leaves no
    trace.
    """
    recorder = _Recorder(steps, file, report, on_gpu)
    return lambda members: cast(Pack, _Traced(form(members), recorder))


def kernel_seconds(trace_events: Iterable[Mapping[str, Any]]) -> float:
    """Return for how many seconds at least one GPU kernel ran, by a Chrome trace's events (times in microseconds)."""
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in trace_events if event.get("cat") == "kernel")
    busy, until = 0.0, float("-inf")
    for begin, end in spans:  # of several streams: overlaps count once
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return busy / 1e6


class _Traced:
    """A pack whose steps are recorded; everything else is the pack's own."""

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
    def __init__(self, steps: int, file: Path, report: Callable[[dict[str, Any]], None], on_gpu: bool) -> None:
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
            torch.cuda.synchronize()  # or the last kernels are missing
        seconds = time.perf_counter() - self._began
        self._profiler.stop()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        part = self._file.with_name(f"part.{self._file.name}")  # its ending stays: torch compresses by it
        self._profiler.export_chrome_trace(str(part))
        part.replace(self._file)
        self._profiler = None
        trace_event = {"event": "trace", "file": f"{self._file.parent.name}/{self._file.name}", "steps": self._steps}
        if self._on_gpu:
            recorded = json.loads(gzip.decompress(self._file.read_bytes()))["traceEvents"]
            trace_event["kernel_share"] = round(kernel_seconds(recorded) / seconds, 3)
        self._report(trace_event)
