"""A refresh, under its node's own role: what a user's script may add, and what a bad one brings."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.iam import assert_allowed_is_needed
from tests.jobs import job_of
from tests.manifests import manifest
from tests.nodes import node, silence_of
from tests.prepare_runs import FIRST, SECRET, PreparedStack, prepared, unpacked
from tests.processes import alive
from trainer.aws.objects import open_objects
from trainer.bars import check
from trainer.base import code_files
from trainer.base.errors import ConfigError, DataError, TrainerError, TrainingFailed
from trainer.control.takeover import take_over
from trainer.data.fetch.fetching import Fetch, FetchRequest
from trainer.data.fetch.folder import fetched_files
from trainer.data.fetch.sources import open_source
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles
from trainer.data.timeframes import SECOND
from trainer.launch.inputs import list_inputs
from trainer.launch.tasks import refresh_task
from trainer.node import command, refresh, report, stack_secrets
from trainer.node.agent import fetch_manifest
from trainer.node.command import run_command
from trainer.node.shared import Node
from trainer.rehearsal.server import EmbeddedAws
from trainer.runs.reports import read_result
from trainer.runs.store import stop_key

__all__ = ["node", "prepared", "silence_of"]  # fixtures

HEADER = "timestamp,symbol,open,high,low,close,volume"


@dataclass(kw_only=True)
class Refreshed:
    """A refresh of a set of one file, in this process."""

    folder: Path
    unchecked: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    refresh: str = ""  # in place of a script
    columns: list[str] = field(default_factory=list)  # of the job

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def run(self, source: str = "") -> int:
        """Refresh the set with a script, '' for none; return the exit code."""
        script = self.folder / "fetch.py"
        script.write_text(f"import os, sys, pathlib\nfolder = pathlib.Path(sys.argv[1])\n{source}\n")
        data = {"refresh": "fetch.py" if source else self.refresh, "secrets": ["API_KEY"]}
        job = json.dumps({"data": {**data, "columns": self.columns}})
        (self.folder / "given" / "job.json").write_text(job)
        (self.folder / "given" / "unchecked.json").write_text(json.dumps(self.unchecked))
        names = ("data", "out", "events", "given")
        code = refresh.main([word for name in names for word in (f"--{name}", str(self.folder / name))])
        lines = (self.folder / "events" / "events.jsonl").read_text().splitlines()
        self.events = [json.loads(line) for line in lines]
        return code

    @property
    def announced(self) -> dict[str, bool]:
        """Return the files that it announced, and whether each is new."""
        return {event["file"]: event["added"] for event in self.events if event["event"] == "file"}

    @property
    def error(self) -> str:
        """Return its error as people read it."""
        (told,) = [event for event in self.events if event["event"] == "error"]
        assert told["code"] == 100
        return str(TrainerError(told["what"], why=told["why"], do=told["do"]))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refreshed:
    for name in ("data", "out", "events", "given"):
        (tmp_path / name).mkdir()
    write_candles(tmp_path / "data" / FIRST, [synthetic_candles("BTC-USD", bars=100)], synthetic=True)
    monkeypatch.setattr(refresh, "in_bundle", lambda name: tmp_path / f"{name}.py")
    monkeypatch.setenv("API_KEY", SECRET)
    return Refreshed(folder=tmp_path)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data check without a process of its own; a whole run below has one."""
    questions = {"--describe": check.describe, "--joined": check.join}

    def asked(
        out: Path, folder: Path, question: str, secrets: list[str], columns: Sequence[str] = ()
    ) -> dict[str, Any]:
        try:
            return questions[question](folder, columns=columns)
        except TrainerError as error:
            return {"error": error.as_dict()}

    monkeypatch.setattr(refresh, "_check", asked)


BARS = "".join(f"2024-02-01 00:{minute:02},BTC-USD,1,2,1,1,1\n" for minute in range(50))


