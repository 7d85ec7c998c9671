"""`mayfly pull` as it is typed: what fails stops no other file, and no bytes come twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.records import NOON, created, launched, make_record
from trainer.aws.access import Access
from trainer.aws.objects import Objects
from trainer.base.errors import ConfigError, ConnectionFailed, UsageError
from trainer.cli.parts import LogReader, PartReader
from trainer.cli.tracking.reading import TrackedRun
from trainer.cli.tracking.track import Tracked
from trainer.cli.verbs import pull
from trainer.runs.keys import NodeKeys
from trainer.runs.observation import Observation
from trainer.runs.receipt import make_receipt
from trainer.runs.reports import NodeResult
from trainer.runs.store import create_record, receipt_key

pytestmark = pytest.mark.slow  # each begins with an account in which runs have been
RUN = "20261120-130000-sweep-a1b2"
KEYS = NodeKeys(role_id="AROA1", instance_id="i-1", run_id=RUN, attempt=1)


@pytest.fixture
def leave(account: Objects, access: Access) -> Callable[..., None]:
    """Return the function that leaves a closed script's run with these output files, and its log."""
    bucket, s3 = f"mayfly-{(access.access_key or '')[4:16]}", access.client("s3")

    def run(files: dict[str, bytes]) -> None:
        outputs = []
        for path, content in files.items():
            sha256 = hashlib.sha256(content).hexdigest()
            put = s3.put_object(Bucket=bucket, Key=f"{KEYS.outputs}{sha256}", Body=content)
            outputs.append(
                {
                    "file": path,
                    "key": f"{KEYS.outputs}{sha256}",
                    "version_id": put["VersionId"],
                    "sha256": sha256,
                    "bytes": len(content),
                }
            )
        closed = replace(
            make_record(bucket=bucket, run_id=RUN, work="script", leaves="files", pieces=()),
            state="closed",
            outcome="done",
            closed_at=NOON + timedelta(minutes=6),
            attempts=launched(created()),
        )
        create_record(account, closed)
        seen = Observation(result=NodeResult(state="done"), outputs=tuple(outputs))
        account.put(key=receipt_key(RUN), body=json.dumps(make_receipt(closed, seen)).encode())
        account.put(key=f"{KEYS.log}000001.log", body=b"trained\n")
        account.put(key=f"{KEYS.folder}training_results.json", body=b'{"models": 2}')

    return run


def test_outputs_come_with_log_results_and_receipt(leave: Any, mayfly: Any, tmp_path: Path) -> None:
    files = {f"run-{number}/metrics.json": f"{number % 3}".encode() for number in range(30)}
    leave(files)
    code, told, _ = mayfly("pull", RUN, "--out", str(tmp_path / "out"), "--json")
    assert (code, told["problems"]) == (0, [])
    there = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.json")}
    assert there == {"receipt.json", "training_results.json", *(f"out/{path}" for path in files)}
    assert there <= {*told["files"]} and len(told["files"]) == len({*told["files"]})
    assert all((tmp_path / "out/out" / path).read_bytes() == content for path, content in files.items())
    assert (tmp_path / "out/log.txt").read_text() == "trained\n"
    assert json.loads((tmp_path / "out/training_results.json").read_text()) == {"models": 2}


def test_files_that_fail_are_named_after_all_others_came(
    leave: Any, mayfly: Any, tmp_path: Path, account: Objects
) -> None:
    leave({"a/m": b"1", "b": b"2", "c": b"1", "d": b"3"})
    receipt = json.loads(account.get(key=receipt_key(RUN)).body)  # type: ignore[union-attr]
    (gone,) = (item for item in receipt["files"] if item["file"] == "d")
    gone["version_id"] = "00000000-0000-0000-0000-000000000000"
    account.put(key=receipt_key(RUN), body=json.dumps(receipt).encode())
    (tmp_path / "out/out").mkdir(parents=True)
    (tmp_path / "out/out/a").write_text("in the way")
    code, out, err = mayfly("pull", RUN, "--out", str(tmp_path / "out"))
    assert code == 103 and [line.split(": ")[:2] for line in err.splitlines()] == [
        ["error", "out/a/m"],
        ["error", "out/d"],
    ]
    assert [Path(line).name for line in out.splitlines()] == [
        *("receipt.json", "report.html", "log.txt", "training_results.json"),
        *("c", "b"),
    ]
    code, told, _ = mayfly("pull", RUN, "--out", str(tmp_path / "out"), "--json")
    assert (code, [item["file"] for item in told["problems"]]) == (103, ["out/a/m", "out/d"])


