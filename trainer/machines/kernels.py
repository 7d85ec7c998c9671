"""Cost of each kind of kernel on a CPU core and on a GPU: the part of a model's cost that machines decide.

A model says which kernel its time is spent in and how much of it there is (`settings.ModelCost`). Costs are
relative to a window of the reference model, for which the profiles have rates. Standard library only.
"""

from __future__ import annotations

from trainer.base.settings import ATTENTION, CONVOLUTION, RECURRENT, UNKNOWN, ModelCost

REFERENCE_STEPS = 60 * 2  # bars x layers of the reference model
REFERENCE_HIDDEN = 64
# Cost of an MFLOP on a CPU and on a GPU, relative to the reference model's. CONVOLUTION: measured at full
# size on an AMD EPYC core on 2026-11-21. ATTENTION: an estimate of 2026-11-22. On a GPU the FLOPs of both are
# counted instead (rates).
MFLOP_COSTS = {CONVOLUTION: (0.2, 0.13), ATTENTION: (0.4, 0.03), UNKNOWN: (1.0, 1.0)}
# MFLOP of a window of the reference model, forward and backward, with 50 features; UNKNOWN: with 37, by
# torch's counter, 3 x 2 x 60 bars x 4 x 64 x (37 + 3 x 64) weights.
REFERENCE_MFLOP = {CONVOLUTION: 20.8, ATTENTION: 20.8, UNKNOWN: 21.1}
CHEAPEST = 0.01  # least cost of an UNKNOWN window: that of gathering it
# Width from which a second thread pays if a core is idle. Measured on an AMD EPYC, 2 cores, torch 2.13,
# 2026-11-21. LSTM, two layers, batch 256, windows/s with one thread and two: hidden 8: 25,000 and 3,600; 16:
# 23,000 and 23,500; 32: 12,000 and 16,000; 64: 5,460 and 8,730; 128: 2,100 and 3,230. Beside two busy
# processes one thread was as fast from 64 on. TCN, chunks/s: 4 blocks of 32, chunks of 256 bars: 584 and 477;
# 8 of 128, chunks of 512: 35 and 55. ATTENTION: an estimate of 2026-11-22.
THREADED_WIDTH = {RECURRENT: 64, CONVOLUTION: 128, ATTENTION: 128}
# Reads in one slice on a CPU. With the allocator's thresholds (train/cpu.py) slices of 256 windows are 2 to
# 5 % faster than 128 at hidden 64, and as fast at hidden 128; 512 gain as much again at a batch of 1,024
# (docs/benchmarks.md, AMD EPYC, 1 MiB of L2, 2026-11-21).
CPU_SLICE = 256
# Bytes of one layer's output in a slice on a CPU, where they are known: what fits its caches. A small TCN's
# chunks are sliced together, which makes fewer and longer calls (2.2 times faster in eights), a large one's
# alone (as fast as in fours, with less memory); measured 2026-11-21, AMD EPYC.
CPU_SLICE_BYTES = {CONVOLUTION: 4 << 20, ATTENTION: 2 << 20, UNKNOWN: 32 << 20}
PACK = 8  # models that a worker trains at a time by default where its device gains from several
WHOLE_BATCH = 1 << 20  # reads; more than any batch: it is not sliced
# Hidden size up to which cuDNN trains an LSTM faster in fp32 than in bf16 on a GPU. Timed at 64 on an H100
# (2.2 times, streams of eight; 2026-11-26); up to 128 by inference: by its workspace cuDNN trains these by
# persistent kernels in fp32, and not in bf16. A fused pack, whose kernels are ours, is faster in bf16.
FULL_PRECISION_WIDTH = 128


def window_costs(cost: ModelCost) -> tuple[float, float]:
    """Return the cost of training one output on a CPU and on a GPU, relative to the reference model's."""
    if cost.kernel == RECURRENT:
        # A GPU is bound by the number of dependent steps until the matrices are large; a CPU by the
        # multiplications.
        steps = cost.steps / REFERENCE_STEPS
        width = cost.width / REFERENCE_HIDDEN
        return steps * width**1.5, steps * max(1.0, width / 4)
    if cost.mflop is None:
        return 1.0, 1.0
    cpu, gpu = (each * cost.mflop / REFERENCE_MFLOP[cost.kernel] for each in MFLOP_COSTS[cost.kernel])
    least = CHEAPEST if cost.kernel == UNKNOWN else 0.0
    return max(least, cpu), max(least, gpu)


def half_pays(cost: ModelCost) -> bool:
    """Return whether half precision makes training faster on a GPU that has it."""
    return cost.kernel != RECURRENT or cost.width > FULL_PRECISION_WIDTH


def gains_from_threads(cost: ModelCost) -> bool:
    """Return whether a second idle core makes training faster on a CPU."""
    return cost.kernel in THREADED_WIDTH and cost.width >= THREADED_WIDTH[cost.kernel]


def cpu_slice(cost: ModelCost) -> int:
    """Return the number of windows, or chunks, per slice at which a CPU is fastest."""
    if not cost.may_slice:
        return WHOLE_BATCH
    if cost.layer_bytes is None:
        return CPU_SLICE
    return max(1, int(CPU_SLICE_BYTES[cost.kernel] // max(1.0, cost.layer_bytes)))
