"""The work of a prepare run's node, under its own role: what a refresh script may add, and what a bad one
brings.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.iam import assert_allowed_is_needed
from tests.prepare_runs import FIRST, SECRET, PreparedStack, prepared
from trainer.bars import check
from trainer.base.errors import ConfigError, DataError, Stopped, TrainerError
from trainer.control.prepared import take_over
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles
from trainer.launch.inputs import list_inputs
from trainer.node import refresh, report, stack_secrets
from trainer.node.identity import NodeIdentity
from trainer.node.refresh import added_files, describe, prepare_data, refuse_disagreement, run_script
from trainer.node.report import Status
from trainer.node.shared import Node
from trainer.rehearsal.server import EmbeddedAws
from trainer.runs.reports import read_result
from trainer.runs.store import manifest_key, open_objects, stop_key

__all__ = ["prepared"]  # a fixture
HEADER = "timestamp,symbol,open,high,low,close,volume"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with a data set of one file, and no cloud."""
    (tmp_path / "data").mkdir()
    write_candles(tmp_path / "data" / FIRST, [synthetic_candles("BTC-USD", bars=100)], synthetic=True)
    deadline = datetime(2026, 11, 22, tzinfo=timezone.utc)
    identity = NodeIdentity(
        run_id="r", attempt=1, node=0, deadline=deadline, instance_id="i-1", instance_type="t3.large"
    )
    return Node(work=tmp_path, rehearsal=True, uplink=None, status=Status(identity=identity))  # type: ignore[arg-type]


def ran(node: Node, source: str, **secrets: str) -> list[str]:
    """Run a refresh script in the node's data folder, and return the names of what it added."""
    data, script = node.work / "data", node.work / "fetch.py"
    script.write_text(f"import os, sys, pathlib\nfolder = pathlib.Path(sys.argv[1])\n{source}\n")
    before = {path.name: refresh._marks(path) for path in data.iterdir()}
    run_script(node, script, data, secrets)
    return added_files(data, before)


def test_a_script_finds_the_sets_files_gets_its_secrets_and_adds_files(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    source = f"""
assert folder.is_dir() and os.listdir() == [{FIRST!r}] and pathlib.Path.cwd() == folder
print("the key is", os.environ["API_KEY"])
(folder / "new.csv").write_text("x")
(folder / ".cache").write_text("its own affair")
(folder / "scratch").mkdir()
"""
    with caplog.at_level(logging.INFO):
        assert ran(node, source, API_KEY=SECRET) == ["new.csv"]
    assert "the key is [API_KEY]" in caplog.text and SECRET not in caplog.text
    assert SECRET not in str(os.environ)


def test_the_scripts_group_is_ended_while_its_number_is_still_its_own(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, killpg = [], os.killpg

    def look_first(pid: int, number: int) -> None:
        killed.append(
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        )  # ChildProcessError once it is collected
        killpg(pid, number)

    monkeypatch.setattr(os, "killpg", look_first)
    assert ran(node, "") == []
    assert len(killed) == 1 and killed[0] is not None


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            "raise ValueError(f'no bars for {os.environ[\"API_KEY\"]}')",
            r"failed \(ValueError: no bars for \[API_KEY\]\)",
        ),
        ("sys.exit(3)", r"failed \(it ended with exit code 3\)"),
        ("os.kill(os.getpid(), 9)", r"exit code -9"),
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
def test_a_script_that_fails_or_adds_what_no_set_takes_is_an_error_in_one_line(
    node: Node, source: str, why: str
) -> None:
    with pytest.raises(DataError, match=why) as failed:
        ran(node, source, API_KEY=SECRET)
    assert SECRET not in str(failed.value) and "\n" not in str(failed.value)


def test_a_script_that_does_not_end_is_ended_and_so_is_one_whose_node_is_stopped(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "SCRIPT_SECONDS", 0.1)
    with pytest.raises(DataError, match="did not end within"):
        ran(node, "import time; time.sleep(1000)")
    monkeypatch.undo()
    node.stop("SIGTERM")
    with pytest.raises(Stopped):
        ran(node, "import time; time.sleep(1000)")


def test_a_check_that_takes_too_long_says_so(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "CHECK_SECONDS", 0.0)
    with pytest.raises(DataError, match=r"can't be checked \(it took longer than 0 minutes\)"):
        describe(node, node.work / "data", [FIRST], [])


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data check without a process of its own; a whole run below has one."""
    questions = {"--describe": check.describe, "--joined": check.join}

    def asked(node: Node, folder: Path, question: str) -> dict[str, Any]:
        try:
            return questions[question](folder)
        except TrainerError as error:
            return {"error": error.as_dict()}

    monkeypatch.setattr(refresh, "_check", asked)


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
    node: Node, file: str, content: str, why: str
) -> None:
    data = node.work / "data"
    (data / file).write_text(content)
    with pytest.raises(DataError, match=why):
        refuse_disagreement(node, data, list(describe(node, data, [file], [file]).values()))


@pytest.mark.usefixtures("in_process")
def test_a_file_of_the_set_that_cant_be_read_is_left_out_and_no_reason_to_fail(node: Node) -> None:
    (node.work / "data" / "broken.parquet").write_text("no parquet")
    assert list(describe(node, node.work / "data", ["broken.parquet", FIRST], [])) == [FIRST]


ADDS = f"""
import os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
assert os.environ["API_KEY"] == "{SECRET}" and (folder / "{FIRST}").stat().st_size
lines = [f"2024-02-01 00:{{minute:02}},BTC-USD,1,2,1,1,1" for minute in range(50)]
(folder / "BTC-USD_1m_february.csv").write_text("\\n".join(["{HEADER}", *lines]))
"""


def test_its_role_is_enough_for_a_prepare_run_from_the_manifest_to_the_set_and_no_more(
    aws_server: EmbeddedAws, prepared: Callable[[str], PreparedStack], caplog: pytest.LogCaptureFixture
) -> None:
    run = prepared(ADDS)
    bucket = run.outputs.bucket
    run.access.client("s3").put_object(Bucket=bucket, Key="code/x.whl", Body=b"")
    run.node.uplink.s3.get_object(Bucket=bucket, Key="code/x.whl")  # bootstrap.sh does
    assert not run.node.uplink.exists(stop_key("r1", 1))  # the agent asks
    with caplog.at_level(logging.INFO):
        assert prepare_data(run.node, run.node.uplink.read_json(manifest_key("r1"))) == 0
    status = run.node.status
    value = report.result(status, ended=("done", 0, None), unfinished="", python_packages="")
    run.node.uplink.send_json(status.identity.keys.result, value, patience_seconds=0)
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
