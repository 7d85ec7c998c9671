"""The scaling law of one model on several GPUs: its speed-up over one, an estimate until a run has measured
it.

    a step      C / n of computing, where one GPU takes C for the whole batch
    exchange    E = 2 (n - 1) / n x bytes of gradients / bus rate: an all-reduce around a ring
                (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009)
    hidden      what travels while the backward pass computes, two thirds of C / n, but for the last bucket
                (Li et al., PyTorch Distributed, VLDB 2020, arXiv 2006.15704)
    speed-up    C / (C / n + max(E - 2/3 C / n, E of one bucket))

It leaves out what else slows ranks down: small batches that do not fill a GPU, evaluation, checkpoints.

    bus rate    2 (n - 1) / n x bytes / seconds of an all-reduce over n GPUs: NCCL's `busbw`
                (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)

instances.csv has the link and NVLink's nominal rate. NVLink: 230 of 600 GB/s nominal reach an A100's bus.
PCIe: 5 to 10 GB/s on an A10G, whose gradients go through host memory; others by the generation of their PCIe.
Published figures as read on 2026-11-20 and estimates from them: none is measured by us. Standard library
only.

Over several machines a ring passes each machine's network once in each direction, so its bus rate is that of
the network where that is slower: half of the type's baseline over TCP.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.base.settings import FLOAT, HALF
from trainer.job.job import Job
from trainer.machines.instances import InstanceType
from trainer.machines.memory import is_half

# Least seconds of a rank's step, which is not recorded and waits for its launches: 151 M weights on an H100's
# host, 64 windows (docs/benchmarks.md, 2026-11-26). An estimate for every other model and host.
STEP_SECONDS = 0.027
BACKWARD_SHARE = 2 / 3  # of a step's multiplications: 2 a weight forward, 4 backward
BUCKET_BYTES = 25 * 2**20  # DDP's default (bucket_cap_mb)
POINTLESS = 0.5  # of the GPUs' speed is left: half of them would be as fast
NVLINK_SHARE = 230 / 600
# GB/s by the beginning of the compute capability of AWS's PCIe types: Turing has PCIe 3, Ampere and Ada 4,
# Blackwell 5.
PCIE_GB_PER_S = {"7": 4.0, "8": 7.0, "12": 14.0}
PCIE, ALONE, TCP = "PCIe", "none", "TCP"
# Of a type's network, what an all-reduce over TCP reaches: an estimate of 2026-11-27, not measured. One flow
# has 10 Gbit/s at most within a cluster placement group (EC2 user guide, "Instance network bandwidth"), and
# NCCL opens several.
TCP_SHARE = 0.5
LEAST_GBPS = 5.0  # of a type whose network is not in the table: that of a small one
NAMES = {"nvlink": "NVLink", "nvswitch": "NVSwitch", "pcie": PCIE}


@dataclass(frozen=True, kw_only=True)
class Link:
    """The link between a machine's GPUs; `bus_gb_per_s` is 0 for one GPU."""

    name: str
    bus_gb_per_s: float

    @property
    def is_pcie(self) -> bool:
        """Return whether gradients go through host memory."""
        return self.name == PCIE


def link_of(machine: InstanceType) -> Link:
    """Return the link between the GPUs of a type."""
    name = NAMES.get(machine.gpu_interconnect, ALONE)
    if machine.num_workers == 1 or name == ALONE:
        return Link(name=ALONE, bus_gb_per_s=0.0)
    if machine.nvlink_gb_per_s:
        return Link(name=name, bus_gb_per_s=NVLINK_SHARE * machine.nvlink_gb_per_s)
    return Link(name=name, bus_gb_per_s=PCIE_GB_PER_S[machine.compute_capability.split(".")[0]])


def link_between(machine: InstanceType, nodes: int) -> Link:
    """Return the link between all GPUs of so many machines of a type."""
    own = link_of(machine)
    if nodes == 1:
        return own
    network = TCP_SHARE * (machine.network_gbps or LEAST_GBPS) / 8
    return Link(name=TCP, bus_gb_per_s=min(network, own.bus_gb_per_s or network))


@dataclass(frozen=True, kw_only=True)
class Together:
    """The work of one step that ranks share: weights to exchange, windows to compute."""

    weights: int
    visits: float  # windows of the batch, or bars of its chunks: the unit of rates
    launches: float = 0.0  # least seconds of a rank's step, however few windows it has
    half: bool = False  # weights that are gathered travel in half precision


def together_of(job: Job) -> Together:
    """Return what ranks of the job's model share."""
    visits = (job.train.batch or job.model.default_batch) * job.model.bars_out
    launches = STEP_SECONDS if job.cost.flops else 0.0
    half = is_half(job, on_gpu=True)
    return Together(weights=job.cost.trained, visits=float(visits), launches=launches, half=half)


def speedup(
    together: Together, *, devices: int, visits_per_second: float, link: Link | None, sharded: bool = False
) -> float:
    """Return how many times as fast as one device they are, by the law. Without a link (CPU ranks) nothing is
    exchanged.
    """
    if devices == 1:
        return 1.0
    whole = together.visits / visits_per_second
    if link is None or not link.bus_gb_per_s:
        return whole / max(whole / devices, together.launches)
    computing = max(whole / devices, together.launches)
    # An all-reduce is a gather and a scatter, of gradients, in bf16 where the link is PCIe. FSDP2 gathers
    # weights twice and scatters gradients once, in full precision (ZeRO, arXiv 1910.02054, section 7).
    volume = float(HALF if link.is_pcie else FLOAT)
    if sharded:
        volume = (2 * (HALF if together.half else FLOAT) + FLOAT) / 2
    gradients = together.weights * volume

    def exchange(size: float) -> float:
        return 2 * (devices - 1) / devices * size / (link.bus_gb_per_s * 1e9)

    exposed = max(exchange(gradients) - BACKWARD_SHARE * computing, exchange(min(gradients, BUCKET_BYTES)))
    return whole / (computing + exposed)
