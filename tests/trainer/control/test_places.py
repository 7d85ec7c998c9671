"""A place from outside the package: planned and driven like an account, by its own pace, limits and words."""

from __future__ import annotations

from datetime import timedelta

from tests.jobs import job_of
from tests.trainer.launch.test_plan import SUBNETS, ZONES
from trainer.aws import place as places
from trainer.aws.place import Place
from trainer.control.drive import drive
from trainer.launch.plan import make_plan
from trainer.launch.preflight import Offers
from trainer.launch.prices import table_prices
from trainer.machines.instances import instance_type
from trainer.machines.planner import workload

LAB = Place(name="lab", chip="t4", boot_seconds=7.0, receipt_note="In the lab.", binding=False)


def test_a_new_place_is_planned_and_driven(make_cloud, monkeypatch):
    monkeypatch.setitem(places.PLACES, LAB.name, LAB)
    job, priced = job_of(instance=("p3.8xlarge",)), table_prices([instance_type("p3.8xlarge")])
    offers = Offers(
        image_line="", image_id="", launch_template_id="lt-1", zones={"p3.8xlarge": ZONES}, priced=priced
    )
    work, cap = workload(job, {"BTC-USD": 100_000}), timedelta(hours=12)
    plan = make_plan(job, work, offers, subnets=SUBNETS, region="us-east-1", place=LAB, cap=cap)
    assert plan.to_dict()["place"] == "lab" and plan.first.note.startswith("retired by AWS")
    cloud, record = make_cloud(place="lab")
    receipt = drive(cloud, record.run_id, poll_seconds=LAB.poll_seconds, sleep=cloud.sleep)
    assert receipt is not None
    assert (receipt["state"], receipt["place"], receipt["note"]) == ("done", "lab", "In the lab.")
    assert cloud.alive() == []
