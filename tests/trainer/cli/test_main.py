from __future__ import annotations

import argparse
import errno
import io
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from trainer.cli.main import main
from trainer.cli.parser import build_parser
from trainer.cli.terminal import show
from trainer.cli.views.table import styled


def loaded(code: str) -> set[str]:
    """Return the modules that a Python loads for this code."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True
    )
    return {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}


def test_help_loads_nothing_but_argparse_and_what_holds_flags():
    bare = loaded("import argparse; argparse.ArgumentParser(prog='x').print_help()")
    ours = loaded(
        "from trainer.cli.main import main; main(['launch', '--help'], prog='python -m trainer.launch')"
    )
    assert "argparse" in ours  # they are read
    packages = {"trainer", "trainer.base", "trainer.cli", "trainer.cli.flags"}
    flags = {f"trainer.cli.flags.{name}" for name in ("shared", "data", "runs", "work")}
    modules = {"trainer.base.arguments", "trainer.cli.main", "trainer.cli.parser"} | flags
    assert ours - bare <= packages | modules | {
        "__future__",
        "contextlib",
        "importlib",
        "warnings",
        "collections.abc",
    }


@pytest.mark.parametrize(
    "words", ["profiles", "profiles tune --set hiden=4", "profiles bench --bars -1", "launch --epochs x"]
)
def test_commands_that_need_no_torch_load_none(words):
    run = f"import sys; from trainer.cli.main import main; main({words.split()})"
    code = f"{run}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words", [["launch"], ["status"], ["logs", "RUN"], ["stop", "RUN"], ["receipts"], ["pull", "RUN"]]
)
def test_every_verb_on_runs_speaks_json_and_rehearses(words):
    arguments = build_parser().parse_args([*words, "--json", "--rehearse", "--stack", "prod"])
    assert (arguments.json, arguments.rehearse, arguments.stack) == (True, True, "prod")


@pytest.mark.parametrize(
    "words",
    [
        *(["status"], ["logs", "RUN"], ["stop", "RUN"], ["receipts"], ["pull", "RUN"], ["agent", "--here"]),
        *(["models", "list"], ["models", "pull", "M"], ["models", "production"], ["models", "rollback", "M"]),
        ["predict", "M", "--data", "candles/"],
    ],
)
def test_verbs_that_read_runs_take_a_folder_instead_of_a_bucket(words):
    assert build_parser().parse_args([*words, "--local", "results/"]).local == "results/"
    assert (
        build_parser().parse_args([*words, "--local"]).local == ""
        and build_parser().parse_args(words).local is None
    )


@pytest.mark.parametrize(
    ("words", "value", "rehearses"),
    [
        (["status"], "1", True),
        (["logs", "last"], "1", True),
        (["status"], "0", False),
        (["status"], "", False),
        (["status", "--rehearse"], "", True),
        (["status", "--local", "results/"], "1", False),
        (["retrains", "list"], "1", True),
    ],
)
def test_a_variable_makes_every_command_rehearse(words, value, rehearses, monkeypatch):
    seen = []
    monkeypatch.setenv("MAYFLY_REHEARSE", value)
    monkeypatch.setattr(
        f"trainer.cli.verbs.{words[0]}.run", lambda arguments: seen.append(arguments.rehearse) or 0
    )
    assert (main(words), seen) == (0, [rehearses])


@pytest.mark.parametrize(
    ("words", "value", "line"),
    [
        (["status"], "yes", "MAYFLY_REHEARSE is 'yes' (it is 1, 0 or empty)."),
        (["down", "-y"], "1", "a rehearsal has no stack to take down (MAYFLY_REHEARSE is set)."),
    ],
)
def test_a_senseless_rehearsal_is_refused(words, value, line, monkeypatch, capsys):
    monkeypatch.setenv("MAYFLY_REHEARSE", value)
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {line}")


def test_no_command_has_more_than_22_flags():
    parser = build_parser("python -m trainer.launch")
    flags = [action for action in parser._actions if action.option_strings and action.dest != "help"]
    assert len(flags) <= 22


def test_instance_is_repeatable():
    arguments = build_parser().parse_args(["launch", "--instance", "a", "--instance", "b", "--spot"])
    assert (arguments.instance, arguments.market) == (["a", "b"], ["spot"])


def test_under_json_an_error_is_one_document_on_stdout(capsys):
    assert main(["launch", "--json", "--set", "hiden=3"]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {
        "error": {
            "code": 2,
            "what": "unknown job key 'hiden'",
            "why": "",
            "do": "Did you mean model.hidden, search.within, target.horizon?",
        }
    }
    assert printed.err == ""


def test_a_mistake_of_ours_is_not_dressed_up_as_the_users(monkeypatch):
    def broken(arguments: object) -> int:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("trainer.cli.verbs.launch.run", broken)
    with pytest.raises(ZeroDivisionError):
        main(["launch"])


DENIED = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetObject")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "keys/x"), 103, "cannot use keys/x (Permission"),
        (KeyboardInterrupt(), 130, "interrupted before anything was launched.\n"),
        (DENIED, 103, "GetObject failed (AccessDenied: no)."),
        (EndpointConnectionError(endpoint_url="x"), 103, "an AWS call failed (EndpointConnectionError"),
    ],
)
def test_an_error_of_others_is_one_line(monkeypatch, capsys, error, code, line):
    def fail(arguments: object) -> int:
        raise error

    monkeypatch.setattr("trainer.cli.verbs.launch.run", fail)
    assert main(["launch"]) == code
    said = capsys.readouterr().err
    assert said.startswith(f"error: {line}") and said.count("\n") == 1


def test_a_long_temporary_folder_is_one_line(monkeypatch, capsys, tmp_path):
    """Here a socket of a training's processes has no room in it."""

    def fail(arguments: object) -> int:
        socket.socket(socket.AF_UNIX).bind(f"{tmp_path}/{'x' * 90}/listener")
        return 0

    monkeypatch.setattr("trainer.cli.verbs.launch.run", fail)
    assert main(["launch"]) == 103
    said = capsys.readouterr().err
    assert said.startswith(
        "error: the path of the temporary folder is too long (a socket's path has 107 bytes"
    )
    assert said.endswith("Set TMPDIR to a shorter one, such as /tmp.\n")


