"""The documentation's commands are ones that work: each is parsed, its job is made, each launch is dry-run.

tests/end_to_end/test_docs.py carries out the quick start and the page on retrains.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from scripts.reference import PART
from scripts.screens import SAMPLES
from tests import pages
from tests.golden.test_help import COMMANDS
from tests.nightly import others_nightly
from tests.pages import PAGES, ROOT, Command, all_commands, block_of, shell_lines
from tests.sessions import forget_sessions, sign_in
from trainer.aws.access import Access
from trainer.aws.place import ACCOUNT, REHEARSAL
from trainer.base.errors import UsageError
from trainer.cli.asked_job import asked_job
from trainer.cli.defaults import read_defaults
from trainer.cli.main import _before_command, main
from trainer.cli.parser import build_parser
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles
from trainer.job.reading import parse_job
from trainer.machines.chips import profiles
from trainer.rehearsal.server import EmbeddedAws
from trainer.retrains.schedule import read_schedules
from trainer.train.__main__ import _job
from trainer.train.__main__ import parser as train_parser
from trainer.train.observing.events import line_of

# Commands that are parsed here and not dry-run, by their verb; those of the first three have jobs, which are made.
NO_DRY_RUN = {
    "train": "it has no dry run: tests/end_to_end/test_docs.py",
    "agent": "it has no dry run: tests/end_to_end/test_here.py",
    "retrains": "it needs a schedule: tests/end_to_end/test_docs.py",
    "data": "it launches nothing: tests/trainer/cli/verbs/test_data_sync.py",
    "attach": "it needs a machine: tests/trainer/cli/verbs/test_attach.py",
    "backup": "it needs a bucket and a folder: tests/trainer/cli/verbs/test_backup.py",
    "doctor": "it checks an account: tests/trainer/cli/verbs/test_doctor.py",
    "down": "it removes a stack: tests/trainer/cli/verbs/test_down.py",
    "models": "it needs models: tests/trainer/cli/test_launcher_policy.py",
    "plan": "it needs no account: tests/trainer/cli/verbs/test_plan_verb.py",
    "profiles": "it measures this machine: tests/trainer/cli/verbs/test_profiles.py",
    "rehearse": "it ends a server: tests/trainer/cli/verbs/test_rehearse.py",
    **dict.fromkeys(
        ("status", "logs", "stop", "receipts", "pull", "predict"),
        "it needs a run: tests/end_to_end/test_docs.py",
    ),
}
# Jobs whose packages come from an index; test_script_examples.py and test_agents_sb3.py in end_to_end run them.
NO_INDEX = {
    "examples/agents-sb3/job.toml",
    "examples/scripts/lightning/job.toml",
    "examples/scripts/huggingface/job.toml",
}
FIRST_PAGES = (
    "README.md",
    "docs/quick-start.md",
)  # whose launches make test plans, too: two core-seconds each
LANGUAGES = {"", "toml", "yaml", "json", "python", "text"}
PROGRAM = re.compile(  # the last continues docker's line
    r"\.|aws|bash|docker|eval|export|make|mayfly|mkdir|printf|pulumi|(\.venv/bin/)?python|read|rsync|ssh|unset|-e"
)
EXAMPLES = "docs/data.md"  # tests/trainer/data/test_shapes.py reads each
MEASURED = re.compile(r"\$\d|\d%|\d\.\d")  # what a run or a clock produced
HERE = {"VERB": "launch", "...": "candles", "PATH": "candles", "FILE": "candles", "BUCKET": "theirs"}


def typed(command: Command) -> Command:
    """Return a command with a name in the place of each word in capitals."""
    words = tuple(HERE.get(word, word) for word in command.words)
    kind = "points" if "--script" in words else "candles"
    return replace(command, words=tuple(re.sub("BUCKET/PREFIX", f"theirs/{kind}", word) for word in words))


ALL = [
    typed(command)
    for command in all_commands()
    if command.program != "mayfly" or command.words not in COMMANDS
]
LAUNCHES = [command for command in ALL if command.verb == "launch" and "--help" not in command.words]


def parsed(command: Command) -> argparse.Namespace:
    """Return a command's arguments by its own parser."""
    if command.verb == "train":
        return train_parser(command.program).parse_args(command.arguments)
    words, _ = _before_command(list(command.words))
    return build_parser(command.program).parse_args(words)


