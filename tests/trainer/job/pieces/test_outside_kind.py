"""A kind of piece from outside is a line in the table of kinds: planned, priced, trained, uploaded, and in the
receipt.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from functools import reduce
from pathlib import Path

import pytest

from tests.jobs import full, job_of
from tests.trainer.outside.pairs import PAIRS
from trainer.aws.access import Access
from trainer.aws.place import ACCOUNT, REHEARSAL
from trainer.data.read.writing import write_candles
from trainer.job.pieces import KINDS, kind_of
from trainer.launch.start import recorded
from trainer.machines.instances import instance_type
from trainer.machines.planner import estimate, workload
from trainer.node.announced import Announced
from trainer.node.identity import NodeIdentity
from trainer.node.progress import Progress, advance
from trainer.node.report import Status, ending, result
from trainer.node.shared import Node
from trainer.node.uplink import Uplink
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.record_json import record_from_json, to_json
from trainer.runs.reports import read_result
from trainer.store.card import read_card
from trainer.train.__main__ import main

pytestmark = pytest.mark.slow


@pytest.fixture
def node(access: Access, tmp_path: Path) -> Node:
    bucket = f"kinds-{(access.access_key or '')[4:16]}"
    s3 = access.client("s3")
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    deadline = datetime.now(timezone.utc) + timedelta(hours=1)
    machine = {"node": 0, "instance_id": "i-1", "instance_type": "t"}
    status = Status(identity=NodeIdentity(run_id="r", attempt=1, deadline=deadline, **machine))
    return Node(work=tmp_path, place=REHEARSAL, uplink=Uplink(access, bucket), status=status)


def test_a_kind_from_outside_goes_from_plan_to_receipt(
    tmp_path, make_candles, make_record, node, monkeypatch, forked_children
):
    monkeypatch.setitem(KINDS, "pair", PAIRS)
    data = tmp_path / "data"
    data.mkdir()
    for seed, symbol in enumerate(("AAA", "BBB", "CCC")):
        write_candles(data / f"{symbol}_1m.parquet", [make_candles(600, symbol=symbol, seed=seed)])
    # The plan: priced, and in the record by name, whatever the one who closes the run knows of kinds.
    settings = {"timeframe": "1m", "lookback": 20, "batch": 64, "hidden": 4, "layers": 1, "epochs": 1}
    job = job_of(name="pairs", **settings)
    assert kind_of(job) is PAIRS
    work = workload(job, {"AAA": 600, "BBB": 600, "CCC": 600})
    assert [piece.title for piece in work.pieces] == ["AAA+BBB", "BBB+CCC"]
    assert [piece.series for piece in work.pieces] == [("AAA", "BBB"), ("BBB", "CCC")]
    assert estimate(work, instance_type("g6.xlarge"), place=ACCOUNT).seconds_p50 > 0
    record = record_from_json(to_json(make_record(job=job.to_dict(), pieces=recorded(work.pieces))))
    # The training, as of any piece.
    arguments = ["--data", str(data), "--out", str(tmp_path / "models"), "--events", str(tmp_path / "events")]
    keys = [f"--set={key}={value}" for key, value in {"name": "pairs", **full(settings)}.items()]
    assert main([*arguments, *keys, "--device", "cpu", "--workers", "1"]) == 0
    events = [json.loads(line) for line in (tmp_path / "events" / "events.jsonl").read_text().splitlines()]
    card = read_card(tmp_path / "models" / f"{work.pieces[0].name}.safetensors")
    assert (card.kind, card.symbols) == ("pair", ("AAA", "BBB"))
    # The node: uploads and result; and the desk: the receipt.
    node.status.progress = reduce(advance, events, Progress())
    uploads = Announced(node, tmp_path / "models", "models")
    for event in node.status.progress.done:
        uploads.add(dict(event))
    uploads.finish()
    ended = ending(status=node.status, stop_reason="", error=None, now=datetime.now(timezone.utc))
    reported = json.dumps(result(node.status, ended=ended, unfinished="", python_packages=""))
    names = [piece.model for piece in record.pieces]
    read = read_result(reported.encode(), models_prefix=node.status.identity.keys.models, names=names)
    receipt = make_receipt(record, Observation(result=read))
    assert (read.state, receipt["failed"]) == ("done", [])
    assert [(model["piece"], model["kind"], model["series"]) for model in receipt["models"]] == [
        ("AAA+BBB", "pair", ["AAA", "BBB"]),
        ("BBB+CCC", "pair", ["BBB", "CCC"]),
    ]
    assert receipt["models"][0]["key"].endswith(f"/{work.pieces[0].name}.safetensors")
    # Given again, nothing runs: what is finished is found by the plan.
    (tmp_path / "events" / "events.jsonl").unlink()
    assert main([*arguments, *keys, "--device", "cpu", "--workers", "1"]) == 0
    again = [json.loads(line) for line in (tmp_path / "events" / "events.jsonl").read_text().splitlines()]
    assert [event.get("kept") for event in again if event["event"] == "model_done"] == [True, True]
