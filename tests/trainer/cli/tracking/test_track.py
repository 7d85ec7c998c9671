"""The child that writes a run: by a library of the test's, which hangs, prints and crashes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.cli.tracking.runs import receipt, tracked
from trainer.base.errors import ConfigError, Stopped, UsageError
from trainer.base.extras import EXTRAS
from trainer.cli.parser import build_parser
from trainer.cli.tracking import track as tracking
from trainer.cli.tracking.child import WRITERS
from trainer.cli.tracking.track import need_trackers, track, write_run

LIBRARY = """
import json, os, sys
from pathlib import Path
from types import SimpleNamespace as Value
if os.environ.get("CRASH"):
    print("at http://me:hush@host", file=sys.stderr, flush=True)
    os._exit(3)
STORE = Path(os.environ["STORE"])

class Client:
    tracking_uri = os.environ.get("MLFLOW_TRACKING_URI")
    def __init__(self):
        print("a library prints what it likes")
        self.runs = json.loads(STORE.read_text()) if STORE.exists() else []
    def get_experiment_by_name(self, name):
        if "@down" in self.tracking_uri:
            raise RuntimeError(f"no answer from {self.tracking_uri}")
        return Value(experiment_id="7")
    def search_runs(self, experiments, text, max_results):
        return [Value(info=Value(run_id="r1"), data=Value(tags=run["tags"])) for run in self.runs]
    def create_run(self, experiment, began, tags, run_name):
        self.runs.append({"tags": tags, "batches": [], "off": os.environ["MLFLOW_DISABLE_TELEMETRY"]})
        return self.search_runs([], "", 1)[0]
    def log_batch(self, run, params=(), metrics=(), tags=()):
        if os.environ.get("BROKEN") and tags:
            raise OSError("the server went away")
        self.runs[0]["batches"].append([len(params), len(metrics)])
        self.runs[0]["tags"] |= dict(tags)
        STORE.write_text(json.dumps(self.runs))
    def set_terminated(self, run, status, end_time):
        self.runs[0]["status"] = status
        STORE.write_text(json.dumps(self.runs))

MlflowClient = Client
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a library called mlflow on the path, and a file of the name into the folder; return its store."""
    package, folder = tmp_path / "path" / "mlflow", tmp_path / "folder"
    package.mkdir(parents=True)
    folder.mkdir()
    (package / "__init__.py").write_text(LIBRARY)
    (package / "entities.py").write_text("Metric = Param = RunTag = lambda *values: values")
    (package / "exceptions.py").write_text("class MlflowException(Exception): pass")
    (folder / "mlflow.py").write_text("raise SystemExit('a file of the current folder')")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("STORE", str(tmp_path / "store.json"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hush@host:5000/")
    return tmp_path / "store.json"


def test_a_run_is_written_once_in_batches(store: Path) -> None:
    run = tracked(40, 30)
    assert (len(run.points), len(run.scores)) == (2_400, 40 * 8 + 8 + 4)
    first = write_run(run, "mlflow")
    assert str(first) == "tracked in mlflow: http://host:5000/#/experiments/7/runs/r1"
    (there,) = json.loads(store.read_text())
    assert there["batches"] == [[2, 0], [0, 1_000], [0, 1_000], [0, 732], [0, 0]]
    assert (there["status"], there["off"]) == ("FINISHED", "true")
    assert str(write_run(run, "mlflow")) == f"already {first}" and json.loads(store.read_text()) == [there]


def test_a_run_that_broke_off_is_written_again_into_its_place(store: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("BROKEN", "1")
    with pytest.raises(ConfigError, match="the run is not tracked in mlflow .OSError: the server went away"):
        write_run(tracked(), "mlflow")
    monkeypatch.delenv("BROKEN")
    assert not write_run(tracked(), "mlflow").was_there
    (there,) = json.loads(store.read_text())
    assert there["status"] == "FINISHED"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"MLFLOW_TRACKING_URI": ""}, "MLFLOW_TRACKING_URI is not set. Export it, such as http"),
        ({"MLFLOW_TRACKING_URI": "http://me:hush@down"}, "RuntimeError: no answer from http://down"),
        ({"CRASH": "1"}, "at http://host"),
    ],
)
def test_a_tracker_that_fails_is_one_line(
    store: Path, monkeypatch: Any, variables: dict[str, str], words: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        write_run(tracked(), "mlflow")
    assert words.partition(". ")[0] in str(caught.value) and "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_tracker_has_a_flag_a_library_and_a_writer() -> None:
    assert tuple(WRITERS) == EXTRAS["track"]
    words = [word for tracker in WRITERS for word in ("--track", tracker)]
    assert build_parser().parse_args(["pull", "last", *words]).track == list(WRITERS)


def test_a_tracker_that_takes_too_long_is_given_up(monkeypatch: Any) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise subprocess.TimeoutExpired("child", 1800)

    monkeypatch.setattr(tracking.subprocess, "run", never)
    with pytest.raises(ConfigError, match="it took more than 30 minutes"):
        write_run(tracked(), "mlflow")


def test_a_run_that_has_not_ended_is_not_tracked() -> None:
    cloud: Any = None
    with pytest.raises(UsageError, match="it has not ended"):
        track(cloud, receipt(closed_at=None), "mlflow")


def test_ctrl_c_ends_the_tracking_alone(monkeypatch: Any) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(tracking, "read_record", interrupted)
    cloud: Any = type("Cloud", (), {"objects": None})
    with pytest.raises(Stopped, match="not tracked in wandb .Ctrl-C"):
        track(cloud, receipt(), "wandb")


def test_a_folder_of_offline_runs_is_no_library(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(__import__("sys").modules, "wandb", raising=False)
    with pytest.raises(
        ConfigError, match="this needs wandb, which is not installed. pip install 'mayfly.track.'"
    ):
        need_trackers(["wandb"])
