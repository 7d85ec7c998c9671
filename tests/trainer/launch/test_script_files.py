from __future__ import annotations

import hashlib
import os

import pytest

from tests.jobs import job_of
from trainer.base.errors import DataError, UsageError
from trainer.job.script import ScriptSettings
from trainer.launch import script_files as module
from trainer.launch.bundle import build_bundle
from trainer.launch.script_files import data_files, names_checkpoints, script_files, script_sha256
from trainer.launch.uploads import upload_data


def settings(root, command="python train.py --lr 3e-4", **keys) -> ScriptSettings:
    return ScriptSettings(command=command, root=str(root), **keys)


def test_a_script_goes_with_the_modules_beside_it(tmp_path):
    (tmp_path / "train.py").write_text("import torch\nfrom net import Net\nimport parts.layers\n")
    (tmp_path / "net.py").write_text("from . import other\nimport helper\n")
    (tmp_path / "helper.py").write_text("import net\n")
    (tmp_path / "parts").mkdir()
    for name in ("__init__.py", "layers.py", ".hidden.py", "__pycache__"):
        (tmp_path / "parts" / name).mkdir() if name == "__pycache__" else (
            tmp_path / "parts" / name
        ).write_text("")
    (tmp_path / "config.yaml").write_text("lr: 1")
    (tmp_path / "unrelated.py").write_text("")
    files = script_files(settings(tmp_path, "python train.py config.yaml"))
    assert list(files) == [
        "config.yaml",
        "helper.py",
        "net.py",
        "parts/__init__.py",
        "parts/layers.py",
        "train.py",
    ]
    assert set(script_files(settings(tmp_path, files=("net.py",)))) == {"net.py"}
    hashes = dict.fromkeys(files, "0")
    of = {command: script_sha256(job_of(**{"script.command": command, "machine.max_duration": "1h"}), hashes, ())
          for command in ("python train.py", "python train.py --lr 3e-4")}  # fmt: skip
    assert len({*of.values()}) == 2


def test_the_files_are_in_the_bundle_under_their_paths(tmp_path):
    (tmp_path / "train.py").write_text("print(1)")
    with_script = build_bundle(script_files=script_files(settings(tmp_path)))
    assert with_script.sha256 != build_bundle().sha256
    assert b"trainer/script_files/train.py" in with_script.content


def test_a_script_that_python_can_not_parse_is_sent_as_it_is(tmp_path):
    for content in ("def", "x = " + "a." * 50_000 + "b"):
        (tmp_path / "train.py").write_text(content)
        assert script_files(settings(tmp_path, "python train.py")) == {"train.py": content.encode()}


def test_what_can_not_be_sent_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "link.py").symlink_to(tmp_path / "train.py")
    (tmp_path / "bad\nname").write_text("")
    for script, line in [
        (settings(tmp_path, "python trian.py"), "trian.py does not exist (script.command names it, and"),
        (settings(tmp_path, "echo hello"), "the script has no file"),
        (settings(tmp_path, files=("link.py",)), "is a symbolic link"),
        (settings(tmp_path, files=(".",)), "can't be printed"),
        (
            settings(tmp_path, files=("../x",)),
            "can't be sent (a script's files lie in the folder of its job file)",
        ),
        (settings(tmp_path, files=("gone",)), "gone does not exist"),
        (settings(tmp_path, requirements="requirements.txt"), "requirements.txt does not exist"),
        (
            settings(tmp_path, requirements="."),
            "is a folder (script.requirements names it). Name the file in it.",
        ),
    ]:
        with pytest.raises((UsageError, DataError)) as refused:
            script_files(script)
        assert line in str(refused.value)
    monkeypatch.setattr(module, "MOST_FILE_BYTES", 4)
    with pytest.raises(UsageError, match="put it into --data|Put it into --data"):
        script_files(settings(tmp_path))


def test_data_is_hashed_by_its_path_and_sent_once(access, bucket, tmp_path):
    s3 = access.client("s3")
    folder = tmp_path / "points"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "1.csv").write_text("1")
    (folder / "same.csv").write_text("1")
    (folder / ".DS_Store").write_text("x")
    files = data_files(str(folder))
    assert [file.path for file in files] == ["a/1.csv", "same.csv"]
    entries = upload_data(files[:1], access, bucket=bucket)
    again = upload_data(files, access, bucket=bucket)
    sha256 = hashlib.sha256(b"1").hexdigest()
    assert {entry["key"] for entry in again} == {f"raw/.files/{sha256}"} and again[0] == entries[0]
    assert len(s3.list_object_versions(Bucket=bucket)["Versions"]) == 1
    assert (
        s3.head_object(Bucket=bucket, Key=entries[0]["key"], VersionId=entries[0]["version_id"])[
            "ContentLength"
        ]
        == 1
    )


def test_a_data_folder_that_is_none_is_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "x").symlink_to("/etc/passwd")
    (tmp_path / "file").write_text("")
    lines = {
        "gone": "does not exist",
        "file": "it is a file",
        "empty": "holds no file",
        "links": "is a symbolic link",
    }
    for name, line in lines.items():
        with pytest.raises(DataError, match=line):
            data_files(str(tmp_path / name))


def test_a_pipe_in_a_data_folder_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="cannot read .*pipe .it is not a plain file"):
        data_files(str(tmp_path))


def test_a_script_keeps_checkpoints_if_it_names_their_folder():
    script = ScriptSettings(command="python train.py --to $MAYFLY_CHECKPOINTS")
    assert names_checkpoints(script, {"train.py": b""})
    plain = ScriptSettings(command="python train.py")
    assert names_checkpoints(plain, {"train.py": b"", "model/io.py": b"os.environ['MAYFLY_CHECKPOINTS']"})
    assert not names_checkpoints(plain, {"train.py": b"torch.save(model, 'checkpoint')"})
