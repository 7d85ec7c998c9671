"""The shape of a job's models, and settings chosen for one: used where the job leaves them open, read strictly."""

from __future__ import annotations

import pytest

from tests.jobs import job_of, with_settings
from trainer.machines.chips import named_profile
from trainer.machines.choice import Device, profile_of
from trainer.machines.shapes import Entry, of_a_device, shape_of, sound_entry, with_entry

JOB = job_of(hidden=4)
ENTRY: Entry = {
    "strategy": "fused",
    "pack": 8,
    "micro_batch": 16,
    "activation_checkpointing": False,
    "batch": 0,
    "memory_per_model_gib": 0.1,
    "torch": "2.13",
}


def test_settings_that_the_job_fixes_are_kept():
    found = with_entry(JOB, {**ENTRY, "activation_checkpointing": True})
    expert = found.expert
    assert (expert.strategy, expert.pack, expert.micro_batch) == ("fused", 8, 16)
    assert expert.activation_checkpointing is True
    assert found.train.batch == JOB.train.batch
    own = job_of(hidden=4, strategy="sequential", micro_batch=4, pack=2, activation_checkpointing=True)
    assert with_entry(own, ENTRY) == own
    assert with_entry(job_of(batch=0), {**ENTRY, "batch": 512}).train.batch == 512


def test_a_shape_has_what_a_trainings_speed_depends_on():
    assert shape_of(JOB) == shape_of(with_settings(JOB, learning_rate=0.5, epochs=3))
    assert len({shape_of(job) for job in (JOB, job_of(hidden=8), job_of(hidden=4, pack=2))}) == 3


def test_a_tcns_shape_depends_on_its_batch_not_its_horizon():
    four, eight = (job_of(model="tcn", horizon_sessions=sessions) for sessions in (4, 8))
    assert shape_of(four) == shape_of(eight)
    assert shape_of(job_of(model="tcn", batch=8)) != shape_of(job_of(model="tcn"))


def test_a_shape_has_an_unusual_number_of_inputs():
    assert "inputs" not in shape_of(JOB)
    assert " inputs=2 " in shape_of(with_settings(JOB, columns="a,b", features="none"))
    assert shape_of(with_settings(JOB, columns="a")) == shape_of(with_settings(JOB, columns="b"))


def test_a_gpus_shape_has_its_few_models():
    def packs(pieces: int, **keys: int) -> int:
        return of_a_device(JOB, devices=4, pieces=pieces, on_gpu=True).expert.pack

    assert [packs(pieces) for pieces in (2, 20, 400)] == [1, 5, 0]
    assert of_a_device(JOB, devices=4, pieces=20, on_gpu=False) == JOB


def test_a_chips_share_and_an_unknown_chip_have_own_keys():
    assert named_profile("l4").key == "l4"
    assert profile_of(Device(name="NVIDIA H200", memory_gib=70, free_gib=70)).key == "h200_1of2"
    unknown = profile_of(Device(name="NVIDIA Z1 (2027)", memory_gib=9, free_gib=9))
    assert unknown.key == "unknown_nvidia_z1__2027_"


@pytest.mark.parametrize(
    "spoilt",
    [
        {"strategy": "auto"},
        {"strategy": ["sequential"]},
        {"pack": 0},
        {"pack": True},
        {"micro_batch": 1 << 30},
        {"batch": -1},
        {"activation_checkpointing": 1},
        {"memory_per_model_gib": float("nan")},
        {"torch": "x" * 1000},
    ],
)
def test_malformed_settings_are_not_taken(spoilt):
    assert sound_entry({**ENTRY, "more": "left out"}) == ENTRY
    assert sound_entry({**ENTRY, **spoilt}) is None and sound_entry(3) is None
