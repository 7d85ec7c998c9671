"""A mistyped verb or flag is one line with the nearest word, and the help of the command that was meant."""

from __future__ import annotations

import pytest

from trainer.base.errors import UsageError
from trainer.cli.main import main
from trainer.cli.parser import build_parser
from trainer.train.__main__ import main as train


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["launc"], "unknown verb 'launc'. Did you mean launch? See mayfly --help."),
        (["trian"], "unknown verb 'trian'. Did you mean train? See mayfly --help."),
        (["models", "lst"], "unknown action 'lst'. Did you mean list? See mayfly models --help."),
        (
            ["launch", "--instnace", "x"],
            "unrecognized arguments: --instnace x. Did you mean --instance? See mayfly launch --help.",
        ),
        (
            ["launch", "--dry-rnu=1"],
            "unrecognized arguments: --dry-rnu=1. Did you mean --dry-run? See mayfly launch --help.",
        ),
        (
            ["models", "list", "--jsn"],
            "unrecognized arguments: --jsn. Did you mean --json? See mayfly models list --help.",
        ),
        (
            ["predict", "M", "--data", ".", "--timeframe", "5m"],
            "unrecognized arguments: --timeframe 5m. See mayfly predict --help.",
        ),
        (["status", "RUN", "RUN"], "unrecognized arguments: RUN. See mayfly status --help."),
        (["--foo", "status"], "unrecognized arguments: --foo. See mayfly --help."),
        (["pull"], "the following arguments are required: RUN. See mayfly pull --help."),
        (["train"], "the following arguments are required: --data, --out. See mayfly train --help."),
        (
            ["train", "--data", ".", "--out", ".", "--epoch5", "3"],
            "unrecognized arguments: --epoch5 3. Did you mean --epochs? See mayfly train --help.",
        ),
    ],
)
def test_a_mistake_names_the_nearest_word_and_the_verbs_own_help(words, line, capsys):
    assert main(words) == 2
    assert capsys.readouterr() == ("", f"error: {line}\n")


@pytest.mark.parametrize(
    "words", ["A B --data X", "--data X A B", "A --data X B --last 1", "--last 1 A --data X B"]
)
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
    assert (
        main(["train", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--set", "train.epochs=none"])
        == 2
    )
    assert "job key 'train.epochs'" in capsys.readouterr().err
