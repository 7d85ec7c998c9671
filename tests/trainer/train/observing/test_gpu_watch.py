from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from trainer.train.observing.gpu_watch import GpuWatch, figures_of, visible_handles
from trainer.train.observing.observe import GPU_FIGURES, Observed


def not_supported(*_: Any) -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def slice_of(name: str) -> int:
    if name != "MIG-b":
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A driver with two GPUs, of which the second does not tell its use and its power, as a MIG slice."""
    seen = SimpleNamespace(open=0, lost=False)

    def temperature(handle: int, _: int) -> int:
        if seen.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return 61

    answers = {
        "nvmlInit": lambda: setattr(seen, "open", seen.open + 1),
        "nvmlShutdown": lambda: setattr(seen, "open", seen.open - 1),
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetHandleByUUID": slice_of,
        "nvmlDeviceGetUUID": lambda index: ("GPU-a17c", "GPU-b042")[index],
        "nvmlDeviceGetUtilizationRates": lambda handle: (
            not_supported() if handle else SimpleNamespace(gpu=97)
        ),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=30_000 * 2**20, total=143_771 * 2**20),
        "nvmlDeviceGetPowerUsage": lambda handle: not_supported() if handle else 512_400,
        "nvmlDeviceGetTemperature": temperature,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    return seen


def test_gpu_figures_have_units_and_missing_ones_are_none(driver):
    assert figures_of(0) == {
        "use_percent": 97.0,
        "memory_used_mib": 30_000.0,
        "memory_mib": 143_771.0,
        "power_watts": 512.4,
        "temperature_celsius": 61.0,
    }
    second = figures_of(1)
    assert (second["use_percent"], second["power_watts"], second["temperature_celsius"]) == (None, None, 61.0)
    assert tuple(second) == GPU_FIGURES


@pytest.mark.parametrize(
    ("visible", "handles"),
    [(None, [0, 1]), ("1", [1]), ("1, 0", [1, 0]), ("MIG-b,GPU-a17c", [1, 0]), ("", []), ("-1", [])],
)
def test_only_visible_gpus_are_asked(driver, monkeypatch, visible, handles):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_handles() == handles


@pytest.mark.parametrize(
    ("visible", "handles"), [("GPU-b,GPU-a", [1, 0]), ("1,-1,0", [1]), ("0,7", [0]), ("MIG-gone,0", [])]
)
def test_gpus_are_named_to_the_driver_as_to_cuda(driver, monkeypatch, visible, handles):
    """By the beginning of a UUID, too; CUDA sees none from the first name on that it does not know."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_handles() == handles


def test_gpus_are_watched_while_the_training_lasts(driver, tmp_path):
    events: list[dict[str, Any]] = []
    seen = Observed(tmp_path)
    asked, last = threading.Event(), threading.Event()

    def emit(event: dict[str, Any]) -> None:
        events.append(event)
        seen(event)
        if event["sample"] == 1 and event["gpu"] == 1:
            asked.set()
            last.wait(0.1)  # longer than the time between two samples

    with GpuWatch(emit, seconds=0.01) as watch:
        asked.wait()
    assert not watch._thread.is_alive() and driver.open == 0
    kept = [json.loads(line) for line in (tmp_path / "gpus.jsonl").read_text().splitlines()]
    assert {event["gpu"] for event in kept} == {0, 1} and kept[0]["memory_used_mib"] == 30_000
    assert (tmp_path / "tensorboard" / "gpu0").exists()


def test_a_gpu_that_is_lost_ends_the_watch_and_not_the_training(driver):
    events: list[dict[str, Any]] = []

    def emit(event: dict[str, Any]) -> None:
        events.append(event)
        driver.lost = True

    with GpuWatch(emit, seconds=0.01) as watch:
        watch._thread.join(timeout=500)
        assert not watch._thread.is_alive()
    assert len(events) == 1 and driver.open == 0


def test_a_machine_without_a_driver_emits_no_gpu_events(monkeypatch):
    def no_library() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_library)
    events: list[dict[str, Any]] = []
    with GpuWatch(events.append, seconds=0.01) as watch:
        watch._thread.join(timeout=500)
    assert events == []
