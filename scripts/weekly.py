"""Two Sundays of a weekly retrain on the embedded AWS, with no command attached: `make weekly`. No account,
no GPU.

`scripts/weekly --script` publishes a script of the user's own instead, over two values, whose data set grows
by a file a week.

The stack is the one that `pulumi up` makes, with a retrain in its settings. A desk uploads candles and
publishes a job, and is not needed again. The clock is moved to Sunday, and the schedule calls the control
function, which starts a small machine. It runs the job's refresh script, which brings new bars. Control adds
them to the set, plans the run and starts its machine, which trains and powers itself off. Control writes the
receipt and reports the outcome to a webhook. Permissions are not checked here; the tests' embedded AWS does.

On the first Sunday every pool is full when the training is to start: it waits in line, and goes on once there
is capacity. On the second AWS takes the training's spot machine back half-way, without notice: control starts
another, which goes on from the last checkpoint. A script is not interrupted, since it keeps no checkpoints.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trainer.aws.access import Access
from trainer.aws.objects import Objects, open_objects
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import StackOutputs, secrets_path, webhook_parameter
from trainer.base.environment import rehearsal_environment
from trainer.cli.main import main as mayfly
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles
from trainer.rehearsal import lambdas
from trainer.rehearsal.account import EmbeddedAccount
from trainer.rehearsal.interruptions import AskedInterruption, Interruption
from trainer.rehearsal.server import EmbeddedAws
from trainer.rehearsal.world import AwsError, Pool
from trainer.retrains.entries import ScheduledRun, entry_keys, read_entry, run_id_of
from trainer.retrains.schedule import RetrainSchedule, read_schedules
from trainer.runs.receipt import Receipt
from trainer.runs.store import read_record
from trainer.runs.stored_receipt import read_receipt

NAME = "sunday"
SETTINGS = [
    {
        "name": NAME,
        "weekdays": ["SUN"],
        "hour": 3,
        "time_zone": "America/New_York",
        "budget": 5,
        "budget_month": 20,
    },
]
JOB = """name = "weekly-lstm"
[data]
refresh = "fetch.py"
secrets = ["API_KEY"]
[model]
hidden = 8
lookback = 20
[train]
epochs = 80
patience = 80
batch = 128
checkpoint_seconds = 1
[machine]
instance = ["g6.xlarge"]
market = ["spot", "on_demand"]
"""
SCRIPT_JOB = """name = "weekly-script"
[script]
command = "python train.py"
over = { side = ["bid", "ask"] }
[data]
folder = "s3://BUCKET/raw/prices"
[machine]
instance = ["g6.xlarge"]
max_duration = "30m"
"""
FETCH = Path(__file__).with_name("weekly_fetch.py")
TRAIN = Path(__file__).with_name("weekly_train.py")
SECRET = "key-of-the-exchange"
PATIENCE_SECONDS = 900.0  # of real time, for one run on a busy machine
# at a node's first report or the next, of one in 3 seconds
TAKEN_AT = Interruption(share=0.1, notice_seconds=0)


@dataclass(kw_only=True)
class WeatherAccount(EmbeddedAccount):
    """An account whose pools of the training's type may be full."""

    full: bool = False

    def check_launch(self, request: dict[str, Any], image: dict[str, Any], pool: Pool, count: int) -> None:
        """Refuse the training's machine while its pools are full."""
        if self.full and pool.instance_type == "g6.xlarge":
            what = f"We currently do not have sufficient {pool.instance_type} capacity in the zone"
            raise AwsError("InsufficientInstanceCapacity", what, 500)


class WeatherAws(EmbeddedAws):
    """The embedded AWS with such accounts."""

    account_type = WeatherAccount


