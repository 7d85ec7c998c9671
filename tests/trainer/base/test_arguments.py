"""A mistyped verb or flag is one line with the nearest word, and the help of the command that was meant."""

from __future__ import annotations

import pytest

from trainer.base.errors import UsageError
from trainer.cli.main import main
from trainer.cli.parser import build_parser
from trainer.train.__main__ import main as train

UNKNOWN, MISSING = "unrecognized arguments:", "the following arguments are required:"


@pytest.mark.parametrize(
    ("words", "mistake", "command"),
    [
        ("launc", "unknown verb 'launc'. Did you mean launch?", "mayfly"),
        ("trian", "unknown verb 'trian'. Did you mean train?", "mayfly"),
        ("models lst", "unknown action 'lst'. Did you mean list?", "mayfly models"),
        ("launch --instnace x", f"{UNKNOWN} --instnace x. Did you mean --instance?", "mayfly launch"),
        ("launch --dry-rnu=1", f"{UNKNOWN} --dry-rnu=1. Did you mean --dry-run?", "mayfly launch"),
        ("models list --jsn", f"{UNKNOWN} --jsn. Did you mean --json?", "mayfly models list"),
        ("predict M --data . --timeframe 5m", f"{UNKNOWN} --timeframe 5m.", "mayfly predict"),
        ("status RUN RUN", f"{UNKNOWN} RUN.", "mayfly status"),
        ("--foo status", f"{UNKNOWN} --foo.", "mayfly"),
        ("pull", f"{MISSING} RUN.", "mayfly pull"),
        ("train", f"{MISSING} --data, --out.", "mayfly train"),
        (
            "train --data . --out . --epoch5 3",
            f"{UNKNOWN} --epoch5 3. Did you mean --epochs?",
            "mayfly train",
        ),
    ],
)
def test_a_mistake_names_the_nearest_word_and_the_verbs_own_help(words, mistake, command, capsys):
    assert main(words.split()) == 2
    assert capsys.readouterr() == ("", f"error: {mistake} See {command} --help.\n")


MODELS_AND_FLAGS = ("A B --data X", "--data X A B", "A --data X B --last 1", "--last 1 A --data X B")


@pytest.mark.parametrize("words", MODELS_AND_FLAGS)
def test_models_may_stand_before_and_after_flags(words):
    assert build_parser().parse_args(["predict", *words.split()]).models == ["A", "B"]


def test_a_misspelled_flag_after_models_is_refused():
    with pytest.raises(UsageError, match="unrecognized arguments: --lst 5. Did you mean --last"):
        build_parser().parse_args(["predict", "A", "--data", "X", "--lst", "5"])


def test_the_modules_name_themselves(capsys):
    assert main(["launch", "--epoch5", "3"], prog="python -m trainer.launch") == 2
    assert capsys.readouterr().err.endswith("Did you mean --epochs? See python -m trainer.launch --help.\n")
    assert train(["--data", "."]) == 2
    assert capsys.readouterr().err.endswith("See python -m trainer.train --help.\n")


def test_mayfly_train_is_the_training_command(tmp_path, capsys):
    folders = ("--data", str(tmp_path), "--out", str(tmp_path / "out"))
    assert main(["train", *folders, "--set", "train.epochs=none"]) == 2
    assert "job key 'train.epochs'" in capsys.readouterr().err
