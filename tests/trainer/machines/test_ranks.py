from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.jobs import job_of, with_settings
from trainer.base.errors import UsageError
from trainer.base.settings import FLOAT
from trainer.machines.chips import packaged
from trainer.machines.memory import GIB, footprint
from trainer.machines.ranks import NCCL_GIB, place_on_gpus, rank_footprint

JOB = job_of(model="tcn", batch=16)
T4 = packaged()["t4"]
KNOWN = {"features": 37, "bars": 500_000}


def test_one_device_takes_what_a_sequential_pack_takes():
    alone = with_settings(JOB, strategy="sequential")
    one = rank_footprint(JOB, windows=4, devices=1, sharded=False, on_gpu=True, **KNOWN)
    assert one == footprint(alone, windows=4, **KNOWN)


def test_ddp_holds_all_gradients_and_nccls_buffers():
    job = with_settings(JOB, strategy="sequential", batch=4)
    one = footprint(job, windows=4, **KNOWN)  # frees each gradient's part as it comes
    ranks, on_cpus = (
        rank_footprint(job, windows=4, devices=2, sharded=False, on_gpu=gpu, **KNOWN) for gpu in (True, False)
    )
    gradients = FLOAT * job.model.cost(features=37, outputs=1).weights
    assert NCCL_GIB * GIB <= ranks.total - one.total <= NCCL_GIB * GIB + gradients
    assert on_cpus.total - footprint(job, windows=4, on_gpu=False, **KNOWN).total <= gradients


def test_fsdp_divides_memory_but_for_gathered_blocks():
    known = {"windows": 1, "features": 37, "bars": 0, "on_gpu": True}
    whole = rank_footprint(JOB, devices=2, sharded=False, **known)
    halves, eighths = (rank_footprint(JOB, devices=devices, sharded=True, **known) for devices in (2, 8))
    assert halves.weights == whole.weights / 2 and eighths.weights == whole.weights / 8
    weights = FLOAT * JOB.model.cost(features=37, outputs=1).weights
    # The best weights and what evaluates are wholes
    assert eighths.copies == 2 * weights + (whole.copies - weights) / 8
    assert eighths.total < halves.total < whole.total


def test_a_model_is_divided_only_if_no_slice_fits():
    small = place_on_gpus(T4, JOB, devices=4, memory_gib=16.0, **KNOWN)
    assert not small.sharded and small.micro_batch <= 4
    wide = with_settings(JOB, width=2048)
    in_parts = place_on_gpus(T4, wide, devices=8, memory_gib=8.0, **KNOWN)
    assert in_parts.sharded and "in parts by FSDP" in in_parts.words
    assert in_parts.memory_gib < 8.0


def test_a_users_own_module_is_placed_without_recomputation():
    own = job_of(model="net.py:Net", batch=64)
    placement = place_on_gpus(T4, own, devices=2, memory_gib=16.0, **KNOWN)
    assert (placement.micro_batch, placement.activation_checkpointing) == (32, False)


def test_a_model_that_does_not_fit_is_one_error_line():
    wide = with_settings(JOB, width=8192)
    line = r"a model of .* M weights does not fit on one NVIDIA T4 \(it needs .* of 13.7 GiB"
    with pytest.raises(UsageError, match=line):
        place_on_gpus(T4, wide, devices=1, memory_gib=16.0, **KNOWN)
    with pytest.raises(UsageError, match=re.escape("on each of 8 NVIDIA T4, also in parts (FSDP)")):
        place_on_gpus(replace(T4), wide, devices=8, memory_gib=16.0, **KNOWN)
