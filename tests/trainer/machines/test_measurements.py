"""The cache of measurements: kept by chip and shape, used where the job leaves it open, read strictly."""

from __future__ import annotations

import pytest

from tests.jobs import job_of, with_settings
from trainer.machines.chips import named_profile
from trainer.machines.choice import Device, profile_of
from trainer.machines.measurements import (
    Entry,
    from_bytes,
    keep_here,
    known_here,
    merged,
    shape_of,
    sound,
    to_bytes,
    with_entry,
)

JOB = job_of(hidden=4)
ENTRY: Entry = {
    "strategy": "fused",
    "pack": 8,
    "micro_batch": 16,
    "activation_checkpointing": False,
    "batch": 0,
    "windows_per_second": 1234.5,
    "memory_per_model_gib": 0.1,
    "torch": "2.13",
    "date": "2026-11-21",
}


def test_measurements_are_kept_by_chip_shape_and_torch(user_file):
    keep_here("h200", shape_of(JOB), ENTRY)
    assert known_here("h200", JOB, torch="2.13") == ENTRY
    assert known_here("t4", JOB, torch="2.13") is None
    assert known_here("h200", job_of(hidden=8), torch="2.13") is None
    # A strategy has to agree with plain modules there first
    assert known_here("h200", JOB, torch="2.14") is None
    assert known_here("h200", with_settings(JOB, learning_rate=0.5, epochs=3), torch="2.13") == ENTRY
    keep_here("h200", shape_of(job_of(hidden=8)), {**ENTRY, "pack": 4})
    assert known_here("h200", JOB, torch="2.13") == ENTRY


def test_measurements_under_fixed_settings_are_kept_apart(user_file):
    keep_here("h200", shape_of(with_settings(JOB, pack=2)), ENTRY)
    assert known_here("h200", JOB, torch="2.13") is None
    assert known_here("h200", with_settings(JOB, pack=2), torch="2.13") == ENTRY


def test_settings_that_the_job_fixes_are_kept():
    found = with_entry(JOB, {**ENTRY, "activation_checkpointing": True})
    expert = found.expert
    assert (expert.strategy, expert.pack, expert.micro_batch) == ("fused", 8, 16)
    assert expert.activation_checkpointing is True
    assert found.train.batch == JOB.train.batch
    own = job_of(hidden=4, strategy="sequential", micro_batch=4, pack=2, activation_checkpointing=True)
    assert with_entry(own, ENTRY) == own
    assert with_entry(job_of(batch=0), {**ENTRY, "batch": 512}).train.batch == 512


def test_a_tcns_shape_depends_on_its_batch_not_its_horizon():
    four, eight = (job_of(model="tcn", horizon_sessions=sessions) for sessions in (4, 8))
    assert shape_of(four) == shape_of(eight)
    assert shape_of(job_of(model="tcn", batch=8)) != shape_of(job_of(model="tcn"))


def test_a_shape_has_an_unusual_number_of_inputs():
    assert "inputs" not in shape_of(JOB)
    assert " inputs=2 " in shape_of(with_settings(JOB, columns="a,b", features="none"))
    assert shape_of(with_settings(JOB, columns="a")) == shape_of(with_settings(JOB, columns="b"))


def test_a_share_of_a_chip_and_an_unknown_chip_are_kept_apart():
    assert named_profile("l4").key == "l4"
    assert profile_of(Device(name="NVIDIA H200", memory_gib=70, free_gib=70)).key == "h200_1of2"
    unknown = profile_of(Device(name="NVIDIA Z1 (2027)", memory_gib=9, free_gib=9))
    assert unknown.key == "unknown_nvidia_z1__2027_"


def test_stored_measurements_come_back_and_other_bytes_do_not():
    assert from_bytes(to_bytes({"h200": {shape_of(JOB): ENTRY}})) == {"h200": {shape_of(JOB): ENTRY}}
    for body in (b"{", b"[]", b"3", b"\xff", b"[" * 100_000):
        assert from_bytes(body) == {}


def test_the_newer_of_two_entries_is_kept():
    newer = {"h200": {"a": {**ENTRY, "pack": 2}}, "t4": {"a": ENTRY}}
    both = merged({"h200": {"a": ENTRY, "b": ENTRY}}, newer)
    assert both == {"h200": {"a": {**ENTRY, "pack": 2}, "b": ENTRY}, "t4": {"a": ENTRY}}


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
        {"windows_per_second": float("nan")},
        {"windows_per_second": "fast"},
        {"torch": "x" * 1000},
        {"date": None},
        {"date": "\x1b[31mtoday"},
    ],
)
def test_malformed_entries_are_dropped(spoilt):
    shapes = {"good": {**ENTRY, "more": "left out"}, "bad": {**ENTRY, **spoilt}, "x" * 1000: ENTRY}
    assert sound({"l4": shapes, "../run": shapes, "": shapes, "t4": 3, 4: shapes}) == {"l4": {"good": ENTRY}}
    assert sound({"l4": {"bad": 3, 4: ENTRY}}) == {"l4": {}} and sound(None) == {}


def test_an_unreadable_measurements_file_is_replaced(user_file):
    file = user_file.with_name("measurements.json")
    for text in ("{", "[]", '{"cpu": 3}'):
        file.write_text(text)
        assert known_here("cpu", JOB, torch="2.13") is None
    assert keep_here("cpu", shape_of(JOB), ENTRY) == file
    assert known_here("cpu", JOB, torch="2.13") == ENTRY
