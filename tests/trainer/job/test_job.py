"""The job: precedence, tables, types, durations, and the line that a mistake gets."""

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from trainer import models, targets
from trainer.base.errors import UsageError
from trainer.base.settings import keys_of
from trainer.data.table import DataSettings
from trainer.job import tables as job_tables
from trainer.job.job import Job, job_from, job_from_json, job_of, load_job, parse_assignments, with_settings
from trainer.job.machine import MachineSettings, parse_duration
from trainer.job.tables import with_keys
from trainer.job.train import TrainSettings

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = ("trainer.data.table", "trainer.job.train", "trainer.job.machine", "trainer.job.job")


def refusal(make) -> str:
    """Return the line that a mistake gets."""
    with pytest.raises(UsageError) as caught:
        make()
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_keys_win_over_tables():
    job = job_from(
        with_keys({"model": {"hidden": 32}, "train": {"epochs": 3}}, parse_assignments(["hidden=128"]))
    )
    assert (job.model.hidden, job.train.epochs) == (128, 3)


def test_a_key_is_set_with_its_table_or_without():
    for key in ("train.epochs", "epochs"):
        assert job_from(with_keys({}, {key: 4})).train.epochs == 4


def test_a_key_of_two_tables_is_refused_and_names_them(monkeypatch):
    monkeypatch.setitem(
        job_tables._PLAIN, "machine", DataSettings
    )  # a table that shares its keys with another
    line = refusal(lambda: with_keys({}, {"bars": 3}))
    assert line == "'bars' is a key of [data] and [machine]. Write data.bars or machine.bars."


def test_a_table_alone_chooses_the_model_the_target_and_the_candles():
    job = job_of(model="tcn", target="direction", data="candles")
    assert (job.model.name, job.target.name, job.data.path) == ("tcn", "direction", "candles")


@pytest.mark.parametrize(("model", "target", "batch"), [("lstm", "direction", 256), ("tcn", "volatility", 4)])
def test_a_model_has_its_target_and_its_batch(model, target, batch):
    job = job_from({"model": {"name": model}})
    assert (job.target.name, job.train.batch) == (target, batch)


def test_another_model_leaves_the_keys_of_the_one_before_behind():
    tables = {"model": {"name": "lstm", "hidden": 8, "dropout": 0.3}, "target": {"horizon": 9}}
    job = job_from(with_keys(tables, {"model": "tcn"}))
    assert (job.model.name, job.model.dropout, job.target.name) == ("tcn", 0.3, "volatility")
    kept = job_from(with_keys(tables, {"target": "quantiles"}))
    assert (kept.target.name, kept.target.horizon, kept.model.hidden) == ("quantiles", 9, 8)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"hiden": 3}, "unknown job key 'hiden'. Did you mean model.hidden"),
        ({"train.epoch": 3}, "unknown job key 'train.epoch'. Did you mean train.epochs"),
        ({"train.hidden": 3}, "unknown job key 'train.hidden'. Did you mean model.hidden?"),
        ({"trian.epochs": 3}, "unknown table 'trian' of 'trian.epochs'. Did you mean train?"),
        ({"batch_chunks": 3}, "unknown job key 'batch_chunks'. It is train.batch now."),
        ({"model": "tcn", "hidden": 3}, "hidden is a key of the model lstm, and this job's model is tcn"),
        (
            {"model": "tcn", "model.hidden": 3},
            "hidden is a key of the model lstm, and this job's model is tcn",
        ),
        ({"coverage": 0.5}, "coverage is a key of the target quantiles, and this job's target is direction"),
    ],
)
def test_an_unknown_key_names_the_nearest_with_its_table_or_who_has_it(keys, line):
    assert line in refusal(lambda: job_of(**keys))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hidden": "many"}, "a whole number"),
        ({"hidden": 0}, "1 or more"),
        ({"learning_rate": 0}, "above 0"),
        ({"dropout": 1.0}, "below 1"),
        ({"calendar": "lunar"}, "24x7"),
        ({"model": "gru"}, "lstm"),
        ({"target": "luck"}, "direction"),
        ({"market": "free"}, "on_demand, spot"),
        ({"name": "Crypto LSTM"}, "lower case"),
        ({"name": "a" * 25}, "24"),
        ({"symbols": [1, 2]}, "a list of texts"),
        ({"max_duration": "soon"}, "not a duration"),
        ({"budget": float("inf")}, "0 or more"),
        ({"learning_rate": float("inf")}, "above 0"),
        ({"epochs": True}, "a whole number"),
        ({"batch": -3}, "0 or more"),
        ({"test_fraction": 0.8}, "a tenth of the bars"),
        ({"model": "tcn", "batch": "auto"}, "batch = auto is for models that read windows"),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_clear_line(settings, words):
    assert words in refusal(lambda: job_of(**settings))


def test_batch_auto_is_left_to_the_tuner():
    assert job_of(batch="auto").train.batch == 0


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


@pytest.mark.parametrize("model", ["lstm", "tcn"])
def test_a_job_survives_json(model):
    job = job_of(model=model, symbols="BTC-USD,ETH-USD", learning_rate=1e-4, instance=["p3.8xlarge"])
    assert job_from_json(json.dumps(job.to_dict())) == job
    assert list(job.to_dict()) == ["name", "data", "model", "target", "train", "machine"]
    assert with_settings(job, epochs=3).train.epochs == 3 and with_settings(job, epochs=3).model == job.model


