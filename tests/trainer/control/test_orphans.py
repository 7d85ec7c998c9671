"""Remains of runs that ended are found and deleted; nothing of an open run, of another stack or in use is
touched.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from tests.trainer.launch.test_start import OUTPUTS
from trainer.aws.access import Access
from trainer.aws.objects import open_objects
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import Stopped
from trainer.base.instants import utc_now
from trainer.cli.main import main
from trainer.cli.verbs import doctor
from trainer.control.orphans import KINDS, Orphan, delete, orphans, orphans_note
from trainer.runs.actions import kill_schedule, sweep_schedule
from trainer.runs.index import begin_run
from trainer.runs.record import RunRecord

OPEN, ENDED = "20261120-100000-open-aaaa", "20261119-100000-ended-bbbb"


@pytest.fixture
def remains(stack: tuple[Access, StackOutputs], make_record: Callable[..., RunRecord]) -> dict[str, str]:
    """A stack with an open run and remains of it, of one that ended, and of another stack's; name -> id."""
    access, outputs = stack
    begin_run(open_objects(access, outputs.bucket), make_record(run_id=OPEN))
    ec2, scheduler = access.client("ec2"), access.client("scheduler")
    subnet = sorted(outputs.subnets.values())[0]
    made = {}
    for name, tags in {
        "open": {"stack": "dev", "run_id": OPEN},
        "ended": {"stack": "dev", "run_id": ENDED},
        "other": {"stack": "prod", "run_id": ENDED},
        "by hand": {"stack": "dev"},
    }.items():
        pairs = [{"Key": key, "Value": value} for key, value in {"project": "mayfly", **tags}.items()]
        size = {"AvailabilityZone": "us-east-1a", "Size": 8}
        volume = ec2.create_volume(**size, TagSpecifications=[{"ResourceType": "volume", "Tags": pairs}])
        made[f"{name} volume"] = volume["VolumeId"]
        specification = [{"ResourceType": "network-interface", "Tags": pairs}]
        interface = ec2.create_network_interface(SubnetId=subnet, TagSpecifications=specification)[
            "NetworkInterface"
        ]
        made[f"{name} interface"] = interface["NetworkInterfaceId"]
    soon, past = utc_now() + timedelta(hours=1), utc_now() - timedelta(hours=1)
    for name, at in {
        sweep_schedule(OPEN): past,
        sweep_schedule(ENDED): soon,
        kill_schedule(ENDED, 1): past,
        "mayfly-by-hand": past,
    }.items():
        scheduler.create_schedule(
            Name=name,
            GroupName=outputs.schedule_group,
            ScheduleExpression=f"at({at:%Y-%m-%dT%H:%M:%S})",
            FlexibleTimeWindow={"Mode": "OFF"},
            Target={"Arn": outputs.sweeper_arn, "RoleArn": outputs.scheduler_role_arn, "Input": "{}"},
        )
    return made


def test_remains_of_ended_runs_are_found_and_of_no_other(
    stack: tuple[Access, StackOutputs], remains: dict[str, str]
) -> None:
    access, outputs = stack
    objects = open_objects(access, outputs.bucket)
    found = [one for kind in KINDS for one in orphans(kind, access, outputs, objects, now=utc_now())]
    assert {(one.kind, one.id, one.run_id) for one in found} == {
        ("volume", remains["ended volume"], ENDED),
        ("interface", remains["ended interface"], ENDED),
        ("schedule", kill_schedule(ENDED, 1), ENDED),
    }


def test_a_schedule_that_ends_after_the_listing_is_no_orphan(
    stack: tuple[Access, StackOutputs], remains: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    access, outputs = stack
    scheduler, name = access.client("scheduler"), sweep_schedule(ENDED)
    get = scheduler.get_schedule

    def get_late(**asked: str) -> Any:
        if asked["Name"] == name:
            scheduler.delete_schedule(**asked)
        return get(**asked)

    monkeypatch.setattr(scheduler, "get_schedule", get_late)
    found = orphans("schedule", access, outputs, open_objects(access, outputs.bucket), now=utc_now())
    assert [one.id for one in found] == [kill_schedule(ENDED, 1)]


def test_a_no_deletes_nothing(
    stack: tuple[Access, StackOutputs], remains: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    access, outputs = stack
    monkeypatch.setattr(
        "trainer.cli.output.ask", lambda question: "n" if "Delete these 3?" in question else "y"
    )
    with pytest.raises(Stopped, match="not deleted"):
        doctor.fix(access, stack="dev", yes=False)
    assert f"volume {remains['ended volume']} (8 GiB), of run {ENDED}" in " ".join(
        capsys.readouterr().err.split()
    )
    objects = open_objects(access, outputs.bucket)
    assert sum(len(orphans(kind, access, outputs, objects, now=utc_now())) for kind in KINDS) == 3


def test_doctor_names_them_and_deletes_them_when_it_may(
    stack: tuple[Access, StackOutputs], remains: dict[str, str], capsys: Any
) -> None:
    access, outputs = stack
    objects, now = open_objects(access, outputs.bucket), utc_now()
    assert orphans_note("volume", access, outputs, objects, now=now).startswith(
        f"left by ended runs: {remains['ended volume']} of run {ENDED} (8 GiB). mayfly doctor --fix"
    )
    assert main(["doctor", "--fix"]) == 2  # nobody to ask
    assert "Add -y" in capsys.readouterr().err
    assert {one.kind for one in doctor.fix(access, stack="dev", yes=True)} == set(KINDS)
    assert [orphans_note(kind, access, outputs, objects, now=now) for kind in KINDS] == [""] * 3
    assert doctor.fix(access, stack="dev", yes=True) == []
    ec2 = access.client("ec2")
    volumes = {one["VolumeId"] for one in ec2.describe_volumes()["Volumes"]}
    interfaces = {one["NetworkInterfaceId"] for one in ec2.describe_network_interfaces()["NetworkInterfaces"]}
    kept = {key for key, identifier in remains.items() if identifier in volumes | interfaces}
    assert kept == {
        f"{name} {kind}" for name in ("open", "other", "by hand") for kind in ("volume", "interface")
    }
    names = {
        one["Name"]
        for one in access.client("scheduler").list_schedules(GroupName=outputs.schedule_group)["Schedules"]
    }
    assert {sweep_schedule(OPEN), sweep_schedule(ENDED), "mayfly-by-hand", "standing-sweep"} <= names
    assert kill_schedule(ENDED, 1) not in names


class Refusing:
    """An account whose deletions fail by this code."""

    def __init__(self, code: str) -> None:
        self.code = code

    def client(self, service: str) -> Refusing:
        return self

    def delete_volume(self, **_: str) -> None:
        raise ClientError({"Error": {"Code": self.code, "Message": ""}}, "DeleteVolume")


def test_a_deletion_that_aws_refuses_is_no_deletion() -> None:
    volume = Orphan(kind="volume", id="vol-1", run_id="r")
    delete(cast(Access, Refusing("InvalidVolume.NotFound")), OUTPUTS, volume)
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        delete(cast(Access, Refusing("UnauthorizedOperation")), OUTPUTS, volume)
