"""Errors as a reader sees them, in errors.txt: what commands print, and what is raised past every handler.

Errors of which a room's own test holds the words are not repeated here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from botocore import exceptions as aws

from tests.candles import fewest
from trainer.aws.access import aws_error
from trainer.aws.error_codes import ROWS
from trainer.base.errors import TrainerError
from trainer.cli.main import main
from trainer.control.progress import Step, abandoned
from trainer.launch.inputs import Input, choose
from trainer.rehearsal.pulumi_apply import settings
from trainer.runs.launching import refusal
from trainer.runs.observation import Observation
from trainer.runs.record import RunRecord
from trainer.runs.store import read_record

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
    f"{SCRIPT} train.py --set script.python=3",
    f"{SCRIPT} train.py --set script.over=values.csv",
    "launch --max-duration 0m",
    "launch --model gru",
    "launch --set name='No Name'",
    "launch --set train.batch=-2",
)
FILES = {"broken.toml": "", "AAA_1m.csv": "", "train.py": "", "values.csv": "a,b\n1\n"}
PROFILES = ("= 3", "[t4]\nmemory_gib = 'a'\n")


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


def unchecked() -> None:
    file = Input(key="raw/a", version_id="v", sha256="", bytes=1)
    choose([file], symbols=(), timeframe="", too_few=fewest(9))


RAISED: tuple[Callable[[RunRecord], object], ...] = (  # that no short command comes to
    lambda _: unchecked(),
    lambda _: read_record(Nothing(), RUN[:-1] + "8"),  # type: ignore[arg-type]
    lambda _: raise_(aws_error(aws.ProfileNotFound(profile="mine"), "cannot sign in to AWS")),
    lambda run: raise_(
        abandoned(Step(record=run, observed=Observation(), actions=(), moved=False), NOON, requested=True)
    ),
    lambda _: settings(ROOT, stack="dev", overrides={"mayfly:onwer": "me"}),
    lambda _: settings(ROOT, stack="dev", overrides={"onwer": "me"}),
)


def raise_(error: TrainerError) -> None:
    raise error


def printed(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command that is refused prints: a line on stderr, or with --json a document on stdout."""
    assert main(list(words)) > 0
    out, err = capsys.readouterr()
    assert bool(out) == ("--json" in words), words
    return (out + err).rstrip("\n")


def test_errors_as_a_reader_sees_them(
    golden: Callable[[str, str], None],
    make_record: Callable[..., RunRecord],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in FILES.items():
        write(name, text)
    lines = [printed(shlex.split(words), capsys) for words in COMMANDS]
    for text in PROFILES:
        monkeypatch.setenv("MAYFLY_PROFILES", str(write("gpu_profiles.toml", text)))
        lines.append(printed(["profiles"], capsys))
    for make in RAISED:
        with pytest.raises(TrainerError) as raised:
            make(make_record())
        lines.append(f"error: {raised.value}")
    golden("errors", "\n".join(lines))


def test_every_aws_code_has_its_error_and_next_step(
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
        "launch --spot --on-demand --set machine.queue_timeout=13h",
    ):
        for extra in ([], ["--json"]):
            code = main([*words.split(), *extra])
            printed = capsys.readouterr()
            said.append(
                f"$ mayfly {' '.join([*words.split(), *extra])}   # {code}\n{printed.out}{printed.err}"
            )
    golden("errors-as-printed", "\n".join(said))
