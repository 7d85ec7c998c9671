"""`mayfly agent --here` and a rehearsed launch at the desk: what can't run is refused before anything is
started.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from trainer.cli.connect import same_place
from trainer.cli.main import main
from trainer.cli.verbs.agent import python_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="rehearsals and agents need Linux")
LAUNCH = ("launch", "--rehearse", "--instance", "g6.xlarge")


@pytest.fixture
def desk_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of this desk's embedded AWS and runs, which nothing has made yet; a script lies
    beside it.
    """
    monkeypatch.setenv("MAYFLY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import no_such_package")
    return tmp_path / "home"


@pytest.mark.parametrize(
    "verb", [LAUNCH, ("agent", "--here", "--rehearse"), ("agent", "--here", "--local", "store")]
)
def test_an_unlisted_package_is_refused_before_anything_starts(
    verb: Any, desk_home: Path, capsys: Any
) -> None:
    assert main([*verb, "--script", "train.py", "--max-duration", "1h"]) == 2
    assert "train.py imports no_such_package (no file lists its packages)" in capsys.readouterr().err
    assert not desk_home.exists() and not Path("store").exists()


def test_requirements_without_a_wheel_are_refused_before_a_start(desk_home: Path, capsys: Any) -> None:
    from tests.wheels import write_wheel

    write_wheel(Path(), "aged", tag="cp39-cp39-manylinux2014_x86_64")
    Path("r.txt").write_text("aged")
    files = ("--set", "script.files=train.py,aged-1.0-cp39-cp39-manylinux2014_x86_64.whl")
    words = ("--script", "train.py", "--max-duration", "1h", "--set", "script.requirements=r.txt", *files)
    assert main([*LAUNCH, *words]) == 2
    assert "aged==1.0 has no wheels with a matching Python" in capsys.readouterr().err
    assert not desk_home.exists()


def test_a_missing_or_too_short_secret_is_refused(
    desk_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    script = ["--script", "train.py", "--set", "script.secrets=WANDB_API_KEY"]
    words = ["agent", "--here", "--local", "store", *script]
    assert main(words) == 103
    line = "the secret WANDB_API_KEY is not set (on your own machine it comes from the environment)"
    assert line in capsys.readouterr().err
    monkeypatch.setenv("WANDB_API_KEY", "abc")
    assert main(words) == 103
    assert "the secret WANDB_API_KEY can't be used (it needs 4 characters or more" in capsys.readouterr().err
    assert not desk_home.exists() and not Path("store").exists()


@pytest.mark.parametrize("verb", [("agent", "--here", "--script", "train.py"), ("status",)])
def test_a_folder_whose_path_no_record_can_hold_is_refused(verb: Any, desk_home: Path, capsys: Any) -> None:
    Path("train.py").write_text("")
    assert main([*verb, "--local", "caf\udce9"]) == 2
    printed = "error: caf\\udce9 can't be used (its path is not UTF-8). Rename it, or name another.\n"
    assert capsys.readouterr().err == printed
    assert not Path("caf\udce9").exists()


@pytest.mark.parametrize(
    ("folder", "flag"), [("My Drive/x", " --local 'My Drive/x'"), ("x", " --local x"), ("", " --local")]
)
def test_the_next_commands_can_be_pasted(folder: str, flag: str) -> None:
    assert same_place(Namespace(local=folder, rehearse=False, stack="dev")) == flag


def test_another_python_is_found_or_refused_before_a_start(
    desk_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert main(["agent", "--here", "--local", "store", "--script", "train.py", "--python", "nope"]) == 2
    printed = "error: --python nope is not a program. Name a Python, such as --python .venv/bin/python.\n"
    assert capsys.readouterr().err == printed
    assert not desk_home.exists() and not Path("store").exists()
    Path("venv").symlink_to(Path(sys.executable).parent)
    assert python_of("venv/python") == str(
        Path.cwd() / "venv" / "python"
    )  # the agent runs elsewhere; the link stays


def test_a_file_in_place_of_the_local_folder_is_named(desk_home: Path, capsys: Any) -> None:
    Path("train.py").write_text("print(1)")
    Path("store").write_text("")
    assert main(["agent", "--here", "--local", "store", "--script", "train.py"]) == 2
    assert "store is not a folder (it is a file)" in capsys.readouterr().err
