"""A worker's set-up on a CPU."""

from __future__ import annotations

import sys

import torch
from threadpoolctl import threadpool_info, threadpool_limits

from trainer.train.cpu import on_one_thread, use_one_thread


def test_torch_and_numpy_compute_on_one_thread() -> None:
    with on_one_thread(), threadpool_limits(2, user_api="blas"):  # which put back what was
        torch.set_num_threads(2)
        use_one_thread()
        blas = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
        assert blas or sys.platform == "darwin"  # whose Accelerate has no setting
        assert {*blas, torch.get_num_threads()} == {1}
