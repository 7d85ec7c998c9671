"""`mayfly down`, with a Pulumi CLI that writes down how it was called."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from trainer.aws.access import Access, own_access
from trainer.aws.objects import Objects
from trainer.aws.place import ACCOUNT, REHEARSAL
from trainer.base.instants import utc_now
from trainer.cli.main import main
from trainer.runs.record import RunRecord
from trainer.runs.store import create_record

pytestmark = pytest.mark.slow  # each begins with an account in which runs have been
NEW_RUN = "20261122-120000-crypto-new1"


@pytest.fixture(autouse=True)
def taken_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the embedded AWS for an account: there is nothing to take down in a rehearsal."""
    monkeypatch.setattr("trainer.cli.verbs.down.own_access", lambda: replace(own_access(), place=ACCOUNT))


@pytest.fixture
def pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file in which a fake `pulumi` on PATH notes its folder and arguments; an `exit` beside it is
    its exit code.
    """
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "pulumi"
    end = f'[ ! -e {tmp_path}/exit ] || exit "$(cat {tmp_path}/exit)"'
    fake.write_text(f'#!/bin/sh\necho "$PWD" "$@" >> {tmp_path}/called\necho Destroying\n{end}\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path / "called"


def test_a_stack_without_open_runs_goes_and_its_bucket_stays(
    account: Objects, pulumi: Path, capfd: pytest.CaptureFixture[str]
):
    assert main(["down", "-y", "--json"]) == 0
    folder, *arguments = pulumi.read_text().split()
    assert arguments == ["destroy", "--exclude-protected", "--stack", "dev", "--yes"]
    assert (Path(folder) / "Pulumi.yaml").is_file()
    out, err = capfd.readouterr()
    assert json.loads(out)["stack"] == "dev"
    assert "Destroying" in err
    bucket = json.loads(out)["bucket"]
    assert f"\n  pulumi import --stack dev aws:s3/bucket:Bucket bucket {bucket}\n" in err


def test_an_open_run_keeps_the_stack(
    account: Objects, pulumi: Path, make_record: Callable[..., RunRecord], capsys: pytest.CaptureFixture[str]
):
    create_record(
        account, make_record(run_id=NEW_RUN, created_at=utc_now(), deadline=utc_now() + timedelta(hours=1))
    )
    assert main(["down", "-y"]) == 2
    assert (
        f"run {NEW_RUN} is open (starting)" in (said := capsys.readouterr().err)
        and f"mayfly stop {NEW_RUN}" in said
    )
    assert not pulumi.exists()


def test_a_run_that_cannot_be_read_keeps_the_stack(
    account: Objects, pulumi: Path, capsys: pytest.CaptureFixture[str]
):
    account.put(key=f"runs/{NEW_RUN}/run.json", body=b"{}")
    assert main(["down", "-y"]) == 103
    assert f"cannot tell whether run {NEW_RUN} has ended" in capsys.readouterr().err
    assert not pulumi.exists()


def test_pulumis_failure_is_said_with_the_way_on(
    account: Objects, pulumi: Path, capsys: pytest.CaptureFixture[str]
):
    (pulumi.parent / "exit").write_text("255")
    assert main(["down"]) == 103
    assert "pulumi destroy ended with exit code 255" in (said := capsys.readouterr().err)
    assert "destroy --exclude-protected --stack dev" in said
    assert "--yes" not in pulumi.read_text()


def test_a_rehearsing_shell_is_refused(
    account: Objects, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.undo()
    monkeypatch.setattr("trainer.cli.verbs.down.own_access", lambda: Access(place=REHEARSAL))
    assert main(["down"]) == 2
    assert "mayfly rehearse --stop" in capsys.readouterr().err


def test_without_pulumi_one_line_says_so(
    account: Objects, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["down"]) == 103
    assert "`pulumi`, which removes the stack, is not on PATH" in capsys.readouterr().err
