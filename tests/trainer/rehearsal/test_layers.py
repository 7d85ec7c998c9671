"""The layers of the safety net, each seen alone to end a node that hangs: OS timer, two one-time schedules,
standing sweep.

Everything is the program's own: its templates, bootstrap, sweeper and standing schedule; the launcher arms
the rest. The account's clock stands still but for `advance`: no deadline passes before the node is in place,
however slow the machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.aws.clock import StoppedClock
from tests.records import rung
from tests.sessions import forget_sessions
from trainer.aws.access import Access
from trainer.aws.stack_outputs import StackOutputs, parameter_name
from trainer.base.instants import iso, utc_now
from trainer.cli.main import main
from trainer.control.cloud import AwsCloud
from trainer.control.drive import start
from trainer.rehearsal import scheduling
from trainer.rehearsal.account import EmbeddedAccount
from trainer.rehearsal.nodes import sandbox
from trainer.rehearsal.server import EmbeddedAws
from trainer.runs.deadline import armed_for
from trainer.runs.keys import NodeKeys
from trainer.runs.lease import LEASE
from trainer.runs.store import create_record

# `make test` has the same of tests/live, without an OS timer, which test_bootstrap.py has alone.
pytestmark = [pytest.mark.slow, pytest.mark.nightly]
ROOT = Path(__file__).resolve().parents[3]
HUNG_AGENT = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(6000)\n"
TIMER, SWEEP, KILL = "OS timer", "schedule to the sweeper", "schedule to EC2"
STANDING = "standing sweep"
LAYERS = (TIMER, SWEEP, KILL, STANDING)
SOON_SECONDS = 10  # before the deadline; a sweep comes five seconds early
STANDING_MINUTES = 2


@dataclass(kw_only=True)
class Net:
    """The program's account with one hung node a layer, and what was seen while the clock went past their
    deadline.
    """

    access: Access
    cloud: EmbeddedAccount
    outputs: StackOutputs
    deadline: datetime
    runs: dict[str, str] = field(default_factory=dict)  # layer -> run id
    ids: dict[str, str] = field(default_factory=dict)  # layer -> instance id
    seen: dict[str, dict[str, str]] = field(default_factory=dict)  # moment -> layer -> state of its instance

    def instance(self, layer: str) -> dict[str, Any]:
        """Describe a layer's instance."""
        answer = self.access.client("ec2").describe_instances(InstanceIds=[self.ids[layer]])
        found: dict[str, Any] = answer["Reservations"][0]["Instances"][0]
        return found

    def sandbox(self, layer: str) -> Path:
        """Return the folder of a layer's node."""
        return sandbox(self.cloud, self.ids[layer])

    def ended(self, layer: str) -> bool:
        """Say whether a layer's instance is terminated."""
        return bool(self.instance(layer)["State"]["Name"] == "terminated")

    def note(self, moment: str) -> None:
        """Write down the state of every instance."""
        self.seen[moment] = {layer: self.instance(layer)["State"]["Name"] for layer in self.ids}

    def standing_sweep(self, *, state: str) -> None:
        """Switch the standing sweep on or off."""
        scheduler = self.access.client("scheduler")
        group = self.outputs.schedule_group
        schedule = scheduler.get_schedule(GroupName=group, Name="standing-sweep")
        kept = {name: schedule[name] for name in ("ScheduleExpression", "FlexibleTimeWindow", "Target")}
        scheduler.update_schedule(GroupName=group, Name="standing-sweep", State=state, **kept)

    def sweeps(self) -> list[str]:
        """Return the summaries that the sweeper has printed."""
        log = self.cloud.root / "lambda" / self.cloud.account / "mayfly-dev-sweeper.log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture(scope="module")
def net(
    aws_server: EmbeddedAws, make_record: Callable[..., Any], wait_until: Callable[..., None]
) -> Iterator[Net]:
    access = aws_server.account()
    aws_server.apply_program(access)
    text = access.client("ssm").get_parameter(Name=parameter_name("mayfly", "dev"))["Parameter"]["Value"]
    cloud = aws_server.cloud(access)
    del cloud.functions["mayfly-dev-control"]  # no layer needs it, and it would settle
    cloud.clock = StoppedClock(utc_now())
    deadline = armed_for(cloud.clock.now() + timedelta(hours=1))  # schedules fire at full minutes
    net = Net(access=access, cloud=cloud, outputs=StackOutputs.from_json(text), deadline=deadline)
    cloud.run_nodes = cloud.fire_schedules = True
    grace = aws_server.nodes.grace_seconds
    aws_server.nodes.grace_seconds = 0.2  # these nodes would use up any grace
    _launch(net, make_record)
    _hang(net, wait_until)
    _pass_the_deadline(net, wait_until)
    yield net
    cloud.fire_schedules = False
    aws_server.nodes.grace_seconds = grace


