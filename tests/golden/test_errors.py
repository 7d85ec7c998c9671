"""Errors as a reader sees them, in errors.txt: made by calling the code with bad input.

To pin one more, add a line to MAKERS.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from botocore import exceptions as aws

from tests.candles import fewest
from tests.jobs import job_of
from tests.sessions import forget_sessions
from trainer.aws.access import aws_error
from trainer.aws.error_codes import ROWS
from trainer.aws.place import ACCOUNT
from trainer.bars.check import check_data
from trainer.bars.check import main as check_main
from trainer.base.errors import TrainerError
from trainer.cli.main import main
from trainer.cli.sources.refresh_script import with_refresh_script
from trainer.cli.sources.script_packages import Target, resolve, target_of
from trainer.control.progress import Step, abandoned, unconfirmed_receipt
from trainer.data.read.reading import read_candles
from trainer.data.timeframes import step_of
from trainer.job.job import Job, job_from, load_job, parse_assignments, parse_job, refuse_script
from trainer.job.machine import parse_duration
from trainer.job.script import ScriptSettings
from trainer.job.script_values import read_rows
from trainer.launch.inputs import Input
from trainer.launch.inputs import choose as choose_inputs
from trainer.launch.machines import machines_of, refuse_retired, refuse_small_disks
from trainer.launch.plan import make_plan
from trainer.launch.preflight import Offers
from trainer.launch.prices import table_prices
from trainer.launch.script_needs import PackageList, read_list, refuse_missing
from trainer.machines.chips import named_profile, profiles
from trainer.machines.choice import check_fits, choose
from trainer.machines.instances import cpu_instance_type, instance_type
from trainer.machines.memory import fit
from trainer.machines.planner import workload
from trainer.rehearsal.client import lease_server
from trainer.rehearsal.pulumi_apply import settings
from trainer.runs.launching import refusal
from trainer.runs.observation import DescribedInstance, Observation
from trainer.runs.outcome import correction, ending_of
from trainer.runs.record import Attempt, InstanceSeen, Launch, RunRecord
from trainer.runs.reports import Heartbeat, NodeResult
from trainer.runs.store import Stored, read_record
from trainer.store.card import card_from_json, read_card
from trainer.store.listing import find_model
from trainer.store.weights import load
from trainer.train.precision import matmul_dtype
from trainer.train.workers.devices import device_kind

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)


class Nothing:
    """A bucket that is empty, or holds one object."""

    def __init__(self, body: bytes | None = None) -> None:
        self._body = body

    def get(self, *, key: str, version_id: str = "") -> Stored | None:
        return None if self._body is None else Stored(key=key, body=self._body, etag="e", **STORED)

    def list(self, *, prefix: str, most: int = 0) -> list[Stored]:
        return []

    def folders(self, *, prefix: str) -> list[str]:
        return ["20261120-120000-crypto-k3v9"]

    def __getattr__(self, name: str) -> Any:
        return lambda **_: []


STORED: dict[str, Any] = {}


def client_error(code: str, message: str, status: int = 400) -> aws.ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return aws.ClientError(response, "DescribeInstances")


def planned(job: Job, *, offered: bool = True, cap: timedelta = timedelta(hours=12)) -> Any:
    zones = dict.fromkeys(job.machine.instance, ("us-east-1a",)) if offered else {}
    priced = table_prices([instance_type(name) for name in job.machine.instance])
    offers = Offers(
        image_line="oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-26.04",
        image_id="ami-1",
        launch_template_id="lt-1",
        zones=zones,
        priced=priced,
    )
    known: dict[str, Any] = {
        "subnets": {"us-east-1a": "subnet-a"},
        "region": "us-east-1",
        "place": ACCOUNT,
        "cap": cap,
    }
    return make_plan(job, workload(job, {"BTC-USD": 3_700_000}), offers, **known)


def given(symbol: str, timeframe: str, bars: int) -> Input:
    held = [{"symbol": symbol, "bars": bars, "first": "2024-01-01T00:00:00Z", "last": "2024-02-01T00:00:00Z"}]
    summary = {"timeframe": timeframe, "holds": held, "synthetic": False}
    return Input(
        key=f"raw/{symbol}_{timeframe}.parquet", version_id="v", sha256="s", bytes=1, summary=summary
    )


def write(name: str, text: str) -> Path:
    path = Path.cwd() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def bars(name: str, count: int = 3000, *, rise: bool = False, **columns: Any) -> Path:
    """Write seeded minute candles with some columns replaced, and return their file."""
    chance = np.random.default_rng(0)
    steps = np.full(count, 1e-4) if rise else chance.normal(0, 1e-3, count)
    close = 100 * np.exp(np.cumsum(steps))
    minute = np.datetime64("2024-01-01T00:00", "ns") + np.arange(count) * np.timedelta64(1, "m")
    made = {"timestamp": minute, "open": close, "high": close * 1.001, "low": close * 0.999, "close": close}
    made |= {"volume": np.ones(count), **columns}
    path = Path.cwd() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({key: column for key, column in made.items() if column is not None}), path)
    return path


def shuffled(count: int = 3000) -> np.ndarray:
    minute = np.datetime64("2024-01-01T00:00", "ns") + np.arange(count) * np.timedelta64(1, "m")
    minute[[500, 501]] = minute[[501, 500]]
    return minute


def twice(count: int = 3000) -> np.ndarray:
    minute = np.datetime64("2024-01-01T00:00", "ns") + np.arange(count) * np.timedelta64(1, "m")
    minute[501] = minute[500]
    return minute


def with_nan(count: int = 3000) -> np.ndarray:
    values = np.full(count, 100.0)
    values[500] = np.nan
    return values


def run_of(make_record: Callable[..., RunRecord], **fields: Any) -> RunRecord:
    launch = Launch(
        rung=0,
        token="t",
        deadline=NOON + timedelta(hours=1),
        intended_at=NOON,
        outcome="created",
        instance_ids=("i-1",),
    )
    seen = InstanceSeen(
        instance_id="i-1",
        attempt=1,
        instance_type="g5.12xlarge",
        market=fields.pop("market", "on_demand"),
        availability_zone="us-east-1a",
        state=fields.pop("seen", "terminated"),
        launched_at=NOON,
        terminated_at=NOON + timedelta(seconds=fields.pop("ended", 400)),
        proof=fields.pop("proof", "described terminated"),
        reason=fields.pop("reason", ""),
    )
    known = {
        "state": "running",
        "attempts": (Attempt(number=1, launches=(launch,), created_at=NOON),),
        "instances": (seen,),
    }
    return make_record(**(known | fields))


HEARD = Heartbeat(instance_id="i-1", at=NOON, lease_until=NOON + timedelta(seconds=90), phase="train")
ALIVE = DescribedInstance(
    instance_id="i-1",
    attempt=1,
    instance_type="g5.12xlarge",
    market="on_demand",
    availability_zone="us-east-1a",
    state="running",
    launched_at=NOON,
)
MODEL = {
    "symbol": "BTC-USD",
    "family": "lstm",
    "key": "models/a.safetensors",
    "version_id": "v",
    "sha256": "s",
}


def judged(record: RunRecord, *, later: float = 600, **observed: Any) -> None:
    ending_of(record, Observation(**observed), NOON + timedelta(seconds=later))


MAKERS: dict[str, list[Callable[[Callable[..., RunRecord]], object]]] = {
    "jobs": [
        lambda _: parse_duration("soon"),
        lambda _: parse_duration("0m"),
        lambda _: load_job(Path("nowhere.toml")),
        lambda _: load_job(write("broken.toml", "epochs = = 2")),
        lambda _: load_job(write("flat.toml", 'model = "lstm"\nhidden = 3\nepochs = 3\nbars = 9\n')),
        lambda _: load_job(write("table.toml", "[modle]\nhidden = 3\n")),
        lambda _: job_from({"train": {"epoch": 4}}),
        lambda _: job_from({"model": {"name": "tcn", "hidden": 4}}),
        lambda _: parse_job({}, {"hiden": 4}),
        lambda _: parse_job({}, {"epochs": 4}),
        lambda _: job_of(**{"trian.epochs": 4}),
        lambda _: job_of(epochs="many"),
        lambda _: job_of(epochs=-1),
        lambda _: job_of(model="gru"),
        lambda _: job_of(test_fraction=0.8),
        lambda _: job_of(name="No Name"),
        lambda _: job_of(batch=-2),
        lambda _: job_of(model="tcn", batch="auto"),
        lambda _: job_of(secrets="API_KEY"),
        lambda _: with_refresh_script(job_of(refresh=str(write("fetch.py", "import tensorflow")))),
        lambda _: cpu_instance_type("t3.lagre"),
        lambda _: parse_assignments(["hidden"]),
        lambda _: check_main(["--data", "nowhere", "--job", str(write("job.json", "no json"))]),
    ],
    "commands": [
        *(
            (lambda _, words=words: write("candles/AAA_1m.csv", "") and main(words.split()))
            for words in (
                "profiles bench --set train.batch=4",
                "profiles bench --set model.name=lstm",
                "profiles bench --price -1",
                "profiles bench --bars -1",
                "logs 20261120-120000-crypto-k3v9 --tail -1",
                "logs 20261120-120000-crypto-k3v9 --follow --json",
                "status 20261120-120000-crypto-k3v9 --follow --json",
                "attach 20261120-120000-crypto-k3v9 --forward tensorboard",
                "attach 20261120-120000-crypto-k3v9 --forward 8888:8888 -- nvidia-smi",
                "predict nowhere.safetensors --data candles/AAA_1m.csv --last 0",
                "predict nowhere.safetensors --data candles/AAA_1m.csv",
                "predict --data candles/AAA_1m.csv",
                "predict . --data candles/AAA_1m.csv",
                "predict broken.toml --data candles/AAA_1m.csv",
                "launch --rehearse --data nowhere",
                "launc",
                "profiles tune --seconds 0",
                "profiles tune --set train.batch=auto",
                "launch --instance g5.12xlage",
                "launch --set machine.gpu_profile=h2000",
                "launch --set machine.gpu_profile=cpu",
                "launch --set epochs",
                "launch --instance g6.xlarge",
                "launch --job nowhere.toml",
            )
        ),
    ],
    "scripts": [
        *(
            (lambda _, words=words: write("train.py", "") and main(words.split()))
            for words in (
                "launch --rehearse --instance g6.xlarge --script nowhere.py --max-duration 2h",
                "launch --rehearse --instance g6.xlarge --script train.py",
                "launch --rehearse --instance g6.xlarge --script train.py --max-duration 2h --data nowhere",
                "launch --rehearse --instance g6.xlarge --script train.py --max-duration 2h --model tcn",
                "launch --set data.folder=x",
                "launch --rehearse --script train.py --max-duration 2h --set script.command=$X",
                "launch --rehearse --script train.py --max-duration 2h --set script.env=HF_TOKEN=x",
                "launch --rehearse --script train.py --max-duration 2h --set script.env=AWS_PROFILE=x",
                (
                    "launch --rehearse --instance g6.xlarge --script train.py --max-duration 2h --set"
                    " script.files=../x"
                ),
                (
                    "launch --rehearse --instance g6.xlarge --script train.py --max-duration 2h --set"
                    " script.files=x.py"
                ),
            )
        ),
        lambda _: job_from({"script": {"files": ["a.py"]}}),
        lambda _: read_list("requirements.txt", b"-r other.txt"),
        lambda _: read_list("requirements.txt", f"a==1 --hash=sha256:{'0' * 64}\nlightning==2.5".encode()),
        lambda _: refuse_missing(
            ScriptSettings(command="python train.py"),
            {"train.py": b"import lightninng"},
            PackageList(),
            resolved=(),
            brought=(),
        ),
        lambda _: target_of("my-own-line", given="", rehearsal=False),
        lambda _: resolve(
            read_list("requirements.txt", b"gone"),
            Target(python="3.13"),
            wheels={"a-1-py3-none-any.whl": b""},
        ),
        lambda _: refuse_small_disks([instance_type("p3.2xlarge")], 10**12, volume_gib=100),
        lambda _: job_from({"script": {"command": "a", "secrets": ["LD_PRELOAD"]}}),
        lambda _: job_from({"script": {"command": "a", "secrets": ["A_KEY"], "env": ["A_KEY=1"]}}),
        lambda _: job_from({"script": {"command": "a", "python": "3"}}),
        *(
            (lambda _, over=over, keys=keys: job_from({"script": {"command": "a", "over": over, **keys}}))
            for over, keys in (
                ({"a": list(range(50)), "b": list(range(50))}, {}),
                ({"a": 1}, {}),
                ({"a": [""]}, {}),
                ({"a-b": [1]}, {}),
                ({"a": [1], "A": [1]}, {}),
                ({f"a{number}": [1] for number in range(9)}, {}),
                ({"a_key": [1]}, {}),
                ({"a": [1, 1]}, {}),
                ([{"a": 1}, {"b": 1}], {}),
                (7, {}),
                ("values.csv", {}),
                ("", {"gpus": 2}),
                ({"a": [1]}, {"env": ["CUDA_VISIBLE_DEVICES=0"]}),
            )
        ),
        *(
            (lambda _, text=text: read_rows(write("values.csv", text)))
            for text in ("", "a,b\n1\n", "a,a\n1,2\n", 'a\n"x', "a\n" * 600_000)
        ),
        lambda _: read_rows(Path("no-values.csv")),
        lambda _: read_list("requirements.txt", f"torch==2.13 --hash=sha256:{'0' * 64}".encode()),
        lambda _: refuse_script(
            job_from({"script": {"command": "a"}, "machine": {"max_duration": "2h"}}), "profiles tune"
        ),
    ],
    "machines and prices": [
        lambda _: instance_type("p3.8xlage"),
        lambda _: machines_of(job_of(gpu_profile="cpu")),
        lambda _: machines_of(job_of(gpu_profile="h200", instance=("g6.xlarge",))),
        lambda _: refuse_retired([instance_type("p3.8xlarge")], workload(Job(), {"BTC-USD": 3_700_000})),
        lambda _: planned(job_of(instance=("g6.xlarge",)), offered=False),
        lambda _: planned(job_of(instance=("g6.xlarge",), budget=0.001)),
        lambda _: planned(job_of(instance=("g6.xlarge",), epochs=4000)),
        lambda _: planned(job_of(instance=("g6.xlarge",), max_duration="13h")),
    ],
    "GPU profiles": [
        lambda _: named_profile("h2000"),
        *(
            (lambda _, text=text: user_profiles(text))
            for text in (
                "= 3",
                "memory_gib = 3\n",
                "[mine]\nchip = 'x'\n",
                "[mine]\nmemory = 3\n",
                "[t4]\nmemory_gib = 'a'\n",
            )
        ),
        lambda _: check_fits(named_profile("h200"), chip="NVIDIA L4", memory_gib=22.0),
        lambda _: choose("h200", None),
        lambda _: fit(named_profile("l4_eighth"), Job(), memory_gib=2.79, features=37, bars=20_000_000),
        lambda _: matmul_dtype(job_of(precision="fp16"), torch.device("cpu")),
        lambda _: None if torch.cuda.is_available() else device_kind("cuda"),
    ],
    "candles": [
        lambda _: check_data(Path("nowhere"), Job()),
        lambda _: check_data(write("empty/readme.txt", "nothing").parent, Job()),
        lambda _: check_data(write("bad.parquet", "no parquet"), Job()),
        lambda _: check_data(write("notes.txt", "no candles"), Job()),
        lambda _: check_data(bars("AAA_1m.parquet", close=None), Job()),
        lambda _: check_data(bars("AAA_1m.parquet", 0), Job()),
        lambda _: check_data(bars("AAA_1m.parquet", 100), Job()),
        lambda _: check_data(bars("AAA_1m.parquet", rise=True), Job()),
        lambda _: check_data(bars("AAA_1m.parquet", timestamp=shuffled()), Job()),
        lambda _: check_data(bars("AAA_1m.parquet", timestamp=twice()), Job()),
        lambda _: check_data(bars("AAA_1m.parquet", close=with_nan()), Job()),
        lambda _: check_data(bars("AAA_1m.parquet", volume=np.array(["x"] * 3000)), Job()),
        lambda _: check_data(bars("AAA_1m.parquet", timestamp=np.array(["noon"] * 3000)), Job()),
        lambda _: check_data(bars("AAA_1m.parquet", volume=-np.ones(3000)), Job()),
        lambda _: check_data(bars("AAA_1m.parquet"), job_of(symbols=("AAB",))),
        lambda _: check_data(bars("AAA_1m.parquet"), job_of(timeframe="1h")),
        lambda _: check_data(bars("AAA_1m.parquet"), job_of(batch=5000)),
        lambda _: check_data(bars("AAA_1m.parquet"), job_of(folds=50)),
        lambda _: check_data(bars("AAA_1m.parquet"), job_of(model="tcn")),
        lambda _: read_candles(two_timeframes(), symbols=(), timeframe=""),
        lambda _: step_of("1x"),
        lambda _: choose_inputs(
            [Input(key="raw/a", version_id="v", sha256="", bytes=1)],
            symbols=(),
            timeframe="",
            too_few=fewest(9),
        ),
        lambda _: choose_inputs(
            [given("A", "1m", 9), given("B", "1h", 9)], symbols=(), timeframe="", too_few=fewest(9)
        ),
        lambda _: choose_inputs([given("A", "1m", 9)], symbols=(), timeframe="1h", too_few=fewest(9)),
        lambda _: choose_inputs(
            [given("BTC-USD", "1m", 9)], symbols=("BTC-USDT",), timeframe="", too_few=fewest(9)
        ),
        lambda _: choose_inputs([given("A", "1m", 9)], symbols=(), timeframe="", too_few=fewest(100)),
    ],
    "models": [
        lambda _: card_from_json("no json"),
        lambda _: card_from_json('{"format": 99}'),
        lambda _: card_from_json('{"format": 1}'),
        lambda _: read_card(Path("nowhere.safetensors")),
        lambda _: read_card(write("short.safetensors", "short")),
        lambda _: read_card(len(b"{}").to_bytes(8, "little") + b"{}"),
        lambda _: load(write("short.safetensors", "short")),
        lambda _: find_model(Nothing(), "lstm_BTC-USD_1m"),  # type: ignore[arg-type]
    ],
    "AWS": [
        lambda _: aws_error(aws.NoCredentialsError(), "cannot sign in to AWS"),
        lambda _: aws_error(aws.NoRegionError(), "cannot sign in to AWS"),
        lambda _: aws_error(aws.EndpointConnectionError(endpoint_url="https://ec2"), "cannot look"),
        lambda _: aws_error(aws.ProfileNotFound(profile="mine"), "cannot sign in to AWS"),
        lambda _: aws_error(
            client_error("UnauthorizedOperation", "You are not authorized."), "cannot terminate i-1"
        ),
        lambda _: aws_error(
            client_error("RequestLimitExceeded", "Request limit exceeded."), "cannot terminate i-1"
        ),
        lambda _: aws_error(
            client_error("InvalidParameterValue", "Value (x) is invalid."), "cannot terminate i-1"
        ),
        *(
            (lambda make, code=code: refusal(make().ladder[0], code, "AWS's own words."))
            for code in (
                "InsufficientInstanceCapacity",
                "VcpuLimitExceeded",
                "UnauthorizedOperation",
                "InvalidParameterValue",
            )
        ),
    ],
    "runs": [
        lambda _: read_record(Nothing(), "20261120-120000-crypto-k3v8"),  # type: ignore[arg-type]
        lambda make: judged(run_of(make, ended=3600)),
        lambda make: judged(run_of(make, reason="Client.InstanceInitiatedShutdown")),
        lambda make: judged(run_of(make, reason="Server.SpotInstanceTermination", market="spot")),
        lambda make: judged(run_of(make, reason="Client.UserInitiatedShutdown")),
        lambda make: judged(run_of(make, stop_requested_at=NOON)),
        lambda make: judged(
            run_of(make, seen="running", proof=""), instances=(ALIVE,), heartbeat=HEARD, later=3000
        ),
        lambda make: judged(
            run_of(make), result=NodeResult(state="failed", exit_code=100, failed=({"symbol": "ETH-USD"},))
        ),
        lambda make: judged(make(), may_start=False, later=3000),
        lambda make: correction(
            run_of(make), Observation(result=NodeResult(state="done", models=(MODEL,)), models=())
        ),
        lambda make: abandoned(step_of_run(run_of(make)), NOON, requested=True),
        lambda make: unconfirmed_receipt(step_of_run(run_of(make, ending_at=NOON))),
    ],
    "rehearsals": [
        lambda _: elsewhere(lambda: lease_server(Path("root"))),
        lambda _: settings(ROOT, stack="dev", overrides={"mayfly:onwer": "me"}),
        lambda _: settings(ROOT, stack="dev", overrides={"onwer": "me"}),
    ],
}


def step_of_run(record: RunRecord) -> Step:
    return Step(record=record, observed=Observation(instances=(ALIVE,)), actions=(), moved=False)


def two_timeframes() -> Path:
    bars("two/AAA_1m.parquet")
    hours = np.datetime64("2024-01-01T00:00", "ns") + np.arange(3000) * np.timedelta64(1, "h")
    return bars("two/AAA_1h.parquet", timestamp=hours).parent


def user_profiles(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAYFLY_PROFILES", str(write("gpu_profiles.toml", text)))
        profiles()


def elsewhere(call: Callable[[], object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        call()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, make_record: Callable[..., RunRecord]) -> list[str]:
    """Return what MAKERS make, by group: the words of each first error."""
    told: list[str] = []
    errors: list[TrainerError] = []
    begin = TrainerError.__init__

    def note(self: TrainerError, *arguments: Any, **words: Any) -> None:
        begin(self, *arguments, **words)
        errors.append(self)

    monkeypatch.setattr(TrainerError, "__init__", note)
    for name in (
        "AWS_PROFILE",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    forget_sessions()
    for group, makers in MAKERS.items():
        told.append(f"# {group}")
        for make in makers:
            errors.clear()
            with suppress(TrainerError):
                make(make_record)
            told += dict.fromkeys(f"error: {error}" for error in errors)
    forget_sessions()
    return told


def test_errors_as_a_reader_sees_them(made: list[str], golden: Callable[[str, str], None]) -> None:
    golden("errors", "\n".join(made))
    assert sum(not line.startswith("#") for line in made) >= 100  # a floor, so that examples are not lost


def test_every_code_of_aws_has_its_error_and_the_next_step_of_a_launch(
    golden: Callable[[str, str], None], make_record: Callable[..., RunRecord]
) -> None:
    rung = replace(make_record().ladder[0], vcpus=48, quota_code="L-DB2E81BA")
    lines = []
    for row, codes in ROWS:
        answered, raised = row.step(exception=False), row.step(exception=True)
        lines.append(
            f"{row.error_class}, {row.error.__name__} {row.error.exit_code}: {answered}, after an exception"
            f" {raised}"
        )
        lines += [f"  {refusal(rung, code, '')}" for code in codes]
    lines += ["unknown code", f"  {refusal(rung, 'NewCode', 'its own message')}"]
    golden("errors-of-aws", "\n".join(lines))


def test_an_error_is_one_line_and_as_json_its_parts(
    golden: Callable[[str, str], None], capsys: pytest.CaptureFixture
) -> None:
    said = []
    for words in (
        "launch --instance g5.12xlage",
        "launch --instnace g5.12xlarge",
        "launch --spot --on-demand",
    ):
        for extra in ([], ["--json"]):
            code = main([*words.split(), *extra])
            printed = capsys.readouterr()
            said.append(
                f"$ mayfly {' '.join([*words.split(), *extra])}   # {code}\n{printed.out}{printed.err}"
            )
    golden("errors-as-printed", "\n".join(said))
