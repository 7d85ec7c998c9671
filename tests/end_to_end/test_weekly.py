"""A retrain from its schedule to its models and its message, on the injected clock, with no command attached:
`make weekly`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.weekly import NAME, SECRET, SETTINGS, Weeks, desk_variables, weeks, write_job
from tests.aws.queues import queued, subscribe_queue
from tests.aws.server import CheckedAws
from tests.retrains import CONFIG, RETRAINS
from tests.sessions import forget_sessions
from trainer.cli.main import main
from trainer.runs.stored_receipt import read_receipt


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
