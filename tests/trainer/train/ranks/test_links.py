"""The check of devices and links before training: a faulty machine ends the run, and the fault is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.trainer.train.ranks.ranks import TwoRanks
from trainer.base.errors import TrainingFailed
from trainer.train.machine_file import MachineFacts, read_machine
from trainer.train.observing.events import line_of
from trainer.train.ranks import links
from trainer.train.ranks.group import Ranks
from trainer.train.ranks.links import DeviceSeen, Links, faults

A100 = DeviceSeen(
    name="NVIDIA A100", memory_gib=40.0, pcie_lanes=16, pcie_lanes_most=16, nvlinks=12, host_gb_per_s=24.0
)
P4D = MachineFacts(instance_type="p4d.24xlarge", gpus=8, link="NVSwitch", bus_gb_per_s=230.0)
WHOLE = Links(devices=(A100,) * 8, bus_gb_per_s=221.0, expected_gb_per_s=230.0)


def with_one(**changes: Any) -> Links:
    """Return the devices with the fourth one changed."""
    return replace(WHOLE, devices=(*WHOLE.devices[:3], replace(A100, **changes), *WHOLE.devices[4:]))


def test_a_sound_machine_and_cpus_have_no_fault():
    assert faults(WHOLE, P4D, on_gpu=True) == []
    bare = DeviceSeen(name="NVIDIA T4")  # of which the driver tells nothing
    two = Links(devices=(bare, bare), bus_gb_per_s=3.0, expected_gb_per_s=None)
    assert faults(two, MachineFacts(), on_gpu=True) == []
    cpus = Links(devices=(DeviceSeen(name="cpu"),) * 2, bus_gb_per_s=0.001, expected_gb_per_s=None)
    assert faults(cpus, P4D, on_gpu=False) == []


@pytest.mark.parametrize(
    ("seen", "fault"),
    [
        (replace(WHOLE, devices=WHOLE.devices[:7]), "8 GPUs expected and 7 found"),
        (with_one(name="NVIDIA A10G"), "GPUs of 2 kinds: NVIDIA A100, NVIDIA A10G"),
        (with_one(host_gb_per_s=2.4), "GPU 3 copies 2.4 GB/s, the others 24.0"),
        (with_one(pcie_lanes=1), "GPU 3 has 1 of 16 PCIe lanes"),
        (with_one(nvlinks=11), "GPU 3 has 11 NVLinks up, others 12"),
        (replace(WHOLE, bus_gb_per_s=22.0), "an all-reduce reaches 22.0 GB/s where about 230 are expected"),
    ],
)
def test_each_fault_of_a_machine_is_named(seen, fault):
    assert faults(seen, P4D, on_gpu=True) == [fault]


def measured_on_rank(ranks: Ranks) -> dict[str, Any]:
    """Return the event of real measurements."""
    return links.check_links(ranks, MachineFacts()).to_event()


def injected_on_rank(ranks: Ranks) -> str:
    """Return the error of a rank on a machine of which seven GPUs were found."""
    seven = replace(WHOLE, devices=WHOLE.devices[:7])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links, "measure", lambda ranks, machine: seven)
        patch.setattr(links, "faults", lambda found, machine, *, on_gpu: faults(found, machine, on_gpu=True))
        try:
            links.check_links(ranks, P4D)
        except TrainingFailed as error:
            return str(error)
    return ""


def test_ranks_measure_links_and_all_refuse_a_faulty_machine(two_ranks: TwoRanks):
    first, second = two_ranks(measured_on_rank)
    assert first == second and first["bus_gb_per_s"] > 0 and first["expected_gb_per_s"] is None
    assert [device["name"] for device in first["devices"]] == ["cpu", "cpu"]
    assert line_of({**first, "piece": "P"}).startswith("P  2 x cpu  all-reduce ")
    errors = two_ranks(injected_on_rank)
    assert errors[0] == errors[1] and "Nothing was trained" in errors[0]
    assert "8 GPUs expected and 7 found" in errors[0]


def test_the_line_names_devices_and_what_is_expected():
    line = line_of({**WHOLE.to_event(), "piece": "P"})
    assert line == "P  8 x NVIDIA A100 (40 GiB)  all-reduce 221 GB/s (about 230 expected)"


def test_a_machine_file_is_read_strictly(tmp_path):
    path = tmp_path / "machine.json"
    path.write_text(
        '{"instance_type": "p4d.24xlarge", "gpu_count": 8, "link": "NVSwitch", "bus_gb_per_s": 230,'
        ' "checkpoint_seconds": 30}'
    )
    assert read_machine(path) == replace(P4D, checkpoint_seconds=30) and read_machine(None) == MachineFacts()
    for content in ("[]", '{"gpu_count": -1}', '{"instance_type": 8}', '{"checkpoint_seconds": 1.5}'):
        path.write_text(content)
        with pytest.raises(Exception, match="cannot read machine file"):
            read_machine(path)
