"""A file of the user's own: its keys in a job, and the one line that each mistake gets."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from tests.jobs import job_keys, job_of, with_settings
from trainer.base import own_file
from trainer.base.errors import UsageError
from trainer.base.own_file import in_bundle, load_class, read_file, reference
from trainer.job.job import Job
from trainer.job.reading import job_from, job_from_json, load_job, parse_job


def refusal(make) -> str:
    """Return the line that a mistake gets."""
    with pytest.raises(UsageError) as caught:
        make()
    line = str(caught.value)
    assert "\n" not in line and line.isprintable()
    return line


OWN = {"model": "my_net.py:MyNet"}


def own(**keys: object) -> Job:
    return job_of(**OWN, **keys)


# --- the table
# -------------------------------------------------------------------------------------------------------


def test_file_and_class_choose_an_own_model(tmp_path):
    lines = ("[model]", 'file = "my_net.py"', 'class = "MyNet"', "lookback = 20", "hidden = 32")
    lines += ("sizes = [8, 4]", "rate = 0.5", 'name_of = "x"')
    (tmp_path / "job.toml").write_text("\n".join(lines))
    job = job_from(load_job(tmp_path / "job.toml"))
    assert job.model.file == str(tmp_path / "my_net.py"), "beside the job file"
    assert (job.model.class_name, job.model.bars_seen, job.target.name) == ("MyNet", 20, "direction")
    assert job.model.given == {"hidden": 32, "sizes": [8, 4], "rate": 0.5, "name_of": "x"}
    assert job_from_json(json.dumps(job.to_dict())) == job and hash(job.model)
    assert with_settings(job, **{"epochs": 3, "model.hidden": 8}).model.given["hidden"] == 8


def test_the_command_line_replaces_the_files_model():
    tables = {"model": {"name": "lstm", "hidden": 8, "lookback": 9}, "target": {"horizon": 3}}
    job = parse_job(tables, {"model.name": "my_net.py:MyNet", "model.depth": 2})
    assert (job.model.choice, job.model.lookback) == ({"file": "my_net.py", "class": "MyNet"}, 9)
    assert job.model.given == {"depth": 2} and job.target.horizon == 3
    back = parse_job(job.to_dict(), {"model.name": "lstm"})
    assert back.model == job_of(lookback=9).model
    other = parse_job(job.to_dict(), {"model.name": "my_net.py:Other"})
    assert other.model.given == {} and other.model.lookback == 9
    assert parse_job(job.to_dict(), {"model.name": "my_net.py:MyNet"}).model == job.model


def test_a_target_is_chosen_alike():
    job = job_of(model="tcn", target="t.py:Mine", **{"target.width": 2.0})
    assert (job.target.choice, job.target.given) == ({"file": "t.py", "class": "Mine"}, {"width": 2.0})
    assert job.model.name == "tcn"
    assert list(job.own_files) == ["target"] and job_from_json(json.dumps(job.to_dict())) == job


def test_an_own_models_keys_are_listed_and_its_batch_is_open():
    job = own()
    listed = {key for key, _, _ in job_keys(job)}
    assert {"model.file", "model.class", "model.lookback", "model.chunk"} <= listed
    assert not job.cost.is_measured and job.train.batch < 0 and own(batch=7).train.batch == 7


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"model": "my_net.py"}, "'my_net.py' names no class. Write my_net.py:NAME"),
        ({"model": "my_net.py:"}, "model.file without model.class"),
        ({"model": "my_net.py:My Net"}, "it must be the name of a class"),
        ({"model": "my_net.py:class"}, "it must be the name of a class"),
        ({"model": "my_net.py:A\nB"}, "it must be the name of a class"),
        ({"model": "my_net.py:" + "A" * 101}, "it must be the name of a class"),
        ({"model": "my net.py:MyNet"}, "it must be a Python file"),
        ({"model": "my\nnet.py:MyNet"}, "it must be a Python file"),
        ({"model": "a\x1b[31m/my_net.py:MyNet"}, "it must be a Python file"),
        ({"model": "-rf.py:MyNet"}, "it must be a Python file"),
        ({"model": f"{'a' * 100}.py:MyNet"}, "it must be a Python file"),
        ({"model.class": "MyNet"}, "unknown job key 'model.class'. It goes with model.file."),
        ({"model": "own"}, "model.class without model.file"),
        ({"model.name": "tcn", "model.file": "my_net.py"}, "model.name and model.file (the file chooses the"),
        ({**OWN, "depth": 3}, "For a setting of your own class write model.depth."),
        ({**OWN, "epoch": 3}, "Did you mean train.epochs, train.warmup_epochs, expert.restart_epochs? For a"),
        ({**OWN, "model.table": {"a": 1}}, "text, a number, true or false, or a list of these"),
        ({**OWN, "model.rate": float("inf")}, "text, a number, true or false, or a list of these"),
        ({**OWN, "model.lookback": 0}, "1 or more"),
        ({**OWN, "model.measured": {"what": 1}}, "leave it out"),
        ({**OWN, "model.measured": 3}, "leave it out"),
    ],
)
def test_a_key_or_name_that_makes_no_sense_is_one_line(keys, line):
    assert line in refusal(lambda: job_of(**keys))


def test_a_reference_is_a_file_with_a_class_and_a_name_is_none():
    assert reference("a/b.py:C") == {"file": "a/b.py", "class": "C"}
    assert reference("lstm") is None and reference("trainer.models.lstm:Lstm") is None


# --- the file
# --------------------------------------------------------------------------------------------------------


def test_a_file_is_read_by_its_hash(tmp_path):
    path = tmp_path / "net.py"
    path.write_text("A = 1\n")
    sha256 = hashlib.sha256(b"A = 1\n").hexdigest()
    assert read_file(path, sha256=sha256) == b"A = 1\n"
    path.write_text("A = 2\n")
    assert "is another file" in refusal(lambda: read_file(path, sha256=sha256))


def test_a_file_that_is_not_small_plain_text_is_one_line(tmp_path):
    names = ("a", "link", "large", "binary", "fifo")
    whole, link, large, binary, fifo = (tmp_path / f"{name}.py" for name in names)
    whole.write_text("")
    link.symlink_to(whole)
    large.write_bytes(b"#" * 1_000_001)
    binary.write_bytes(b"A = '\xff'\n")
    os.mkfifo(fifo)
    for path, words in (
        (tmp_path / "none.py", "does not exist"),
        (tmp_path, "is not a file"),
        (link, "is a symbolic link"),
        (large, "has 1,000,001 bytes"),
        (binary, "is not UTF-8 (byte 5)"),
        (fifo, "is not a file"),
    ):
        assert words in refusal(lambda path=path: read_file(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class Net(:\n", "net.py can't be loaded (line 1: invalid syntax)"),
        ("a = '\0'\n", "net.py can't be loaded"),
        ("raise ValueError('two\\nlines')\n", "net.py can't be loaded (ValueError: two lines)"),
        ("raise SystemExit(3)\n", "net.py can't be loaded (SystemExit: 3)"),
        ("import no_such_module_here\n", "No module named 'no_such_module_here'"),
        ("class Nat: pass\n", "net.py has no class Net (it has Nat). Did you mean Nat?"),
        ("from pathlib import Path\nNet = 3\n", "net.py has no class Net (it has none)"),
    ],
)
def test_a_file_that_does_not_load_is_one_line(tmp_path, text, words):
    (tmp_path / "net.py").write_text(text)
    assert words in refusal(lambda: load_class(tmp_path / "net.py", "Net"))


def test_each_load_runs_the_file_anew(tmp_path):
    (tmp_path / "net.py").write_text("SEEN = []\nclass Net:\n    seen = SEEN\n")
    one, two = (load_class(tmp_path / "net.py", "Net") for _ in range(2))
    one.seen.append(1)
    assert two.seen == []


def test_a_bundles_file_is_found_by_its_hash_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(own_file, "__file__", str(tmp_path / "base" / "own_file.py"))
    sha256 = "a" * 64
    (tmp_path / "own_files").mkdir()
    (tmp_path / "own_files" / f"{sha256}.py").touch()
    assert in_bundle(sha256) == tmp_path / "own_files" / f"{sha256}.py"
    assert in_bundle("b" * 64) is in_bundle("") is in_bundle(f"../{Path(sha256)}") is None
