"""What control does with no command attached, on the injected clock: a retrain from its schedule to its models
and its message (`make weekly`), that of examples/weekly, and a detached run's end.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from scripts.weekly import NAME, SECRET, SETTINGS, Weeks, desk_variables, weeks, write_job
from tests.aws.queues import queued, subscribe_queue
from tests.aws.server import CheckedAws
from tests.desk import QUICK
from tests.jobs import sets
from tests.retrains import CONFIG, RETRAINS
from tests.sessions import forget_sessions
from tests.test_weekly_example import BEGAN, EXAMPLE, HOUR, RecordedExchange, fetch
from trainer.cli.main import main
from trainer.runs.index import read_index
from trainer.runs.stored_receipt import read_receipt

__all__ = ["fetch"]  # a fixture


@pytest.fixture
def story(
    programs: Path, fork_server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Weeks]:
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
        write_job(tmp_path)
        monkeypatch.chdir(tmp_path)
        forget_sessions()
        story.bring_candles(tmp_path)
        subscribe_queue(story.access, story.outputs.topic_arn)
        yield story
        forget_sessions()


def test_a_retrain_runs_on_its_schedule_and_is_announced(
    story: Weeks, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["retrains", "publish", NAME, "--job", "job.toml", "--json"]) == 0
    published = json.loads(capsys.readouterr().out)
    coming = story.next_sunday()
    assert published["retrain"]["next"][0]["utc"] == f"{coming:%Y-%m-%dT%H:%M:%SZ}"
    list(story.watch(coming))
    receipt = story.receipt(coming)
    assert receipt["state"] == "done", receipt["error"]
    assert [model["piece"] for model in receipt["models"]] == ["BTC-USD"]
    assert [instance["state"] for instance in receipt["instances"]] == ["terminated"]
    assert receipt["created_at"] >= f"{coming:%Y-%m-%d}"

    # Before it a prepare run, on a cheap machine and under a role of its own, brought bars; the training has
    # both files.
    (entry,) = story.entries()
    prepared = read_receipt(story.objects, entry.prepare_run_id)
    assert prepared is not None and (prepared["work"], prepared["state"], prepared["models"]) == (
        "prepare",
        "done",
        [],
    )
    assert [one["instance_type"] for one in prepared["instances"]] == ["t3.large"]
    assert [one["state"] for one in prepared["instances"]] == ["terminated"]
    (added,) = prepared["files"]
    files = [item.key for item in story.objects.list(prefix="raw/main/")]
    assert files == ["raw/main/BTC-USD_1m.parquet", f"raw/main/{added['file']}"]
    assert story.objects.head(key=files[1]).checksum == added["sha256"]  # type: ignore[union-attr]
    assert entry.refreshed == "1 new file, 1,000 bars"
    assert sorted(item["file"] for item in receipt["data"]["files"]) == [
        key.removeprefix("raw/main/") for key in files
    ]
    assert main(["receipts", entry.prepare_run_id]) == 0
    assert f"{added['file']}" in (shown := capsys.readouterr().out) and "added" in shown and "1 file" in shown
    written = story.objects.list(prefix="attempts/") + story.objects.list(prefix="runs/")
    bodies = {item.key: story.objects.get(key=item.key).body for item in written}  # type: ignore[union-attr]
    log = b"".join(body for key, body in bodies.items() if f"{entry.prepare_run_id}/1/0/log/" in key)
    assert b"asked for with the key [API_KEY]" in log
    assert not [key for key, body in bodies.items() if SECRET.encode() in body]
    (kept,) = story.objects.list(prefix=f"models/retrains/{NAME}/")  # copied by control, under its role
    assert kept.key.endswith(f"/{receipt['run_id']}/" + receipt["models"][0]["key"].rpartition("/")[2])
    assert not story.objects.list(prefix="models/production/")
    assert main(["retrains", "history", NAME, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["history"]
    assert (told["state"], told["run_id"], told["error"]) == ("done", receipt["run_id"], None)
    assert entry.prepare_usd > 0 and entry.spent_usd == pytest.approx(
        entry.prepare_usd + receipt["dollars"]["spent_high"]
    )
    assert 0 < told["spent_usd"] <= told["most_usd"] <= 5
    (posted,) = [text for text in story.posted if text.startswith(f"mayfly {NAME}: ")]
    refused = [text for text in story.posted if text.splitlines()[0].endswith(": refused")]
    (never,) = refused  # of the other retrains; the clock jumped hours past two of them
    assert "was never published" in never
    assert sum("2 hours back at most" in text for text in story.posted) == 2
    assert (
        posted.startswith(f"mayfly {NAME}: done\n{NAME}, scheduled Sun ")
        and f"mayfly receipts {receipt['run_id']}" in posted
    )
    assert f"mayfly {NAME}: done" in [message["Subject"] for message in queued(story.access)]


# What a prepare run imports as ccxt: it asks a server on loopback what ccxt would ask the exchange.
CCXT = """
import json, sys, types, urllib.parse, urllib.request

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


