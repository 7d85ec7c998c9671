"""A further command beside trainer, script and refresh: a value of its own, and everything else is there."""

from __future__ import annotations

from tests.jobs import job_of
from tests.manifests import command
from trainer.aws.stack import read_stack
from trainer.cli.views.drawing import drawn
from trainer.cli.views.receipt import receipt_view
from trainer.control.cloud import AwsCloud
from trainer.control.drive import drive
from trainer.job.pieces.piece import Piece
from trainer.launch.bundle import build_bundle, upload_bundle
from trainer.launch.preflight import look
from trainer.launch.script import plan_command
from trainer.launch.start import new_record, register
from trainer.launch.tasks import Task
from trainer.machines.instances import instance_type
from trainer.machines.planner import Workload
from trainer.runs.manifest import ManifestPiece
from trainer.runs.record import utc_now
from trainer.runs.store import open_objects
from trainer.runs.stored_receipt import read_receipt

SCORE = "echo 0.5 > $MAYFLY_OUT/scores.csv"
SCORER = command(name="score", title="the scorer", words=("sh", "-c", SCORE), files={}, devices="found")


def test_a_command_from_outside_is_planned_run_and_in_the_receipt(aws_server, node_forks, monkeypatch):
    access = aws_server.account()
    aws_server.apply_program(access)
    monkeypatch.setattr(aws_server.nodes, "forks", node_forks)
    monkeypatch.setattr(aws_server.cloud(access), "run_nodes", True)
    outputs, now = read_stack(access, stack="dev"), utc_now()
    objects, bundle = open_objects(access, outputs.bucket), build_bundle()
    job = job_of(name="scores", instance=("g6.xlarge",), max_duration="1h", budget=1.0)
    piece = Piece(name="score_m", title="m", kind="score", series=(), source="m", estimate=1.0)
    offers = look(access, outputs=outputs, machines=[instance_type("g6.xlarge")], spot=False)
    work = Workload(pieces=(piece,), gpus=0.0)
    plan = plan_command(job, work, offers, outputs, place=access.place, input_bytes=0)
    assert 0 < plan.hard_stop_usd <= 1 and plan.to_dict()["pieces"][0]["kind"] == "score"
    by = {"preflight_at": now, "now": now, "work": SCORER.name, "leaves": SCORER.leaves}
    record = new_record(job, plan, bundle, outputs, **by)
    pieces = tuple(ManifestPiece(**vars(piece), values={}, estimate=1.0) for piece in record.pieces)
    upload_bundle(bundle, objects)
    register(record, Task(job=job, command=SCORER, pieces=pieces), bundle, objects, offers=offers)
    receipt = drive(AwsCloud(access, outputs), record.run_id, poll_seconds=0.2)
    assert receipt == read_receipt(objects, record.run_id)
    assert (receipt["state"], receipt["work"]) == ("done", "score")
    (file,) = receipt["files"]
    assert objects.get(key=file["key"], version_id=file["version_id"]).body == b"0.5\n"
    assert "scores.csv" in drawn(receipt_view(receipt), width=80)
