"""What control does with no command attached, on the injected clock: the retrain of examples/weekly from its
schedule to its models and its message. `make weekly` shows another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from scripts.weekly import NAME, SECRET, SETTINGS, Weeks, desk_variables, weeks
from tests.aws.queues import queued, subscribe_queue
from tests.aws.server import CheckedAws
from tests.desk import ROOT
from tests.jobs import sets
from tests.retrains import CONFIG, RETRAINS
from tests.sessions import forget_sessions
from tests.test_weekly_example import BEGAN, EXAMPLE, HOUR, OWN, RecordedExchange, fetch
from trainer.cli.main import main
from trainer.rehearsal.lambdas import wait_for_invocations
from trainer.runs.index import read_index
from trainer.runs.stored_receipt import read_receipt

__all__ = ["fetch"]  # a fixture


@pytest.fixture
def story(programs: Path, fork_server: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Weeks]:
    """An account of an embedded AWS whose schedules fire and whose nodes run as forks, and a desk."""
    assert SETTINGS[0] in RETRAINS, "the program is applied once for all tests"
    with (
        CheckedAws(
            programs=programs, fork_nodes=True, fork_server=lambda: fork_server, grace_seconds=120
        ) as aws,
        weeks(aws, CONFIG) as story,
    ):
        for name, value in desk_variables(story.access).items():
            monkeypatch.setenv(name, value)
        forget_sessions()
        subscribe_queue(story.access, story.outputs.topic_arn)
        yield story
        forget_sessions()


# What a prepare run imports as ccxt: it asks a server on loopback what ccxt would ask the exchange.
CCXT = """
import json, os, sys, types, urllib.parse, urllib.request

print("asked for with the key", os.environ["API_KEY"])

class Exchange:
    def _ask(self, path, **query):
        with urllib.request.urlopen(f"ADDRESS/{path}?{urllib.parse.urlencode(query)}") as answer:
            return json.load(answer)

    def parse_timeframe(self, timeframe):
        return {"1h": 3600}[timeframe]

    def milliseconds(self):
        return self._ask("time")

    def fetch_ohlcv(self, symbol, timeframe, since, limit):
        return self._ask("candles", symbol=symbol, since=since, limit=limit)

sys.modules["ccxt"] = types.SimpleNamespace(coinbaseexchange=Exchange)
"""


@contextmanager
def recorded_exchange() -> Iterator[str]:
    """Answer on loopback with the recording; return the address."""

    class Exchange(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, known = urlsplit(self.path).path, RecordedExchange()
            asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            answer: Any = known.milliseconds()
            if path == "/candles":
                page = {name: int(asked[name]) for name in ("since", "limit")}
                answer = known.fetch_ohlcv(asked["symbol"], "1h", **page)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Exchange)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def ended_run(story: Weeks, number: int) -> str:
    """Return the run of the machine of that number once it has ended; '' before."""
    cloud = story.aws.cloud(story.access)
    with cloud.lock:
        (*_, machine) = machines = [*cloud.world.instances.values()] or [None]
        ended = machine and len(machines) == number and machine.state(cloud.clock.now()) == "terminated"
        return machine.tags["run_id"] if machine and ended else ""


def called(story: Weeks, number: int) -> bool:
    """Let control be called on its schedule; return whether that led on: a call that finds the sweeper busy
    leaves the start to the next one.
    """
    cloud = story.aws.cloud(story.access)
    cloud.advance(300)
    wait_for_invocations(cloud)
    return len(cloud.world.instances) > number or bool(story.entries()[0].told_at)


def switch_off_other_retrains(story: Weeks) -> None:
    """Let no other retrain's schedule fire: each starts control, for a second of a core."""
    scheduler = story.access.client("scheduler")
    for retrain in RETRAINS:
        if retrain["name"] != NAME:
            known = {"GroupName": "mayfly-dev-retrains", "Name": retrain["name"]}
            schedule = scheduler.get_schedule(**known)
            names = ("ScheduleExpression", "ScheduleExpressionTimezone", "FlexibleTimeWindow", "Target")
            kept = {name: schedule[name] for name in names}
            scheduler.update_schedule(**known, **kept, State="DISABLED")


