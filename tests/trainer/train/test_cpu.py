"""A worker's set-up on a CPU."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import numpy, torch
from threadpoolctl import threadpool_info
from trainer.train.cpu import use_one_thread
use_one_thread()
blas = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
print(torch.get_num_threads(), *blas)
"""


def test_torch_and_numpy_compute_on_one_thread() -> None:
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=300
    ).stdout
    assert set(told.split()) == {"1"} and len(told.split()) > 1