@pytest.mark.usefixtures("in_process")
def test_a_refresh_script_gets_files_and_secrets_and_adds_files(run: Refreshed) -> None:
    source = f"""
assert folder.is_dir() and os.listdir() == [{FIRST!r}] and pathlib.Path.cwd() == folder
assert os.environ["API_KEY"] == {SECRET!r}
(folder / "new.csv").write_text({f"{HEADER}{chr(10)}{BARS}"!r})
(folder / ".cache").write_text("its own affair")
(folder / "scratch").mkdir()
"""
    assert run.run(source) == 0 and run.announced == {"new.csv": True}
    (told,) = [event for event in run.events if event["event"] == "file"]
    assert (run.folder / "out/files/new.csv").samefile(run.data / "new.csv")
    entry = json.loads((run.folder / f"out/index/{told['sha256']}.json").read_text())
    assert (entry["file"], entry["holds"][0]["bars"]) == ("new.csv", 50)


@pytest.mark.usefixtures("in_process")
def test_new_files_are_read_as_the_jobs_columns_say(run: Refreshed, caplog: pytest.LogCaptureFixture) -> None:
    """Their bars, and whether they agree with the set's: without `time=at:s` they have no time."""
    (run.data / FIRST).unlink()
    run.columns = ["time=at:s"]
    rows = "".join(f"{1_706_745_600 + 60 * bar},BTC-USD,1,2,1,1,1\n" for bar in range(50))
    text = f"{HEADER.replace('timestamp', 'at')}\n{rows}"
    assert run.run(f"(folder / 'new.csv').write_text({text!r})") == 0
    assert run.announced == {"new.csv": True} and "not compared" not in caplog.text


@pytest.mark.usefixtures("in_process")
def test_new_bars_are_compared_in_a_set_of_several_timeframes(run: Refreshed) -> None:
    hours = "".join(f"2024-02-01 {hour:02}:00,BTC-USD,1,2,1,1,1\n" for hour in range(24))
    (run.data / "BTC-USD_1h.csv").write_text(f"{HEADER}\n{hours}")
    (run.data / "BTC-USD_1m_a.csv").write_text(f"{HEADER}\n{BARS}")
    other = BARS.replace("1,2,1,1,1", "1,3,1,1,1")
    source = f"(folder / 'BTC-USD_1m_b.csv').write_text({f'{HEADER}{chr(10)}{other}'!r})"
    assert run.run(source) == 100
    assert "which disagrees with the set" in run.error and "50 bars differ" in run.error


@pytest.mark.usefixtures("in_process")
def test_a_refresh_adds_new_values_of_a_side_series(run: Refreshed) -> None:
    (run.data / "fear.side.csv").write_text("time,value\n2024-01-31,20\n2024-02-01,70\n")
    new, other = "time,value\n2024-02-01,70\n2024-02-02,30\n", "time,value\n2024-02-01,71\n"
    source = "(folder / 'fear.side.2024-02.csv').write_text({!r})"
    assert run.run(source.format(new)) == 0 and run.announced == {"fear.side.2024-02.csv": True}
    (told,) = [event for event in run.events if event["event"] == "file"]
    entry = json.loads((run.folder / f"out/index/{told['sha256']}.json").read_text())
    assert (entry["further"], entry["holds"]) == (["value"], [])
    (run.data / "fear.side.2024-02.csv").unlink()
    for name in ("out", "given"):
        shutil.rmtree(run.folder / name)
        (run.folder / name).mkdir()
    assert run.run(source.format(other)) == 100
    assert "which disagrees with the set" in run.error and "contradicts itself" in run.error


@pytest.mark.usefixtures("in_process")
def test_a_restarted_refresh_begins_with_the_set_as_it_was(run: Refreshed) -> None:
    class Ended(BaseException):
        """A signal that ends the refresh after its script."""

    def ended(out: Path, *_: Any) -> Any:
        (out / "new").mkdir()
        raise Ended

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Ended):
        patch.setattr(refresh, "describe", ended)
        run.run("(folder / 'half.csv').write_text('timesta'); (folder / 'scratch').mkdir()")
    new = f"{HEADER}\n{BARS}"
    fetch = f"assert os.listdir() == [{FIRST!r}]\n(folder / 'new.csv').write_text({new!r})"
    assert run.run(fetch) == 0 and run.announced == {"new.csv": True}


