"""A retrain from its schedule to its models, on the injected clock, with no command attached."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.retrains import CONFIG, JOB
from tests.sessions import forget_sessions
from trainer.access import Access
from trainer.cli.main import main
from trainer.data.synthetic import synthetic_candles
from trainer.data.writing import write_candles
from trainer.rehearsal.server import EmbeddedAws
from trainer.retrains.entries import ScheduledRun, entry_keys, read_entry
from trainer.retrains.schedule import read_schedules
from trainer.runs.record import utc_now
from trainer.runs.store import open_objects
from trainer.runs.stored_receipt import read_receipt
from trainer.schedule_expressions import next_times
from trainer.stack import read_stack


@pytest.fixture
def aws(programs: Path, fork_server: Path) -> Iterator[EmbeddedAws]:
    """An embedded AWS whose schedules fire, and whose nodes run as forks."""
    with EmbeddedAws(programs=programs, fork_nodes=True, fork_server=fork_server, grace_seconds=120) as server:
        yield server


@pytest.fixture
def desk(aws: EmbeddedAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Access]:
    """An account with a stack that has a retrain and candles, and commands that find it."""
    access = aws.account()
    aws.apply_program(access, CONFIG)
    outputs = read_stack(access, stack="dev")
    file = tmp_path / "BTC-USD_1m.parquet"
    write_candles(file, [synthetic_candles("BTC-USD", bars=2_500)], synthetic=True)
    access.client("s3").put_object(Bucket=outputs.bucket, Key=f"raw/main/{file.name}", Body=file.read_bytes())
    variables = {
        "AWS_ENDPOINT_URL": access.endpoint_url,
        "AWS_ACCESS_KEY_ID": access.access_key,
        "AWS_SECRET_ACCESS_KEY": access.secret_key,
        "AWS_REGION": "us-east-1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    (tmp_path / "job.toml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    forget_sessions()
    yield access
    forget_sessions()


def pass_until(aws: EmbeddedAws, access: Access, moment: datetime) -> None:
    cloud = aws.cloud(access)
    cloud.advance((moment - cloud.clock.now()).total_seconds())


def test_a_sunday_passes_with_no_command_attached_and_a_run_is_done(
    aws: EmbeddedAws, desk: Access, eventually: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["retrains", "publish", "sunday", "--job", "job.toml", "--json"]) == 0
    published = json.loads(capsys.readouterr().out)
    outputs = read_stack(desk, stack="dev")
    schedule = next(one for one in read_schedules(outputs.retrains) if one.name == "sunday")
    (sunday,) = next_times(schedule.expression, utc_now(), 1)
    assert published["retrain"]["next"][0]["utc"] == f"{sunday:%Y-%m-%dT%H:%M:%SZ}"
    objects = open_objects(desk, outputs.bucket)
    pass_until(aws, desk, sunday + timedelta(seconds=1))

    def ended() -> ScheduledRun | None:
        entries = [read_entry(objects, key)[0] for key in entry_keys(objects, "sunday")]
        return entries[-1] if entries and not entries[-1].is_open else None

    entry = eventually(ended)
    assert (entry.state, entry.error, entry.scheduled_at) == ("done", None, sunday)
    receipt = read_receipt(objects, entry.run_id)
    assert receipt is not None and receipt["state"] == "done"
    assert [model["piece"] for model in receipt["models"]] == ["BTC-USD"]
    assert [instance["state"] for instance in receipt["instances"]] == ["terminated"]
    assert receipt["created_at"] >= f"{sunday:%Y-%m-%d}" and 0 < entry.spent_usd <= entry.most_usd <= 5
    assert main(["retrains", "history", "sunday", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["history"]
    assert (told["state"], told["run_id"]) == ("done", entry.run_id)
