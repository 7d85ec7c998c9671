"""A prepare run on the embedded AWS whose instance is there and whose node is the test's own process, under
the node's role.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.jobs import job_of
from tests.nodes import node_on
from trainer.aws.access import Access
from trainer.aws.objects import open_objects
from trainer.aws.stack_outputs import StackOutputs, secrets_path
from trainer.base.code_files import code_files
from trainer.base.instants import utc_now
from trainer.base.own_file import FOLDER
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles
from trainer.job.job import Job
from trainer.launch.bundle import BundleName
from trainer.launch.cpu_run import PREPARE, plan_cpu_run
from trainer.launch.inputs import list_inputs
from trainer.launch.planning import Planned
from trainer.launch.start import record_of, register
from trainer.launch.work import Account, Refresh
from trainer.node.shared import Node
from trainer.rehearsal.server import EmbeddedAws
from trainer.runs.record import RunRecord

SECRET = "s3cret-of-the-exchange"
CODE = BundleName(sha256="ab" * 32, lock_sha256="cd" * 32)
FIRST = "BTC-USD_1m.parquet"


def unpacked(folder: Path, source: str) -> str:
    """Unpack a bundle with a refresh script as the bootstrap does; return the script's name in a job."""
    name = f"{hashlib.sha256(source.encode()).hexdigest()}.py"
    for file, content in code_files(["trainer.node.refresh", "trainer.bars.check"]).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    (folder / "trainer" / FOLDER).mkdir()
    (folder / "trainer" / FOLDER / name).write_text(source)
    return name


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
        name = unpacked(tmp_path / "code", source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"))
        job: Job = job_of(name="weekly", refresh=name, secrets=("API_KEY",))
        account = Account(access=access, outputs=outputs, objects=objects)
        offers, plan = plan_cpu_run(PREPARE, account, budget_usd=1.0)
        assert 0.0416 < plan.hard_stop_usd < 0.05, plan.hard_stop_usd
        assert {rung.market for rung in plan.ladder} == {"on_demand"}
        work = Refresh(job=job, code=CODE, inputs=list_inputs(objects, "main"))
        by = {"preflight_at": now, "now": now, "run_id": "r1", "driver": "control"}
        record = record_of(work, plan, account, **by)  # type: ignore[arg-type]
        register(record, Planned(work=work, offers=offers, plan=plan), account)
        node, record, role = node_on(aws_server, access, outputs, record, tmp_path / "work")
        assert role.endswith("-prepare")
        metadata = aws_server.nodes.metadata_url(aws_server.cloud(access), node.status.identity.instance_id)
        return PreparedStack(access=access, outputs=outputs, record=record, node=node, metadata=metadata)

    return begin
