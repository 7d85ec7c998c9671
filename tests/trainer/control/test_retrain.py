"""A scheduled time on the embedded AWS, with no node: registered once, left out, refused, failed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from tests.jobs import sets, with_settings
from tests.models import SETTINGS, card_of, make_model
from tests.retrains import CONFIG, JOB, answering_sweeper
from tests.sessions import forget_sessions, sign_in
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import parameter_name
from trainer.cli.main import main
from trainer.control.cloud import AwsCloud
from trainer.control.retrain import advance
from trainer.control.retrain_calls import begin, tell, unfinished
from trainer.control.retrain_home import RetrainHome
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles
from trainer.rehearsal.server import EmbeddedAws
from trainer.retrains.entries import ScheduledRun, change_entry, entry_key, read_entry
from trainer.retrains.published import published_key, read_published, verified_job, write_published
from trainer.runs.index import TELLING, read_index
from trainer.runs.manifest import Manifest, read_manifest
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.reports import NodeResult
from trainer.runs.store import manifest_key, read_record, receipt_key

pytestmark = pytest.mark.slow  # a stack of its own, with retrains
SUNDAY = datetime(2026, 11, 29, 3, tzinfo=timezone.utc)
WEEK = timedelta(days=7)
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def home(aws_server: EmbeddedAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RetrainHome]:
    """A stack with three retrains, candles in its data set, and a desk."""
    access = aws_server.account()
    aws_server.apply_program(access, CONFIG)
    outputs = read_stack(access, stack="dev")
    answering_sweeper(aws_server.cloud(access))
    file = tmp_path / "BTC-USD_1m.parquet"
    write_candles(file, [synthetic_candles("BTC-USD", bars=3_000)], synthetic=True)
    access.client("s3").put_object(Bucket=outputs.bucket, Key=f"raw/main/{file.name}", Body=file.read_bytes())
    (tmp_path / "job.toml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    sign_in(access, monkeypatch)
    yield RetrainHome(access=access, outputs=outputs, cloud=AwsCloud(access, outputs), publish=print)
    forget_sessions()


@pytest.fixture
def mayfly(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run `mayfly retrains` and return what it printed as JSON, with its exit code."""

    def call(*words: str) -> tuple[int, Any]:
        code = main(["retrains", *words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


def changed(home: RetrainHome, at: datetime, **fields: Any) -> ScheduledRun:
    """Return the entry of the retrain weekly and a time after a change."""
    there, etag = read_entry(home.cloud.objects, entry_key("weekly", at))
    entry = replace(there, **fields)
    change_entry(home.cloud.objects, entry, etag, home.cloud.now())
    return entry


@pytest.mark.nightly
def test_an_encoder_is_published_and_pinned_by_each_run(
    home: RetrainHome, mayfly: Callable[..., Any], tmp_path: Path
) -> None:
    span = {"first": "2020-01-01T00:00:00Z", "last": "2020-02-01T00:00:00Z"}
    series = [replace(card_of("tcn", "direction").series[0], splits={"validation": span})]
    make_model(tmp_path / "encoder.safetensors", "tcn", series=series)
    sizes = "".join(f"{name} = {value}\n" for name, value in SETTINGS["tcn"].items())
    keys = f'encoder = "encoder.safetensors"\nencoder_training = "frozen"\n{sizes}'
    (tmp_path / "head.toml").write_text(JOB.replace("hidden = 8\nlookback = 20\n", f'name = "tcn"\n{keys}'))
    assert mayfly("publish", "weekly", "--job", "head.toml") == (0, ANY)
    sha256 = hashlib.sha256((tmp_path / "encoder.safetensors").read_bytes()).hexdigest()
    (tmp_path / "encoder.safetensors").unlink()  # no desk is asked any more
    for scheduled in (SUNDAY, SUNDAY + WEEK):
        entry = begin(home, "weekly", scheduled)
        assert (entry.state, entry.error) == ("training", None)
        manifest = manifest_of(home, entry.run_id)
        model, encoder = manifest.job["model"], manifest.inputs[-1]
        assert (encoder.key, encoder.sha256) == (f"raw/.files/{sha256}", sha256)
        assert (model["encoder_sha256"], model["encoder_until"]) == (sha256, "2020-02-01T00:01:00Z")
        changed(home, scheduled, state="done")


def manifest_of(home: RetrainHome, run_id: str) -> Manifest:
    return read_manifest(home.cloud.objects.get(key=manifest_key(run_id)).body)  # type: ignore[union-attr]


@pytest.mark.nightly
def test_a_scheduled_time_from_its_publication_on(
    home: RetrainHome, mayfly: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = home.cloud.objects
    refused = begin(home, "weekly", SUNDAY - WEEK)
    assert refused.state == "refused" and "was never published" in str(refused.error)
    assert begin(home, "gone", SUNDAY).state == "refused"

    code, told = mayfly("publish", "night", "--job", "job.toml")
    assert (code, told["error"]["what"]) == (2, "2027-03-14 02:30 does not exist in America/New_York")
    code, told = mayfly("publish", "weekly", "--job", "job.toml", "--set", "machine.instance=p5.48xlarge")
    assert code == 103 and "control may not start p5.48xlarge" in told["error"]["what"]
    Path("profiles.toml").write_text("[mine]\nmemory_gib = 20\n")
    monkeypatch.setenv("MAYFLY_PROFILES", "profiles.toml")
    code, told = mayfly("publish", "weekly", "--job", "job.toml", "--set", "machine.gpu_profile=mine")
    assert (code, told["error"]["what"]) == (2, "GPU profile mine is in profiles.toml, of this desk")
    ssm, parameter = home.access.client("ssm"), parameter_name("mayfly", "dev")
    for outputs, expected in ((replace(home.outputs, retrain_format=99), 103), (home.outputs, 0)):
        # A control that reads another format; then a publication that an older or newer one left, which is
        # replaced.
        ssm.put_parameter(Name=parameter, Value=outputs.to_json(), Type="String", Overwrite=True)
        objects.put(key=published_key("waiting"), body=b'{"format": 99}')
        code, told = mayfly("publish", "waiting", "--job", "job.toml")
        assert code == expected and (code == 0 or "reads publications of format 99" in told["error"]["why"])
    assert read_published(objects, "weekly") is None
    for name in ("weekly", "waiting"):
        assert mayfly("publish", name, "--job", "job.toml")[0] == 0

    # Delivered twice: one entry, one run, by the candles and the code that were published.
    entry = begin(home, "weekly", SUNDAY)
    assert (entry.state, entry.error) == ("training", None)
    assert begin(home, "weekly", SUNDAY) == entry
    assert list(read_index(objects).open) == [entry.run_id]
    record, _ = read_record(objects, entry.run_id)
    assert (record.driver, record.state, record.budget_usd) == ("control", "starting", 0.2)
    assert entry.most_usd <= 0.2
    manifest = manifest_of(home, entry.run_id)
    assert manifest.code["sha256"] == read_published(objects, "weekly")[0].code_sha256  # type: ignore[index]
    assert [item.key for item in manifest.inputs] == ["raw/main/BTC-USD_1m.parquet"]

    assert mayfly("preview", "waiting")[1]["plan"]["hard_stop"]["dollars"] <= 1

    # An overlap: one retrain skips, the other waits until its next time at most.
    second = begin(home, "weekly", SUNDAY + WEEK)
    assert second.state == "skipped" and "has not ended" in str(second.error)
    begin(home, "waiting", SUNDAY)
    waits = begin(home, "waiting", SUNDAY + WEEK)
    assert waits.state == "waiting"
    assert [one.retrain for one in unfinished(home, {}) if one.is_open] == ["weekly", "waiting", "waiting"]
    assert advance(home, waits).state == "waiting"

    # A month that is spent.
    changed(home, SUNDAY, state="done", spent_usd=0.95)
    spent = begin(home, "weekly", SUNDAY + timedelta(hours=1))
    assert spent.state == "refused" and "month's budget" in str(spent.error)

    # A pause, a job that is not what was published, and an image that is gone.
    december = SUNDAY + 2 * WEEK
    assert mayfly("pause", "weekly")[1]["retrain"]["state"] == "paused"
    assert begin(home, "weekly", december).state == "skipped"
    assert mayfly("pause", "weekly", "--off")[1]["retrain"]["state"] == "on"
    published, etag = read_published(objects, "weekly") or (None, "")
    assert published is not None
    write_published(objects, replace(published, image_id="ami-0000000000000gone"), replaces=etag)
    moved = begin(home, "weekly", december + timedelta(hours=1))
    assert moved.state == "training" and "ami-0000000000000gone is gone" in moved.notes[-1]
    objects.put(key=published.job_key, body=b"{}")
    changed(home, moved.scheduled_at, state="done")
    failed = begin(home, "weekly", december + timedelta(hours=2))
    assert failed.state == "failed" and "is not what was published" in str(failed.error)

    # People are told of each end once, however many calls look, and again where a call was cut off after its
    # claim.
    messages: list[Any] = []
    telling = replace(home, publish=messages.append)
    for _ in range(2):
        tell(telling, failed)
    assert [message.subject for message in messages] == ["mayfly weekly: failed"]
    tell(telling, changed(home, failed.scheduled_at, told_at=None, telling_at=home.cloud.now()))
    assert len(messages) == 1
    changed(home, failed.scheduled_at, telling_at=home.cloud.now() - 2 * TELLING)
    tell(telling, failed)
    assert len(messages) == 2

    states = [item["state"] for item in mayfly("history", "weekly")[1]["history"]]
    assert states == ["refused", "done", "refused", "skipped", "skipped", "done", "failed"]
    listed = {item["name"]: item for item in mayfly("list")[1]["retrains"]}
    assert listed["weekly"]["last"]["state"] == "failed" and listed["night"]["state"] == "never published"
    assert len(listed["weekly"]["next"]) == 3
    assert mayfly("preview", "waiting")[0] == 103  # the same job
    assert mayfly("preview", "nothing")[0] == 2


def test_a_run_whose_models_cannot_be_kept_failed_and_was_paid(
    home: RetrainHome, mayfly: Callable[..., Any]
) -> None:
    assert mayfly("publish", "weekly", "--job", "job.toml")[0] == 0
    entry = begin(home, "weekly", SUNDAY)
    record, _ = read_record(home.cloud.objects, entry.run_id)
    key = f"models/experiments/A:i-1/{entry.run_id}/1/{record.pieces[0].model}.safetensors"
    model = {"key": key, "version_id": "gone", "sha256": "ab" * 32, "family": "lstm", "symbol": "BTC-USD"}
    ended(home, entry, usd=0.15, models=(model,))
    lost = advance(home, entry)
    assert (lost.state, lost.spent_usd) == ("failed", 0.15) and "cannot copy s3://" in str(lost.error)


def test_a_published_script_reads_its_pinned_or_current_data(
    home: RetrainHome, mayfly: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, bucket, s3 = home.cloud.objects, home.outputs.bucket, home.access.client("s3")
    Path("train.py").write_text("print(1)")
    Path("points").mkdir()
    Path("points/a.csv").write_text("1,2")
    Path("script.toml").write_text(
        '[script]\ncommand = "python train.py"\nover = "values.csv"\n[data]\nfolder = "points"\n'
        '[machine]\ninstance = ["g6.xlarge"]\nmax_duration = "10m"\n'
    )
    Path("values.csv").write_text("symbol\nA\nB\n")
    code, told = mayfly("publish", "waiting", "--job", "script.toml")
    assert (code, told["plan"]["times_are"]) == (
        0,
        "rough: not estimated: no whole run of this script has ended yet",
    )
    assert told["notes"][-1].startswith("promote is better: a script makes no model")
    unread = "a script reads no data set of candles"
    monkeypatch.setattr("trainer.control.retrain.list_inputs", lambda *asked: pytest.fail(unread))
    entry = begin(home, "waiting", SUNDAY)
    assert (entry.state, entry.error) == ("training", None) and 0 < entry.most_usd <= 1
    assert begin(home, "waiting", SUNDAY) == entry
    record, _ = read_record(objects, entry.run_id)
    assert record.work == "script"
    assert record.driver == "control"
    assert [piece.piece for piece in record.pieces] == ["symbol=A", "symbol=B"]
    published, _ = read_published(objects, "waiting") or (None, "")
    # the setting's is of each time
    assert published is not None and verified_job(objects, published).machine.budget == 0
    assert record.budget_usd == 1
    manifest = manifest_of(home, entry.run_id)
    assert manifest.command.name == "script"
    assert list(manifest.command.files) == ["train.py"]
    assert manifest.job["data"] == {"folder": ""}
    assert manifest.code["sha256"] == read_published(objects, "waiting")[0].code_sha256  # type: ignore[index]
    (pinned,) = manifest.inputs
    assert (pinned.path, pinned.key) == ("data/a.csv", f"raw/.files/{hashlib.sha256(b'1,2').hexdigest()}")

    # A set of the bucket is listed at each time; nothing of it goes through the desk.
    s3.put_object(Bucket=bucket, Key="raw/points/a.csv", Body=b"1", ChecksumAlgorithm="SHA256")
    points = sets(f"data.folder=s3://{bucket}/raw/points")
    assert mayfly("publish", "weekly", "--job", "script.toml", *points)[0] == 0
    s3.put_object(Bucket=bucket, Key="raw/points/b.csv", Body=b"2", ChecksumAlgorithm="SHA256")
    manifest = manifest_of(home, begin(home, "weekly", SUNDAY).run_id)
    read = {item.path: item.key for item in manifest.inputs}
    assert read == {f"data/{name}": f"raw/points/{name}" for name in ("a.csv", "b.csv")}
    shown = mayfly("preview", "weekly")[1]
    assert [piece["piece"] for piece in shown["plan"]["pieces"]] == ["symbol=A", "symbol=B"]
    changed(home, SUNDAY, state="done")
    s3.put_object(Bucket=bucket, Key="raw/points/c.csv", Body=b"3")
    failed = begin(home, "weekly", SUNDAY + WEEK)
    assert (failed.state, (failed.error or {})["what"]) == (
        "failed",
        "1 file of raw/points/ without a sha256",
    )

    # A list of files that is not what was published.
    published, _ = read_published(objects, "weekly") or (None, "")
    assert published is not None
    objects.put(key=published.script_key, body=b"{}")
    spoiled = begin(home, "weekly", SUNDAY + 2 * WEEK)
    assert spoiled.state == "failed"
    assert "the script of retrain weekly is not what was published" in str(spoiled.error)


def republished(home: RetrainHome, name: str, other: str, **keys: Any) -> None:
    """Publish the job of one retrain for another, with some keys changed, as a desk does after its checks."""
    objects, stored = home.cloud.objects, read_published(home.cloud.objects, name)
    assert stored is not None
    body = json.dumps(with_settings(verified_job(objects, stored[0]), **keys).to_dict()).encode()
    sha256 = hashlib.sha256(body).hexdigest()
    objects.put(key=f"code/{sha256}.json", body=body)
    write_published(objects, replace(stored[0], name=other, job_key=f"code/{sha256}.json", job_sha256=sha256))


def ended(
    home: RetrainHome, entry: ScheduledRun, *, error: Any = None, usd: float = 0.01, **reported: Any
) -> None:
    """Write the receipt of an entry's run, or prepare run, as settling does: by what its node reported."""
    record, _ = read_record(home.cloud.objects, entry.run_id or entry.prepare_run_id)
    state, now = "failed" if error else "done", home.cloud.now()
    closed = replace(record.ended(state, error, now), closed_at=now)
    receipt = make_receipt(closed, Observation(result=NodeResult(state=state, **reported)))
    receipt["dollars"]["spent_high"] = usd
    home.cloud.objects.put(key=receipt_key(record.run_id), body=json.dumps(receipt).encode())


@pytest.mark.nightly
def test_a_refresh_comes_first_and_may_fail(home: RetrainHome, mayfly: Callable[..., Any]) -> None:
    objects = home.cloud.objects
    failed = {"code": 2, "what": "the refresh script failed", "why": "no bars", "do": "Mend it."}
    Path("fetch.py").write_text("import ccxt")
    refreshing = sets("data.refresh=fetch.py", "data.secrets=API_KEY")
    code, told = mayfly("publish", "weekly", "--job", "job.toml", *refreshing)
    assert (code, told["notes"][-1][:39]) == (0, "first the refresh script runs on t3.lar")
    republished(home, "weekly", "waiting", stale="skip")

    # One prepare run, however often the schedule is delivered; nothing is planned before its end.
    entry = begin(home, "weekly", SUNDAY)
    assert (entry.state, entry.run_id, entry.error) == ("preparing", "", None)
    assert begin(home, "weekly", SUNDAY) == entry == advance(home, entry)
    assert list(read_index(objects).open) == [entry.prepare_run_id]
    record, _ = read_record(objects, entry.prepare_run_id)
    assert record.driver == "control"
    assert record.work == "prepare"
    assert record.pieces == ()
    assert record.deadline_cause == "prepare"
    assert record.deadline - record.created_at == timedelta(minutes=30)
    assert {(rung.instance_type, rung.market) for rung in record.ladder} == {("t3.large", "on_demand")}
    assert record.instance_role_id == home.outputs.prepare_role_id != home.outputs.instance_role_id
    manifest = manifest_of(home, entry.prepare_run_id)
    assert manifest.command.secrets == {"API_KEY": "/mayfly/mayfly/dev/secrets/API_KEY"}
    assert [item.key for item in manifest.inputs] == ["raw/main/BTC-USD_1m.parquet"]
    assert manifest.documents == {"unchecked.json": []}
    assert 0.04 < entry.most_usd < 0.05
    second = begin(home, "weekly", SUNDAY + WEEK)
    assert second.state == "skipped" and "has not ended" in str(second.error)

    # stale = "train": by what is there, within what is left of the budget; the message says so.
    ended(home, entry, error=failed)
    training = advance(home, entry)
    assert (training.state, training.spent_usd, training.prepare_usd) == ("training", 0.01, 0.01)
    assert training.refreshed.startswith("as it was, not refreshed: the refresh script failed (no bars); ")
    run, _ = read_record(objects, training.run_id)
    assert (run.work, run.budget_usd) == ("train", 0.19) and training.most_usd <= 0.2

    # stale = "skip". So with files that are not what the node reported.
    skipped = begin(home, "waiting", SUNDAY)
    ended(home, skipped, files=({"file": "a.csv", "sha256": "ab" * 32, "bytes": 3, "added": True},))
    skipped = advance(home, skipped)
    assert (skipped.state, skipped.run_id, skipped.spent_usd) == ("skipped", "", 0.01)
    assert skipped.error and skipped.error["what"].startswith("the result of prepare run ")
    messages: list[Any] = []
    tell(replace(home, publish=messages.append), skipped)
    (told,) = messages
    assert told.subject == "mayfly waiting: skipped" and "data: not refreshed, $0.01" in told.text

    # A publication without a refresh, and a file that nobody has looked at: a prepare run, too.
    republished(home, "weekly", "night", refresh="", secrets=())
    body = Path("BTC-USD_1m.parquet").read_bytes()
    s3, more = home.access.client("s3"), "raw/main/more.parquet"
    s3.put_object(Bucket=home.outputs.bucket, Key=more, Body=body + b" ")
    looks = begin(home, "night", SUNDAY)
    assert looks.state == "preparing"
    manifest = manifest_of(home, looks.prepare_run_id)
    assert manifest.documents == {"unchecked.json": ["more.parquet"]} and manifest.command.secrets == {}
    ended(home, looks, error=failed, usd=1.0)  # all of the run's budget: 0 would be none
    looks = advance(home, looks)
    assert (looks.state, looks.spent_usd) == ("refused", 1.0)
    assert "nothing is left of the budget of retrain" in str(looks.error)

    # A publication that can't be read any more: what the prepare run cost still counts.
    damaged = begin(home, "night", SUNDAY + 2 * WEEK)
    assert damaged.state == "preparing"
    ended(home, damaged)
    publication = objects.get(key=published_key("night"))
    assert publication is not None
    objects.put(key=published_key("night"), body=b'{"format": 99}')
    damaged = advance(home, damaged)
    assert (damaged.state, damaged.spent_usd) == ("failed", 0.01)
    assert "cannot read what was published" in str(damaged.error)
    objects.put(key=published_key("night"), body=publication.body)

    # Paused while it prepared: no training begins.
    paused = begin(home, "night", SUNDAY + WEEK)
    assert paused.state == "preparing" and mayfly("pause", "night")[0] == 0
    ended(home, paused)
    paused = advance(home, paused)
    assert (paused.state, paused.run_id, paused.spent_usd) == ("skipped", "", 0.01)
    assert "is paused" in str(paused.error)

    # A month that has no money left for the prepare run.
    changed(home, SUNDAY, state="done", spent_usd=0.98)
    spent = begin(home, "weekly", SUNDAY + timedelta(hours=1))
    assert spent.state == "refused" and "month's budget" in str(spent.error)
