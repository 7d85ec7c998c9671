"""Steps recorded as CUDA graphs: the host starts a step by one call, where each of its kernels took one.

Eager steps of a small model are bound by their launches: on an H200 a kernel ran in 11 % of the time of a
transformer's, of 151 M weights and 64 windows, and in 10 % of an LSTM's (2026-11-27).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

# Before a recording, as torch asks: https://docs.pytorch.org/docs/stable/notes/cuda.html (2026-11-21).
WARM_UP_STEPS = 3
EAGER_STEPS = 2  # that a step takes as they come: they fill the optimizer's state and load libraries

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def may_record(device: torch.device) -> bool:
    """Return whether a device has graphs."""
    return device.type == "cuda"


def graph_of(run: Callable[[], None], *, stream: torch.cuda.Stream, pool: Any = None) -> torch.cuda.CUDAGraph:
    """Record what `run` starts, without running it; graphs of one `pool` share memory.

    Record this thread only: others, such as the checkpoint writer, may use the device meanwhile. Enter the
    current stream's context first: a recording that fails to end would leave its own the current one.
    """
    graph, main = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    with (
        torch.cuda.stream(main),
        torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
    ):
        run()
    return graph


class Recording:
    """A stream on which steps prepare themselves and are recorded, and the memory that their graphs share."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def call(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Take a step on the stream, for which libraries prepare themselves; return its loss."""
        main = torch.cuda.current_stream()
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            loss = step()
        main.wait_stream(self._stream)
        loss.record_stream(main)
        return loss

    def graph_of(self, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Record what `run` starts."""
        return graph_of(run, stream=self._stream, pool=self._pool)


class RecordedStep:
    """A step on a GPU, from the first rows (B,) of windows and its keys (L, 2) to a loss (): eager at first,
    then recorded and replayed.

    Those of one recording share its memory: what a graph leaves there is read before the next is replayed.

    The function of the step is given at each call and not kept: it belongs to the pack that holds this, and a
    pack in a cycle would keep its memory of the device until Python looks for cycles.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._taken = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._starts_B = self._keys_L2 = self._loss = torch.empty(0)

    def __call__(self, step: Step, starts_B: torch.Tensor, keys_L2: torch.Tensor) -> torch.Tensor:
        """Take a step; return its loss ()."""
        if self._graph is None and self._taken < EAGER_STEPS:
            self._taken += 1
            return self._recording.call(partial(step, starts_B, keys_L2))
        if self._graph is None:
            self._starts_B, self._keys_L2 = starts_B.clone(), keys_L2.clone()
            self._graph = self._recording.graph_of(partial(self._run, step))
        self._starts_B.copy_(starts_B)
        self._keys_L2.copy_(keys_L2)
        self._graph.replay()
        return self._loss.clone()

    def _run(self, step: Step) -> None:
        self._loss = step(self._starts_B, self._keys_L2)
