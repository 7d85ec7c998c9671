"""Knowledge for a launch: rates of the planned chips, and those of the user's profiles that its node may need."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import job_of
from trainer.aws.place import ACCOUNT, REHEARSAL
from trainer.job.job import Job
from trainer.launch.knowledge import known_rates, own_profiles, profiles_of, shape_on
from trainer.machines.chips import named_profile
from trainer.machines.instances import instance_type
from trainer.machines.shapes import shape_of

MACHINES = [instance_type(name) for name in ("g6.xlarge", "g6.12xlarge", "g5.xlarge")]


def test_each_planned_chip_counts_once():
    assert [profile.name for profile in profiles_of(Job(), MACHINES, place=ACCOUNT)] == ["l4", "a10g"]
    assert [profile.name for profile in profiles_of(job_of(gpu_profile="t4"), MACHINES, place=ACCOUNT)] == [
        "t4"
    ]
    assert [profile.name for profile in profiles_of(Job(), MACHINES, place=REHEARSAL)] == ["cpu"]


def test_of_the_users_profiles_those_go_along_that_may_be_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "mine.toml"
    file.write_text("[l4]\nmodels_per_gpu = 3\n\n[my_a10g]\nmemory_gib = 20\n\n[workshop]\nmemory_gib = 48\n")
    monkeypatch.setenv("MAYFLY_PROFILES", str(file))
    profiles = profiles_of(Job(), MACHINES, place=ACCOUNT)
    assert own_profiles(Job(), profiles) == {"l4": {"models_per_gpu": 3}}
    named = job_of(gpu_profile="my_a10g")
    assert own_profiles(named, profiles_of(named, MACHINES, place=REHEARSAL)) == {
        "my_a10g": {"memory_gib": 20}
    }


def test_a_rate_is_that_of_the_machines_own_chip():
    found = known_rates(Job(), MACHINES, ACCOUNT)
    assert found["g6.xlarge"] == found["g6.12xlarge"] != found["g5.xlarge"]
    assert known_rates(job_of(gpu_profile="t4"), MACHINES, ACCOUNT) == found, "the T4's is no rate of an L4"


def test_a_rehearsals_rate_is_a_cpus():
    p3 = [instance_type("p3.8xlarge")]
    rehearsed, launched = (known_rates(Job(), p3, place)["p3.8xlarge"] for place in (REHEARSAL, ACCOUNT))
    assert rehearsed.per_second == 2_000.0 and launched.per_second > 100_000


def test_a_case_of_few_models_has_their_number():
    l4, cpu = named_profile("l4"), named_profile("cpu")
    shapes = {shape_on(Job(), l4, devices=4, pieces=pieces) for pieces in (17, 20, 21)}
    assert len(shapes) == 2 and shape_of(job_of(pack=5)) in shapes
    assert shape_on(Job(), cpu, devices=4, pieces=20) == shape_of(Job())
