"""`mayfly backup` as it is typed: what changed goes up, what is lost comes back."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.aws.access import Access
from trainer.aws.objects import Conflict, Objects, open_objects
from trainer.base.errors import ConfigError
from trainer.base.symbols import path_flaw
from trainer.cli.main import main
from trainer.store import backup
from trainer.store.backup import MOST_PATH, BackedUp, add_to_index, read_index

pytestmark = pytest.mark.slow  # each begins with an account in which runs have been
CLOSED_RUN = "20261120-120000-crypto-k3v9"
CANDLES, MODEL = "candles/main/BTC-USD_1m.csv", "models/r/lstm_BTC-USD_1m.safetensors"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The local folder, with candles and a model."""
    folder = tmp_path / "mine"
    for name in (CANDLES, MODEL):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(f"this is {name}")
    monkeypatch.setenv("MAYFLY_LOCAL", str(folder))
    return folder


@pytest.fixture
def mayfly(account: Objects, capsys: pytest.CaptureFixture[str], folder: Path) -> Callable[..., Any]:
    """Run one command; return its exit code and what it printed as JSON."""

    def call(*words: str) -> tuple[int, Any]:
        code = main([*words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


def bucket_of(access: Access) -> str:
    return f"mayfly-{(access.access_key or '')[4:16]}"


def test_a_lost_folder_is_restored_and_only_changes_are_uploaded(
    mayfly: Any, folder: Path, account: Objects
) -> None:
    assert mayfly("backup")[1]["moved"] == [CANDLES, MODEL]
    (folder / MODEL).write_text("trained anew")
    again = mayfly("backup", str(folder))[1]
    assert (again["moved"], again["unchanged"]) == ([MODEL], 1)
    assert len(account.versions(key=f"backup/files/{MODEL}")) == 2  # the first can be had back
    shutil.rmtree(folder)
    code, restored = mayfly("backup", "--restore")
    assert (code, restored["moved"]) == (0, [CANDLES, MODEL])
    assert ((folder / CANDLES).read_text(), (folder / MODEL).read_text()) == (
        f"this is {CANDLES}",
        "trained anew",
    )


def test_a_differing_file_is_replaced_only_with_overwrite(mayfly: Any, folder: Path) -> None:
    mayfly("backup")
    (folder / MODEL).write_text("newer than the backup")
    (folder / CANDLES).unlink()
    code, told = mayfly("backup", "--restore")
    assert (code, told["differing"], told["moved"]) == (2, [MODEL], [CANDLES])
    assert (folder / MODEL).read_text() == "newer than the backup"
    code, told = mayfly("backup", "--restore", "--overwrite")
    assert (code, told["moved"], told["unchanged"]) == (0, [MODEL], 1)
    assert (folder / MODEL).read_text() == f"this is {MODEL}"


def test_an_interrupted_backup_sends_no_bytes_twice(
    mayfly: Any, folder: Path, account: Objects, access: Access
) -> None:
    mayfly("backup")
    access.client("s3").delete_object(
        Bucket=bucket_of(access), Key="backup/index.json"
    )  # as if it had never been written
    assert mayfly("backup")[1]["moved"] == [CANDLES, MODEL]
    assert len(account.versions(key=f"backup/files/{MODEL}")) == 1
    assert read_index(account).keys() == {CANDLES, MODEL}


def test_links_and_hidden_files_are_left_out_of_a_backup(mayfly: Any, folder: Path, tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_text("mine")
    (folder / "link.csv").symlink_to(secret)
    (folder / ".hidden").write_text("x")
    told = mayfly("backup")[1]
    assert told["skipped"] == {".hidden": "its name begins with a dot", "link.csv": "it is a link"}
    shutil.rmtree(folder)
    folder.mkdir()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (folder / "models").symlink_to(elsewhere)
    told = mayfly("backup", "--restore")[1]
    assert told["skipped"] == {MODEL: "a link is in its place"} and not list(elsewhere.iterdir())


def test_data_of_scripts_in_a_folder_of_runs_comes_back(mayfly: Any, folder: Path, account: Objects) -> None:
    objects = open_objects(Access(folder=folder), "")
    names = ("raw/.files/" + "ab" * 32, "runs/20261120-120000-crypto-k3v9/run.json")
    for name in names:
        objects.put(key=name, body=name.encode())
    for name in (".new-1", ".cache/x"):
        (folder / "raw/.files" / name).parent.mkdir(exist_ok=True)
        (folder / "raw/.files" / name).write_text("x")
    told = mayfly("backup")[1]
    assert told["moved"] == sorted([CANDLES, MODEL, *names])
    shutil.rmtree(folder)
    assert mayfly("backup", "--restore")[1]["moved"] == told["moved"]
    assert [objects.get(key=name).body for name in names] == [name.encode() for name in names]  # type: ignore[union-attr]


def test_a_folder_that_cant_be_read_is_told(
    mayfly: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = os.scandir

    def scandir(place: Any = ".") -> Any:
        if str(place) == str(folder / "models"):
            raise PermissionError(errno.EACCES, "Permission denied", str(place))
        return listed(place)

    monkeypatch.setattr(os, "scandir", scandir)
    code, told = mayfly("backup")
    assert (code, told["moved"], told["failed"]) == (2, [CANDLES], {"models": "Permission denied"})


def test_a_file_that_vanishes_stops_no_other(
    mayfly: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = os.walk

    def walked(*words: Any, **more: Any) -> Any:
        for place, folders, files in walk(*words, **more):
            yield place, folders, [*files, *(["gone.partial"] if files else [])]

    monkeypatch.setattr(os, "walk", walked)
    code, told = mayfly("backup")
    assert (code, told["moved"], told["failed"]) == (0, [CANDLES, MODEL], {})


def test_a_file_that_vanishes_before_its_turn_is_no_failure(
    mayfly: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a checkpoint of a training that goes on: all files are listed before the first is read."""
    measure = backup._measure

    def measured(path: Path) -> tuple[int, str]:
        (folder / MODEL).unlink(missing_ok=True)
        return measure(path)

    monkeypatch.setattr(backup, "_measure", measured)
    code, told = mayfly("backup")
    assert (code, told["moved"], told["failed"]) == (0, [CANDLES], {})


def test_what_s3_gives_otherwise_than_the_index_says_is_refused(
    mayfly: Any, folder: Path, account: Objects
) -> None:
    mayfly("backup")
    true = read_index(account)[MODEL]
    add_to_index(account, {MODEL: BackedUp(bytes=true.bytes, sha256="0" * 64, version_id=true.version_id)})
    shutil.rmtree(folder)
    code, told = mayfly("backup", "--restore")
    assert code == 2 and "sha256" in told["failed"][MODEL] and told["moved"] == [CANDLES]
    assert [path.name for path in folder.rglob("*") if path.is_file()] == [Path(CANDLES).name]


def test_an_unreadable_file_is_named_and_the_others_backed_up(
    mayfly: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = backup._measure

    def measured(path: Path) -> tuple[int, str]:
        if path == folder / CANDLES:
            raise PermissionError(13, "Permission denied", str(path))
        return measure(path)

    monkeypatch.setattr(backup, "_measure", measured)
    code, told = mayfly("backup")
    assert (code, told["moved"], told["failed"]) == (2, [MODEL], {CANDLES: "Permission denied"})


def test_a_restore_leaves_files_named_like_a_part_alone(mayfly: Any, folder: Path) -> None:
    mayfly("backup")
    (folder / MODEL).unlink()
    (other := folder / f"{MODEL}.part").write_text("mine")
    assert mayfly("backup", "--restore")[1]["moved"] == [MODEL]
    assert other.read_text() == "mine"


def test_a_backup_of_too_many_files_is_refused_at_once(
    mayfly: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, account: Objects
) -> None:
    mayfly("backup")
    monkeypatch.setattr(backup, "MOST_FILES", 2)
    (folder / CANDLES).rename(folder / "candles/main/ETH-USD_1m.csv")
    code, told = mayfly("backup")
    assert code == 2 and "more than 2 files" in told["error"]["what"]
    assert read_index(account).keys() == {CANDLES, MODEL}


def test_an_index_with_a_path_that_leaves_the_folder_is_refused(account: Objects) -> None:
    for name in ("../escape", "/etc/passwd", "a//b", "a/../b", "./a", "a\nb", "a\\b", "x" * 901, ""):
        assert path_flaw(name, most_bytes=MOST_PATH)
        entry = {"file": name, "bytes": 1, "sha256": "0" * 64, "version_id": "v"}
        account.put(key="backup/index.json", body=json.dumps({"format": 1, "files": [entry]}).encode())
        with pytest.raises(ConfigError, match="can't be read"):
            read_index(account)


def test_two_desks_that_back_up_at_once_keep_each_others_entries(mayfly: Any, account: Objects) -> None:
    class Racing:
        """The bucket, where another desk adds its own file just before this one's is written."""

        raced = False

        def get(self, **given: Any) -> Any:
            return account.get(**given)

        def put(self, **given: Any) -> str:
            if not self.raced:
                self.raced = True
                add_to_index(account, {"theirs": entry})
            return account.put(**given)

    entry = BackedUp(bytes=1, sha256="0" * 64, version_id="v")
    add_to_index(Racing(), {"ours": entry})  # type: ignore[arg-type]
    assert read_index(account) == {"ours": entry, "theirs": entry}
    with pytest.raises(Conflict):
        account.put(key="backup/index.json", body=b"{}", create=True)


def test_a_run_is_pulled_into_the_local_folder(mayfly: Any, folder: Path) -> None:
    told = mayfly("pull", CLOSED_RUN)[1]
    assert told["folder"] == str(folder / "models" / CLOSED_RUN)
    assert (folder / "models" / CLOSED_RUN / "lstm_BTC-USD_1m.safetensors").exists()


def test_without_a_backup_there_is_no_restore(mayfly: Any) -> None:
    assert "no backup to restore" in mayfly("backup", "--restore")[1]["error"]["what"]


@pytest.mark.parametrize("verb", [("backup",), ("status", "--local")])
def test_a_folder_that_nobody_named_is_refused(
    verb: Any, mayfly: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MAYFLY_LOCAL")
    code, told = mayfly(*verb)
    assert code == 2 and "export MAYFLY_LOCAL=FOLDER" in told["error"]["do"]


def test_a_restore_goes_on_after_a_path_that_cannot_be_made(mayfly: Any, folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "file").write_text("x")
    (folder / "b").write_text("y")
    mayfly("backup")
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "a").write_text("a file where a folder was")
    os.mkfifo(folder / "b")
    code, told = mayfly("backup", "--restore")
    assert code == 2 and told["moved"] == [CANDLES, MODEL]
    assert told["failed"].keys() == {"a/file", "b"} and told["failed"]["b"] == "it is not a plain file"