def test_the_scripts_group_is_killed_before_it_is_reaped(
    run: Refreshed, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, killpg = [], os.killpg

    def look_first(pid: int, number: int) -> None:
        killed.append(
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        )  # ChildProcessError once it is collected
        killpg(pid, number)

    monkeypatch.setattr(os, "killpg", look_first)
    assert run.run("pass") == 0 and run.announced == {}
    assert len(killed) == 1 and killed[0] is not None


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("raise ValueError", 1),
        ("sys.exit(3)", 3),
        ("sys.exit(200)", 200),
        ("os.kill(os.getpid(), 9)", 128 + 9),
    ],
)
def test_a_script_that_fails_is_the_refreshs_exit_code(run: Refreshed, source: str, code: int) -> None:
    assert run.run(f"(folder / 'new.csv').write_text('x'); {source}") == code
    assert run.announced == {} and not [event for event in run.events if event["event"] == "error"]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("(folder / 'a.csv').symlink_to('/etc/passwd')", "it is not a plain file"),
        ("os.mkfifo(folder / 'a.csv')", "it is not a plain file"),
        ("(folder / 'a.csv').touch()", "it is empty"),
        ("(folder / 'a\\tb.csv').write_text('x')", "printable"),
        (f"(folder / {FIRST!r}).write_text('other bars')", "a data set keeps each file as it is"),
        (
            f"(folder / {FIRST!r}).unlink(); (folder / {FIRST!r}).symlink_to('/etc/passwd')",
            "keeps each file as it is",
        ),
        (f"(folder / {FIRST!r}).unlink()", "removed "),
        ("[(folder / f'{n}.csv').write_text('x') for n in range(1001)]", "1,000 files"),
        ("os.truncate(os.open(folder / 'a.csv', os.O_CREAT | os.O_WRONLY), 3 << 30)", "2 GiB are the most"),
    ],
)
def test_a_file_that_no_set_takes_is_one_line(run: Refreshed, source: str, why: str) -> None:
    assert run.run(source) == 100
    assert re.search(why, run.error) and "\n" not in run.error and run.announced == {}


def test_a_stop_ends_the_script_and_what_it_forked(run: Refreshed) -> None:
    stop = "import signal; os.kill(os.getppid(), signal.SIGTERM); os.fork(); os.pause()"
    assert run.run(stop.replace("os.pause()", "signal.pause()")) == 130


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("a.parquet", "no parquet", r"added a\.parquet \(a\.parquet is not parquet"),
        ("a.json", "{}", r"added a\.json \(a\.json is not a table of candles\)"),
        ("a.csv", "x,y\n1,2\n", r"added a\.csv \("),
        (
            "a.csv",
            (
                f"{HEADER}\n2024-01-01 00:00,../../retrains,1,2,1,1,1\n2024-01-01"
                " 00:01,../../retrains,1,2,1,1,1\n"
            ),
            r"\.\./",
        ),
        (
            "BTC-USD_1m_2.csv",
            f"{HEADER}\n2024-01-01 00:00,BTC-USD,1,2,1,1,1\n2024-01-01 00:01,BTC-USD,1,2,1,1,1\n",
            r"disagrees with the set \(",
        ),
    ],
)
def test_a_file_that_no_training_could_read_fails_the_refresh(
    run: Refreshed, file: str, content: str, why: str
) -> None:
    assert run.run(f"(folder / {file!r}).write_text({content!r})") == 100
    assert re.search(why, run.error) and run.announced == {}


