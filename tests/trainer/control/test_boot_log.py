"""The log of a run whose agent may never have spoken: its parts, else what the boot left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainer.base.errors import PermissionDenied
from trainer.cli.parts import LogReader
from trainer.runs.record import Attempt, Launch
from trainer.runs.store import create_record


@pytest.fixture
def cloud(make_cloud, make_record):
    """A cloud with a run whose one instance has left nothing so far."""
    cloud, record = make_cloud(run_id="20261120-120000-other-aaaa")
    launch = Launch(
        rung=0,
        token="t",
        deadline=record.deadline,
        intended_at=record.created_at,
        outcome="created",
        instance_ids=("i-9",),
    )
    record = replace(record, run_id="20261120-120000-crypto-k3v9", state="running")
    record = replace(record, attempts=(Attempt(number=1, launches=(launch,), created_at=record.created_at),))
    create_record(cloud.objects, record)
    return cloud, record


def test_a_boot_is_followed_from_its_log_to_the_agents_parts(cloud):
    cloud, record = cloud
    (keys,), reader = record.nodes, LogReader(cloud, record.run_id)
    assert reader.read_new() == ""
    for text, new in (("fetch\n", "fetch\n"), ("fetch\ninstall\n", "install\n"), ("fetch\ninstall\n", "")):
        cloud.objects.write(keys.bootstrap_log, text.encode())
        assert reader.read_new() == new
    cloud.objects.write(f"{keys.log}000001.log", b"phase stage\n")
    assert reader.read_new() == "phase stage\n"
    cloud.objects.write(keys.bootstrap_log, b"fetch\ninstall\nphase stage\npowering off\n")
    assert reader.read_new() == ""  # it holds what the agent said, too


def test_a_log_that_comes_after_the_console_is_shown_from_its_beginning(cloud):
    cloud, record = cloud
    cloud.consoles["i-9"] = "Linux version 7\n"
    reader = LogReader(cloud, record.run_id)
    assert reader.read_new() == "Linux version 7\n"
    cloud.objects.write(record.nodes[0].bootstrap_log, b"fetch\n")
    assert (reader.read_new(), reader.read_new()) == ("fetch\n", "")


def test_a_console_that_may_not_be_read_is_said_once_and_the_log_is_followed(cloud, monkeypatch):
    cloud, record = cloud

    def refuse(*, instance_id):
        raise PermissionDenied(f"cannot read the console of {instance_id}", why="UnauthorizedOperation")

    monkeypatch.setattr(cloud, "console_output", refuse)
    reader = LogReader(cloud, record.run_id)
    assert "cannot read the console of i-9" in reader.read_new()
    assert reader.read_new() == ""
    cloud.objects.write(record.nodes[0].bootstrap_log, b"fetch\n")
    assert reader.read_new() == "fetch\n"


def test_the_console_is_read_where_the_bootstrap_sent_nothing(cloud):
    cloud, record = cloud
    cloud.consoles["i-9"] = "Kernel panic\n"
    reader = LogReader(cloud, record.run_id)
    assert (reader.read_new(), reader.read_new()) == ("Kernel panic\n", "")
