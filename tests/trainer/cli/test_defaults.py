"""~/.config/mayfly/defaults.toml: what wins over it, what is said of it, and its strict reading."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.base import environment
from trainer.cli.main import main

NUMBERS = ["plan", "--symbols", "3", "--bars", "50000"]


@pytest.fixture
def defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    file = tmp_path / "mayfly" / "defaults.toml"
    file.parent.mkdir()
    return file


def test_its_place_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # which the specification ignores
    assert environment.defaults_file() == tmp_path / ".config" / "mayfly" / "defaults.toml"


def test_a_flag_wins_over_the_job_and_the_job_over_the_defaults(defaults, capsys, tmp_path):
    defaults.write_text(
        '[flags]\nobjective = "cost"\ndesk = ["rtx_4090=0.12"]\nstack = "prod"\n'
        '[machine]\nmarket = ["spot"]\nmax_duration = "5h"\nbudget = 3\n[train]\nepochs = 7\nlearning_rate = 0.5\nseed = 9\n'
    )
    job = tmp_path / "job.toml"
    job.write_text("[train]\nlearning_rate = 0.25\nseed = 8\n")
    assert main([*NUMBERS, "--job", str(job), "--set", "train.seed=4", "--budget", "20", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    train, machine = plan["job"]["train"], plan["job"]["machine"]
    assert (train["epochs"], train["learning_rate"], train["seed"]) == (7, 0.25, 4)
    assert (machine["max_duration"], machine["budget"]) == ("5h", 20)
    assert any(one["seller"] == "desk" for one in plan["outside"])
    assert plan["choice"]["recommended"] == plan["choice"]["cheapest"]  # by cost
    assert plan["notes"][0] == (
        f"from {defaults}: --objective cost; --desk rtx_4090=0.12; machine.max_duration = 5h; train.epochs = 7"
    )
    assert main([*NUMBERS, "--objective", "time", "--json"]) == 0
    assert "--objective" not in json.loads(capsys.readouterr().out)["notes"][0]


def test_a_stack_is_taken_but_by_down(defaults, monkeypatch):
    defaults.write_text('[flags]\nstack = "prod"\n')
    seen = []
    for verb in ("doctor", "down"):
        module = f"trainer.cli.verbs.{verb}.run"
        monkeypatch.setattr(module, lambda arguments: seen.append(arguments.stack) or 0)
        assert main([verb]) == main([verb, "--stack", "test"]) == 0
    assert seen == ["prod", "test", "dev", "test"]


def test_a_stack_is_not_taken_where_there_is_only_one(defaults, monkeypatch, tmp_path):
    defaults.write_text('[flags]\nstack = "prod"\n')
    seen = []
    run = "trainer.cli.verbs.status.run"
    monkeypatch.setattr(run, lambda told: seen.append((told.stack, told.from_defaults)) or 0)
    assert main(["status", "--rehearse"]) == main(["status", "--local", str(tmp_path)]) == 0
    monkeypatch.setenv("MAYFLY_REHEARSE", "1")
    assert main(["status"]) == 0
    assert seen == [("dev", [])] * 3


def test_a_script_takes_those_of_its_machine_alone(defaults, capsys, tmp_path):
    defaults.write_text('[machine]\nmax_duration = "1h"\n[train]\nepochs = 7\n')
    (tmp_path / "train.py").write_text("print('hello')\n")
    assert main(["plan", "--script", str(tmp_path / "train.py"), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["job"]["machine"]["max_duration"] == "1h"
    assert plan["notes"][0] == f"from {defaults}: machine.max_duration = 1h"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[flags]\nyes = true\n", "unknown key 'flags.yes'. [flags] has stack, objective, desk."),
        ("[flags]\nstak = 'x'\n", "unknown key 'flags.stak'. Did you mean stack?"),
        ("[flags]\nobjective = 'best'\n", "'flags.objective' is 'best'"),
        ("[flags]\ndesk = 'rtx_4090=1'\n", "'flags.desk' is 'rtx_4090=1'. Set it to a list of texts."),
        ("[model]\nname = 'tcn'\n", "unknown table 'model'"),
        ("epochs = 3\n", "unknown table 'epochs'"),
        ("[train]\nepoch = 3\n", "unknown key 'train.epoch'. Did you mean epochs"),
        ("[train]\nepochs = 0\n", "job key 'train.epochs' is 0 (it must be 1 or more"),
        ("[machine\n", "cannot read"),
    ],
)
def test_what_it_does_not_know_is_one_line_with_its_path(defaults, capsys, text, words):
    defaults.write_text(text)
    assert main(NUMBERS) == 2
    line = " ".join(capsys.readouterr().err.split())
    assert str(defaults) in line and words in line