def _launch(net: Net, make_record: Callable[..., Any]) -> None:
    """Launch one run a layer as the launcher does, side by side, on code that hangs."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as bundle:
        for name, code in (("__init__", ""), ("node/__init__", ""), ("node/agent", HUNG_AGENT)):
            bundle.writestr(f"trainer/{name}.py", code)
        # Without it a node ends before it can be frozen.
        bundle.write(ROOT / "ami" / "install.sh", "ami/install.sh")
    digest = hashlib.sha256(data.getvalue()).hexdigest()
    s3 = net.access.client("s3")
    s3.put_object(Bucket=net.outputs.bucket, Key=f"code/{digest}.whl", Body=data.getvalue())
    parameter = net.access.client("ssm").get_parameter(Name=net.outputs.image_parameter)["Parameter"]
    one = rung(
        "p3.8xlarge",
        subnet_id=net.outputs.subnets["us-east-1a"],
        launch_template_id=net.outputs.launch_template,
        image_id=parameter["Value"],
    )
    code = {
        "bundle_key": f"code/{digest}.whl",
        "bundle_sha256": digest,
        "bucket": net.outputs.bucket,
        "ladder": (one,),
    }
    now = net.cloud.clock.now()
    aws = AwsCloud(net.access, net.outputs)
    for layer, suffix in zip(LAYERS, ("time", "once", "kill", "rate"), strict=True):
        run_id = net.runs[layer] = f"20261120-120000-layer-{suffix}"
        record = make_record(
            run_id=run_id,
            owner=net.outputs.owner,
            instance_role_id=net.outputs.instance_role_id,
            place="rehearsal",
            preflight_at=now,
            created_at=now,
            deadline=net.deadline,
            **code,
        )
        create_record(aws.objects, record)
        left = start(aws, run_id, poll_seconds=0.05)
        (net.ids[layer],) = left.attempts[0].launches[0].instance_ids


def _hang(net: Net, wait_until: Callable[..., None]) -> None:
    """Freeze each node once its bootstrap has tightened the timer to the tag's deadline, and leave it one
    layer.
    """
    scheduler, due = net.access.client("scheduler"), f"{net.deadline:%Y-%m-%d %H:%M:%S}"
    for layer in LAYERS:
        timers = net.sandbox(layer) / "run/timers"
        wait_until(lambda timers=timers: any(due in one.read_text() for one in _started(timers)))
        record = json.loads((net.sandbox(layer) / ".mayfly-sandbox").read_text())
        os.killpg(record["process_group"], signal.SIGSTOP)  # as with a dead kernel: nothing runs any more
        if layer != TIMER:
            for timer in _started(timers):
                timer.unlink()
        for kept, suffix in ((SWEEP, "sweep"), (KILL, "kill-1")):
            if layer != kept:
                name = f"mayfly-{net.runs[layer]}-{suffix}"
                scheduler.delete_schedule(GroupName=net.outputs.schedule_group, Name=name)


def _started(timers: Path) -> list[Path]:
    return list(timers.glob("[!.]*.timer"))  # a dot's is being written: its node will never rename it


def _beat(net: Net, at: datetime) -> None:
    """Renew every lease: the agent of a node that hangs in its training beats on, and its deadline alone ends
    the node.
    """
    lease = json.dumps({"at": iso(at), "lease_until": iso(at + LEASE)}).encode()
    role_id = net.outputs.instance_role_id
    for layer, run_id in net.runs.items():
        keys = NodeKeys(role_id=role_id, instance_id=net.ids[layer], run_id=run_id, attempt=1)
        net.access.client("s3").put_object(Bucket=net.outputs.bucket, Key=keys.lease, Body=lease)


def _pass_the_deadline(net: Net, wait_until: Callable[..., None]) -> None:
    """Move the clock to just before the deadline, to the deadline, and (for the last layer) to the next
    standing sweep.
    """
    left = (net.deadline - net.cloud.clock.now()).total_seconds()
    period = STANDING_MINUTES * 60
    for seconds in (left - period - SOON_SECONDS, period):  # the server went through it all, twice
        swept = len(net.sweeps())
        _beat(net, net.cloud.clock.now() + timedelta(seconds=seconds))
        net.cloud.clock.advance(seconds)
        wait_until(lambda swept=swept: len(net.sweeps()) > swept)
    net.note("before")
    net.standing_sweep(state="DISABLED")
    net.cloud.clock.advance(SOON_SECONDS)
    for layer in (TIMER, SWEEP, KILL):
        wait_until(lambda layer=layer: net.ended(layer))
    scheduling.wait_for_deliveries(net.cloud)
    net.note("at the deadline")
    net.standing_sweep(state="ENABLED")
    net.cloud.clock.advance(STANDING_MINUTES * 60)
    wait_until(lambda: net.ended(STANDING))


def test_nothing_ends_a_node_before_its_deadline(net: Net) -> None:
    assert net.seen["before"] == dict.fromkeys(LAYERS, "running")
    assert len(net.sweeps()) >= 2  # that is, it was looked at


@pytest.mark.parametrize("layer", LAYERS)
def test_each_layer_alone_ends_a_node_that_hangs(net: Net, layer: str) -> None:
    by_timer = layer == TIMER
    reason = net.instance(layer)["StateReason"]["Code"]
    assert reason == f"Client.{'Instance' if by_timer else 'User'}InitiatedShutdown"
    assert bool(list((net.sandbox(layer) / "run/timers").glob("*.fired"))) == by_timer
    told = [line for line in net.sweeps() if net.ids[layer] in line]
    assert bool(told) == (layer in (SWEEP, STANDING)) and all("past its deadline" in line for line in told)


def test_nothing_but_the_standing_sweep_ended_the_last(net: Net) -> None:
    assert net.seen["at the deadline"][STANDING] == "running"


def test_the_next_command_settles_runs_that_nobody_watched(
    net: Net, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {
        "AWS_ENDPOINT_URL": net.access.endpoint_url,
        "AWS_ACCESS_KEY_ID": net.access.access_key,
        "AWS_SECRET_ACCESS_KEY": net.access.secret_key,
        "AWS_REGION": net.access.region,
        "AWS_DEFAULT_REGION": net.access.region,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    forget_sessions()
    assert main(["status"]) == 0
    capsys.readouterr()
    for layer, run_id in net.runs.items():
        assert main(["receipts", run_id, "--json"]) == 0
        receipt = json.loads(capsys.readouterr().out)
        assert (receipt["state"], receipt["exit_code"]) == ("expired", 104)
        (instance,) = receipt["instances"]
        assert (instance["instance_id"], instance["state"]) == (net.ids[layer], "terminated")
    forget_sessions()