@pytest.mark.usefixtures("in_process")
def test_an_unreadable_file_of_the_set_is_left_out(run: Refreshed) -> None:
    (run.data / "broken.parquet").write_text("no parquet")
    run.unchecked = ["broken.parquet", FIRST]
    assert run.run() == 0 and run.announced == {FIRST: False}


def test_the_check_is_a_process_without_the_jobs_secrets(run: Refreshed) -> None:
    run.unchecked = [FIRST]
    assert run.run() == 0 and run.announced == {FIRST: False}
    asked = {"args": [], "returncode": 1, "stdout": b"", "stderr": b"Traceback\nMemoryError\n"}

    def seen(*_: Any, env: dict[str, str], **__: Any) -> Any:
        assert "API_KEY" not in env and "PATH" in env
        return SimpleNamespace(**asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refresh.subprocess, "run", seen)
        with pytest.raises(DataError, match=r"the candles can't be checked \(MemoryError\)"):
            refresh._check(run.folder / "out", run.data, "--describe", ["API_KEY"], [])


def refreshed(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, **changed: Any
) -> None:
    """Refresh an empty set as the node's command, in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "bundle"))
    job = job_of(refresh=unpacked(tmp_path / "bundle", source), secrets=("API_KEY",))
    task = refresh_task(cast(Any, SimpleNamespace(project="mayfly", stack="dev")), job, ())
    monkeypatch.setattr(command, "read_secrets", lambda *_: {"API_KEY": SECRET})
    by = {"documents": dict(task.documents), "pieces": (), "job": job.to_dict()}
    run_command(node, manifest(command=replace(task.command, **changed), **by))


def test_a_failed_refresh_says_why_without_its_secret(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = "import os\nprint('the key is', os.environ['API_KEY'])\nraise ValueError(os.environ['API_KEY'])"
    why = r"the refresh script ended with exit code 1 \(ValueError: \[API_KEY\]\)"
    with caplog.at_level(logging.INFO), pytest.raises(TrainingFailed, match=why):
        refreshed(node, tmp_path, monkeypatch, source)
    assert "| the key is [API_KEY]" in caplog.text and SECRET not in caplog.text
    assert SECRET not in (node.work / "events/events.jsonl").read_text()


def test_a_file_that_cant_be_used_is_an_event(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("data", "out", "events", "given")}
    words = [word for name, path in folders.items() for word in (f"--{name}", str(path))]
    assert refresh.main(words) == 100
    (event,) = [json.loads(line) for line in (tmp_path / "events" / "events.jsonl").read_text().splitlines()]
    assert (event["event"], event["what"]) == ("error", f"cannot use {tmp_path}/given/job.json")


def test_an_error_of_the_refresh_is_the_runs(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import os, pathlib\npathlib.Path(os.environ['API_KEY'] + '.csv').touch()"
    with pytest.raises(
        TrainingFailed, match=r"added '\[API_KEY\].csv' \(it is empty\)\. Read the log of the prepare run"
    ):
        refreshed(node, tmp_path, monkeypatch, source)


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stopped_refresh_is_restarted_on_the_set_as_it_was(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silence_of: Any
) -> None:
    new, again = f"{HEADER}\n{BARS}", tmp_path / "again"
    source = f"""
import pathlib, sys, time
folder, again = pathlib.Path(sys.argv[1]), pathlib.Path({str(again)!r})
print("fetching", flush=True)
if again.exists():
    (folder / "new.csv").write_text({new!r})
else:
    (folder / "half.csv").write_text("timesta")
    again.touch()
    time.sleep(1000)
