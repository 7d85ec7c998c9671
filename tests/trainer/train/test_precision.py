"""The number format of matrix products: the job's, else by chip."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from tests.jobs import job_of
from trainer.base.errors import UsageError
from trainer.job.job import Job
from trainer.train import precision
from trainer.train.precision import FIRST_SCALE, first_scale, matmul_dtype, resolve_precision

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    kept = torch.backends.cudnn.allow_tf32
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    yield
    torch.backends.cudnn.allow_tf32 = kept
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    if workspace is not None:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = workspace


@pytest.mark.parametrize("has_avx512", [True, False])
def test_a_cpu_multiplies_in_fp32_unless_bf16_is_set(monkeypatch, has_avx512):
    monkeypatch.setattr(precision, "cpu_has_bf16_recurrence", lambda: has_avx512)
    assert matmul_dtype(Job(), CPU) == torch.float32
    assert matmul_dtype(job_of(precision="bf16", model="tcn"), CPU) == torch.bfloat16
    if has_avx512:
        assert matmul_dtype(job_of(precision="bf16"), CPU) == torch.bfloat16
    else:
        with pytest.raises(UsageError, match="no recurrent layer in bf16"):
            matmul_dtype(job_of(precision="bf16"), CPU)
    with pytest.raises(UsageError, match="precision fp16 on a CPU"):
        matmul_dtype(job_of(precision="fp16"), CPU)


@pytest.mark.parametrize(
    ("native", "cudnn", "model", "expected"),
    [
        (True, 91300, {"hidden": 256}, torch.bfloat16),
        (True, 91002, {"hidden": 256}, torch.float16),  # this cuDNN has no LSTM in bf16
        (True, 91002, {"model": "tcn"}, torch.bfloat16),
        (False, 91300, {"hidden": 256}, torch.float16),
        (False, 91300, {"model": "tcn"}, torch.float16),
        (True, 91300, {"hidden": 64}, torch.float32),  # faster in it
    ],
)
def test_a_gpu_multiplies_in_bf16_where_it_has_it_natively(monkeypatch, native, cudnn, model, expected):
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or native
    )
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: cudnn)
    assert matmul_dtype(job_of(**model), CUDA) == expected


def test_bf16_that_a_gpu_lacks_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    with pytest.raises(UsageError, match="precision bf16 on a GPU without bf16"):
        matmul_dtype(job_of(precision="bf16"), CUDA)


def test_fp32_on_a_gpu_is_not_tf32():
    torch.backends.cudnn.allow_tf32 = True
    assert resolve_precision(Job(), CPU) == torch.float32 and torch.backends.cudnn.allow_tf32
    assert (
        resolve_precision(job_of(precision="fp32"), CUDA) == torch.float32
        and not torch.backends.cudnn.allow_tf32
    )


def test_sums_on_a_gpu_are_deterministic_unless_set_otherwise(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    resolve_precision(Job(), CPU)
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    resolve_precision(job_of(precision="fp32"), CUDA)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:2"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    resolve_precision(job_of(precision="fp32"), CUDA)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_only_the_losses_of_fp16_are_scaled():
    assert [first_scale(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)] == [
        1.0,
        1.0,
        FIRST_SCALE,
    ]