@pytest.mark.nightly
def test_the_weekly_example_is_retrained_and_announced(
    story: Weeks,
    fetch: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    eventually: Callable[..., Any],
) -> None:
    """On its schedule, on recorded answers, and settled though EC2 tells control of no machine's end."""
    monkeypatch.setattr(RecordedExchange, "now", BEGAN + 48.5 * HOUR)
    monkeypatch.setattr(RecordedExchange, "asked", [])
    coins, job = tmp_path / "coins", tmp_path / "job"
    for folder in (coins, job):
        folder.mkdir()
    fetch.main(coins)  # at a desk, before it is published
    s3 = story.access.client("s3")
    for file in coins.iterdir():
        s3.put_object(Bucket=story.outputs.bucket, Key=f"raw/coins/{file.name}", Body=file.read_bytes())
    monkeypatch.setattr(RecordedExchange, "now", BEGAN + 95.2 * HOUR)
    RecordedExchange.asked.clear()
    capsys.readouterr()  # the script's own lines
    with recorded_exchange() as address:
        source = CCXT.replace("ADDRESS", address) + OWN.read_text()
        (job / "fetch.py").write_text(source)
        (job / "job.toml").write_bytes((EXAMPLE / "job.toml").read_bytes())
        # Four days are recorded, too few for windows of two days.
        few = sets("model.lookback=4", "target.horizon=1", "train.batch=16", "train.epochs=1")
        few += sets("data.features=['log_return_1', 'bar_range']", "data.embargo=1", "model.hidden=8")
        few += sets("data.secrets=['API_KEY']", f"data.refresh='{job / 'fetch.py'}'")
        assert main(["retrains", "publish", NAME, "--job", str(job / "job.toml"), "--json", *few]) == 0
        published = json.loads(capsys.readouterr().out)
        events = story.access.client("events")
        for rule in events.list_rules()["Rules"]:
            events.disable_rule(Name=rule["Name"])
        switch_off_other_retrains(story)
        coming = story.next_sunday()
        assert published["retrain"]["next"][0]["utc"] == f"{coming:%Y-%m-%dT%H:%M:%SZ}"
        for number in (1, 2):  # the prepare run, then the training
            run_id = eventually(partial(ended_run, story, number))
            assert run_id in read_index(story.objects).open and read_receipt(story.objects, run_id) is None
            eventually(partial(called, story, number))
        list(story.watch(coming))
    last = BEGAN + 47 * HOUR
    assert sorted(set(RecordedExchange.asked)) == [
        (coin, last + HOUR) for coin in ("BTC/USD", "ETH/USD", "SOL/USD")
    ]
    receipt = story.receipt(coming)
    assert receipt["state"] == "done", receipt["error"]
    assert [model["piece"] for model in receipt["models"]] == ["BTC-USD", "ETH-USD", "SOL-USD"]
    assert [instance["state"] for instance in receipt["instances"]] == ["terminated"]
    assert receipt["created_at"] >= f"{coming:%Y-%m-%d}"
    assert receipt["data"]["bars"] == 95 + 95 + 92
    eventually(lambda: not read_index(story.objects).open)

    # Before it a prepare run, on a cheap machine and under a role of its own, brought bars; the training has
    # all files.
    (entry,) = story.entries()
    assert entry.refreshed == "3 new files, 141 bars"  # 47 hours of three coins
    prepared = read_receipt(story.objects, entry.prepare_run_id)
    assert prepared is not None and (prepared["work"], prepared["state"], prepared["models"]) == (
        "prepare",
        "done",
        [],
    )
    assert [one["instance_type"] for one in prepared["instances"]] == ["t3.large"]
    assert [one["state"] for one in prepared["instances"]] == ["terminated"]
    added = {f"raw/coins/{file['file']}": file["sha256"] for file in prepared["files"]}
    files = {item.key for item in story.objects.list(prefix="raw/coins/")}
    assert len(files) == 6 and files == added.keys() | {f"raw/coins/{file.name}" for file in coins.iterdir()}
    for key, sha256 in added.items():
        assert story.objects.head(key=key).checksum == sha256  # type: ignore[union-attr]
    assert {f"raw/coins/{item['file']}" for item in receipt["data"]["files"]} == files
    assert main(["receipts", entry.prepare_run_id]) == 0
    shown = capsys.readouterr().out
    assert "added" in shown and "3 files" in shown
    assert all(key.removeprefix("raw/coins/") in shown for key in added)
    written = story.objects.list(prefix="attempts/") + story.objects.list(prefix="runs/")
    bodies = {item.key: story.objects.get(key=item.key).body for item in written}  # type: ignore[union-attr]
    log = b"".join(body for key, body in bodies.items() if f"{entry.prepare_run_id}/1/0/log/" in key)
    assert b"asked for with the key [API_KEY]" in log
    assert not [key for key, body in bodies.items() if SECRET.encode() in body]

    copied = [
        one.key for one in story.objects.list(prefix=f"models/retrains/{NAME}/")
    ]  # by control, under its role
    names = sorted(model["key"].rpartition("/")[2] for model in receipt["models"])
    assert [key.partition(f"/{receipt['run_id']}/")[2] for key in copied] == names
    assert not story.objects.list(prefix="models/production/")
    assert main(["retrains", "history", NAME, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["history"]
    assert (told["state"], told["run_id"], told["error"]) == ("done", receipt["run_id"], None)
    assert entry.prepare_usd > 0 and entry.spent_usd == pytest.approx(
        entry.prepare_usd + receipt["dollars"]["spent_high"]
    )
    assert 0 < told["spent_usd"] <= told["most_usd"] <= 5
    (posted,) = set(story.posted)  # a call that failed is repeated, and tells again
    assert (
        posted.startswith(f"mayfly {NAME}: done\n{NAME}, scheduled Sun ")
        and f"mayfly receipts {receipt['run_id']}" in posted
    )
    assert f"mayfly {NAME}: done" in [message["Subject"] for message in queued(story.access)]


@pytest.mark.nightly
@pytest.mark.timeout(2_500)
def test_a_full_and_an_interrupted_sunday(tmp_path: Path) -> None:
    """All of `make weekly`: schedule, prepare run, line, lost machine, models, messages."""
    run = subprocess.run(
        [sys.executable, "-m", "scripts.weekly"],
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=2_400,
    )
    assert run.returncode == 0, f"{run.stdout[-4000:]}{run.stderr[-4000:]}"
    full, interrupted = run.stdout.split("\n=== ")[1:]
    assert "every pool is full (InsufficientInstanceCapacity), next try at" in full
    assert "    | note: every pool was full: attempt 1 waited" in full
    assert "    | note: attempt 1 lost its machine: the spot instance i-" in interrupted
    assert [part.count("    | sunday, scheduled Sun ") for part in (full, interrupted)] == [1, 1]
