"""What a worker is given of the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainer.config import Job
from trainer.train.station import let_threads_sleep, memory_fraction, threads_of

GIB = 2**30
NODES = Path("/sys/devices/system/node")


@pytest.mark.parametrize(
    ("settings", "num_tasks", "num_workers", "threads"),
    [
        ({"model": "tcn"}, 1, 1, 8),
        ({"model": "tcn"}, 3, 3, 2),
        ({"model": "tcn"}, 2, 1, 8),
        ({"model": "tcn"}, 8, 8, 1),
        (
            {"model": "tcn"},
            20,
            1,
            1,
        ),  # enough models for every core: who wants fewer workers wants the cores for something else
        ({"model": "tcn", "width": 32}, 1, 1, 1),
        ({"model": "lstm"}, 1, 1, 1),
    ],
)
def test_a_wide_tcn_takes_its_share_of_the_cores_where_models_are_fewer(settings, num_tasks, num_workers, threads):
    assert threads_of(Job(**settings), num_tasks=num_tasks, num_workers=num_workers, cores=8) == threads


def test_idle_threads_may_sleep_unless_the_user_said_how_they_wait():
    plain: dict[str, str] = {}
    let_threads_sleep(plain)
    assert plain == {"GOMP_SPINCOUNT": "1000"}
    said = {"OMP_WAIT_POLICY": "ACTIVE"}
    let_threads_sleep(said)
    assert said == {"OMP_WAIT_POLICY": "ACTIVE"}


def test_workers_that_share_a_gpu_have_room_for_all_of_them_and_their_contexts():
    assert memory_fraction(1, 80 * GIB) < 1
    for sharing, gib in ((2, 80), (4, 16)):
        assert sharing * (memory_fraction(sharing, gib * GIB) * gib + 0.75) == pytest.approx(gib)
    assert memory_fraction(40, 16 * GIB) > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_worker_that_shares_a_gpu_is_refused_more_than_its_share():
    code = (
        "import torch; from trainer.train.station import Station, settle;"
        "found = settle(Station(number=0, device='cuda:0', sharing=4)); print(found);"
        "half = torch.cuda.get_device_properties(0).total_memory // 2;"
        "torch.empty(half, dtype=torch.uint8, device='cuda:0')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "memory_fraction" in ended.stdout and "OutOfMemoryError" in ended.stderr


def test_a_worker_says_what_it_was_given_and_nothing_where_all_is_as_usual():
    code = (
        "import torch; from trainer.train.station import Station, settle;"
        "print(settle(Station(number=0, device='cpu')), torch.get_num_threads());"
        "print(settle(Station(number=0, device='cpu', threads=2)), torch.get_num_threads())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    usual, threaded = ended.stdout.splitlines()
    assert usual.endswith("1") and threaded.endswith("2") and "'threads': 2" in threaded
    assert len(list(NODES.glob("node[0-9]*"))) > 1 or usual == "{} 1"