def test_assignments_are_toml_and_bare_words_are_text():
    assert parse_assignments(
        ["train.epochs=3", "learning_rate=1e-4", "calendar=24x7", 'symbols=["A","B"]']
    ) == {
        "train.epochs": 3,
        "learning_rate": 1e-4,
        "calendar": "24x7",
        "symbols": ["A", "B"],
    }
    with pytest.raises(UsageError, match="has no value"):
        parse_assignments(["hidden"])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (-1e30, "it has the number -1e+30"),
        (10**30, "it has a number of 31 digits"),
        ("caf\udce9", "it has a text that is not Unicode"),
        ([[[[[[[[[[[[[[[["x"]]]]]]]]]]]]]]]], "it is more than 16 levels deep"),
    ],
)
def test_a_value_that_a_record_cannot_hold_is_refused(value: object, reason: str):
    tables = {"model": {"file": "net.py", "class": "Net", "mask": value}}
    assert reason in refusal(lambda: job_from(tables))


def test_a_script_in_a_folder_whose_name_is_not_utf8_is_refused():
    script = {"command": "python train.py", "root": "caf\udce9"}
    tables = {"script": script, "machine": {"max_duration": "1h"}}
    assert "job key 'script.root' is 'caf\\udce9' (it has a text that is not Unicode)" in refusal(
        lambda: job_from(tables)
    )


def test_a_job_file_may_begin_with_a_byte_order_mark(tmp_path: Path):
    (tmp_path / "job.toml").write_text("[train]\nepochs = 3\n", encoding="utf-8-sig")  # as Notepad saves it
    assert load_job(tmp_path / "job.toml") == {"train": {"epochs": 3}}


def test_a_job_file_that_is_missing_or_not_toml(tmp_path: Path):
    assert "does not exist" in refusal(lambda: load_job(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("epochs: 3")
    assert f"job file {tmp_path} is a folder" in refusal(lambda: load_job(tmp_path))
    assert "is not TOML" in refusal(lambda: load_job(tmp_path / "bad.toml"))
    assert "cannot read job file" in refusal(lambda: load_job(tmp_path / "bad.toml" / "job.toml"))
    (tmp_path / "table.toml").write_text("[modle]\nhidden = 3")
    assert "has a table [modle]. Did you mean model?" in refusal(lambda: load_job(tmp_path / "table.toml"))


def test_the_flat_job_file_of_before_is_refused_with_the_line_that_mends_it(tmp_path: Path):
    path = tmp_path / "flat.toml"
    path.write_text('name = "mine"\nmodel = "lstm"\nepochs = 3\nbatch_chunks = 4\nhidden = 8\n')
    line = refusal(lambda: load_job(path))
    assert "is flat" in line and "[model] as name" in line and "epochs = ... into [train]" in line
    assert "batch_chunks = ... into [train] as batch" in line and "the other 1 into" in line
    path.write_text("epochs = 3\n")
    assert "(epochs in no table). Put epochs = ... into [train]." in refusal(lambda: load_job(path))


def test_a_job_is_its_tables():
    job = Job(data=DataSettings(bars=100))
    assert (job.data.bars, job.model.name, job.target.name, job.train.batch) == (
        100,
        "lstm",
        "direction",
        256,
    )


@pytest.mark.parametrize("module", SETTINGS)
def test_settings_load_with_heavy_libraries_blocked(module):
    blocked = "torch", "numpy", "pandas", "pyarrow", "boto3", "botocore"
    script = f"import sys\nfor name in {blocked}: sys.modules[name] = None\nimport {module}\n"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, timeout=60)


def numbers_of_a_job() -> list[str]:
    """Return every key that takes a number, as the tables declare them."""
    places = {"data": DataSettings, "train": TrainSettings, "machine": MachineSettings}
    homes = [(f"model {name}", cls) for name, cls in models.MODELS.items()]
    homes += [(f"target {name}", cls) for name, cls in targets.TARGETS.items()]
    return [
        f"{place}.{key}"
        for place, cls in [*places.items(), *homes]
        for key, item in keys_of(cls).items()
        if item.type in ("int", "float") and not {"most", "below"} & item.metadata["limits"].keys()
    ]


def test_every_number_of_a_job_has_an_upper_bound():
    assert numbers_of_a_job() == []


@pytest.mark.parametrize(
    "text",
    [
        "epochs=12345678901234567890123456",
        "folds=1000000000",
        "epochs=" + "9" * 5000,
        "budget=1e300",
        "batch=1000000000000",
        "max_duration=999999999999999999w",
        "name=" + "9" * 30,
        "seed=-1",
        "test_fraction=nan",
        "horizon=inf",
        'timeframe=".."',  # found by scripts/fuzz
    ],
)
def test_a_number_without_sense_is_one_short_line(text):
    assert len(refusal(lambda: job_from(with_keys({}, parse_assignments([text]))))) < 300


def test_folds_seeds_and_symbols_are_bounded_together():
    line = refusal(
        lambda: job_of(
            symbols=tuple(f"S{number}" for number in range(500)), folds=10, test_fraction=0.01, seeds=10
        )
    )
    assert "makes 50,000 models (500 symbols x 10 folds x 10 seeds)" in line
