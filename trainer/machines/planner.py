"""Estimate how long a job takes on a machine and what it costs, from bars, epochs and rates. Rough until
measured.

    seconds          = boot + stage + training + upload
    stage, upload    = bytes of the inputs, of the models / bytes a second between S3 and the machine
    training seconds = windows x epochs x cost of a window / windows a second,
                       packed over the machine's GPUs, longest first,
                       or one after another where all GPUs train each model together (`scaling`)
    several machines are one set of GPUs that begins when the last of them has booted and joined;
    of a search each gets whole studies

Rates are the profile's, which are estimates. Makes no AWS calls: prices come in, dollars come out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from trainer.aws.place import ACCOUNT, Place
from trainer.base.settings import FLOAT
from trainer.job.job import Job
from trainer.job.pieces import pieces_of, takes_all_devices
from trainer.job.pieces.piece import Piece, SeriesWork
from trainer.job.pieces.queue import places_on
from trainer.job.search import job_of, largest
from trainer.machines.chips import GpuProfile, named_profile
from trainer.machines.choice import Device, profile_of
from trainer.machines.instances import InstanceType
from trainer.machines.kernels import window_costs
from trainer.machines.memory import CPU
from trainer.machines.rates import Rate, reference_rate
from trainer.machines.scaling import Together, link_between, speedup, together_of

SCORING_SHARE = 0.35  # a window scored costs this share of one trained: no backward pass
SLOWER = 1.6  # P90 over P50, while nothing is measured
# Bytes a second from and to S3 by boto3's defaults, measured over loopback (2026-11-20); less where the
# type's network has less.
READ_BYTES, WRITE_BYTES = 0.6e9, 0.35e9
BYTES_OF_A_BAR = 12  # of candles in compressed parquet, about half of six float32 (2026-11-20)
MINIMUM_BILLED_SECONDS = 60.0  # EC2, Linux, each start (EC2 guide, looked up 2026-11-20)
SHORTEST_ATTEMPT, SHORTEST_WORK = timedelta(minutes=30), timedelta(minutes=15)
LONGEST_DEADLINE = timedelta(hours=12)
# Of several machines: from the boot of one until the last of them has booted and all have found each other.
# An estimate of 2026-11-27: no fleet has been measured.
JOIN_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The work in a job: its pieces, and the cost of a window relative to the reference model's."""

    pieces: tuple[Piece, ...]
    window_cost_gpu: float = 1.0
    window_cost_cpu: float = 1.0
    gpus: float | None = None  # of each piece that a node's agent starts; 0: all; None: workers train them
    together: Together | None = None  # where all GPUs train each piece together
    nodes: int = 1  # machines that share the pieces, or train each together
    input_bytes: float = 0.0
    output_bytes: float = 0.0  # of the models


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds of a run, and of its instance, by phase: P50, all rough."""

    boot: float
    stage: float
    training: float
    upload: float

    @property
    def seconds(self) -> tuple[float, float, float, float]:
        """Return the seconds of each phase, in their order."""
        return self.boot, self.stage, self.training, self.upload

    @property
    def seconds_p50(self) -> float:
        """Return the seconds of all phases."""
        return sum(self.seconds)

    @property
    def seconds_p90(self) -> float:
        """Return the seconds that nine of ten runs stay below."""
        return self.seconds_p50 * SLOWER


def workload(job: Job, bars: Mapping[str, int]) -> Workload:
    """Return the work in a job over so many bars a symbol; the older folds of a symbol have fewer."""
    series = [_series(symbol, min(count, job.data.bars or count), job) for symbol, count in bars.items()]
    cost_cpu, cost_gpu = window_costs(job.cost)
    pieces = tuple(_weighed(piece, job) for piece in pieces_of(job, series, timeframe=job.data.timeframe))
    together = together_of(job) if takes_all_devices(job) else None
    return Workload(
        pieces=pieces,
        window_cost_gpu=cost_gpu,
        window_cost_cpu=cost_cpu,
        together=together,
        nodes=job.machine.nodes,
    )


def with_bytes(work: Workload, job: Job, *, input_bytes: int) -> Workload:
    """Return work that reads so many bytes of inputs, and writes the job's models."""
    models = sum(not piece.trial for piece in work.pieces)
    return replace(
        work, input_bytes=float(input_bytes), output_bytes=float(FLOAT * largest(job).cost.weights * models)
    )


def _weighed(piece: Piece, job: Job) -> Piece:
    """Return a piece of a search with its estimate in windows of the job's own model; of the largest, where
    its values are not known yet.
    """
    if not piece.study:
        return piece
    its = job_of(job, piece.values) if piece.values else largest(job)
    costs = zip(window_costs(its.cost), window_costs(job.cost), strict=True)
    return replace(piece, estimate=piece.estimate * max(one / other for one, other in costs))


def _series(symbol: str, bars: int, job: Job) -> SeriesWork:
    """Estimate a series' windows by the shares of its bars, before any bar is read."""
    validation, test = job.data.shares_of(bars)
    windows = []
    for fold in range(1, job.data.folds + 1):
        tests = job.data.tests_kept_from(fold)
        windows.append(max(0, int(bars * (1.0 - validation - tests * test)) - job.model.bars_seen))
    scored = SCORING_SHARE * int(bars * validation)
    return SeriesWork(
        symbol=symbol,
        bars=bars,
        windows=tuple(windows),
        visits=tuple(count + scored for count in windows),
        refit=max(0, bars - job.model.bars_seen),
    )


