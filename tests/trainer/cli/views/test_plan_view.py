"""The plan as text: what its lines say of a machine without a GPU."""

from __future__ import annotations

from dataclasses import replace

from tests.jobs import job_of
from tests.planned import ZONES, offers_of, plan_script
from trainer.cli.views.drawing import drawn
from trainer.cli.views.plan import script_view
from trainer.launch.known_times import KnownTimes
from trainer.launch.prices import table_prices
from trainer.machines.cpu_types import cpu_instance_type
from trainer.machines.instances import instance_type

DATA = {"script_files": {"train.py": ""}, "files": 0, "bytes": 0}


def test_values_on_a_machine_without_a_gpu_have_none_each() -> None:
    shown = {}
    for machine in (cpu_instance_type("c7i.4xlarge"), instance_type("g6.xlarge")):
        of = {"instance": (machine.name,), "max_duration": "2h"}
        job = job_of(command="python train.py", over={"seed": (1, 2)}, **of)
        priced, zones = table_prices([machine]), {machine.name: ZONES}
        offers = replace(offers_of("g6.xlarge"), priced=priced, zones=zones)
        plan = plan_script(job, offers, known=KnownTimes(), input_bytes=0)
        shown[machine.name] = drawn(script_view(plan, job, DATA), width=200)
    assert "1 GPU each" in shown["g6.xlarge"]
    assert "2 runs" in shown["c7i.4xlarge"] and "1 GPU each" not in shown["c7i.4xlarge"]
    assert "1 at a time" in shown["c7i.4xlarge"]