@dataclass(kw_only=True)
class Weeks:
    """An account with a published retrain, and a webhook that listens."""

    aws: EmbeddedAws
    access: Access
    outputs: StackOutputs
    name: str = NAME
    posted: list[str] = field(default_factory=list)  # at the webhook

    @property
    def objects(self) -> Objects:
        """Return the stack's bucket."""
        return open_objects(self.access, self.outputs.bucket)

    @property
    def schedule(self) -> RetrainSchedule:
        """Return the retrain's schedule, as the stack has it."""
        return next(one for one in read_schedules(self.outputs.retrains) if one.name == self.name)

    def bring_candles(self, folder: Path) -> None:
        """Put seeded bars of one symbol into the data set, as `aws s3 cp` would."""
        file = folder / "BTC-USD_1m.parquet"
        write_candles(file, [synthetic_candles("BTC-USD", bars=2_500)], synthetic=True)
        self.access.client("s3").put_object(
            Bucket=self.outputs.bucket, Key=f"raw/main/{file.name}", Body=file.read_bytes()
        )

    def next_sunday(self) -> datetime:
        """Move the clock to a second after the next scheduled time, and return that time."""
        cloud = self.aws.cloud(self.access)
        coming = next(self.schedule.times(cloud.clock.now()))
        cloud.advance((coming + timedelta(seconds=1) - cloud.clock.now()).total_seconds())
        return coming

    def entries(self) -> list[ScheduledRun]:
        """Return the record of each scheduled time so far."""
        return [read_entry(self.objects, key)[0] for key in entry_keys(self.objects, self.name)]

    def watch(self, coming: datetime) -> Iterator[str]:
        """Yield a line per change until a scheduled time's outcome is reported. Raises TimeoutError after
        PATIENCE_SECONDS.
        """
        ends, shown = time.monotonic() + PATIENCE_SECONDS, ""
        while time.monotonic() < ends:
            entry = next((one for one in self.entries() if one.scheduled_at == coming), None)
            told = bool(
                entry and entry.told_at and lambdas.wait_for_invocations(self.aws.cloud(self.access)) is None
            )
            line = (
                f"{entry.state}{self._run(entry)}{self._machines(entry)}{self._wait(entry)}" if entry else ""
            )
            if line and line != shown:
                yield line
                shown = line
            if told:
                return
            time.sleep(0.2)
        raise TimeoutError(f"no message about {coming} within {PATIENCE_SECONDS:.0f} s")

    def receipt(self, coming: datetime) -> Receipt:
        """Return the receipt of a scheduled time's run."""
        entry = next(one for one in self.entries() if one.scheduled_at == coming)
        receipt = read_receipt(self.objects, entry.run_id)
        assert receipt is not None
        return receipt

    def bring_prices(self) -> None:
        """Put one more file into the set that a script reads, with its hash."""
        number = len(self.objects.list(prefix="raw/prices/"))
        body = "".join(f"{100 + number * 7 + row * 0.25}\n" for row in range(50)).encode()
        key = f"raw/prices/week-{number}.csv"
        self.access.client("s3").put_object(
            Bucket=self.outputs.bucket, Key=key, Body=body, ChecksumAlgorithm="SHA256"
        )

    def size(self, coming: datetime) -> int:
        """Return how many bars, or files of a script's data, a scheduled time's run read."""
        receipt = self.receipt(coming)
        return int(receipt["data"]["bars"] or receipt["inputs"]["s3_files"])

    def read(self, coming: datetime) -> str:
        """Return what a scheduled time's run read, as text."""
        if self.receipt(coming)["work"] == "script":
            return f"{self.size(coming)} files of raw/prices/"
        return f"{self.size(coming):,} bars, of {len(self.objects.list(prefix='raw/main/'))} files"

    def fill(self) -> None:
        """Leave no capacity for the training's machine, until it waits for it."""
        self._weather.full = True

    def take_back(self, coming: datetime) -> None:
        """Let AWS take back the machine of a scheduled time's training."""
        run_id = run_id_of(self.name, coming)
        with self._weather.lock:
            self._weather.interruptions[run_id] = AskedInterruption(wanted=TAKEN_AT)

    @property
    def _weather(self) -> WeatherAccount:
        cloud = self.aws.cloud(self.access)
        assert isinstance(cloud, WeatherAccount)
        return cloud

    def _wait(self, entry: ScheduledRun) -> str:
        """Return that a training waits in line, once; from then on there is capacity."""
        cloud = self.aws.cloud(self.access)
        if not (isinstance(cloud, WeatherAccount) and cloud.full and entry.run_id):
            return ""
        attempt = read_record(self.objects, entry.run_id)[0].attempt
        if attempt is None or attempt.queue is None or not attempt.waits:
            return ""
        cloud.full = False
        until, last = f"{attempt.queue.next_at:%H:%M:%S}", attempt.launches[-1].error_code
        return f", every pool is full ({last}), next try at {until}; there is capacity from now on"

    def _line(self, entry: ScheduledRun) -> str:
        return f"{entry.state}{self._run(entry)}{self._machines(entry)}{self._wait(entry)}"

    def _run(self, entry: ScheduledRun) -> str:
        run_id = entry.score_run_id or entry.run_id or entry.prepare_run_id
        return f", run {run_id}" if run_id else ""

    def _machines(self, entry: ScheduledRun) -> str:
        cloud = self.aws.cloud(self.access)
        with cloud.lock:
            run_id = entry.score_run_id or entry.run_id or entry.prepare_run_id
            mine = [
                one for one in cloud.world.instances.values() if run_id and one.tags.get("run_id") == run_id
            ]
            states = [f"{one.id} ({one.pool.instance_type}) {one.state(cloud.clock.now())}" for one in mine]
        return f", machine {', '.join(states)}" if states else ""


