"""A script over many values on pretended GPUs: which run at once, which are tried again, and what is
reported.
"""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.jobs import job_of
from tests.nodes import NOW, bundle, listed, node, own_user, reported, start, stop_when
from trainer.base.errors import Stopped, TrainingFailed
from trainer.cluster.waiting import OwnPieces
from trainer.job.pieces.queue import places_on
from trainer.node import command as module
from trainer.node import command_run, piece_run
from trainer.node.devices import Devices
from trainer.node.report import progress
from trainer.runs.lease import Lease
from trainer.runs.reports import heartbeat

__all__ = ["bundle", "node", "own_user", "start", "stop_when"]  # fixtures
VALUE = """
name=$MAYFLY_VALUE_SYMBOL-$MAYFLY_VALUE_SEED
echo "$name $CUDA_VISIBLE_DEVICES $MAYFLY_DEVICES $1" >> ../../starts
echo '{"step": 1, "steps": 2, "loss": 0.5}' >> $MAYFLY_EVENTS
[ -f beside ] && [ ! -f $MAYFLY_CHECKPOINTS/half ] && exit 8
touch beside
[ $name = A-3 ] && { echo no such symbol; exit 3; }
if [ $name = B-7 ] && [ ! -f $MAYFLY_CHECKPOINTS/half ]; then touch $MAYFLY_CHECKPOINTS/half; kill -KILL $$; fi
echo "$name" > $MAYFLY_OUT/model.pt
"""
ENDED = "the run ended before it was done"
OVER = {"symbol": ["A", "B", "C"], "seed": list(range(8))}


@pytest.fixture
def eight(node: Any) -> Any:
    node.status.devices = Devices(expected=8, found=8, kind="cpu", note="")
    return node


def title(name: str) -> str:
    """Return the piece of A-3."""
    symbol, _, seed = name.partition("-")
    return f"symbol={symbol}_seed={seed}"


def starts(node: Any) -> list[list[str]]:
    return [line.split() for line in (node.work / "command" / "starts").read_text().splitlines()]


def test_of_24_values_on_8_gpus_one_fails_and_one_is_restarted(eight, start, monkeypatch):
    at_once: list[int] = []
    work, look = command_run.CommandRun._run, piece_run.PieceRun.has_ended
    runs: list[Any] = []

    def counted(piece: Any) -> bool:
        at_once.append(8 if runs[0]._queue.is_over(has_devices=True) else len(runs[0]._running))
        return look(piece)

    monkeypatch.setattr(command_run.CommandRun, "_run", lambda run: work(runs.append(run) or run))
    monkeypatch.setattr(piece_run.PieceRun, "has_ended", counted)
    with pytest.raises(
        TrainingFailed,
        match=r"1 of 24 values failed \(symbol=A_seed=3: the script ended with exit code 3 .no such symbol",
    ) as failed:
        start(VALUE, command="sh run.sh $MAYFLY_VALUE_SEED", over=OVER)
    names = [f"{symbol}-{seed}" for symbol in "ABC" for seed in range(8)]
    assert sorted(name for name, *_ in starts(eight)) == sorted([*names, "B-7"]), "none doubled"
    assert {(gpu, count) for _, gpu, count, _ in starts(eight)} == {(str(gpu), "1") for gpu in range(8)}
    assert all(name.endswith(seed) for name, *_, seed in starts(eight)), (
        "values are variables of the command, too"
    )
    assert min(at_once) == 8, "while values wait, every GPU has one"
    read = reported(eight, failed.value, unfinished=ENDED)
    assert (read.state, read.exit_code, read.retries) == ("failed", 100, 1)
    assert [(entry["piece"], entry["reason"]) for entry in read.failed] == [
        ("symbol=A_seed=3", "it ended with exit code 3: no such symbol")
    ]
    ends = {item["piece"]: item for item in read.scripts}
    assert (len(ends), sum(item["done"] for item in ends.values())) == (24, 23)
    assert (ends["symbol=B_seed=7"]["starts"], ends["symbol=B_seed=7"]["exit_code"]) == (2, 0)
    assert ends["symbol=B_seed=7"]["values"] == {"symbol": "B", "seed": "7"}
    assert (
        ends["symbol=A_seed=3"]["done"],
        ends["symbol=A_seed=3"]["last_lines"],
        ends["symbol=A_seed=3"]["notes"],
    ) == (
        *(False, ["no such symbol"]),
        ["MAYFLY_OUT stayed empty: nothing was uploaded"],
    )
    assert listed(eight) == {f"{title(name)}/model.pt": f"{name}\n" for name in names if name != "A-3"}
    told = heartbeat(Lease(instance_id="i-1", at=NOW, lease_until=NOW), progress(eight.status))
    assert (told.models_total, told.models_done, told.rate) == (24, 23, None)
    assert told.progress["symbol=C_seed=0"]["state"] == "done"
    assert list((eight.work / "command" / "copies").iterdir()) == []


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (0.25, [(gpu,) for _ in range(4) for gpu in range(8)]),
        (2, [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (3, [(0, 1, 2), (3, 4, 5)]),
    ],
)
def test_a_value_gets_a_share_of_a_gpu_or_several(gpus, expected):
    keys = {"script.command": "x", "script.over": {"a": [1]}, "script.gpus": gpus}
    assert places_on(8, job_of(**keys, **{"machine.max_duration": "1h"}).gpus_each) == expected