def test_equal_bytes_are_fetched_once(
    leave: Any, account: Objects, monkeypatch: Any, mayfly: Any, tmp_path: Path
) -> None:
    fetched: list[str] = []
    fetch = pull.fetch_file

    def counted(path: Path, key: str, *rest: Any, **more: Any) -> str:
        fetched.append(key)
        return fetch(path, key, *rest, **more)

    monkeypatch.setattr(pull, "fetch_file", counted)
    leave({f"run-{number}/config": f"{number % 2}".encode() for number in range(10)})
    assert mayfly("pull", RUN, "--out", str(tmp_path / "out"))[0] == 0
    assert len(fetched) == len(set(fetched)) == 2


def test_a_live_look_names_the_files_that_it_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[set[tuple[str, str]]] = []
    item = {"file": "a", "key": "k", "version_id": "v", "sha256": "ab" * 32, "bytes": 1}

    def files_so_far(objects: Any, record: Any, *, had: Any) -> list[dict[str, Any]]:
        asked.append(set(had))
        return [item]

    monkeypatch.setattr(pull, "files_so_far", files_so_far)
    pulled = pull.Pulled(SimpleNamespace(objects=None), RUN, tmp_path, lambda _, path: path.write_text("a"))  # type: ignore[arg-type]
    open_run = SimpleNamespace(record=SimpleNamespace(leaves="files"))
    pulled._settled = SimpleNamespace(receipt=None, look=open_run)  # type: ignore[assignment]
    assert [list(pulled._save_outputs()) for _ in range(2)] == [[tmp_path / "out/a"], []]
    assert asked == [set(), {("k", "v")}]


def test_empty_parts_of_a_log_are_not_fetched(account: Objects, monkeypatch: Any) -> None:
    asked: list[str] = []
    get = account.get

    def noted(**given: Any) -> Any:
        asked.append(given["key"])
        return get(**given)

    monkeypatch.setattr(account, "get", noted)
    for number, text in enumerate((b"one\n", b"", b"", b"two\n", b""), start=1):
        account.put(key=f"log/{number:06d}.log", body=text)
    reader = PartReader(account)
    assert reader.read_new("log/") == b"one\ntwo\n" and reader.read_new("log/") == b""
    assert sorted(asked) == ["log/000001.log", "log/000004.log"]


def test_parts_that_were_read_are_not_listed_again(account: Objects, monkeypatch: Any) -> None:
    """A run of days has tens of thousands, and whoever follows its log looks every few seconds."""
    listed: list[list[str]] = []
    ask = account.list

    def noted(**given: Any) -> Any:
        found = ask(**given)
        listed.append([item.key for item in found])
        return found

    monkeypatch.setattr(account, "list", noted)
    bodies = [f"{number}\n".encode() for number in range(1, 131)]
    for number, body in enumerate(bodies[:-1], start=1):
        account.put(key=f"log/{number:06d}.log", body=body)
    reader = PartReader(account)
    assert reader.read_new("log/") == b"".join(bodies[:-1]) and reader.read_new("log/") == b""
    account.put(key="log/000130.log", body=bodies[-1])
    assert reader.read_new("log/") == bodies[-1]
    assert [len(keys) for keys in listed] == [129, 0, 1]