@contextmanager
def weeks(aws: EmbeddedAws, config: dict[str, str], *, name: str = NAME) -> Iterator[Weeks]:
    """Make an account with the stack, and a webhook that listens to its topic."""
    access = aws.account()
    aws.apply_program(access, config)
    made = Weeks(aws=aws, access=access, outputs=read_stack(access, stack="dev"), name=name)
    with _webhook(made.posted) as url:
        access.client("ssm").put_parameter(
            Name=webhook_parameter("mayfly", "dev"), Value=url, Type="SecureString"
        )
        name = f"{secrets_path('mayfly', 'dev')}API_KEY"
        access.client("ssm").put_parameter(Name=name, Value=SECRET, Type="SecureString")
        yield made


def write_job(folder: Path) -> None:
    """Write the job and its refresh script."""
    (folder / "job.toml").write_text(JOB)
    (folder / "fetch.py").write_bytes(FETCH.read_bytes())


def write_script(folder: Path, bucket: str) -> None:
    """Write the job of a script, and the script."""
    (folder / "job.toml").write_text(SCRIPT_JOB.replace("BUCKET", bucket))
    (folder / "train.py").write_bytes(TRAIN.read_bytes())


def desk_variables(access: Access) -> dict[str, str]:
    """Return AWS's own variables for a desk of this account."""
    found = {
        "AWS_ENDPOINT_URL": access.endpoint_url,
        "AWS_ACCESS_KEY_ID": access.access_key,
        "AWS_REGION": access.region,
    }
    return {
        name: str(value) for name, value in (found | {"AWS_SECRET_ACCESS_KEY": access.secret_key}).items()
    }


@contextmanager
def _webhook(posted: list[str]) -> Iterator[str]:
    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def main(words: Sequence[str] = ()) -> int:
    """Let two Sundays pass, and print what happens."""
    parser = argparse.ArgumentParser(
        prog="scripts/weekly", description="Watch two Sundays of a retrain here."
    )
    parser.add_argument("--script", action="store_true", help="of a script, instead of Mayfly's own models")
    began, of_script = time.monotonic(), parser.parse_args(words).script
    print("starting the embedded AWS and applying infra/ to it (permissions are not checked: make test does)")
    with (
        tempfile.TemporaryDirectory(prefix="mayfly-weekly-") as folder,
        WeatherAws(programs=rehearsal_environment().programs, fork_nodes=True) as aws,
        weeks(aws, {"retrains": json.dumps(SETTINGS)}) as story,
    ):
        os.environ.update(desk_variables(story.access))
        os.chdir(folder)
        if of_script:
            write_script(Path(folder), story.outputs.bucket)
            story.bring_prices()
        else:
            write_job(Path(folder))
            story.bring_candles(Path(folder))
        print("\n$ mayfly retrains publish sunday --job job.toml", flush=True)
        if code := mayfly(["retrains", "publish", NAME, "--job", "job.toml"]):
            return code
        print("\nThe desk is switched off. From here on only the clock is moved.", flush=True)
        for number in range(2):
            if number == 0:
                story.fill()
            elif not of_script:
                story.take_back(next(story.schedule.times(aws.cloud(story.access).clock.now())))
            coming = story.next_sunday()
            print(f"\n=== {story.schedule.local(coming):%A %Y-%m-%d %H:%M} in New York", flush=True)
            for line in story.watch(coming):
                print(f"    {line}", flush=True)
            told = [text for text in story.posted if text.startswith(f"mayfly {NAME}: ")][-1]
            print(f"  trained on {story.read(coming)}")
            print("  received by the webhook:", *told.splitlines(), sep="\n    | ", flush=True)
            if of_script:
                story.bring_prices()
        print("\n$ mayfly retrains history sunday", flush=True)
        mayfly(["retrains", "history", NAME])
        first, second = (story.size(entry.scheduled_at) for entry in story.entries())
        done = [entry.state for entry in story.entries()] == ["done", "done"] and first < second
        notes = [" ".join(entry.notes) for entry in story.entries()]
        done &= "waited" in notes[0] and (of_script or "lost its machine" in notes[1])
    print(f"\n{'two Sundays' if done else 'it failed'}, in {time.monotonic() - began:.0f} s", flush=True)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
