"""A library that is not installed is one line with the extra that installs it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from trainer.base.errors import ConfigError
from trainer.base.extras import EXTRAS, missing_library, needs

ROOT = Path(__file__).resolve().parents[3]


def test_the_table_names_every_library_of_the_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed_by = packages_distributions() | {"mlflow": ["mlflow-skinny"], "wandb": ["wandb"]}  # in no lock
    installed_by |= {"shtab": ["shtab"]}  # not in every environment
    for extra, libraries in EXTRAS.items():
        wanted = {re.split(r"[\[<>=]", item)[0].lower() for item in extras[extra]} - {"mayfly"}
        named = {item.lower() for library in libraries for item in installed_by[library]}
        assert {item.replace("_", "-") for item in wanted} == {item.replace("_", "-") for item in named}


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from trainer.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("words", [["predict", "m", "--data", "."], ["train", "--data", ".", "--out", "out"]])
def test_a_verb_whose_library_is_missing_says_what_to_install(words, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "a.safetensors").write_bytes(b"short")
    (tmp_path / "A_1d.csv").touch()
    command = [sys.executable, "-c", WITHOUT_TORCH, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (103, "")
    assert done.stderr == "error: this needs torch, which is not installed. pip install 'mayfly[train]'\n"


def test_a_missing_library_of_nobodys_extra_is_our_mistake():
    assert missing_library(ModuleNotFoundError(name="trainer.nothing")) is None
    assert missing_library(ValueError()) is None


def test_a_library_is_looked_for_before_something_is_started(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs moto, which is not installed. pip install 'mayfly\[rehe"):
        needs("moto")
