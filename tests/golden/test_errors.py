"""Errors as a reader sees them, in errors.txt: made by commands and by calling the code with bad input.

Errors of which a room's own test holds the words are not repeated here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import torch
from botocore import exceptions as aws

from tests.candles import fewest
from tests.jobs import job_of
from trainer.aws.access import aws_error
from trainer.aws.error_codes import ROWS
from trainer.bars.check import main as check_main
from trainer.base.errors import TrainerError
from trainer.cli.main import main
from trainer.control.progress import Step, abandoned
from trainer.job.job import job_from
from trainer.job.machine import parse_duration
from trainer.job.script_values import read_rows
from trainer.launch.inputs import Input, choose
from trainer.machines.chips import profiles
from trainer.rehearsal.pulumi_apply import settings
from trainer.runs.launching import refusal
from trainer.runs.observation import Observation
from trainer.runs.record import RunRecord
from trainer.runs.store import read_record
from trainer.train.workers.devices import device_kind

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
RUN = "20261120-120000-crypto-k3v9"
SCRIPT = "launch --rehearse --instance g6.xlarge --max-duration 2h --script"
COMMANDS = (
    "profiles bench --set train.batch=4",
    "profiles bench --price -1",
    "profiles bench --bars -1",
    f"logs {RUN} --tail -1",
    f"logs {RUN} --follow --json",
    f"status {RUN} --follow --json",
    f"attach {RUN} --forward tensorboard",
    f"attach {RUN} --forward 8888:8888 -- nvidia-smi",
    "predict broken.toml --data AAA_1m.csv",
    "profiles tune --seconds 0",
    "launch --set epochs",
    "launch --job nowhere.toml",
    f"{SCRIPT} nowhere.py",
    f"{SCRIPT} train.py --data nowhere",
    f"{SCRIPT} train.py --set script.files=x.py",
)


class Nothing:
    """A bucket with one run, whose objects are gone."""

    def get(self, *, key: str, version_id: str = "") -> None:
        return None

    def folders(self, *, prefix: str) -> list[str]:
        return [RUN]


def write(name: str, text: str) -> Path:
    path = Path.cwd() / name
    path.write_text(text, encoding="utf-8")
    return path


def user_profiles(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAYFLY_PROFILES", str(write("gpu_profiles.toml", text)))
        profiles()


def unchecked() -> None:
    file = Input(key="raw/a", version_id="v", sha256="", bytes=1)
    choose([file], symbols=(), timeframe="", too_few=fewest(9))


MAKERS: tuple[Callable[[RunRecord], object], ...] = (
    lambda _: parse_duration("0m"),
    lambda _: job_of(model="gru"),
    lambda _: job_of(name="No Name"),
    lambda _: job_of(batch=-2),
    lambda _: check_main(["--data", "nowhere", "--job", str(write("job.json", "no json"))]),
    lambda _: job_from({"script": {"command": "a", "python": "3"}}),
    lambda _: read_rows(write("values.csv", "a,b\n1\n")),
    lambda _: user_profiles("= 3"),
    lambda _: user_profiles("[t4]\nmemory_gib = 'a'\n"),
    lambda _: None if torch.cuda.is_available() else device_kind("cuda"),
    lambda _: unchecked(),
    lambda _: read_record(Nothing(), RUN[:-1] + "8"),  # type: ignore[arg-type]
    lambda _: aws_error(aws.ProfileNotFound(profile="mine"), "cannot sign in to AWS"),
    lambda run: abandoned(
        Step(record=run, observed=Observation(), actions=(), moved=False), NOON, requested=True
    ),
    lambda _: settings(ROOT, stack="dev", overrides={"mayfly:onwer": "me"}),
    lambda _: settings(ROOT, stack="dev", overrides={"onwer": "me"}),
)


@pytest.fixture
def first_errors(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[str]]:
    """Return a function that returns the errors that a call makes, of a user without credentials."""
    errors: list[TrainerError] = []
    begin = TrainerError.__init__

    def note(self: TrainerError, *arguments: Any, **words: Any) -> None:
        begin(self, *arguments, **words)
        errors.append(self)

    def made_by(call: Callable[[], object]) -> list[str]:
        errors.clear()
        with suppress(TrainerError):
            call()
        return list(dict.fromkeys(f"error: {error}" for error in errors))

    monkeypatch.setattr(TrainerError, "__init__", note)
    return made_by


def test_errors_as_a_reader_sees_them(
    first_errors: Any, golden: Callable[[str, str], None], make_record: Callable[..., RunRecord]
) -> None:
    for name in ("broken.toml", "AAA_1m.csv", "train.py"):
        write(name, "")
    record = make_record()
    calls: list[Callable[[], object]] = [lambda words=words: main(words.split()) for words in COMMANDS]
    calls += [lambda make=make: make(record) for make in MAKERS]
    golden("errors", "\n".join(line for call in calls for line in first_errors(call)))


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
