"""A further command beside trainer, script and refresh: a value of its own, and everything else is there."""

from __future__ import annotations

import pytest

from tests.jobs import job_of
from tests.manifests import command
from trainer.aws.objects import open_objects
from trainer.base.instants import utc_now
from trainer.control.cloud import AwsCloud
from trainer.control.drive import drive
from trainer.job.pieces.piece import Piece
from trainer.launch.bundle import build_bundle, upload_bundle
from trainer.launch.known_times import KnownTimes
from trainer.launch.planning import Planned, offers_for, plan_work
from trainer.launch.start import record_of, register
from trainer.launch.tasks import Task
from trainer.launch.work import Account, WeighedWork, timed
from trainer.machines.planner import Workload
from trainer.runs.manifest import ManifestPiece
from trainer.runs.stored_receipt import read_receipt

PIECE = Piece(name="score_m", title="m", kind="score", series=(), source="m", estimate=1.0)


@pytest.fixture
def account(stack, aws_server, node_forks, monkeypatch):
    """Return a stack whose machines run."""
    access, outputs = stack
    monkeypatch.setattr(aws_server.nodes, "forks", node_forks)
    monkeypatch.setattr(aws_server.cloud(access), "run_nodes", True)
    return Account(access=access, outputs=outputs, objects=open_objects(access, outputs.bucket))


@pytest.mark.nightly  # cheaper, by a kind of piece: job/pieces/test_outside_kind.py
def test_an_outside_command_is_planned_run_and_in_the_receipt(account):
    words = ("sh", "-c", "echo 0.5 > $MAYFLY_OUT/scores.csv")
    scorer = command(name="score", title="the scorer", words=words, files={}, devices="found")

    class Score(WeighedWork):
        name, leaves, input_bytes = scorer.name, scorer.leaves, 0

        def weighed(self, offers, account):
            return timed(Workload(pieces=(PIECE,), gpus=0.0), KnownTimes(), offers)

        def task(self, record, account, offers, planned):
            pieces = tuple(
                ManifestPiece(**vars(one), trial=0, values={}, estimate=1.0) for one in record.pieces
            )
            return Task(job=self.job, command=scorer, pieces=pieces)

    work = Score(job=job_of(instance=("g6.xlarge",), max_duration="1h", budget=1.0), code=build_bundle())
    offers = offers_for(work.job, account)
    planned = Planned(work=work, offers=offers, plan=plan_work(work, offers, account))
    assert 0 < planned.plan.hard_stop_usd <= 1 and planned.plan.pieces[0].kind == "score"
    assert planned.plan.times_are == "not estimated: no run has measured it"
    record = record_of(work, planned.plan, account, preflight_at=utc_now(), now=utc_now())
    upload_bundle(work.code, account.objects)
    register(record, planned, account)
    receipt = drive(AwsCloud(account.access, account.outputs), record.run_id, poll_seconds=0.2)
    assert receipt == read_receipt(account.objects, record.run_id)
    assert (receipt["state"], receipt["work"]) == ("done", "score")
    (file,) = receipt["files"]
    assert account.objects.get(key=file["key"], version_id=file["version_id"]).body == b"0.5\n"
