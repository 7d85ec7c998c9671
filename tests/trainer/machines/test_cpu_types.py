"""Types without a GPU: any size of a known x86-64 family, at a price in proportion to its vCPUs."""

from __future__ import annotations

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from trainer.base.errors import UsageError
from trainer.machines.cpu_types import USUAL, cpu_instance_type, cpu_types
from trainer.machines.instances import boot_of, catalogue


@pytest.mark.parametrize(
    ("name", "vcpus", "gib", "usd"),  # by AWS's list
    [
        ("t3.large", 2, 8, 0.0832),
        ("m7i.xlarge", 4, 16, 0.2016),
        ("c7i.8xlarge", 32, 64, 1.428),
        ("c5.9xlarge", 36, 72, 1.53),
        ("r6a.48xlarge", 192, 1536, 10.8864),
    ],
)
def test_a_size_has_its_share_of_vcpus_memory_and_price(name, vcpus, gib, usd):
    machine = cpu_instance_type(name)
    assert (machine.vcpus, machine.memory_gib, machine.gpus) == (vcpus, gib, 0)
    assert machine.price_usd_per_hour == pytest.approx(usd, abs=1e-9)


def test_every_family_has_the_vcpus_memory_and_cores_of_ec2():
    for name, machine in cpu_types().items():
        known = INSTANCE_TYPES[name]  # EC2's DescribeInstanceTypes, as moto has it
        assert machine.vcpus == known["VCpuInfo"]["DefaultVCpus"], name
        assert machine.memory_gib == known["MemoryInfo"]["SizeInMiB"] / 1024, name
        assert machine.num_trainers == known["VCpuInfo"]["DefaultCores"], name


def test_every_family_boots_like_a_small_machine():
    known = cpu_types()
    assert len(known) > 180 and set(USUAL) <= known.keys() and not known.keys() & catalogue().keys()
    assert {machine.boot for machine in known.values()} == {boot_of("t3.large")}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("m7g.large", "m7g.large has an Arm processor"),
        ("c8gd.4xlarge", "Arm"),
        ("a1.large", "Arm"),
        ("c7i.4xlage", "Did you mean c7i.4xlarge"),
        ("t3.nano", "unknown instance type 't3.nano' without a GPU"),
    ],
)
def test_others_are_refused(name, words):
    with pytest.raises(UsageError) as refused:
        cpu_instance_type(name)
    assert words in str(refused.value)