def test_the_weekly_example_is_retrained_on_recorded_answers(
    story: Weeks, fetch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordedExchange, "now", BEGAN + 48.5 * HOUR)
    monkeypatch.setattr(RecordedExchange, "asked", [])
    coins, job = tmp_path / "coins", tmp_path / "job"
    for folder in (coins, job):
        folder.mkdir()
    fetch.main(coins)  # as its README says, at a desk, before it is published
    s3 = story.access.client("s3")
    for file in coins.iterdir():
        s3.put_object(Bucket=story.outputs.bucket, Key=f"raw/coins/{file.name}", Body=file.read_bytes())
    monkeypatch.setattr(RecordedExchange, "now", BEGAN + 95.2 * HOUR)
    RecordedExchange.asked.clear()
    with recorded_exchange() as address:
        source = CCXT.replace("ADDRESS", address) + (EXAMPLE / "fetch.py").read_text()
        (job / "fetch.py").write_text(source)
        (job / "job.toml").write_bytes((EXAMPLE / "job.toml").read_bytes())
        # Four days are recorded, too few for windows of two days.
        few = sets("model.lookback=4", "target.horizon=1", "train.batch=16", "train.epochs=1")
        few += sets("data.features=['log_return_1', 'bar_range']", "data.embargo=1", "model.hidden=8")
        assert main(["retrains", "publish", NAME, "--job", str(job / "job.toml"), *few]) == 0
        coming = story.next_sunday()
        list(story.watch(coming))
    last = BEGAN + 47 * HOUR
    assert sorted(set(RecordedExchange.asked)) == [
        (coin, last + HOUR) for coin in ("BTC/USD", "ETH/USD", "SOL/USD")
    ]
    receipt = story.receipt(coming)
    assert receipt["state"] == "done", receipt["error"]
    assert [model["piece"] for model in receipt["models"]] == ["BTC-USD", "ETH-USD", "SOL-USD"]
    (entry,) = story.entries()
    assert entry.refreshed == "3 new files, 141 bars"  # 47 hours of three coins
    assert len(receipt["data"]["files"]) == 6 and receipt["data"]["bars"] == 95 + 95 + 92


def test_a_detached_run_is_settled_by_control_on_its_schedule(
    story: Weeks, capsys: pytest.CaptureFixture[str], eventually: Callable[..., Any]
) -> None:
    events = story.access.client("events")
    for rule in events.list_rules()["Rules"]:  # else control hears of the machine's end from EC2
        events.disable_rule(Name=rule["Name"])
    words = ("--instance", "g6.xlarge", "--epochs", "1", *QUICK)
    assert main(["launch", "-y", "--detach", "--json", *words]) == 0
    run_id = json.loads(capsys.readouterr().out)["run_id"]
    cloud = story.aws.cloud(story.access)

    def ended() -> bool:
        with cloud.lock:
            (machine,) = cloud.world.instances.values()
            return machine.state(cloud.clock.now()) == "terminated"

    eventually(ended)
    assert run_id in read_index(story.objects).open and read_receipt(story.objects, run_id) is None
    cloud.advance(300)
    eventually(lambda: read_receipt(story.objects, run_id))
    receipt = read_receipt(story.objects, run_id)
    assert receipt is not None and receipt["state"] == "done", receipt
    assert [model["piece"] for model in receipt["models"]] == ["BTC-USD"]
    assert [instance["state"] for instance in receipt["instances"]] == ["terminated"]
    eventually(lambda: run_id not in read_index(story.objects).open)
