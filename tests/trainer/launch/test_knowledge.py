"""Knowledge that a launch gives its node: ways found before, for the planned chips and this job only, and the user's
profiles.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.jobs import MEASURED, job_of
from trainer.aws.place import ACCOUNT, REHEARSAL
from trainer.base.errors import PermissionDenied
from trainer.job.job import Job
from trainer.launch.knowledge import known_rates, known_tunings, own_profiles, profiles_of
from trainer.machines.instances import instance_type
from trainer.machines.measurements import OBJECT, Entry, shape_of, to_bytes
from trainer.runs.store import Stored

MACHINES = [instance_type(name) for name in ("g6.xlarge", "g6.12xlarge", "g5.xlarge")]


class MeasurementsBucket:
    """A bucket with these measurements; None: it may not be read."""

    def __init__(self, measured: bytes | None) -> None:
        self.measured = measured

    def get(self, *, key: str, version_id: str = "", first_bytes: int = 0) -> Stored | None:
        assert key == OBJECT
        if self.measured is None:
            raise PermissionDenied("not allowed to read", why="AccessDenied")
        return Stored(key=key, etag="e", modified_at=datetime.now(timezone.utc), body=self.measured)


def measured(profile: str, *jobs: Job, entry: Entry = MEASURED) -> MeasurementsBucket:
    return MeasurementsBucket(to_bytes({profile: {shape_of(job): entry for job in jobs}}))


def test_each_planned_chip_counts_once():
    assert [profile.name for profile in profiles_of(Job(), MACHINES, place=ACCOUNT)] == ["l4", "a10g"]
    assert [profile.name for profile in profiles_of(job_of(gpu_profile="t4"), MACHINES, place=ACCOUNT)] == [
        "t4"
    ]
    assert [profile.name for profile in profiles_of(Job(), MACHINES, place=REHEARSAL)] == ["cpu"]


def test_only_this_jobs_shape_is_pinned():
    bucket = measured("l4", Job(), job_of(hidden=128))
    profiles = profiles_of(Job(), MACHINES, place=ACCOUNT)
    assert known_tunings(Job(), profiles, bucket, pieces=40) == {"l4": {shape_of(Job()): MEASURED}}
    assert known_tunings(job_of(hidden=256), profiles, bucket, pieces=40) == {}
    assert (
        known_tunings(Job(), profiles, MeasurementsBucket(b"{"), pieces=40)
        == known_tunings(Job(), profiles, MeasurementsBucket(None), pieces=40)
        == {}
    )


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


def test_a_measured_rate_is_that_of_the_machines_own_chip():
    found = known_rates(Job(), MACHINES, measured("l4", Job()), place=ACCOUNT, pieces=200)
    assert [found[machine.name].basis for machine in MACHINES] == [
        "measured on 2026-11-21",
        "measured on 2026-11-21",
        "estimate",
    ]
    named = known_rates(job_of(gpu_profile="t4"), MACHINES, measured("t4", Job()), place=ACCOUNT, pieces=200)
    assert {rate.basis for rate in named.values()} == {"estimate"}, "the T4's is no rate of an L4"


def test_a_measured_rate_comes_with_the_profiles_own():
    made_up = {**MEASURED, "windows_per_second": 99 * 150_000.0, "strategy": "sequential", "pack": 1}
    found = known_rates(Job(), MACHINES, measured("l4", Job(), entry=made_up), place=ACCOUNT, pieces=200)
    fast, guessed = found["g6.xlarge"], found["g5.xlarge"]
    assert (fast.per_second, fast.of_profile.per_second) == (99 * 150_000.0, 150_000.0)
    assert fast.of_profile.is_estimate and guessed.of_profile == guessed  # what deadlines follow


def test_a_rate_of_a_cpu_is_a_rehearsals_and_no_gpus():
    sequential = {**MEASURED, "strategy": "sequential", "pack": 1, "windows_per_second": 4_000.0}
    memory, p3 = measured("cpu", Job(), entry=sequential), [instance_type("p3.8xlarge")]
    rehearsed, launched = (
        known_rates(Job(), p3, memory, place, pieces=200)["p3.8xlarge"] for place in (REHEARSAL, ACCOUNT)
    )
    assert (rehearsed.per_second, rehearsed.basis) == (4_000.0, "measured on 2026-11-21")
    assert launched.is_estimate and launched.per_second > 100_000


def test_models_on_all_gpus_are_known_by_a_ranks_share():
    job = job_of(batch=64, distributed="always")
    share = job_of(batch=16, distributed="always", strategy="sequential", pack=1)
    bucket, (one, four, _) = measured("l4", share), MACHINES
    assert known_tunings(job, profiles_of(job, MACHINES, place=ACCOUNT), bucket, pieces=1) == {
        "l4": {shape_of(share): MEASURED}
    }
    found = known_rates(job, MACHINES, bucket, place=ACCOUNT, pieces=1)
    assert found[four.name].is_measured and found[one.name].is_estimate


def test_a_rate_is_known_for_as_many_models_as_a_gpu_trains_at_a_time():
    bucket, (one, four, _) = measured("l4", job_of(pack=5)), MACHINES
    for pieces, known in ((5, one), (20, four), (17, four)):
        found = known_rates(Job(), MACHINES, bucket, place=ACCOUNT, pieces=pieces)
        assert {name for name, rate in found.items() if rate.is_measured} == {known.name}
    assert known_tunings(Job(), profiles_of(Job(), MACHINES, ACCOUNT), bucket, pieces=20) == {
        "l4": {shape_of(job_of(pack=5)): MEASURED}
    }
