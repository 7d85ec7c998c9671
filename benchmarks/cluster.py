"""Time the queue that machines share: what a pack costs, and how long workers idle at the end.

    python -m benchmarks.cluster            # three minutes on two cores; needs the extra `cluster`
    python -m benchmarks.cluster --quick    # one round, fewer pieces, a minute

Three nodes with a loopback address each. A pack's overhead is taking a piece and telling its end, without any
work: from the queue of a single machine, from the shared queue on its own node and on another one, and as a
task of plain Ray that asks for one GPU a coin. The end: pieces that sleep, seeded, lognormal, on two workers
a node. Writes benchmarks/results/cluster.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.rounds import interleave, machine, median, write
from trainer.base.cluster import Cluster, write_cluster
from trainer.base.environment import for_ray, set_variables
from trainer.cluster.ray_node import HEALTH, QUIET, head_port, start_words
from trainer.cluster.shared_queue import SharedQueue
from trainer.job.pieces.piece import Piece
from trainer.job.pieces.queue import PieceQueue

NODES, WORKERS = 3, 2
MEAN_SECONDS, SPREAD = 0.06, 0.5
# Plain Ray: one task a coin, each with a whole GPU, which is a number to Ray. A task with a GPU has a process
# of its own (Ray 2.60, "max_calls"), so that each coin starts one.
PLAIN = """
import json, sys, time
import ray
count = int(sys.argv[1])
ray.init(address=sys.argv[2], _node_ip_address=sys.argv[2].split(":")[0], log_to_driver=False)
@ray.remote(num_gpus=1, num_cpus=0)
def coin(number):
    return number
ray.get([coin.remote(n) for n in range(2)])
began = time.perf_counter()
ray.get([coin.remote(n) for n in range(count)])
print(json.dumps(count / (time.perf_counter() - began)))
"""


def pieces_of(count: int, *, seed: int = 0) -> list[Piece]:
    """Return pieces whose estimates are seconds, lognormal around MEAN_SECONDS."""
    chance = random.Random(seed)
    seconds = [MEAN_SECONDS * chance.lognormvariate(-(SPREAD**2) / 2, SPREAD) for _ in range(count)]
    return [
        Piece(name=f"m{n:04d}", title=f"M{n}", kind="symbol", series=(), source=f"s{n}", estimate=one)
        for n, one in enumerate(seconds)
    ]


class Fleet:
    """A queue of three nodes on this machine, opened; each call makes another one."""

    def __init__(self, folder: Path, pieces: list[Piece], number: int) -> None:
        marks = os.getpid() >> 8 & 0xFF, os.getpid() & 0xFF
        addresses = tuple(f"127.{marks[0]}.{marks[1]}.{10 * number + node + 2}" for node in range(NODES))
        self.queues: list[SharedQueue] = []
        self._open = ExitStack()
        for node in range(NODES):
            file = folder / f"{number}-{node}.json"
            write_cluster(file, Cluster(node=node, addresses=addresses))
            self.queues.append(self._open.enter_context(SharedQueue(file)))
        for queue in self.queues:
            queue.open(pieces)

    def close(self) -> None:
        self._open.close()


def alone(count: int) -> float:
    """Return packs a second of one machine's own queue."""
    queue = PieceQueue(pieces_of(count))
    began = time.perf_counter()
    while len(queue):
        queue.take()
    return count / (time.perf_counter() - began)


def shared(queue: SharedQueue, count: int) -> float:
    """Return packs a second of a node that takes a piece and tells its end, one after another."""
    began = time.perf_counter()
    for _ in range(count):
        taken = queue.take()
        assert taken is not None
        queue.done(taken[0].name)
    return count / (time.perf_counter() - began)