def test_a_word_that_is_not_utf8_is_one_line(monkeypatch, capsys):
    def asked(arguments: argparse.Namespace) -> int:
        return len(f"runs/{arguments.run}".encode())

    monkeypatch.setattr("trainer.cli.verbs.status.run", asked)
    assert main(["status", "caf\udce9"]) == 2
    assert capsys.readouterr().err == "error: 'caf\\udce9' is not UTF-8. Type it again.\n"


class Refusing(io.StringIO):
    """A stdout that takes text and can't write it: a full disk, or a pipe without a reader."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self._code = code

    def flush(self) -> None:
        raise OSError(self._code, os.strerror(self._code))


@pytest.mark.parametrize("words", [["--help"], ["profiles", "--json"]])
def test_a_full_disk_behind_stdout_is_one_line(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Refusing(errno.ENOSPC))
    assert main(words) == 103
    assert capsys.readouterr().err == "error: cannot write (No space left on device). Free some space.\n"
    assert sys.stdout is None  # nothing is left that the interpreter could fail to write at exit


@pytest.mark.parametrize(
    "words, code", [(["--help"], 0), (["profiles"], 0), (["launch", "--json", "--set", "hiden=3"], 2)]
)
def test_a_reader_that_has_ended_changes_no_exit_code(words, code, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Refusing(errno.EPIPE))
    assert main(words) == code
    assert sys.stdout is None


@pytest.mark.parametrize("closed", ["<&- >&-", "2>&-"])
def test_a_closed_stream_stops_no_command(closed):
    command = f"{sys.executable} -m trainer.cli.main profiles {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_flag_cut_short_is_refused(capsys):
    assert main(["status", "--jso"]) == 2
    assert (
        capsys.readouterr().err
        == "error: unrecognized arguments: --jso. Did you mean --json? See mayfly status --help.\n"
    )


def test_a_stdout_that_is_not_unicode_shows_escapes(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="iso-8859-1", errors="strict")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(
        "trainer.cli.verbs.launch.run", lambda arguments: show(styled("lstm → direction ×", "")) or 0
    )
    assert main(["launch"]) == 0
    stream.flush()
    assert stream.buffer.getvalue() == b"lstm \\u2192 direction \xd7\n"


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "m.safetensors", "--data", ".", "--last", "9" * 30],
        ["profiles", "bench", "--bars", "9" * 30],
        ["train", "--data", ".", "--out", "models", "--workers", "9" * 30],
        ["train", "--data", ".", "--out", "models", "--workers", "100000"],
    ],
    ids=" ".join,
)
def test_a_number_beyond_its_bound_is_one_line(words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # they stay this process's own
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {words[-2]} is {words[-1]}. Give 1 to ") and said.count("\n") == 1


TRAIN = ("train", "--data", "CANDLES", "--out", "models")


@pytest.mark.parametrize("place", ["zero", "pipe"])
@pytest.mark.parametrize(
    "words",
    [
        (*TRAIN, "--job", "PLACE"),
        (*TRAIN, "--job", "PLACE.json"),
        (*TRAIN, "--plan", "PLACE"),
        (*TRAIN, "--machine", "PLACE"),
        ("train", "--data", "PLACE", "--out", "models"),
        ("predict", "PLACE.safetensors", "--data", "CANDLES"),
        ("predict", "m.safetensors", "--data", "PLACE"),
        ("launch", "--rehearse", "--job", "PLACE"),
        ("launch", "--rehearse", "--script", "PLACE"),
        ("launch", "--rehearse", "--data", "PLACE"),
        ("launch", "--rehearse", "--model", "PLACE.py:Net"),
        ("launch", "--rehearse", "--job", "sweep.toml", "--set", "script.over=PLACE"),
        ("launch", "--rehearse", "--data", "CANDLES", "--model", "tcn", "--set", "model.encoder=PLACE"),
        ("profiles", "tune", "--job", "PLACE"),
    ],
    ids=lambda words: " ".join(words[-2:]),
)
def test_what_is_no_plain_file_is_one_line(words, place, capsys, monkeypatch, tmp_path, candles):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAYFLY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("signal.signal", lambda *_: None)  # they stay this process's own
    for suffix in ("", ".json", ".py", ".safetensors"):
        os.mkfifo(f"pipe{suffix}")
        Path(f"zero{suffix}").symlink_to("/dev/zero")
    Path("sweep.toml").write_text('[script]\ncommand = "python train.py"\n')
    assert main([word.replace("PLACE", place).replace("CANDLES", str(candles)) for word in words]) == 2
    *story, line = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "Errno" not in line and story in ([], ["trying your own files ..."])
    assert re.search("not a plain file|neither a plain file|is not a file|symbolic link", line), line


@pytest.mark.parametrize(
    "words",
    [
        ("launch", "--symbols", ",,,"),
        ("launch", "--symbols", ""),
        ("launch", "--data", ""),
        ("launch", "--budget", "0"),
        ("launch", "--budget", "0.0"),
        (*TRAIN, "--symbols", ",,,"),
        (*TRAIN, "--symbols", ""),
        ("predict", "m.safetensors", "--data", ".", "--symbols", " , "),
        ("predict", "m.safetensors", "--data", ".", "--symbols", ""),
        ("predict", "m.safetensors", "--data", ".", "--last", "0"),
        ("predict", "m.safetensors", "--data", ".", "--last", "-1"),
    ],
    ids=lambda words: " ".join((words[0], *words[-2:])),
)
def test_a_flag_that_asks_for_nothing_is_refused(words, capsys, monkeypatch, tmp_path, candles):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAYFLY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main([word.replace("CANDLES", str(candles)) for word in words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
    assert words[-2].removeprefix("--") in said and not (tmp_path / "home").exists()


def test_a_log_line_that_quotes_a_node_is_escaped() -> None:
    """A snapshot with such a format is logged as unused, by the command that drives its run."""
    code = """
import logging, sys
from trainer.cli import main
from trainer.cli.verbs import status

def warns(arguments):
    logging.getLogger("trainer.control").warning("%s is not used", "\\x1b]0;x\\x07\\u202e")
    return 0

status.run = warns
sys.exit(main.main(["status"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "\\x1b]0;x\\x07\\u202e is not used\n"
