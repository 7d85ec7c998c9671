"""GPU use, memory, power and temperature during a training, read from the driver through NVML every few
seconds.

NVML (https://docs.nvidia.com/deploy/nvml-api/) answers in microseconds and needs no CUDA context. Without
NVML or a GPU there are no `gpu` events; training is not affected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import takewhile
from typing import Any

import pynvml

from trainer.base import environment

GPU_SECONDS = 5.0
STATE_SECONDS = 10.0
MIB = 2**20
Emit = Callable[[dict[str, Any]], None]


class GpuWatch:
    """Emit a `gpu` event per GPU every few seconds, from a thread of its own, inside the `with` block."""

    def __init__(self, emit: Emit, *, seconds: float = GPU_SECONDS) -> None:
        self._emit, self._seconds = emit, seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpu-watch", daemon=True)

    def __enter__(self) -> GpuWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=STATE_SECONDS)  # of a driver that hangs

    def _watch(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return
        try:
            handles = visible_handles()
            sample = 0
            while not self._ended.is_set():
                for index, handle in enumerate(handles):
                    self._emit({"event": "gpu", "gpu": index, **figures_of(handle), "sample": sample})
                sample += 1
                self._ended.wait(self._seconds)
        except pynvml.NVMLError:
            return  # a GPU fell off the bus: its worker reports the error
        finally:
            pynvml.nvmlShutdown()


def visible_handles() -> list[Any]:
    """Return NVML's handles of the GPUs, or slices, that CUDA_VISIBLE_DEVICES leaves, in CUDA's order.

    NVML numbers GPUs by bus and CUDA the fastest first: the same where all are alike. CUDA sees none from the
    first name on that it does not know (https://docs.nvidia.com/cuda/cuda-c-programming-guide/, environment
    variables).
    """
    wish = environment.visible_gpus()
    if wish is None:
        return list(_gpus())
    named = (_named(name.strip()) for name in wish.split(","))
    return list(takewhile(lambda handle: handle is not None, named))


def _named(name: str) -> Any:
    """Return the GPU of a number or of the beginning of its UUID, or the slice of a UUID; None: there is
    none.
    """
    if name.isdecimal():
        return next(_gpus(int(name)), None)
    if name.startswith("MIG-"):
        with suppress(pynvml.NVMLError_NotFound):
            return pynvml.nvmlDeviceGetHandleByUUID(name)
    if name.startswith("GPU-"):
        return next((gpu for gpu in _gpus() if pynvml.nvmlDeviceGetUUID(gpu).startswith(name)), None)
    return None


def _gpus(first: int = 0) -> Iterator[Any]:
    return (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(first, pynvml.nvmlDeviceGetCount()))


def figures_of(handle: Any) -> dict[str, float | None]:
    """Return one GPU's figures: percent, MiB, watts, degrees Celsius; None for one that is not reported, as
    with MIG.
    """
    use = _reported(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    memory = _reported(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    milliwatts = _reported(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
    temperature = _reported(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
    return {
        "use_percent": None if use is None else float(use),
        "memory_used_mib": None if memory is None else round(memory.used / MIB, 1),
        "memory_mib": None if memory is None else round(memory.total / MIB, 1),
        "power_watts": None if milliwatts is None else milliwatts / 1000,
        "temperature_celsius": None if temperature is None else float(temperature),
    }


def state_of_device(device: str) -> str:
    """Return one line about a GPU by torch's name, for a log; '' for a CPU. Waits ten seconds for a driver
    that hangs.
    """
    if not device.startswith("cuda:"):
        return ""
    lines: list[str] = []

    def ask() -> None:
        try:
            pynvml.nvmlInit()
            handle = visible_handles()[int(device.partition(":")[2])]
            lines.append(", ".join(f"{name} {value}" for name, value in figures_of(handle).items()))
        except (pynvml.NVMLError, IndexError) as error:
            lines.append(f"NVML: {error}")

    asking = threading.Thread(target=ask, name="device-state", daemon=True)
    asking.start()
    asking.join(timeout=STATE_SECONDS)
    return f"{device}: {lines[0] if lines else f'its driver did not answer within {STATE_SECONDS:.0f} s'}"


def _reported(ask: Callable[[], Any]) -> Any:
    """Return the driver's answer, or None if it does not report the figure."""
    try:
        return ask()
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission):
        return None
