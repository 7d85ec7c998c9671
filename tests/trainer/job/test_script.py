from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import job_of, with_settings
from trainer.base.errors import UsageError
from trainer.base.symbols import path_flaw
from trainer.job.job import Job, refuse_script
from trainer.job.pieces import kind_of, pieces_of
from trainer.job.reading import job_from, load_job
from trainer.job.script import replaced

ROOT = Path(__file__).resolve().parents[3]


def run(**keys: object) -> dict[str, object]:
    return {"script": {"command": "run", **keys}}


RUN = run()


def script_job(**script: object) -> Job:
    return job_from({**run(**script), "machine": {"max_duration": "2h"}})


def test_a_command_is_split_and_filled_in_without_a_shell():
    command = "run --n=$MAYFLY_DEVICES '${MAYFLY_OUT}/a b' \"$A\" '; rm *'"
    script = script_job(command=command, env=("A=$B",)).script
    values = {**script.variables, "MAYFLY_DEVICES": "4", "MAYFLY_OUT": "/o"}
    assert [replaced(word, values) for word in script.words] == ["run", "--n=4", "/o/a b", "$B", "; rm *"]


@pytest.mark.parametrize(
    ("tables", "line"),
    [
        (RUN, "a script needs machine.max_duration (how long it takes is not known"),
        ({"script": {"files": ["a.py"]}}, "a [script] without a command"),
        (run(command="run 'a"), "it must be words as in a shell (No closing quotation)"),
        (run(command="run $MAYFLY_DEVICE"), "script.command uses $MAYFLY_DEVICE (no such variable). Did you"),
        (run(env=["HF_TOKEN=1"]), "script.env sets HF_TOKEN (its name is that of a secret)"),
        (run(env=["AWS_PROFILE=1"]), "script.env sets AWS_PROFILE (the node sets or removes it"),
        (run(env=["no value"]), "it must be NAME=value"),
        ({**RUN, "model": {"name": "tcn"}}, "a script with [model]"),
        ({**RUN, "data": {"path": "x"}}, "a script with data.path"),
        ({**RUN, "data": {"refresh": "x.py"}}, "a script with data.refresh"),
        ({"data": {"folder": "x"}}, "data.folder without a script"),
        (run(best="mse"), "job key 'script.best' is 'mse' (it must be a metric with min or max"),
        (run(best="mse:least"), "such as mse:min or auc:max"),
        (run(python=3.10), 'it must be a version such as "3.10", in quotes'),
        (run(best=":min"), "job key 'script.best' is ':min'"),
        (run(comand="x"), "unknown job key 'script.comand'. Did you mean script.command?"),
    ],
)
def test_an_invalid_script_is_one_line(tables, line):
    with pytest.raises(UsageError) as refused:
        job_from(tables)
    assert line in str(refused.value)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--api-key hunter2", "--api-key"),
        ("--wandb_api_key=hunter2", "--wandb_api_key"),
        ("-password hunter2", "-password"),
        ("--hf-token 'hunter2'", "--hf-token"),
        ("WANDB_API_KEY=hunter2", "WANDB_API_KEY"),
        ("--tracker https://me:hunter2@host/x", "a URL with a password"),
    ],
)
def test_a_command_has_no_secret_in_its_words(words, shown):
    with pytest.raises(UsageError, match=f"script.command has {shown} .all users of the machine") as refused:
        script_job(command=f"env {words} python a.py")
    assert "hunter2" not in str(refused.value) and "script.secrets" in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [
        *("--pad-token '<s>'", "--sort-key close", "--tokens 512", "--key-column id", "--api-key-file k.txt"),
        *("--use-password", "--password --verbose", "x=1", "https://host/a:b@c", "s3://b/k", "a@b:c"),
    ],
)
def test_words_that_only_look_like_secrets_are_kept(words):
    assert script_job(command=f"python a.py {words}").script.words[2:]


def test_a_secret_can_not_be_put_into_the_command():
    with pytest.raises(UsageError, match=r"script.command uses \$TRACKER_KEY \(no such variable"):
        script_job(command="python a.py --k $TRACKER_KEY", secrets=["TRACKER_KEY"])


def test_a_script_job_has_its_own_tables():
    job = with_settings(script_job(), budget=3.0)
    assert set(job.to_dict()) == {"name", "data", "machine", "script"}
    assert set(job.to_dict()["data"]) == {"folder"}
    assert job_from(job.to_dict()) == job
    assert "script" not in job_of().to_dict() and "folder" not in job_of().to_dict()["data"]
    assert (kind_of(job).name, kind_of(job_of()).name) == ("script", "symbol")
    (piece,) = pieces_of(job, (), timeframe="")
    assert (piece.name, piece.title, piece.kind, piece.series) == ("script_mayfly", "mayfly", "script", ())
    with pytest.raises(UsageError, match="profiles tune takes no script"):
        refuse_script(job, "profiles tune")


def test_a_job_file_names_files_and_data_from_its_own_folder(tmp_path):
    file = tmp_path / "job.toml"
    machine = '[machine]\nmax_duration = "1h"\n'
    file.write_text(f'{machine}[data]\nfolder = "points"\n[script]\ncommand = "python a.py"')
    job = job_from(load_job(file))
    assert (job.script.root, job.data.folder) == (str(tmp_path), str(tmp_path / "points"))
    file.write_text(f'{machine}[data]\nfolder = "s3://b/p"\n[script]\ncommand = "run"\nroot = "src"')
    job = job_from(load_job(file))
    assert (job.script.root, job.data.folder) == (str(tmp_path / "src"), "s3://b/p")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("model.pt", ""),
        ("a/b c/é.bin", ""),
        (".bashrc", "begins with a dot"),
        ("a/.git/config", "begins with a dot"),
        ("../x", "begins with a dot"),
        ("/etc/passwd", "an empty part"),
        ("a//b", "an empty part"),
        ("a\\b", "a backslash"),
        ("\x1b[2J", "can't be printed"),
        ("x" * 241, "more than 240 bytes"),
        ("a/" * 12 + "b", "12 folders"),
        ("", "an empty part"),
    ],
)
def test_names_of_files_are_bounded_and_never_lead_elsewhere(path, why):
    assert why in path_flaw(path) and bool(why) == bool(path_flaw(path))
