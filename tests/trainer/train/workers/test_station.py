"""A worker's share of the machine: threads, memory, cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.jobs import job_of
from tests.pieces import piece
from trainer.train.workers.station import let_threads_sleep, memory_fraction, threads_of

GIB = 2**30
NODES = Path("/sys/devices/system/node")


def dealt(num_pieces: int, *, num_workers: int, cores: int = 8, **settings: Any) -> list[int]:
    """Return the threads of pieces, the longest first."""
    pieces = [piece(f"S{number}", estimate=100 - number) for number in range(num_pieces)]
    threads = threads_of(job_of(**settings), pieces, num_workers=num_workers, cores=cores)
    return [threads[one.name] for one in pieces]


@pytest.mark.parametrize("settings", [{"model": "tcn"}, {"model": "lstm"}, {"hidden": 128}])
def test_fewer_models_than_cores_share_the_cores(settings):
    assert dealt(1, num_workers=1, **settings) == [8]
    assert dealt(3, num_workers=3, **settings) == [2, 2, 2]
    assert dealt(2, num_workers=1, **settings) == [8, 8]
    assert dealt(8, num_workers=8, **settings) == [1] * 8


def test_the_last_models_share_the_cores():
    assert dealt(3, num_workers=2, cores=2) == [1, 1, 2]
    assert dealt(11, num_workers=8) == [1] * 8 + [2] * 3
    assert dealt(15, num_workers=8) == [1] * 15
    # Who wants fewer workers than cores wants the others for something else; and more workers than cores take
    # turns already.
    assert dealt(3, num_workers=1, cores=2) == [1, 1, 1]
    assert dealt(5, num_workers=4, cores=2) == [1] * 5


@pytest.mark.parametrize("settings", [{"model": "tcn", "width": 32}, {"hidden": 32}, {"pack": 2}])
def test_a_model_that_gains_nothing_has_one_thread(settings):
    assert dealt(1, num_workers=1, **settings) == [1]


def test_a_job_that_names_its_threads_gets_them():
    assert dealt(11, num_workers=8, threads=3) == [3] * 11
    assert dealt(1, num_workers=1, hidden=32, threads=2) == [2]


@pytest.mark.parametrize(
    ("said", "then"), [("", "1000"), ("OMP_WAIT_POLICY", ""), ("KMP_BLOCKTIME", ""), ("GOMP_SPINCOUNT", "5")]
)
def test_idle_threads_sleep_early_unless_set_otherwise(monkeypatch, said, then):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.setenv(name, "")  # so that the end of the test restores what the call sets
        monkeypatch.delenv(name)
    if said:
        monkeypatch.setenv(said, "5")
    let_threads_sleep()
    assert os.environ.get("GOMP_SPINCOUNT", "") == then


def test_workers_that_share_a_gpu_leave_room_for_contexts():
    assert memory_fraction(1, 80 * GIB) < 1
    for sharing, gib in ((2, 80), (4, 16)):
        assert sharing * (memory_fraction(sharing, gib * GIB) * gib + 0.75) == pytest.approx(gib)
    assert memory_fraction(40, 16 * GIB) > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_worker_that_shares_a_gpu_gets_only_its_share():
    code = (
        "import torch; from trainer.train.workers.station import Station, set_up_process;"
        "found = set_up_process(Station(number=0, device='cuda:0', sharing=4)); print(found);"
        "half = torch.cuda.get_device_properties(0).total_memory // 2;"
        "torch.empty(half, dtype=torch.uint8, device='cuda:0')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "memory_fraction" in ended.stdout and "OutOfMemoryError" in ended.stderr


@pytest.mark.slow
def test_a_cpu_worker_begins_with_one_thread(python):
    code = (
        "import torch; from trainer.train.workers.station import Station, set_up_process;"
        "print(set_up_process(Station(number=0, device='cpu')), torch.get_num_threads())"
    )
    ended = subprocess.run([*python, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.endswith(" 1\n")
    assert len(list(NODES.glob("node[0-9]*"))) > 1 or ended.stdout == "{} 1\n"
