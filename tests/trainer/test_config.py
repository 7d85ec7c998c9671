"""Job settings: precedence, types, durations, and the line a mistake gets."""

from datetime import timedelta
from pathlib import Path

import pytest

from trainer.config import Job, job_from, job_from_json, job_keys, load_job, parse_assignments, parse_duration
from trainer.errors import UsageError


def test_later_sources_win():
    job = job_from({"hidden": 32, "epochs": 3}, {"hidden": 64}, parse_assignments(["hidden=128"]))
    assert (job.hidden, job.epochs) == (128, 3)


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(UsageError, match=r"unknown job key 'hiden'\. Did you mean hidden"):
        job_from({"hiden": 3})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hidden": "many"}, "a whole number"),
        ({"hidden": 0}, "1 or more"),
        ({"learning_rate": 0}, "above 0"),
        ({"dropout": 1.0}, "below 1"),
        ({"calendar": "lunar"}, "24x7"),
        ({"model": "gru"}, "lstm"),
        ({"market": "free"}, "on_demand, spot"),
        ({"name": "Crypto LSTM"}, "lower case"),
        ({"name": "a" * 25}, "24"),
        ({"symbols": [1, 2]}, "a list of texts"),
        ({"max_duration": "soon"}, "not a duration"),
        ({"budget": float("inf")}, "0 or more"),
        ({"epochs": True}, "a whole number"),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_clear_line(settings, words):
    with pytest.raises(UsageError) as caught:
        job_from(settings)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90m", timedelta(minutes=90)),
        ("1h30m", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
    ],
)
def test_durations(text, expected):
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "90", "0m", "1h of work", "-5m"])
def test_what_is_no_duration(text):
    with pytest.raises(UsageError):
        parse_duration(text)


def test_a_job_survives_json():
    job = job_from({"symbols": "BTC-USD,ETH-USD", "learning_rate": 1e-4, "instance": ["p3.8xlarge"]})
    import json

    assert job_from_json(json.dumps(job.to_dict())) == job


def test_assignments_are_toml_and_bare_words_are_text():
    assert parse_assignments(["hidden=128", "learning_rate=1e-4", "calendar=24x7", 'symbols=["A","B"]']) == {
        "hidden": 128,
        "learning_rate": 1e-4,
        "calendar": "24x7",
        "symbols": ["A", "B"],
    }
    with pytest.raises(UsageError, match="has no value"):
        parse_assignments(["hidden"])


def test_a_job_file_that_is_missing_nested_or_not_toml(tmp_path: Path):
    with pytest.raises(UsageError, match="does not exist"):
        load_job(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("epochs: 3")
    with pytest.raises(UsageError, match="is not TOML"):
        load_job(tmp_path / "bad.toml")
    (tmp_path / "nested.toml").write_text("[train]\nepochs = 3")
    with pytest.raises(UsageError, match=r"table \[train\]"):
        load_job(tmp_path / "nested.toml")


def test_the_example_shows_every_key():
    example = Path(__file__).resolve().parents[2] / "examples" / "crypto-lstm.toml"
    shown = load_job(example)
    assert isinstance(job_from(shown), Job)
    text = example.read_text()
    for key, _, _ in job_keys():
        assert f"\n{key} = " in f"\n{text}" or f"\n# {key} = " in text, f"examples/crypto-lstm.toml does not show {key}"


def test_a_tcn_is_counted_in_chunks_and_an_lstm_in_windows():
    assert (Job(model="tcn").unit, Job().unit) == ("chunks", "windows")
