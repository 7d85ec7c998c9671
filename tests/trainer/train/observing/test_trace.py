from __future__ import annotations

import gzip
import json
from typing import Any

import torch

from trainer.train.observing.trace import WARM_UP_STEPS, kernel_seconds, traced


class Doubling:
    """A pack of one member whose step is one named operation."""

    def step(self, active: list[bool], starts: list[torch.Tensor]) -> torch.Tensor:
        return torch.mm(torch.eye(2), starts[0].view(2, 2)).sum().view(1)

    def snapshot(self, member: int) -> str:
        return f"state of {member}"


def test_steps_after_the_warm_up_are_recorded_once(tmp_path):
    events: list[dict[str, Any]] = []
    file = tmp_path / "trace" / "worker-0.json.gz"
    form = traced(lambda members: Doubling(), steps=2, file=file, report=events.append, on_gpu=False)  # type: ignore[arg-type, return-value]
    pack = form([])
    for step in range(WARM_UP_STEPS + 4):
        if step == 2:
            pack = form([])  # re-formed while the trace is due: the count goes on
        assert pack.step([True], [torch.arange(4.0)]).tolist() == [6.0]
        assert bool(events) == (step >= WARM_UP_STEPS + 1)
    assert events == [{"event": "trace", "file": "trace/worker-0.json.gz", "steps": 2}]
    recorded = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "aten::mm" for event in recorded) == 2
    assert list(file.parent.iterdir()) == [file]
    assert pack.snapshot(3) == "state of 3"


def test_kernels_of_several_streams_at_once_count_once():
    def event(cat: str, ts: float, dur: float) -> dict[str, Any]:
        return {"cat": cat, "ts": ts, "dur": dur, "name": "x"}

    whole = [
        event("kernel", 100, 50),
        event("kernel", 120, 60),
        event("kernel", 110, 5),
        event("kernel", 300, 20),
    ]
    others = [event("cpu_op", 0, 1000), event("gpu_memcpy", 400, 10), {"name": "process_name", "ph": "M"}]
    assert kernel_seconds([*others, *reversed(whole)]) == 100e-6  # 100 to 180, and 300 to 320
    assert kernel_seconds(others) == 0.0