def test_more_gpus_than_the_machine_has_is_one_line(eight, start):
    with pytest.raises(TrainingFailed, match=r"this machine has 8 GPUs \(a value takes 16\)"):
        start(VALUE, over=OVER, gpus=16)


def test_values_that_wait_at_a_stop_never_begin(eight, start, stop_when):
    stop_when(lambda: len(list((eight.work / "command" / "out").glob("*/ready"))) == 8)
    with pytest.raises(Stopped) as stopped:
        start("trap 'exit 0' TERM; touch $MAYFLY_OUT/ready; while :; do sleep 0.02; done", over=OVER)
    read = reported(eight, stopped.value, unfinished=ENDED)
    assert (read.state, len(read.scripts), len(read.failed)) == ("stopped", 8, 24)
    assert not any(item["done"] for item in read.scripts)


BROKEN_GPU = """
echo "$MAYFLY_VALUE_SYMBOL-$MAYFLY_VALUE_SEED $CUDA_VISIBLE_DEVICES" >> ../../starts
[ $CUDA_VISIBLE_DEVICES = 3 ] && { echo CUDA error; exit 1; }
while [ $(grep -c ' 3$' ../../starts) -lt 3 ]; do sleep 0.01; done
echo made > $MAYFLY_OUT/model.pt
"""


def test_a_gpu_that_fails_three_values_is_out_of_service(eight, start, caplog):
    start(BROKEN_GPU, over=OVER)
    assert len([gpu for _, gpu in starts(eight) if gpu == "3"]) == 3 and len(starts(eight)) == 24 + 3
    read = reported(eight)
    assert (read.state, read.failed, read.retries, len(read.scripts)) == ("done", (), 0, 24)
    again = [item for item in read.scripts if item["notes"]]
    assert [(item["done"], item["starts"], item["notes"]) for item in again] == [
        (True, 2, ["it failed on GPU 3 first"])
    ] * 3
    names = ", ".join(title(name) for name, gpu in starts(eight) if gpu == "3")
    out = f"GPU 3: {names} failed there within 30 s each, in a row"
    assert read.devices["out_of_service"] == [out] and f"out of service: {out}" in caplog.text
    assert len(listed(eight)) == 24


@pytest.fixture
def smoke(eight: Any, monkeypatch: Any) -> Any:
    """A smoke test of eight GPUs that those named in `broken` fail; it lists what it tried."""
    eight.status.devices = Devices(expected=8, found=8, kind="cuda", note="")
    found = SimpleNamespace(broken=set(), tried=[])

    def tried(names: list[str], *, folder: Path) -> str:
        found.tried.extend(names)
        return "the smoke test failed (Xid 79)" if found.broken & set(names) else ""

    monkeypatch.setattr(command_run, "tried", tried)
    return found


def test_a_gpu_that_fails_its_test_is_out_after_two_values(eight, start, smoke):
    smoke.broken = {"cuda:3"}
    start(BROKEN_GPU.replace("-lt 3", "-lt 2"), over=OVER)
    assert smoke.tried == ["cuda:3"]
    assert len([gpu for _, gpu in starts(eight) if gpu == "3"]) == 2 and len(starts(eight)) == 24 + 2
    read = reported(eight)
    assert (read.state, read.retries) == ("done", 0), "a broken GPU costs no value a retry"
    assert read.devices["out_of_service"] == ["GPU 3: the smoke test failed (Xid 79)"]


