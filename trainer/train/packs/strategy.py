"""Choose a worker's strategy and the number of models it trains at a time: the job's, else the device's
default.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.base.settings import CHUNKS
from trainer.job.job import Job
from trainer.machines.kernels import PACK, cpu_slice
from trainer.train.packs.agents import Agents, stacks_agents
from trainer.train.packs.chunks import Chunks
from trainer.train.packs.environments import Environments
from trainer.train.packs.layout import ONE, Layout
from trainer.train.packs.pack import Member, Pack
from trainer.train.packs.sequential import SequentialPack
from trainer.train.packs.stacked import Fused, Streams


def places_of(job: Job, device: str) -> int:
    """Return the number of models that one worker trains together: the job's, else one on a CPU or without a
    stacked form. Agents of a stacked form that pays on a CPU, too, train together there: alone, each takes
    three times as long (16 lanes, AMD EPYC, 2026-11-27).
    """
    pays = stacks_agents(job, on_cpu=device == "cpu") if job.target.acts else device != "cpu"
    return job.expert.pack or (PACK if pays and job.model.has_stacked_form else 1)


def strategy_of(job: Job, device: str) -> str:
    """Return the job's strategy, else plain modules; of agents how their networks run."""
    if job.target.acts:
        return "fused" if stacks_agents(job, on_cpu=device == "cpu") else "sequential"
    return (
        job.expert.strategy if job.model.has_stacked_form and job.expert.strategy != "auto" else "sequential"
    )


def concrete(job: Job, device: str) -> Job:
    """Return the job with this device's defaults for settings that it leaves open. See `form_pack` for
    `auto`.
    """
    return job.with_expert(
        strategy=strategy_of(job, device),
        pack=places_of(job, device),
        micro_batch=min(job.expert.micro_batch or _slice(job, on_cpu=device == "cpu"), job.train.batch),
    )


def form_pack(members: Sequence[Member], job: Job, layout: Layout = ONE, *, cores: int = 1) -> Pack:
    """Return a pack of the job's strategy. Ranks, which share batches by a `layout`, train plain modules. On
    more than one of `cores`, environments of the user's own are stepped in processes.

    `auto` is sequential (plain modules one after another) on every device: a trial chooses streams or fused
    only after their results agreed with it on the chip. Agents choose for themselves how networks run.
    """
    job = members[0].job or job  # trials of a pack have its sizes
    micro_batch = job.expert.micro_batch or _slice(job, on_cpu=members[0].rows_TF.device.type == "cpu")
    if job.target.has_environment:
        return Environments(members, job, micro_batch=micro_batch, cores=cores)
    if job.target.acts:
        return Agents(members, job, micro_batch=micro_batch)
    if job.model.reads == CHUNKS:  # one model fills a device
        return Chunks(members, job, micro_batch=micro_batch, layout=layout)
    stacks = layout is ONE and job.model.has_stacked_form and job.expert.compile != "always"
    if stacks and job.expert.strategy in ("fused", "streams"):
        return (Fused if job.expert.strategy == "fused" else Streams)(members, job, micro_batch=micro_batch)
    return SequentialPack(members, job, micro_batch=micro_batch, layout=layout)


def _slice(job: Job, *, on_cpu: bool) -> int:
    """Return how many windows, or chunks, a device takes at once by default."""
    return cpu_slice(job.cost) if on_cpu and job.cost.may_slice else job.train.batch
