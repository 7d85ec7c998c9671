"""Manifests of each kind of work: one manifest, whose command states all that it may do."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from tests.jobs import job_of
from tests.trainer.launch.test_start import NOW, OFFERS, memory, record_and_plan
from trainer.job.reading import job_from
from trainer.job.script import METRICS
from trainer.launch.bundle import BundleName
from trainer.launch.inputs import ChosenCandles, Input
from trainer.launch.manifest import build_manifest
from trainer.launch.tasks import Task, refresh_task, script_task, training_task
from trainer.runs.manifest import read_manifest
from trainer.runs.record import RunPiece
from trainer.runs.record_json import to_json

CODE = BundleName(sha256="ab" * 32, lock_sha256="cd" * 32)
RECORD, _ = record_and_plan(bundle=CODE)
A, B = (Input(key=f"raw/main/{name}.csv", version_id="v", sha256=name * 64, bytes=1) for name in "ab")


def built(task: Task) -> Any:
    manifest = build_manifest(RECORD, task, CODE, offers=OFFERS, ssh_key="ssh-ed25519 AAAA")
    assert read_manifest(to_json(manifest)) == manifest
    return manifest


def test_a_training_pins_inputs_and_no_path_of_the_desk() -> None:
    job = job_of(data="/home/ada/candles", refresh="fetch.py", secrets=("KEY",), symbols=("BTC-USD",))
    candles = ChosenCandles(timeframe="1m", bars={}, synthetic=False, inputs=(B, A))
    manifest = built(training_task(RECORD, job, candles, cast(Any, memory()), OFFERS))
    assert (manifest.run_id, manifest.created_at, manifest.place) == (RECORD.run_id, NOW, "rehearsal")
    data = manifest.job["data"]
    assert (data["path"], data["refresh"], data["secrets"]) == ("", "", [])
    assert manifest.code == {"key": CODE.key, "sha256": CODE.sha256} and manifest.seeds == (0,)
    assert manifest.image == {"line": OFFERS.image_line, "id": "ami-1"}
    assert [item.path for item in manifest.inputs] == ["data/a.csv", "data/b.csv"]
    assert set(manifest.documents) == {"gpu_profiles.json"} and not manifest.pieces
    machine = manifest.machines["g6.xlarge"]
    assert (machine.gpu_count, machine.gpu_model, machine.link) == (1, "NVIDIA L4", "none")
    command = manifest.command
    assert command.user == "agent"
    assert command.secrets == {}
    assert command.leaves == "models"
    assert command.devices == "tested"
    assert "plan.json" in command.beside and "--plan" not in command.words, "the node makes the plan"


def test_inputs_of_single_models_come_in_the_order_of_need() -> None:
    held = [("a", "LATE", 100), ("b", "LONG", 900), ("c", "LONG", 900), ("d", "LATE", 100)]
    inputs = [
        replace(A, key=f"raw/main/{name}.csv", summary={"holds": [{"symbol": symbol, "bars": bars}]})
        for name, symbol, bars in held
    ]
    known: Any = {"timeframe": "1m", "bars": {"LATE": 200, "LONG": 900}, "synthetic": False}
    candles = ChosenCandles(inputs=tuple(inputs), bars_plan=b"{}", **known)
    for job, names in ((job_of(), "bcad"), (job_of(pooled=True), "abcd")):
        manifest = built(training_task(RECORD, job, candles, cast(Any, memory()), OFFERS))
        data = [item.path for item in manifest.inputs if item.path.startswith("data/")]
        assert data == [f"data/{name}.csv" for name in names]
        assert [item.path for item in manifest.arriving] == ([] if job.data.pooled else data)
    for entry in ("SENTIMENT lag 1d", "log_return_1 of index"):
        whole = job_of(columns=(entry,))
        assert not built(training_task(RECORD, whole, candles, cast(Any, memory()), OFFERS)).arriving
    beside = job_of(symbols=("LONG",), columns=("log_return_1 of LATE",))
    manifest = built(training_task(RECORD, beside, candles, cast(Any, memory()), OFFERS))
    assert [*manifest.arriving] == [item for item in manifest.inputs if item.path.startswith("data/")]
    assert [item.path for item in manifest.arriving] == [f"data/{name}.csv" for name in "adbc"]
    planless = replace(candles, bars_plan=b"")
    assert not built(training_task(RECORD, job_of(), planless, cast(Any, memory()), OFFERS)).arriving


def test_a_script_runs_apart_with_its_secrets_and_pieces() -> None:
    script = {"command": "sh run.sh", "secrets": ["KEY"], "over": {"seed": [1, 2]}, "root": "/home/ada"}
    job = job_from({"name": "s", "script": script, "machine": {"max_duration": "1h"}})
    entry = {"path": "a/x.csv", "key": "raw/.files/x", "version_id": "v", "sha256": "0" * 64, "bytes": 3}
    pieces = tuple(
        RunPiece(model=f"script_s_{n}", piece=n, kind="script", series=()) for n in ("seed=1", "seed=2")
    )
    record, planned = replace(RECORD, pieces=pieces), [SimpleNamespace(title="seed=2", estimate=3.0)]
    task = script_task(record, job, {"run.sh": ""}, [entry], sha256="", planned=cast(Any, planned))
    manifest = built(task)
    command = manifest.command
    assert (command.user, command.network, command.leaves) == ("own", "internet", "files")
    assert command.secrets == {"KEY": "/mayfly/mayfly/dev/script-secrets/KEY"} and command.gpus == 1.0
    assert command.metrics == METRICS
    assert [item.path for item in manifest.inputs] == ["data/a/x.csv"] and b"/home" not in to_json(manifest)
    assert [(piece.piece, piece.values, piece.estimate) for piece in manifest.pieces] == [
        ("seed=1", {"seed": "1"}, 1.0),
        ("seed=2", {"seed": "2"}, 3.0),
    ]


def test_a_refresh_needs_no_devices_and_names_unchecked_files() -> None:
    job = job_of(refresh="fetch.py", secrets=("KEY",))
    other = Input(key="raw/main/notes.md", version_id="v", sha256="", bytes=1)
    manifest = built(refresh_task(RECORD, job, [replace(A, summary={"holds": []}), B, other]))
    command = manifest.command
    assert command.secrets == {"KEY": "/mayfly/mayfly/dev/secrets/KEY"} and manifest.machines == {}
    assert (command.devices, command.leaves, command.seconds) == ("none", "candles", 1500.0)
    assert manifest.documents == {"unchecked.json": ["b.csv"]}
    assert [item.path for item in manifest.inputs] == ["data/a.csv", "data/b.csv"]