def estimate(
    work: Workload,
    machine: InstanceType,
    *,
    place: Place,
    cores: int | None = None,
    rate: Rate | None = None,
    sharded: bool = False,
) -> Estimate:
    """Estimate a run on the machines of a place, whose GPUs may be processes on this machine's `cores`.

    `rate` is that of one GPU (or of one core) for the job's own models; without one it is the
    profile's. Where the agent starts the pieces it is that of one place, in pieces a second. `sharded`: a
    model that all GPUs train together is divided among them.
    """
    trainers = machine.num_trainers * work.nodes
    workers = trainers if work.together else min(trainers, max(1, len(work.pieces)))
    if work.gpus is not None:
        slots = max(1, len(places_on(machine.num_workers, work.gpus))) * work.nodes
    else:
        slots = min(workers, cores or os.cpu_count() or 1) if place.chip else workers
    device_rate = rate.per_second if rate else _by_profile(work, machine, place)
    seconds = [piece.estimate / device_rate for piece in work.pieces]
    if work.together:
        link = None if place.chip else link_between(machine, work.nodes)
        training = sum(seconds) / speedup(
            work.together, devices=slots, visits_per_second=device_rate, link=link, sharded=sharded
        )
    else:
        training = longest_first(seconds, min(slots, max(1, len(seconds))))
        if work.nodes > 1:
            parts = (each / device_rate for each in _of_longest_node(work))
            training = max(training, longest_first(list(parts), math.ceil(slots / work.nodes)))
    boot, after = around(machine, place)
    boot += JOIN_SECONDS if work.nodes > 1 else 0.0
    stage, upload = (0.0, 0.0) if place.chip else _moved(work, machine)
    return Estimate(boot=boot, stage=stage, training=training, upload=after + upload)


def _of_longest_node(work: Workload) -> list[float]:
    """Return the estimates of a machine's pieces, of the one that has the most: trials and their model are
    dealt to one, the longest study first. [] without a search.
    """
    studies: dict[str, list[float]] = {}
    for piece in work.pieces:
        if piece.study:
            studies.setdefault(piece.study, []).append(piece.estimate)
    nodes: list[list[float]] = [[] for _ in range(work.nodes)]
    for study in sorted(studies.values(), key=sum, reverse=True):
        min(nodes, key=sum).extend(study)
    return max(nodes, key=sum)


def _by_profile(work: Workload, machine: InstanceType, place: Place) -> float:
    """Return the rate of one place by the profile alone."""
    if work.gpus is not None:
        return 1.0
    if place.chip or not machine.gpus:
        return cpu_windows_per_second() / work.window_cost_cpu
    return windows_per_second(machine) / work.window_cost_gpu


def around(machine: InstanceType, place: Place) -> tuple[float, float]:
    """Return the seconds before a training (boot, install) and after it (shutdown), P50, without data."""
    return place.boot_seconds or machine.boot.expected_seconds, place.after_seconds


def _moved(work: Workload, machine: InstanceType) -> tuple[float, float]:
    """Return the seconds in which a machine reads the inputs and writes the models."""
    network = machine.network_gbps * 1e9 / 8 or READ_BYTES
    return work.input_bytes / min(network, READ_BYTES), work.output_bytes / min(network, WRITE_BYTES)


def windows_per_second(machine: InstanceType) -> float:
    """Return the rate of one of the machine's GPUs for the reference model; an unknown chip counts as
    a T4.
    """
    return reference_rate(profile_on(machine, ACCOUNT))


def cpu_windows_per_second() -> float:
    """Return the rate of one core of a desk for the reference model."""
    return reference_rate(named_profile("cpu"))


def profile_on(machine: InstanceType, place: Place) -> GpuProfile:
    """Return the profile of a machine's own chip, or of what trains instead of it at this place."""
    if place.chip:
        return named_profile(place.chip)
    if not machine.gpus:
        return named_profile(CPU)
    gib = machine.gpu_memory_gib
    return profile_of(Device(name=machine.gpu_model, memory_gib=gib, free_gib=gib))


def longest_first(seconds: Sequence[float], slots: int) -> float:
    """Return when the last of these jobs ends if they are assigned longest first to the next free slot."""
    ends = [0.0] * max(1, slots)
    for job_seconds in sorted(seconds, reverse=True):
        ends[ends.index(min(ends))] += job_seconds
    return max(ends)


def dollars(seconds: float, price_usd_per_hour: float) -> float:
    """Return the cost of an instance for so many seconds: billed by the second, at least sixty."""
    return max(seconds, MINIMUM_BILLED_SECONDS) * price_usd_per_hour / 3600


def default_max_duration(seconds_p90: float, machine: InstanceType) -> timedelta:
    """Return the longest attempt of a job that names no duration: 12 hours at most."""
    return min(LONGEST_DEADLINE, three_times_slow(seconds_p90, machine))


def three_times_slow(seconds_p90: float, machine: InstanceType) -> timedelta:
    """Return max(30 min, boot allowance + 15 min, 3 x P90): late enough for a slow run, early enough for one
    that hangs.
    """
    boots = timedelta(seconds=machine.boot.allowance_seconds) + SHORTEST_WORK
    return max(SHORTEST_ATTEMPT, boots, timedelta(seconds=round(3 * seconds_p90)))