def test_no_gpu_left_ends_the_run_at_once(eight, start, smoke):
    smoke.broken = {f"cuda:{gpu}" for gpu in range(8)}
    with pytest.raises(TrainingFailed, match="no device is left .GPU ") as failed:
        start("echo x 0 1 0 >> ../../starts; exit 1", over={"seed": list(range(200))})
    assert len(starts(eight)) == 16 and failed.value.why.count("Xid 79") == 8
    read = reported(eight, failed.value, unfinished=ENDED)
    assert (read.state, len(read.failed), len(read.devices["out_of_service"])) == ("failed", 200, 8)


FULL_GPU = """
failed() { cat ../../failed 2> /dev/null | wc -l; }
[ $MAYFLY_VALUE_SEED = 4 ] && exit 0
if [ $MAYFLY_VALUE_SEED = 1 ]; then
  touch ../../full
  while [ $(failed) -lt 2 ]; do sleep 0.01; done
  sleep 0.5
  rm ../../full
  exit 0
fi
while [ ! -e ../../full ]; do sleep 0.01; done
echo CUDA out of memory | tee -a ../../failed
exit 1
"""


def test_a_gpu_that_a_value_fills_is_not_taken_for_broken(node, start, monkeypatch):
    """The smoke test finds no memory either, as long as that value is at work."""
    full = node.work / "command" / "full"
    monkeypatch.setattr(command_run, "tried", lambda *_, **__: "out of memory" if full.exists() else "")
    node.status.devices = Devices(expected=1, found=1, kind="cuda", note="")
    with pytest.raises(TrainingFailed, match="2 of 4 values failed"):
        start(FULL_GPU, over={"seed": [1, 2, 3, 4]}, gpus=0.5)
    assert not node.status.devices.out_of_service


def test_one_broken_gpu_that_values_share_is_named(node, start, smoke):
    node.status.devices = Devices(expected=1, found=1, kind="cuda", note="")
    smoke.broken = {"cuda:0"}
    with pytest.raises(TrainingFailed, match="no device is left .GPU 0: .*Xid 79"):
        start("echo x >> ../../starts; exit 1", over={"seed": list(range(200))}, gpus=0.25)
    assert len((node.work / "command" / "starts").read_text().split()) < 20


def test_a_value_that_was_told_to_have_failed_is_not_taken_back(node, start, smoke, monkeypatch):
    """Of several machines each tells the others what failed, once nothing runs on it. Here the next value comes
    after that, and shows that the GPU is broken.
    """

    class Later(OwnPieces):
        takes = 0

        def take(self, **asked: Any) -> Any:
            self.takes += 1
            return None if 1 < self.takes < 5 else super().take(**asked)

    monkeypatch.setattr(command_run, "OwnPieces", Later)
    node.status.devices = Devices(expected=1, found=1, kind="cuda", note="")
    smoke.broken = {"cuda:0"}
    with pytest.raises(TrainingFailed, match="no device is left .GPU 0: .*Xid 79"):
        start("echo x 0 1 0 >> ../../starts; exit 1", over={"seed": [1, 2, 3]})
    assert len(starts(node)) == 2


def test_a_value_with_endlessly_nested_folders_fails_no_other(node, start):
    """Deeper than Python's frames: its copy of the files is removed all the same."""
    start("mkdir -p $(printf 'd/%.0s' $(seq 1500))", over={"seed": [1, 2]})
    assert len(reported(node).scripts) == 2 and not list((node.work / "command" / "copies").iterdir())


def test_a_script_that_fails_everywhere_ends_early(eight, start):
    with pytest.raises(
        TrainingFailed,
        match=r"the first \d+ values failed within 30 s each, and no other began \(.*: the script",
    ) as failed:
        start("echo x 0 1 0 >> ../../starts; echo no module; exit 1", over={"seed": list(range(200))})
    assert 24 <= len(starts(eight)) < 24 + 8
    read = reported(eight, failed.value, unfinished=ENDED)
    assert (read.state, len(read.failed), len(read.scripts)) == ("failed", 200, len(starts(eight)))
    assert read.failed[-1]["reason"] == "the run ended before it was done"


