"""Samples of a node's hardware: what nvidia-smi and /proc say, and that every sample of ours is read at the
desk.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import manifest
from tests.nodes import node
from tests.trainer.node.test_devices import nvidia_smi_that
from tests.trainer.node.test_report import NOON, status
from trainer.base.errors import Stopped
from trainer.base.strict_json import Unsound
from trainer.node import sampling
from trainer.node.agent import finish, idle_seconds_of
from trainer.node.report import lease, progress
from trainer.node.sampling import IdleWatch, Sampling, cpu_sample, cpu_times, sample_gpus
from trainer.runs.lease import read_lease
from trainer.runs.reports import Heartbeat, heartbeat
from trainer.runs.samples import CpuSample, GpuSample, NodeSample

__all__ = ["node"]  # a fixture
LISTING = """0, NVIDIA A10G, 97, 14321, 23028, 289.91, 61
1, NVIDIA A10G, [N/A], 3, 23028, [Not Supported], 33
a line of another kind
"""
A10G = GpuSample(
    gpu=0,
    name="NVIDIA A10G",
    use_percent=97,
    memory_used_mib=14321,
    memory_mib=23028,
    power_watts=289.91,
    temperature_celsius=61,
)
CPU = CpuSample(cores=48, use_percent=25.0, memory_used_mib=2048, memory_mib=4096)


def beat_of(sample: Any) -> Heartbeat:
    node = status(done="A")
    node.sample = sample
    body = json.dumps(lease(node, NOON)).encode()
    return heartbeat(read_lease(body, NOON), progress(node))


def test_figures_that_a_driver_does_not_report_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "--query-gpu=index,name,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu"
    nvidia_smi_that(f"[ $1 = {asked} ] && printf '%s' '{LISTING}'", tmp_path, monkeypatch)
    (first, second), note = sample_gpus()
    assert (first, note) == (A10G, "")
    assert (second.use_percent, second.memory_used_mib, second.power_watts) == (None, 3, None)


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("exec sleep 600", "timed out after 0.01 seconds"),
        ("echo Unable to determine the device handle; echo GPU is lost >&2; exit 9", "GPU is lost"),
        ("echo No devices were found; exit 6", "No devices were found"),
        ("exit 9", "exit code 9"),
    ],
)
def test_a_driver_that_fails_is_a_note(
    does: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_smi_that(does, tmp_path, monkeypatch)
    if "sleep" in does:
        monkeypatch.setattr(sampling, "ANSWER_SECONDS", 0.01)
    gpus, note = sample_gpus()
    assert gpus == () and note.startswith("nvidia-smi shows no GPU: ") and note.endswith(why)


def test_a_machine_without_a_driver_has_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert sample_gpus()[1].startswith("nvidia-smi shows no GPU: ")


def test_use_of_the_cores_is_that_between_two_readings(tmp_path: Path) -> None:
    stat, meminfo = tmp_path / "stat", tmp_path / "meminfo"
    meminfo.write_text("MemTotal:        4194304 kB\nMemAvailable:    2097152 kB\n")
    stat.write_text("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3\n")
    before = cpu_times(stat)
    stat.write_text("cpu  125 0 50 850 75 0 0 0 0 0\n")
    sample = cpu_sample(before, cpu_times(stat), meminfo)
    assert (sample.use_percent, sample.memory_used_mib, sample.memory_mib) == (25.0, 2048, 4096)
    assert cpu_sample((0, 0), before, meminfo).use_percent is None  # the first reading has none before it
    assert cpu_times(tmp_path / "none") == (0, 0)


def test_a_sample_goes_through_the_progress_object_as_it_is() -> None:
    sample = NodeSample(at=NOON, gpus=(A10G, GpuSample(gpu=1, name="x")), cpu=CPU, note="n")
    assert beat_of(sample).sample == sample
    assert beat_of(None).sample is None


@pytest.mark.parametrize(
    "change",
    [
        {"at": "yesterday"},
        {"gpus": [{"gpu": -1, "name": "x"}]},
        {"gpus": [{"gpu": 0, "name": "x", "use_percent": "much"}]},
        {"gpus": [{"gpu": 0, "name": "x" * 300}]},
        {"gpus": [{"gpu": 0, "name": "x"}] * 2000},
        {"cpu": {"use_percent": 5}},
        {"note": 5},
    ],
)
def test_a_crafted_sample_is_refused(change: dict[str, Any]) -> None:
    good = NodeSample(at=datetime(2026, 11, 20, tzinfo=timezone.utc), cpu=CPU).to_dict()
    node = status()
    held = read_lease(json.dumps(lease(node, NOON)).encode(), NOON + timedelta(seconds=1))
    with pytest.raises(Unsound):
        heartbeat(held, json.dumps({"sample": {**good, **change}}).encode())


def used(seconds: float, *percent: float | None) -> NodeSample:
    gpus = tuple(GpuSample(gpu=index, name="A10G", use_percent=use) for index, use in enumerate(percent))
    return NodeSample(at=NOON + timedelta(seconds=seconds), gpus=gpus)


def test_gpus_are_idle_while_all_of_them_are() -> None:
    watch = IdleWatch()
    assert [watch.seconds(used(at, 2, 4.9)) for at in range(0, 905, 5)] == [*range(0, 905, 5)]
    assert watch.words(900, "stage") == "GPUs nearly idle for 15 min (at most 5 %) in phase stage"
    for busy in (used(905, 0, 5), used(905, 0, None), used(905)):
        assert watch.seconds(busy) == 0
        assert [watch.seconds(used(at, 0, 0)) for at in (910, 915)] == [0, 5]


def test_a_night_asleep_is_no_time_of_idle_gpus() -> None:
    watch, night = IdleWatch(), 8 * 3600
    assert [watch.seconds(used(at, use, 0)) for at, use in ((0, 4), (5, 0))] == [0, 5]
    assert [watch.seconds(used(at, 0, 1)) for at in (night, night + 5)] == [0, 5]
    assert "at most 1 %" in watch.words(5, "train"), "of what was before it nothing counts"


def test_a_job_says_how_long_its_gpus_may_stand_idle() -> None:
    assert idle_seconds_of(manifest(job={"machine": {"idle_stop": "20m"}})) == 1200
    assert idle_seconds_of(manifest(job={"machine": {"idle_stop": None}})) == 0 == idle_seconds_of(manifest())


def test_a_run_ended_for_idle_gpus_has_failed_and_says_so(node) -> None:
    node.idle_seconds = 1200
    node.enter("train")
    sampling = Sampling(node)
    for at in range(0, 1205, 5):
        sampling.look_at_idle_gpus(used(at, 0, 1))
    assert node.is_stopping() and finish(node, Stopped("the script was stopped")) == 100
    result = json.loads(node.uplink.s3.objects[node.status.identity.keys.result])
    assert (result["state"], result["exit_code"]) == ("failed", 100)
    error = result["error"]
    assert error["what"].startswith("GPUs nearly idle for 20 min") and "idle_stop" in error["why"]


@pytest.mark.parametrize(
    ("phase", "allowed", "reason"), [("train", 1200, "idle"), ("train", 0, ""), ("upload", 1200, "")]
)
def test_idle_gpus_are_said_and_end_a_run_that_asks(node, phase, allowed, reason, caplog) -> None:
    sampling = Sampling(node)
    node.idle_seconds = allowed
    node.enter(phase)
    for at in range(0, 1205, 5):
        sampling.look_at_idle_gpus(used(at, 0, 1))
        assert bool(node.status.idle) is (at >= 900)
    assert caplog.text.count("nearly idle for 15 min") == 1
    assert json.loads(progress(node.status))["message"].startswith(
        "GPUs nearly idle for 20 min (at most 1 %)"
    )
    assert bool(node.stop_reason) == bool(reason)
    if reason:
        assert f"in phase {phase}" in node.failure.what and "20 min" in node.failure.why
    sampling.look_at_idle_gpus(used(1210, 90, 90))
    assert node.status.idle == ""
