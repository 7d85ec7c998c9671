"""A prepare run on the embedded AWS whose instance is there and whose node is the test's own process, under
the node's role.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.jobs import job_of
from trainer.aws.access import Access
from trainer.aws.place import REHEARSAL
from trainer.aws.stack_outputs import StackOutputs, secrets_path
from trainer.control.fleet import create_fleet_request
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles
from trainer.job.job import Job
from trainer.launch.bundle import BundleName
from trainer.launch.inputs import list_inputs
from trainer.launch.prepare import plan_prepare, prepare_record, register_prepare
from trainer.node import refresh
from trainer.node.identity import NodeIdentity
from trainer.node.report import Status
from trainer.node.shared import Node
from trainer.node.uplink import Uplink
from trainer.rehearsal.nodes import role_credentials
from trainer.rehearsal.server import EmbeddedAws
from trainer.runs.record import Launch, RunRecord, utc_now
from trainer.runs.store import open_objects

SECRET = "s3cret-of-the-exchange"
CODE = BundleName(sha256="ab" * 32, lock_sha256="cd" * 32)
FIRST = "BTC-USD_1m.parquet"


@dataclass(frozen=True, kw_only=True)
class PreparedStack:
    """A stack with a prepare run of a job, whose instance is there and whose node is this process."""

    access: Access
    outputs: StackOutputs
    record: RunRecord
    node: Node
    metadata: str  # address of its metadata service


@pytest.fixture
def prepared(
    aws_server: EmbeddedAws,
    stack: tuple[Access, StackOutputs],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], PreparedStack]:
    """Return a function that begins a prepare run with a refresh script, as control does."""

    def begin(source: str) -> PreparedStack:
        access, outputs = stack
        objects, s3, now = open_objects(access, outputs.bucket), access.client("s3"), utc_now()
        write_candles(tmp_path / FIRST, [synthetic_candles("BTC-USD", bars=100)], synthetic=True)
        s3.put_object(Bucket=outputs.bucket, Key=f"raw/main/{FIRST}", Body=(tmp_path / FIRST).read_bytes())
        name = f"{secrets_path('mayfly', 'dev')}API_KEY"
        access.client("ssm").put_parameter(Name=name, Value=SECRET, Type="SecureString")
        (tmp_path / "fetch.py").write_text(source)
        monkeypatch.setattr(refresh, "in_bundle", lambda sha256: tmp_path / "fetch.py")
        job: Job = job_of(name="weekly", refresh="fetch.py", secrets=("API_KEY",))
        plan = plan_prepare(access, outputs, budget_usd=1.0)
        assert 0 < plan.hard_stop_usd == 0.0416 and {rung.market for rung in plan.ladder} == {"on_demand"}
        record = prepare_record("r1", job, plan, CODE, outputs, place=REHEARSAL, preflight_at=now, now=now)
        register_prepare(record, job, CODE, list_inputs(objects, "main"), plan.offers, objects)
        launch = Launch(rung=0, token="t", deadline=now + timedelta(minutes=30), intended_at=now)
        record = record.with_new_launch(launch)
        answer = access.client("ec2").create_fleet(**create_fleet_request(record, plan.ladder[0], launch))
        (instance_id,) = answer["Instances"][0]["InstanceIds"]
        record = record.with_launch(replace(launch, outcome="created", instance_ids=(instance_id,)), now)
        cloud = aws_server.cloud(access)
        lent = role_credentials(cloud, cloud.world.instances[instance_id])
        assert lent is not None and lent.role.endswith("-prepare")
        own = replace(access, access_key=lent.access_key, secret_key=lent.secret_key)
        identity = NodeIdentity(
            run_id="r1",
            attempt=1,
            node=0,
            deadline=launch.deadline,
            instance_id=instance_id,
            instance_type="t3.large",
            role_id=outputs.prepare_role_id,
        )
        work = tmp_path / "work"
        work.mkdir()
        node = Node(
            work=work, rehearsal=True, uplink=Uplink(own, outputs.bucket), status=Status(identity=identity)
        )
        metadata = aws_server.nodes.metadata_url(cloud, instance_id)
        return PreparedStack(access=access, outputs=outputs, record=record, node=node, metadata=metadata)

    return begin