def plain_ray(folder: Path, count: int) -> float:
    """Return tasks a second of plain Ray with a GPU a coin."""
    marks = os.getpid() >> 8 & 0xFF, os.getpid() & 0xFF
    cluster = Cluster(node=0, addresses=tuple(f"127.{marks[0]}.{marks[1]}.{one}" for one in (90, 91)))
    environment = for_ray({**HEALTH, **QUIET}, code=Path(__file__).parents[1])
    log, rays = folder / "plain.log", Path(tempfile.mkdtemp(prefix="mf-", dir="/tmp"))
    words = start_words(cluster, folder=rays, cpus=2, gpus=1)
    with log.open("w") as output:
        ray = subprocess.Popen(words, stdout=output, stderr=output, env=environment, start_new_session=True)
    try:
        while "Ray runtime started" not in log.read_text():
            time.sleep(0.2)
            assert ray.poll() is None, log.read_text()
        address = f"{cluster.head}:{head_port(cluster)}"
        asked = [sys.executable, "-c", PLAIN, str(count), address]
        done = subprocess.run(asked, check=True, capture_output=True, text=True, env=environment)
    finally:
        os.killpg(ray.pid, signal.SIGKILL)
        ray.wait()
        shutil.rmtree(rays, ignore_errors=True)
        log.unlink()
    return float(json.loads(done.stdout.splitlines()[-1]))


def overheads(folder: Path, *, rounds: int, count: int) -> dict[str, Any]:
    """Return the milliseconds a pack of each contender."""
    fleet = Fleet(folder, pieces_of(2 * rounds * count), 0)
    contenders: dict[str, Callable[[], float]] = {
        "one machine": lambda: alone(count),
        "shared, node 0": lambda: shared(fleet.queues[0], count),
        "shared, another node": lambda: shared(fleet.queues[1], count),
    }
    try:
        rates = interleave(contenders, rounds=rounds)
    finally:
        fleet.close()
    rates["plain Ray, one GPU a coin"] = [plain_ray(folder, count // 10) for _ in range(rounds)]
    return {name: round(1000 / median(rates, name), 4) for name in rates}


def end_of(folder: Path, *, count: int) -> dict[str, Any]:
    """Let sleeping pieces run on three nodes; return the seconds that each worker idles at the end."""
    pieces = pieces_of(count, seed=1)
    fleet = Fleet(folder, pieces, 1)
    ends: dict[str, float] = {}
    made: list[str] = []

    def work(node: int, worker: int, queue: SharedQueue, lock: threading.Lock) -> None:
        while True:
            with lock:
                taken = queue.take()
                over = queue.is_over or not len(queue)
            if taken is None:
                if over:
                    return
                time.sleep(0.01)
                continue
            time.sleep(taken[0].estimate)
            ends[f"node {node}, worker {worker}"] = time.perf_counter()
            with lock:
                queue.done(taken[0].name)
                made.append(taken[0].name)

    threads = []
    for node, queue in enumerate(fleet.queues):
        lock = threading.Lock()
        threads += [threading.Thread(target=work, args=(node, one, queue, lock)) for one in range(WORKERS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fleet.close()
    assert sorted(made) == [piece.name for piece in pieces], "each once"
    last = max(ends.values())
    slept = sum(piece.estimate for piece in pieces)
    return {
        "pieces": count,
        "longest_piece_seconds": round(max(piece.estimate for piece in pieces), 4),
        "idle_seconds": {name: round(last - at, 4) for name, at in sorted(ends.items())},
        "wall_seconds": round(last - began, 3),
        "least_wall_seconds": round(slept / (NODES * WORKERS), 3),
    }


def main() -> None:
    """Measure, print and write."""
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument("--quick", action="store_true", help="one round of fewer pieces")
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    rounds, count = (1, 100) if options.quick else (3, 300)
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder, "token")
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        set_variables({"RAY_AUTH_TOKEN_PATH": str(token)})
        end = end_of(Path(folder), count=100 if options.quick else 500)
        packs = overheads(Path(folder), rounds=rounds, count=count)
    for name, milliseconds in packs.items():
        print(f"{name:28} {milliseconds:8.3f} ms a pack")
    idle = max(end["idle_seconds"].values())
    print(
        f"{end['pieces']} pieces on {NODES} nodes of {WORKERS} workers: idle at the end {idle:.3f} s at most,"
    )
    print(f"the longest piece takes {end['longest_piece_seconds']:.3f} s")
    print(write("cluster", {"machine": machine(), "milliseconds_a_pack": packs, "end": end}, options.out))


if __name__ == "__main__":
    main()
