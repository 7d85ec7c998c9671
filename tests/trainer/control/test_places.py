"""A place from outside the package: planned and driven like an account, by its own pace, limits and words."""

from __future__ import annotations

from tests.jobs import job_of
from tests.planned import offers_of, plan_of
from trainer.aws import place as places
from trainer.aws.place import Place
from trainer.control.drive import drive
from trainer.machines.planner import workload

LAB = Place(name="lab", chip="t4", boot_seconds=7.0, receipt_note="In the lab.", binding=False)


def test_a_new_place_is_planned_and_driven(make_cloud, monkeypatch):
    monkeypatch.setitem(places.PLACES, LAB.name, LAB)
    job = job_of(instance=("p3.8xlarge",))
    plan = plan_of(job, workload(job, {"BTC-USD": 100_000}), offers_of("p3.8xlarge"), place=LAB)
    assert plan.to_dict()["place"] == "lab" and plan.first.note.startswith("retired by AWS")
    cloud, record = make_cloud(place="lab")
    receipt = drive(cloud, record.run_id, poll_seconds=LAB.poll_seconds, sleep=cloud.sleep)
    assert receipt is not None
    assert (receipt["state"], receipt["place"], receipt["note"]) == ("done", "lab", "In the lab.")
    assert cloud.alive() == []
