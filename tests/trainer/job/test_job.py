"""The job: precedence, tables, types, durations, and the line that a mistake gets."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tests.jobs import job_of
from trainer import models, targets
from trainer.base.errors import UsageError
from trainer.base.settings import MOST_TOML_BYTES, keys_of
from trainer.data.table import DataSettings
from trainer.job.job import Job
from trainer.job.machine import MachineSettings, parse_duration
from trainer.job.reading import job_from, job_from_json, load_job, parse_assignments, parse_job
from trainer.job.tables import with_keys
from trainer.job.train import ExpertSettings, TrainSettings

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
    tables = {"model": {"hidden": 32}, "train": {"epochs": 3}}
    job = parse_job(tables, {"model.hidden": 64}, ["model.hidden=128"])
    assert (job.model.hidden, job.train.epochs) == (128, 3)


def test_a_tables_name_chooses_model_target_and_candles():
    job = job_of(model="tcn", target="direction", data="candles")
    assert (job.model.name, job.target.name, job.data.path) == ("tcn", "direction", "candles")


@pytest.mark.parametrize(("model", "target", "batch"), [("lstm", "direction", 256), ("tcn", "volatility", 4)])
def test_a_model_has_its_target_and_its_batch(model, target, batch):
    job = job_from({"model": {"name": model}})
    assert (job.target.name, job.train.batch) == (target, batch)


def test_another_model_leaves_the_keys_of_the_one_before_behind():
    tables = {"model": {"name": "lstm", "hidden": 8, "dropout": 0.3}, "target": {"horizon": 9}}
    job = parse_job(tables, {"model.name": "tcn"})
    assert (job.model.name, job.model.dropout, job.target.name) == ("tcn", 0.3, "volatility")
    kept = parse_job(tables, {"target.name": "quantiles"})
    assert (kept.target.name, kept.target.horizon, kept.model.hidden) == ("quantiles", 9, 8)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"epochs": 3}, "unknown job key 'epochs'. Did you mean train.epochs?"),
        ({"secrets": "KEY"}, "unknown job key 'secrets'. Did you mean data.secrets or script.secrets?"),
        ({"model": "tcn"}, "unknown job key 'model'. Did you mean model.name?"),
        ({"hiden": 3}, "unknown job key 'hiden'. Did you mean model.hidden"),
        ({"model.hiden": 3}, "unknown job key 'model.hiden'. Did you mean model.hidden"),
        ({"train.epoch": 3}, "unknown job key 'train.epoch'. Did you mean train.epochs"),
        ({"train.strategy": "fused"}, "unknown job key 'train.strategy'. Did you mean expert.strategy?"),
        ({"train.hidden": 3}, "unknown job key 'train.hidden'. Did you mean model.hidden?"),
        ({"trian.epochs": 3}, "unknown table 'trian' of 'trian.epochs'. Did you mean train?"),
        (
            {"model.name": "tcn", "hidden": 3},
            "model.hidden is a key of the model lstm and mlp, and this job's",
        ),
        ({"model.name": "tcn", "model.hidden": 3}, "model.hidden is a key of the model lstm"),
        ({"coverage": 0.5}, "target.coverage is a key of the target quantiles, and this job's target is dir"),
    ],
)
def test_an_unknown_key_names_the_nearest_or_its_owner(keys, line):
    assert line in refusal(lambda: parse_job({}, keys))


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
        ({"market": ["spot", "free"]}, "on_demand, spot"),
        ({"market": []}, "on_demand, spot"),
        ({"queue_timeout": "13h"}, "at most 12h"),
        ({"queue_timeout": "soon"}, "machine.queue_timeout 'soon' is not a duration"),
        ({"name": "Crypto LSTM"}, "lower case"),
        ({"name": "a" * 25}, "24"),
        ({"track": ["mlflow", "neptune"]}, "mlflow or wandb"),
        ({"track": 3}, "a list of texts"),
        ({"symbols": [1, 2]}, "a list of texts"),
        ({"max_duration": "soon"}, "machine.max_duration 'soon' is not a duration"),
        ({"budget": float("inf")}, "0 or more"),
        ({"learning_rate": float("inf")}, "above 0"),
        ({"epochs": True}, "a whole number"),
        ({"batch": -3}, "0 or more"),
        ({"test_fraction": 0.8}, "must be below 90%"),
        ({"agent.environment": 5}, "'agent.environment' is 5 (it must be FILE.py:CLASS)"),
        ({"agent.environment": 0}, "'agent.environment' is 0 (it must be FILE.py:CLASS)"),
        ({"model": "tcn", "batch": "auto"}, "batch = auto is for models that read windows"),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_clear_line(settings, words):
    assert words in refusal(lambda: job_of(**settings))


def test_batch_auto_is_left_to_the_tuner():
    assert job_of(batch="auto").train.batch == 0


@pytest.mark.parametrize(("text", "minutes"), [("90m", 90), ("1h30m", 90), ("1.5h", 90), ("2d", 2880)])
def test_durations_are_sums_of_units(text, minutes):
    assert parse_duration(text) == timedelta(minutes=minutes)


@pytest.mark.parametrize("text", ["", "90", "0m", "1h of work", "-5m"])
def test_a_text_that_is_no_duration_is_refused(text):
    with pytest.raises(UsageError):
        parse_duration(text)


@pytest.mark.parametrize("model", ["lstm", "tcn"])
def test_a_job_survives_json(model):
    job = job_of(model=model, symbols="BTC-USD,ETH-USD", learning_rate=1e-4, instance=["p3.8xlarge"])
    assert job_from_json(json.dumps(job.to_dict())) == job
    assert list(job.to_dict()) == ["name", "data", "model", "target", "train", "expert", "machine"]


def test_trackers_are_the_desks_alone(tmp_path: Path):
    (tmp_path / "job.toml").write_text('name = "mine"\ntrack = ["mlflow"]\n')
    plain = parse_job({"name": "mine"}, {})
    for job in (
        parse_job(load_job(tmp_path / "job.toml"), {}, ["track=wandb,mlflow"]),
        parse_job({"name": "mine", "track": ["wandb", "mlflow"]}, {}),
    ):
        assert (job.track, job.to_dict()) == (("wandb", "mlflow"), plain.to_dict())
        assert job.without_desk() == plain.without_desk()


def test_defaults_fill_only_keys_that_were_not_given():
    job = parse_job({"data": {"bars": 7}}, {"model.name": "tcn"}, ["model.width=8"]).with_train(seed=3)
    filled = job.with_defaults({"name": "demo", "data.bars": 1, "model.width": 4, "model.blocks": 3})
    assert (filled.name, filled.data.bars, filled.model.width, filled.model.blocks) == ("demo", 7, 8, 3)


def test_a_replaced_value_is_checked_like_a_given_one():
    assert "1 or more" in refusal(lambda: Job().with_train(epochs=0))
    assert "data.panel and data.pooled" in refusal(lambda: Job().with_data(panel=True, pooled=True))
    assert Job().with_train(epochs=3) == job_from({"train": {"epochs": 3}})


def test_assignments_are_toml_and_bare_words_are_text():
    texts = ["train.epochs=3", "train.learning_rate=1e-4", "data.calendar=24x7", 'data.symbols=["A","B"]']
    assert [*parse_assignments(texts).values()] == [3, 1e-4, "24x7", ["A", "B"]]
    assert [*parse_assignments(texts)] == [text.partition("=")[0] for text in texts]
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
    line = refusal(lambda: job_from(tables))
    assert "job key 'script.root' is 'caf\\udce9' (it has a text that is not Unicode)" in line


@pytest.mark.parametrize("features", ['"returns, mine.py:Mine"', '["returns", "mine.py:Mine"]'])
def test_own_features_are_named_from_the_jobs_folder(tmp_path: Path, features: str):
    (tmp_path / "job.toml").write_text(f"[data]\nfeatures = {features}\n")
    returns, mine = load_job(tmp_path / "job.toml")["data"]["features"]
    assert (returns.strip(), mine) == ("returns", f"{tmp_path / 'mine.py'}:Mine")


def test_another_class_of_the_users_takes_none_of_its_keys():
    tables = {"model": {"file": "mine.py", "class": "Mine", "width": 3}}
    assert with_keys(tables, {"model.name": "mine.py:Other"})["model"] == {
        "file": "mine.py",
        "class": "Other",
    }
    assert with_keys(tables, {"model.name": "mine.py:Mine"}) == tables


def test_a_model_that_is_no_name_is_one_line():
    line = refusal(lambda: with_keys({}, {"model.name": 3}))
    assert "job key 'model.name' is 3" in line


def test_a_run_is_not_told_where_its_script_is_at_the_desk():
    script = {"script": {"command": "python a.py", "root": "/home/me"}, "machine": {"max_duration": "1h"}}
    assert job_from(script).without_desk().script.root == ""


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


def test_a_key_in_no_table_is_refused_with_its_table(tmp_path: Path):
    path = tmp_path / "flat.toml"
    path.write_text('name = "mine"\nepochs = 3\nmodel = "lstm"\n')
    line = refusal(lambda: load_job(path))
    assert line == f"job file {path} has 'epochs' in no table. Did you mean train.epochs?"


def test_tables_not_given_have_their_defaults():
    job = Job(data=DataSettings(bars=100))
    assert (job.data.bars, job.model.name, job.target.name) == (100, "lstm", "direction")
    assert job.train.batch == 256


@pytest.mark.parametrize("module", SETTINGS)
def test_settings_load_with_heavy_libraries_blocked(module):
    blocked = "torch", "numpy", "pandas", "pyarrow", "boto3", "botocore"
    script = f"import sys\nfor name in {blocked}: sys.modules[name] = None\nimport {module}\n"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, timeout=500)


def numbers_of_a_job() -> list[str]:
    """Return every key that takes a number, as the tables declare them."""
    tables = DataSettings, TrainSettings, ExpertSettings, MachineSettings
    return [
        f"{cls.__name__}.{key}"
        for cls in (*tables, *models.MODELS.values(), *targets.TARGETS.values())
        for key, item in keys_of(cls).items()
        if item.type in ("int", "float") and not {"most", "below"} & item.metadata["limits"].keys()
    ]


def test_every_number_of_a_job_has_an_upper_bound():
    assert numbers_of_a_job() == []


@pytest.mark.parametrize(
    "text",
    [
        "train.epochs=12345678901234567890123456",
        "data.folds=1000000000",
        "train.epochs=" + "9" * 5000,
        "machine.budget=1e300",
        "train.batch=1000000000000",
        "machine.max_duration=999999999999999999w",
        "name=" + "9" * 30,
        "train.seed=-1",
        "data.test_fraction=nan",
        "target.horizon=inf",
        'data.timeframe=".."',  # found by scripts/fuzz
    ],
)
def test_a_number_without_sense_is_one_short_line(text):
    assert len(refusal(lambda: parse_job({}, {}, [text]))) < 300


def test_folds_seeds_and_symbols_are_bounded_together():
    symbols = tuple(f"S{number}" for number in range(500))
    line = refusal(lambda: job_of(symbols=symbols, folds=10, test_fraction=0.01, seeds=10))
    assert "makes 50,000 models (500 symbols x 10 folds x 10 seeds)" in line


@pytest.mark.parametrize("place", ["/dev/zero", "pipe", "large.toml"])
def test_a_job_file_without_end_is_refused(place: str, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large.toml").write_text("#" * (MOST_TOML_BYTES + 1))
    line = refusal(lambda: load_job(tmp_path / place))
    assert line.startswith(f"cannot read job file {tmp_path / place} (it ")


@pytest.mark.parametrize("key", ["a." * 20_000 + "a", '"a" . ' * 20_000 + "a"])
def test_a_key_of_many_parts_is_refused_before_it_is_parsed(key: str, tmp_path: Path):
    (tmp_path / "job.toml").write_text(f"{key} = 1\n")
    assert "is more than 32 names joined by dots" in refusal(lambda: load_job(tmp_path / "job.toml"))
    assert "job key 'name' is" in refusal(lambda: parse_job({}, {}, [f"name={{{key} = 1}}"]))
    (tmp_path / "job.toml").write_text("[" + "[" * 100_000)
    assert "is not TOML" in refusal(lambda: load_job(tmp_path / "job.toml"))


@pytest.mark.parametrize("value", [",,,", "", " , ", ["", ""]])
def test_a_list_that_names_nothing_is_not_the_default(value: object):
    assert "names nothing" in refusal(lambda: parse_job({}, {"data.symbols": value}))
    assert parse_job({}, {"data.symbols": []}).data.symbols == ()


@pytest.mark.parametrize(
    ("written", "minutes"), [("", 60), (0, 0), ("0", 0), ("90m", 90), ("12h", 720)], ids=repr
)
def test_a_wait_for_capacity_may_be_none(written, minutes):
    machine = job_of(queue_timeout=written).machine
    assert machine.queue_for(timedelta(hours=1)) == timedelta(minutes=minutes)


def test_a_recorded_program_compiles_nothing():
    with pytest.raises(UsageError, match="expert.strategy = fused compiles nothing"):
        parse_job({"expert": {"strategy": "fused", "compile": "always"}}, {})


def test_the_trainers_variables_are_bounded_and_no_secrets():
    job = parse_job({"machine": {"env": ["NCCL_DEBUG=INFO", "NCCL_P2P_DISABLE=1"]}}, {})
    assert job.machine.variables == {"NCCL_DEBUG": "INFO", "NCCL_P2P_DISABLE": "1"}
    assert job_from_json(json.dumps(job.to_dict())).machine == job.machine
    refused = {
        "NCCL_DEBUG": "machine.env",
        "1X=2": "machine.env",
        "A=" + "x" * 5000: "machine.env",
        "AWS_SECRET_ACCESS_KEY=x": "machine.env sets AWS_SECRET_ACCESS_KEY (the node sets or removes it)",
        "HF_TOKEN=x": "machine.env sets HF_TOKEN (its name is that of a secret)",
        "MAYFLY_RANKS=x": "the node sets or removes it",
        "LD_PRELOAD=x.so": "the node sets or removes it",
        "PYTHONPATH=.": "the node sets or removes it",
        "CUDA_VISIBLE_DEVICES=0": "the node sets or removes it",
        "NCCL_SOCKET_IFNAME=eth0": "the node sets or removes it",
        "WORLD_SIZE=2": "the node sets or removes it",
    }
    for entry, words in refused.items():
        assert words in refusal(lambda entry=entry: MachineSettings(env=(entry,)))
    assert "at most 100" in refusal(lambda: MachineSettings(env=tuple(f"A{n}=1" for n in range(101))))


def test_spans_that_leave_no_training_say_their_sum():
    said = refusal(lambda: parse_job({}, {"data.test_fraction": 0.4, "data.folds": 2}))
    assert "validation and 2 tests take 95% of the bars; it must be below 90%" in said
    said = refusal(
        lambda: parse_job({}, {"data.split": "kfold", "data.folds": 2, "data.validation_fraction": 0.45})
    )
    assert "validation and a fold's test take 95% of the bars" in said and "raise data.folds" in said