"""
    stopped = silence_of(lambda before: not before and again.exists())
    refreshed(node, tmp_path, monkeypatch, source)
    assert len(stopped) == 1 and not alive(stopped[0])
    assert [entry["file"] for entry in node.status.files] == ["new.csv"]


ADDS = f"""
import os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
assert os.environ["API_KEY"] == "{SECRET}" and (folder / "{FIRST}").stat().st_size
lines = [f"2024-02-01 00:{{minute:02}},BTC-USD,1,2,1,1,1" for minute in range(50)]
(folder / "BTC-USD_1m_february.csv").write_text("\\n".join(["{HEADER}", *lines]))
"""


@pytest.mark.nightly
def test_a_prepare_runs_role_is_enough_and_no_more(
    aws_server: EmbeddedAws, prepared: Callable[[str], PreparedStack], caplog: pytest.LogCaptureFixture
) -> None:
    run = prepared(ADDS)
    bucket = run.outputs.bucket
    run.access.client("s3").put_object(Bucket=bucket, Key="code/x.whl", Body=b"")
    run.node.uplink.s3.get_object(Bucket=bucket, Key="code/x.whl")  # bootstrap.sh does
    assert not run.node.uplink.exists(stop_key("r1", 1))  # the agent asks
    with caplog.at_level(logging.INFO):
        run_command(run.node, fetch_manifest(run.node))
    status = run.node.status
    value = report.result(status, ended=("done", 0, None), unfinished="", python_packages="")
    run.node.uplink.send(status.identity.keys.result, json.dumps(value).encode(), patience_seconds=0)
    assert run.node.uplink.try_send(status.identity.keys.lease, b"{}")

    role = f"mayfly-dev-{run.outputs.region}-prepare"
    policy = run.access.client("iam").get_role_policy(RoleName=role, PolicyName="prepare")["PolicyDocument"]
    decided = [(asked, by) for who, asked, by in aws_server.cloud(run.access).decisions if who.role == role]
    assert_allowed_is_needed(decided, policy, {})

    result = read_result(json.dumps(value).encode(), models_prefix=status.identity.keys.models)
    assert [(item["file"], item["added"]) for item in result.files] == [
        (FIRST, False),
        ("BTC-USD_1m_february.csv", True),
    ]
    objects = open_objects(run.access, run.outputs.bucket)
    assert take_over(objects, run.record, {"files": result.files}) == "1 new file, 50 bars, 1 checked"
    inputs = list_inputs(objects, "main")
    assert [(item.key, item.summary["holds"][0]["bars"]) for item in inputs] == [
        (f"raw/main/{FIRST}", 100),
        ("raw/main/BTC-USD_1m_february.csv", 50),
    ]


def test_a_secret_that_is_not_set_says_how_to_set_it(prepared: Callable[[str], PreparedStack]) -> None:
    run = prepared(ADDS)
    with pytest.raises(
        ConfigError, match="aws ssm put-parameter --type SecureString --name /mayfly/mayfly/dev/secrets/OTHER"
    ):
        stack_secrets.read_secrets(run.node, {"OTHER": "/mayfly/mayfly/dev/secrets/OTHER"})


def test_a_fetch_is_a_module_of_the_bundle() -> None:
    *_, module, flag, folder = refresh._words("fetch", Path("/set"))
    assert (flag, folder) == ("--data", "/set") and module in code_files.NODE


@pytest.mark.nightly
@pytest.mark.usefixtures("in_process")
def test_a_refresh_fetches_from_the_sets_own_source(run: Refreshed) -> None:
    pytest.importorskip("ccxt", reason="the extra fetch is not installed")
    (run.data / FIRST).unlink()
    begin = int(time.time()) // 86_400 * 86_400 - 5 * 86_400
    begins = {"BTC-USD": begin * SECOND}
    asked = FetchRequest(source="rehearsal", begins=begins, timeframe="1h", until=(begin + 86_400) * SECOND)
    (first,) = Fetch(asked, open_source("rehearsal"), run.data).run().added
    run.refresh = "fetch"
    assert run.run() == 0
    (added,) = run.announced
    assert run.announced == {added: True} and added.startswith("BTC-USD_1h_")
    held = [file for file in fetched_files(run.data) if file.path.name == added]
    assert held[0].bars >= 95 and held[0].record.covers_from == first.record.covers_until