def test_where_the_program_is_missing_every_value_says_so(eight, start):
    with pytest.raises(
        TrainingFailed, match=r"2 of 2 values failed \(seed=1: the machine has no torchrunn"
    ) as failed:
        start("", command="torchrunn a.py", over=[{"seed": 1}, {"seed": 2}])
    assert [entry["reason"] for entry in reported(eight, failed.value, unfinished=ENDED).failed] == [
        "the machine has no torchrunn"
    ] * 2


# A leaves a process behind that left its group; B ends once that one is gone, and must not be killed with it.
LEAVES = """
if [ $MAYFLY_VALUE_NAME = B ]; then
    while [ ! -s $MAYFLY_OUT/../name=A/child ]; do sleep 0.01; done
    while [ -d /proc/$(cat $MAYFLY_OUT/../name=A/child) ]; do sleep 0.01; done
    echo alive; exit 0
fi
setsid sh -c 'echo $$ > $MAYFLY_OUT/child; exec sleep 1000 > /dev/null 2>&1' &
while [ ! -s $MAYFLY_OUT/child ]; do sleep 0.01; done
"""


def test_a_value_whose_files_do_not_fit_fails_alone(eight, start, monkeypatch):
    copy = shutil.copytree

    def copied(source: Path, target: Path) -> None:
        if target.name == "symbol=B":
            raise OSError(errno.ENOSPC, "No space left on device")
        copy(source, target)

    monkeypatch.setattr("shutil.copytree", copied)
    with pytest.raises(TrainingFailed, match="1 of 3 values failed") as failed:
        start("echo done > $MAYFLY_OUT/model.pt", over={"symbol": ["A", "B", "C"]})
    assert (
        failed.value.why
        == "symbol=B: the script's files can't be copied for it ([Errno 28] No space left on device)"
    )
    assert sorted(listed(eight)) == ["symbol=A/model.pt", "symbol=C/model.pt"]
    assert [entry["piece"] for entry in reported(eight, failed.value, unfinished=ENDED).failed] == [
        "symbol=B"
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_only_an_ended_values_own_processes_are_killed(eight, own_user, start):
    start(LEAVES, over={"name": ["A", "B"]})
    ends = [(item["piece"], item["last_lines"]) for item in eight.status.scripts]
    assert ends == [("name=A", []), ("name=B", ["alive"])] and list(own_user.processes()) == []


def test_the_longest_value_begins_first(eight, start, monkeypatch):
    seconds, made = {"symbol=A": 1.0, "symbol=B": 3.0, "symbol=C": 2.0}, module._pieces

    def estimated(manifest: Any, folders: Any, **more: Any) -> Any:
        pieces = tuple(replace(piece, estimate=seconds[piece.piece]) for piece in manifest.pieces)
        return made(replace(manifest, pieces=pieces), folders, **more)

    monkeypatch.setattr(module, "_pieces", estimated)
    eight.status.devices = Devices(expected=1, found=1, kind="cpu", note="")
    start("echo $MAYFLY_VALUE_SYMBOL 0 1 0 >> ../../starts", over={"symbol": ["A", "B", "C"]})
    assert [name for name, *_ in starts(eight)] == ["B", "C", "A"]


def test_the_metric_that_the_job_names_judges_the_values(eight, start):
    told = """echo "{\\"mse\\": $MAYFLY_VALUE_LR, \\"mae\\": 7}" >> $MAYFLY_EVENTS"""
    start(f"{told}; echo 1 > $MAYFLY_OUT/m", over={"lr": [0.3, 0.1]}, best="mse:min")
    best = {item["piece"]: item["best"] for item in reported(eight).scripts}
    assert best == {f"lr={value}": {"metric": "mse", "value": value, "better": "min"} for value in (0.3, 0.1)}


@pytest.mark.parametrize(
    ("events", "best", "note"),
    [
        (
            '{"mse": 1, "mae": 2}',
            "",
            "its events have mse, mae, and none is known to be its score: name it in",
        ),
        ('{"mse": 1, "mae": 2}', "rmse:min", "script.best names rmse, and its events have mse, mae"),
        ("", "rmse:min", "script.best names rmse, and it has no events"),
    ],
)
def test_an_unknown_metric_is_told(eight, start, events, best, note):
    start(f"echo '{events}' >> $MAYFLY_EVENTS; echo 1 > $MAYFLY_OUT/m", over={"lr": [0.3]}, best=best)
    (script,) = reported(eight).scripts
    assert script["best"] == {}
    assert [line[: len(note)] for line in script["notes"]] == [note]
