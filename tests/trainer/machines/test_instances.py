from __future__ import annotations

import csv
import re
from importlib.resources import files
from pathlib import Path

import pytest

from trainer.base.errors import UsageError
from trainer.machines.instances import catalogue, instance_type, replacements
from trainer.runs.lease import BOOT_ALLOWANCE, LONGEST_BOOT


def test_every_type_of_the_table_has_a_dated_price():
    known = catalogue()
    assert len(known) == 68
    assert all(machine.price_date for machine in known.values() if machine.price_usd_per_hour is not None)
    assert known["g6.12xlarge"].price_usd_per_hour == 4.6016


def test_the_page_names_the_families_without_local_disks():
    table = (files("trainer.machines") / "instances.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(table.splitlines())
    without = {row["family"] for row in rows if float(row["local_nvme_gb"] or 0) == 0}
    page = (Path(__file__).resolve().parents[3] / "docs" / "infrastructure.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"has instance store, but (.*?);", page)
    assert set(re.findall(r"`(\w+)`", named)) == without


def test_an_unknown_type_names_the_nearest():
    with pytest.raises(UsageError, match=r"unknown instance type 'p3.9xlarge'. Did you mean p3.8xlarge"):
        instance_type("p3.9xlarge")


def test_a_retired_type_is_known_and_not_launchable():
    machine = instance_type("p3.8xlarge")
    assert (machine.status, machine.launchable, machine.num_workers) == ("retired", False, 4)
    assert [other.name for other in replacements(machine)] == ["g6.12xlarge", "g5.12xlarge", "g6e.12xlarge"]


def test_every_replacement_is_launchable_and_has_as_many_gpus():
    for machine in catalogue().values():
        for other in () if machine.launchable else replacements(machine):
            assert other.launchable and other.num_workers == machine.num_workers


GPUS_OF_G6 = {"g6.xlarge": 1, "g6.12xlarge": 4, "g6.48xlarge": 8}


def test_every_type_has_a_boot_and_the_more_gpus_the_longer():
    allowed = {machine.name: machine.boot.allowance_seconds for machine in catalogue().values()}
    assert allowed["g6.xlarge"] == BOOT_ALLOWANCE.total_seconds()
    rising = [
        allowed[name] for name in ("g6.xlarge", "g6.12xlarge", "g6.48xlarge", "p5.48xlarge", "g4dn.metal")
    ]
    assert rising == sorted(set(rising))
    assert allowed["p5.4xlarge"] == allowed["g6.xlarge"]  # one GPU
    for machine in catalogue().values():
        boot = machine.boot
        assert boot.expected_seconds < boot.allowance_seconds <= LONGEST_BOOT.total_seconds() and boot.basis
        assert boot.smoke_seconds < boot.allowance_seconds
        alike = [name for name, gpus in GPUS_OF_G6.items() if gpus <= machine.num_workers]
        least = catalogue()[alike[-1]]
        assert boot.allowance_seconds >= least.boot.allowance_seconds, machine.name
        assert boot.smoke_seconds >= least.boot.smoke_seconds, machine.name


def test_a_fraction_of_a_gpu_is_one_worker():
    assert instance_type("g6f.large").num_workers == 1