# --- blocks


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_block_without_a_language_holds_commands_alone(page: Path) -> None:
    text = page.read_text("utf-8")
    assert {language for _, language, _ in pages.FENCE.findall(text)} <= LANGUAGES
    for line in shell_lines(text):
        first = line.split()[0] if line else "#"
        assert PROGRAM.fullmatch(first) or first.startswith("#") or (ROOT / first).is_file(), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_child_shell_moves_no_later_command(page: Path) -> None:
    """The folder of `bash -c '... cd FOLDER'` ends with it: .venv/ of a later line is not in FOLDER."""
    blocks = [block for _, language, block in pages.FENCE.findall(page.read_text("utf-8")) if not language]
    for block in blocks:
        moved = re.search(r"^bash -c '[^'\n]*\bcd ", block, re.MULTILINE)
        assert moved is None or not re.search(r"^\.venv/", block[moved.end() :], re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_sample_with_numbers_is_made_by_the_script(page: Path) -> None:
    name, text = page.relative_to(ROOT).as_posix(), page.read_text("utf-8")
    parts = {title for title, _, _ in PART.findall(text)}
    made = {title for title, (place, _) in SAMPLES.items() if place == name}
    assert made <= parts
    drawn = [block for _, kind, block in pages.FENCE.findall(PART.sub("", text)) if kind == "text"]
    assert name == EXAMPLES or not any(MEASURED.search(block) for block in drawn)


def test_the_sample_of_ranks_has_the_form_that_is_printed_now() -> None:
    """Else, run scripts/screens --samples."""
    place = {"piece": "sp500", "epoch": 1, "epochs": 1, "step": 246, "steps": 270, "loss": 1.2}
    rate = {"rate": 17_244.0, "unit": "windows", "learning_rate": 1e-5, "memory_gib": 0.8, "eta_seconds": 3.0}
    printed = line_of({"event": "progress", **place, **rate})
    shown = block_of("docs/training.md", "text", "sp500").splitlines()[1]
    assert re.sub(r"[\d.,]+", "0", shown) == re.sub(r"[\d.,]+", "0", printed)


# --- commands


@pytest.mark.parametrize("command", ALL, ids=str)
def test_a_command_of_the_docs_is_one_that_its_parser_takes(command: Command) -> None:
    try:
        parsed(command)
    except SystemExit as printed:  # --help
        assert printed.code == 0
    except UsageError as refused:  # the text names a flag, not its value
        assert f"argument {command.words[-1]}: expected one argument" in str(refused)
    assert command.verb == "launch" or command.verb in NO_DRY_RUN, "say why it is not dry-run"


def test_each_reason_names_a_test_that_is_there() -> None:
    for reason in NO_DRY_RUN.values():
        assert (ROOT / reason.rpartition(" ")[2]).is_file(), reason
    assert {command.verb for command in ALL} >= {"train", "agent", "retrains", "status", "predict"}


def test_names_of_commands_in_the_text_are_names_of_verbs() -> None:
    assert len([command for command in all_commands() if command.words in COMMANDS]) > 20
    with pytest.raises(UsageError):
        parsed(Command("", "mayfly", ("lunch",)))


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the pages have a reader make one: a job, a script, a model and a target of one's own."""
    desk = tmp_path / "mayfly"
    shutil.copytree(ROOT / "examples", desk / "examples")
    shutil.copytree(ROOT / "examples/scripts/plain-torch", desk, dirs_exist_ok=True)
    (desk / "job.toml").write_text(block_of("docs/quick-start.md", "toml", 'set = "main"'))
    (desk / "my_target.py").write_text(block_of("docs/models.md", "python", "my_target.py"))
    (desk / "my_net.py").write_text(block_of("docs/models.md", "python", "my_net.py"))
    shutil.copy(desk / "train.py", desk / "go.py")
    monkeypatch.chdir(desk)
    monkeypatch.setenv("MAYFLY_HOME", str(tmp_path / "home"))
    return desk


@pytest.fixture
def candles(newcomer: Path) -> None:
    """Candles in the newcomer's folder, and a panel where that of an example is."""
    (newcomer / "candles").mkdir()
    for symbol in ("BTC-USD", "SPY"):
        bars = synthetic_candles(symbol, bars=9_000, timeframe="1h")
        write_candles(newcomer / "candles" / f"{symbol}_1h.parquet", [bars], synthetic=True)
    panel = newcomer.parent / "shared/data/raw/SP500_1d_2012-2018.parquet"
    panel.parent.mkdir(parents=True)
    series = [synthetic_candles(symbol, bars=1_200, timeframe="1d") for symbol in "ABCDEFGH"]
    write_candles(panel, series, synthetic=True)


@pytest.mark.parametrize(
    "command", [one for one in ALL if one.verb in ("train", "agent") or "--job" in one.words], ids=str
)
def test_a_job_of_the_docs_is_one(command: Command, newcomer: Path) -> None:
    options = parsed(command)
    if command.verb in ("retrains", "profiles"):
        options = build_parser().parse_args(["launch", "--job", options.job])
    job = _job(options) if command.verb == "train" else asked_job(options, script_duration="12h")
    assert job.name


@pytest.mark.parametrize(
    "page", [page for page in PAGES if re.search("```(toml|yaml|json)", page.read_text("utf-8"))]
)
def test_jobs_profiles_and_schedules_in_the_text_are_taken(
    page: Path, newcomer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _, language, text in pages.FENCE.findall(page.read_text("utf-8")):
        if language == "toml" and page.name == "training.md" and not text.startswith("[search]"):
            (newcomer / "profiles.toml").write_text(text)
            monkeypatch.setenv("MAYFLY_PROFILES", str(newcomer / "profiles.toml"))
            assert profiles().keys() >= tomllib.loads(text).keys()
        elif language == "toml" and text.startswith("[flags]"):
            monkeypatch.setenv("XDG_CONFIG_HOME", str(newcomer))
            (newcomer / "mayfly").mkdir()
            (newcomer / "mayfly" / "defaults.toml").write_text(text)
            assert read_defaults().keys() == tomllib.loads(text).keys()
        elif language == "toml":
            parse_job(tomllib.loads(text), {}, (), script_duration="12h")
        elif language == "json":
            assert json.loads(text)
        elif language == "yaml":
            assert read_schedules(yaml.safe_load(text)["config"]["mayfly:retrains"])


@pytest.fixture(scope="module")
def used(aws_server: EmbeddedAws, tmp_path_factory: pytest.TempPathFactory) -> Access:
    """An account with the stack, in which somebody has uploaded a data set, and others have a bucket."""
    return made_account(aws_server, tmp_path_factory.mktemp("candles"))


@pytest.fixture(scope="module")
def clustered(aws_server: EmbeddedAws, tmp_path_factory: pytest.TempPathFactory) -> Access:
    """The same, whose machines reach one another."""
    return made_account(aws_server, tmp_path_factory.mktemp("candles"), {"cluster": "true"}, theirs="theirs2")


def made_account(
    aws_server: EmbeddedAws, folder: Path, config: dict[str, str] | None = None, theirs: str = "theirs"
) -> Access:
    access = aws_server.account()
    bucket = aws_server.apply_program(access, config)["bucket"]
    s3 = access.client("s3")
    s3.create_bucket(Bucket=theirs)
    s3.put_object(Bucket=theirs, Key="points/points.csv", Body=b"x,y,side\n0,1,0\n")
    for symbol in ("BTC-USD", "ETH-USD", "SOL-USD"):
        file = folder / f"{symbol}_1m.parquet"
        write_candles(file, [synthetic_candles(symbol, bars=3_000)], synthetic=True)
        for place, prefix in ((bucket, "raw/main"), (theirs, "candles")):
            s3.put_object(Bucket=place, Key=f"{prefix}/{file.name}", Body=file.read_bytes())
    return access


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    others_nightly(
        (one for one in LAUNCHES if not NO_INDEX & set(one.words)), lambda one: one.page in FIRST_PAGES
    ),
    ids=str,
)
def test_a_launch_of_the_docs_has_a_plan(
    command: Command,
    candles: None,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    desk_python: Path,
) -> None:
    if "track=mlflow" in command.words:
        pytest.importorskip("mlflow")
    nodes = any(word.startswith("machine.nodes=") for word in command.words)
    used = request.getfixturevalue("clustered" if nodes else "used")
    place = REHEARSAL if "--rehearse" in command.words else ACCOUNT

    @contextmanager
    def connected(**_: bool) -> Iterator[Access]:
        yield replace(used, place=place)

    monkeypatch.setattr("trainer.cli.verbs.launch.connected", connected)
    monkeypatch.setattr(sys, "executable", str(desk_python))  # its data checks are forks
    sign_in(used, monkeypatch)
    more = [] if "--dry-run" in command.words else ["--dry-run"]
    words = command.arguments
    if "--resume" in words:  # nothing has ended here: the plan of the job itself
        del words[(at := words.index("--resume")) : at + 2]
    code = main(["launch", *words, *more])
    told = capsys.readouterr()
    assert code == 0, told.err
    assert "dry run: nothing was uploaded" in told.out
    forget_sessions()