def test_a_run_is_tracked_where_it_is_asked_for(
    leave: Any, mayfly: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    def write_run(run: TrackedRun, tracker: str) -> Tracked:
        if tracker == "wandb":
            raise ConfigError("it is down")
        return Tracked(tracker=tracker, where=f"{run.run_id} of {run.tags['mayfly.work']}", was_there=False)

    leave({"a": b"1"})
    monkeypatch.setattr("trainer.cli.tracking.track.write_run", write_run)
    monkeypatch.setattr(pull, "need_trackers", lambda _: None)
    both = ("--track", "mlflow", "--track", "wandb", "--track", "mlflow", "--out", str(tmp_path / "out"))
    code, told, _ = mayfly("pull", RUN, *both, "--json")
    assert (code, told["tracked"]) == (
        103,
        [{"tracker": "mlflow", "where": f"{RUN} of script", "was_there": False}],
    )
    assert told["problems"] == [{"file": "wandb", "code": 103, "what": "it is down", "why": "", "do": ""}]
    _, _, err = mayfly("pull", RUN, *both)
    assert err == f"tracked in mlflow: {RUN} of script\nerror: wandb: it is down.\n"


def test_a_tracker_that_is_not_installed_is_told_first(mayfly: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    code, _, err = mayfly("pull", RUN, "--track", "wandb")
    assert (code, err) == (
        103,
        "error: this needs wandb, which is not installed. pip install 'mayfly[track]'\n",
    )


@pytest.mark.parametrize(
    ("where", "failure", "code"),
    [
        ((LogReader, "read_new"), ConnectionFailed("S3 is busy"), 0),
        ((pull.Pulled, "_append_log"), OSError(28, "No space left", "log.txt"), 103),
    ],
)
def test_only_lines_that_no_later_look_brings_stay_a_problem(
    leave: Any, mayfly: Any, monkeypatch: Any, tmp_path: Path, where: Any, failure: Exception, code: int
) -> None:
    """With --live: the next look reads what S3 did not show; what a disk refused is lost to the command."""
    leave({"a": b"1"})
    looks: list[int] = []
    real, ended = getattr(*where), pull.Pulled.ended

    def fails_once(*given: Any) -> Any:
        looks.append(len(looks))
        if len(looks) == 1:
            raise failure
        return real(*given)

    monkeypatch.setattr(*where, fails_once)
    monkeypatch.setattr(pull.Pulled, "ended", property(lambda one: len(looks) > 1 and ended.fget(one)))
    monkeypatch.setattr(pull.time, "sleep", lambda _: None)
    ended_with, _, err = mayfly("pull", RUN, "--live", "--out", str(tmp_path / "out"))
    assert (ended_with, len(looks), "error: log.txt: " in err) == (code, 2, code != 0)
    assert (tmp_path / "out/log.txt").exists() == (code == 0) and (tmp_path / "out/out/a").exists()


def test_a_second_pull_into_a_folder_is_refused(
    leave: Any, mayfly: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    """Both would append the log and the events."""
    leave({"a": b"1"})
    out, second = tmp_path / "out", list[tuple[int, str]]()
    bring = pull.Pulled.bring

    def bring_beside(pulled: pull.Pulled) -> list[Path]:
        monkeypatch.setattr(pull.Pulled, "bring", bring)
        code, _, err = mayfly("pull", RUN, "--out", str(out))
        second.append((code, err))
        return bring(pulled)

    monkeypatch.setattr(pull.Pulled, "bring", bring_beside)
    assert mayfly("pull", RUN, "--out", str(out))[0] == 0
    assert [code for code, _ in second] == [2] and f"another command writes to {out}" in second[0][1]
    assert (out / "log.txt").read_text() == "trained\n"


def test_an_unknown_run_leaves_no_folder(leave: Any, mayfly: Any, tmp_path: Path) -> None:
    leave({})
    assert mayfly("pull", "nope", "--out", str(tmp_path / "out"))[0] == 2
    assert not (tmp_path / "out").exists()


def test_no_folder_is_made_behind_a_link(tmp_path: Path) -> None:
    """A node names folders below a link that came with the folder, such as that of a repository."""
    outside, into = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    into.mkdir()
    (into / "data").symlink_to(outside)
    with pytest.raises(UsageError, match="leads out of"):
        pull._place_of({"file": "data/autostart/x"}, into)
    assert not list(outside.iterdir())
