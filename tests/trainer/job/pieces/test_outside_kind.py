"""A second kind of piece is a line in the table of kinds: planned, priced, tried again, uploaded, and in the
receipt.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

from tests.predictions import predict_file
from tests.trainer.outside.script import SCRIPT
from trainer.aws.access import Access
from trainer.aws.place import ACCOUNT
from trainer.base.errors import DataError
from trainer.data.read.reading import read_candles
from trainer.data.read.writing import write_candles
from trainer.job.job import job_of
from trainer.job.pieces import KINDS, kind_of
from trainer.launch.start import recorded
from trainer.machines.instances import instance_type
from trainer.machines.planner import estimate, workload
from trainer.node.identity import NodeIdentity
from trainer.node.model_uploads import ModelUploads
from trainer.node.progress import Progress, advance
from trainer.node.report import Status, ending, result
from trainer.node.shared import Node
from trainer.node.uplink import Uplink
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.record_json import record_from_json, to_json
from trainer.runs.reports import read_result
from trainer.store.weights import load
from trainer.train.__main__ import main

pytestmark = pytest.mark.slow


@pytest.fixture
def node(access: Access, tmp_path: Path) -> Node:
    bucket = f"kinds-{(access.access_key or '')[4:16]}"
    s3 = access.client("s3")
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    deadline = datetime.now(timezone.utc) + timedelta(hours=1)
    identity = NodeIdentity(
        run_id="r", attempt=1, node=0, deadline=deadline, instance_id="i-1", instance_type="t"
    )
    return Node(
        work=tmp_path, rehearsal=True, uplink=Uplink(access, bucket), status=Status(identity=identity)
    )


def test_a_script_from_outside_is_planned_tried_again_uploaded_and_in_the_receipt(
    tmp_path, make_candles, make_record, node, monkeypatch, capsys, forked_children
):
    monkeypatch.setitem(KINDS, "script", SCRIPT)
    data = tmp_path / "data"
    data.mkdir()
    for seed, symbol in enumerate(("AAA", "BBB")):
        write_candles(data / f"{symbol}_1m.parquet", [make_candles(400, symbol=symbol, seed=seed)])
    # The plan: priced, and in the record by name, whatever the one who closes the run knows of kinds.
    job = job_of(name="scripts", lookback=20, batch=64)
    assert kind_of(job) is SCRIPT
    work = workload(job, {"AAA": 400, "BBB": 400})
    assert [(piece.name, piece.series) for piece in work.pieces] == [
        ("script_AAA", ("AAA",)),
        ("script_BBB", ("BBB",)),
    ]
    assert estimate(work, instance_type("g6.xlarge"), place=ACCOUNT).seconds_p50 > 0
    record = record_from_json(to_json(make_record(job=job.to_dict(), pieces=recorded(work.pieces))))
    # The training: a worker dies, and its piece is tried again.
    arguments = ["--data", str(data), "--out", str(tmp_path / "models"), "--events", str(tmp_path / "events")]
    keys = [f"--set={key}" for key in ("name=scripts", "lookback=20", "batch=64")]
    assert main([*arguments, *keys, "--device", "cpu", "--workers", "1"]) == 0
    events = [json.loads(line) for line in (tmp_path / "events" / "events.jsonl").read_text().splitlines()]
    assert [event["piece"] for event in events if event["event"] == "retry"] == ["AAA"]
    tensors, card = load(tmp_path / "models" / "script_AAA.safetensors")
    close = read_candles(data)["AAA"].close
    assert tensors["mean"].item() == np.float32(close.mean()) and (card.kind, card.family) == (
        "script",
        "script",
    )
    with pytest.raises(DataError, match="is a script model .this Mayfly knows models lstm, tcn"):
        predict_file(tmp_path / "models" / "script_AAA.safetensors", data)
    # The node: uploads and result; and the desk: the receipt.
    node.status.progress = reduce(advance, events, Progress())
    uploads = ModelUploads(node)
    for event in node.status.progress.done:
        uploads.add(dict(event))
    uploads.finish()
    ended = ending(
        status=node.status, stop_reason="", error=None, trainer_exit=0, now=datetime.now(timezone.utc)
    )
    reported = json.dumps(result(node.status, ended=ended, unfinished="", python_packages=""))
    read = read_result(reported.encode(), models_prefix=node.status.identity.keys.models)
    receipt = make_receipt(record, Observation(result=read))
    assert (read.state, receipt["retries"], receipt["failed"]) == ("done", 1, [])
    assert [(model["piece"], model["kind"], model["series"]) for model in receipt["models"]] == [
        ("AAA", "script", ["AAA"]),
        ("BBB", "script", ["BBB"]),
    ]
    assert receipt["models"][0]["key"].endswith("/script_AAA.safetensors")
    # Given again, nothing runs: what is finished is found by the plan.
    (tmp_path / "events" / "events.jsonl").unlink()
    assert main([*arguments, *keys, "--device", "cpu", "--workers", "1"]) == 0
    again = [json.loads(line) for line in (tmp_path / "events" / "events.jsonl").read_text().splitlines()]
    assert [event.get("kept") for event in again if event["event"] == "model_done"] == [True, True]
