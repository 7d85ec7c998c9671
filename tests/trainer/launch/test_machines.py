from __future__ import annotations

from dataclasses import replace

import pytest

from tests.jobs import job_of
from trainer.base.errors import ConfigError, UsageError
from trainer.job.job import Job
from trainer.launch.machines import (
    DEFAULT_TYPES,
    machines_of,
    refuse_retired,
    refuse_small_disks,
    refuse_unfit,
)
from trainer.machines.instances import instance_type
from trainer.machines.planner import workload


def test_a_retired_type_names_three_that_run_with_time_and_cost():
    work = workload(Job(), {"BTC-USD": 3_700_000})
    with pytest.raises(UsageError) as refused:
        refuse_retired([instance_type("p3.8xlarge")], work)
    line = str(refused.value)
    assert "AWS ended P3 between 2026-04-01 and 2026-05-01" in line
    for name in ("g6.12xlarge (about ", "g5.12xlarge (about ", "g6e.12xlarge (about "):
        assert name in line
    assert "the nearest is --instance g6.12xlarge" in line


def test_without_data_a_retired_type_names_prices_an_hour():
    with pytest.raises(UsageError, match=r"g6.12xlarge \(\$4.60/h\)"):
        refuse_retired([instance_type("p3.8xlarge")], None)


def test_types_that_run_are_not_refused():
    refuse_retired([instance_type("g5.12xlarge"), instance_type("g6.xlarge")], None)


SCRIPT = {"script.command": "python train.py", "max_duration": "1h"}


def test_a_script_may_have_types_without_a_gpu():
    named = machines_of(job_of(**SCRIPT, instance=("m7i.large", "r6i.xlarge")))
    assert [(one.name, one.gpus, one.vcpus) for one in named] == [("m7i.large", 0, 2), ("r6i.xlarge", 0, 4)]


def test_a_type_that_is_named_twice_is_asked_once():
    job = job_of(instance=["g5.xlarge", "g6.xlarge", "g5.xlarge"])
    assert [machine.name for machine in machines_of(job)] == ["g5.xlarge", "g6.xlarge"]


def test_agents_may_have_types_without_a_gpu_and_use_their_cores():
    (named,) = machines_of(job_of(**{"target.name": "position"}, instance=("c7i.4xlarge",)))
    assert (named.gpus, named.num_workers, named.num_trainers) == (0, 1, 8)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"instance": ("m7i.large",)}, "m7i.large has no GPU .models are trained on GPUs"),
        ({**SCRIPT, "instance": ("m7i.large", "g6.xlarge")}, "types with and without GPUs in one job"),
        (
            {**SCRIPT, "instance": ("m7i.large",), "script.over": [{"a": "1"}], "script.gpus": 0.5},
            "the job has script.gpus",
        ),
    ],
)
def test_what_needs_a_gpu_is_refused_on_a_type_without(keys, words):
    with pytest.raises(UsageError, match=words):
        machines_of(job_of(**keys))


def test_a_profile_leaves_default_types_that_are_large_enough():
    assert [machine.name for machine in machines_of(Job())] == list(DEFAULT_TYPES)
    assert [machine.name for machine in machines_of(job_of(gpu_profile="l40s"))] == ["g6e.xlarge"]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (
            job_of(gpu_profile="h200", instance=("p5en.48xlarge", "g6.xlarge")),
            r"h200 is larger than the chip .*Take l4",
        ),
        (job_of(gpu_profile="b300"), "b300 is larger than the chip"),
        (job_of(gpu_profile="h20"), r"unknown GPU profile 'h20'\. Did you mean h200"),
        (job_of(gpu_profile="cpu"), "cpu is for desks only"),
    ],
)
def test_a_profile_that_no_gpu_of_the_launch_has_ends_it(job, words):
    with pytest.raises(UsageError, match=words):
        machines_of(job)


def test_a_profile_of_the_users_own_needs_a_large_enough_gpu(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text(
        "[l4]\nmodels_per_gpu = 3\n\n[my_a10g]\nmemory_gib = 20\n\n[huge]\nmemory_gib = 90\n"
    )
    monkeypatch.setenv("MAYFLY_PROFILES", str(tmp_path / "mine.toml"))
    for name in ("l4", "my_a10g"):
        assert [
            machine.name for machine in machines_of(job_of(gpu_profile=name, instance=("g6.xlarge",)))
        ] == ["g6.xlarge"]
    with pytest.raises(UsageError, match="huge is larger than the chip"):
        machines_of(job_of(gpu_profile="huge", instance=("g6.xlarge",)))


def test_data_larger_than_a_types_disk_is_refused():
    machines = [instance_type("g6.xlarge"), instance_type("p3.2xlarge")]
    assert [machine.local_disk_gb for machine in machines] == [250.0, 0.0]
    refuse_small_disks(machines, 100 * 2**30, volume_gib=100)
    refuse_small_disks(machines, 10**15, volume_gib=0)  # a template without a size
    with pytest.raises(
        UsageError, match=r"p3.2xlarge can't hold 100.1 GiB of data \(its disk has 100 GiB\). Name a type"
    ):
        refuse_small_disks(machines, int(100.1 * 2**30), volume_gib=100)
    with pytest.raises(UsageError, match=r"g6.xlarge can't hold 279.4 GiB of data \(its disk has 233 GiB\)"):
        refuse_small_disks(machines, 300 * 10**9, volume_gib=100)


LINE = "oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-26.04"
OLD = LINE.replace("2.13", "2.12")


def types(*names):
    return [instance_type(name) for name in names]


def test_a_type_with_another_cpu_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"g5g.xlarge would not train on this stack \(its CPU is arm64"):
        refuse_unfit(types("g6.xlarge", "g5g.xlarge"), LINE, named=True)


def test_a_line_with_another_torch_is_refused() -> None:
    for named, machines in ((True, types("g6.xlarge")), (False, types("g6.xlarge", "g5.xlarge"))):
        with pytest.raises(ConfigError, match=r"g6.xlarge would not train on this stack .* has torch 2.12"):
            refuse_unfit(machines, OLD, named=named)


def test_a_retired_type_keeps_its_own_refusal() -> None:
    refuse_unfit(types("p3.8xlarge"), LINE, named=True)
    refuse_unfit(types("g6.xlarge", "g7e.2xlarge"), LINE, named=True)
    volta = replace(instance_type("p3.8xlarge"), status="current")
    with pytest.raises(ConfigError, match="driver 580 is the last for its V100"):
        refuse_unfit([volta], LINE, named=True)
