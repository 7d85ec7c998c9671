"""MLflow's own server and Weights & Biases' own files have the run. In no lock: `make nightly` installs both."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.records import RUN
from tests.trainer.cli.tracking.runs import tracked
from trainer.base.errors import ConfigError
from trainer.cli.tracking.track import write_run

pytestmark = pytest.mark.nightly
HOSTILE = "^GSPC/../a b\u202e"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """MLflow's server on this machine, without telemetry."""
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy", reason="the client alone is installed, and no server")
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch, (folder / "log").open("w") as log:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
        store = ["--backend-store-uri", f"sqlite:///{folder}/m.db", "--artifacts-destination", str(folder)]
        words = [sys.executable, "-m", "mlflow", "server", *store, "--port", str(port), "--workers", "1"]
        with subprocess.Popen(words, stdout=log, stderr=log, cwd=folder) as process:
            try:
                _await(f"http://127.0.0.1:{port}/health", process)
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()


def _await(address: str, process: subprocess.Popen[bytes]) -> None:
    while True:
        assert process.poll() is None, "the server ended"
        try:
            urllib.request.urlopen(address, timeout=60).close()
            return
        except OSError:
            time.sleep(0.5)


def ask(server: str, path: str, **body: Any) -> Any:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"{server}/api/2.0/mlflow/{path}", data=data)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_mlflows_server_has_a_run_once(server: str) -> None:
    run = tracked(30, 20, job={"name": "once", "model": {HOSTILE: "x" * 9_000}})
    first = write_run(run, "mlflow")
    assert not first.was_there and write_run(run, "mlflow").was_there
    experiment = ask(server, "experiments/get-by-name?experiment_name=once")["experiment"]["experiment_id"]
    (found,) = ask(server, "runs/search", experiment_ids=[experiment])["runs"]
    assert first.where == f"{server}/#/experiments/{experiment}/runs/{found['info']['run_id']}"
    assert (found["info"]["status"], found["info"]["run_name"]) == ("FINISHED", RUN)
    tags = {tag["key"]: tag["value"] for tag in found["data"]["tags"]}
    assert tags["mayfly.run_id"] == RUN and tags["mayfly.tracked"] == str(len(run.points) + len(run.scores))
    (param,) = found["data"]["params"]
    assert param["key"].startswith("model._GSPC") and len(param["value"]) == 5_000
    metrics = {metric["key"]: metric["value"] for metric in found["data"]["metrics"]}
    assert metrics["mean/test/auc"] == 0.53 and len(metrics) == len(run.scores) + 60
    key = f"run_id={found['info']['run_id']}&metric_key=lstm_S7_1m/epoch/validation_loss"
    curve = ask(server, f"metrics/get-history?{key}")["metrics"]
    assert [(point["step"], point["value"]) for point in curve] == [(n, 7 + 1 / n) for n in range(1, 21)]


def test_a_server_that_is_away_is_one_line(server: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hush@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ConfigError, match="the run is not tracked in mlflow") as caught:
        write_run(tracked(), "mlflow")
    assert "hush" not in str(caught.value) and "\n" not in str(caught.value)


def test_weights_and_biases_files_have_a_run_once(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    run = tracked(30, 20)
    first = write_run(run, "wandb")
    assert not first.was_there and write_run(run, "wandb").where == first.where
    assert [path.name for path in (tmp_path / "wandb").iterdir()] == [Path(first.where).name]
    rows, summary, config = _read(Path(first.where) / f"run-{RUN}.wandb")
    name = "lstm_S7_1m/epoch/validation_loss"
    assert [(row["_step"], row[name]) for row in rows] == [(n, 7 + 1 / n) for n in range(1, 21)]
    assert summary["mean/test/auc"] == 0.53 and summary["lstm_S7_1m/test/auc"] == 0.53
    assert config["data.symbols"] == "BTC-USD, ETH-USD" and config["mayfly.run_id"] == RUN


def test_weights_and_biases_without_a_key_asks_nobody(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "online", "WANDB_DIR": tmp_path, "HOME": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="No API key"):
        write_run(tracked(), "wandb")


def _read(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """Return the rows, the summary and the config of a file of Weights & Biases, by its own messages."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    summary: dict[str, Any] = {}
    config: dict[str, Any] = {}

    def values(items: Any) -> dict[str, Any]:
        return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}

    for data in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        config |= values(record.run.config.update) | values(record.config.update)
        summary |= values(record.summary.update)
        if record.history.item:
            rows.append({**values(record.history.item), "_step": record.history.step.num})
    return rows, summary, config


def _records(file: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format, in blocks of 32 KiB, behind a head of 7 bytes."""
    at, record = 7, b""
    assert file.startswith(b":W&B")
    while at + 7 <= len(file):
        if 32_768 - at % 32_768 < 7:  # filled up
            at += 32_768 - at % 32_768
            continue
        _, length, kind = struct.unpack("<IHB", file[at : at + 7])
        record += file[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""
