"""This node's member of the shared queue: owns Ray here, and passes messages between a pipe and the queue.

    python -m trainer.cluster.member --cluster FILE --folder DIR

`shared_queue` starts it and speaks with it by lines of JSON on stdin and stdout; the token is in the file
that RAY_AUTH_TOKEN_PATH names. It leaves the queue and ends Ray when stdin closes. When the queue is lost,
or refuses this node, it says so in a last line, {"gone": what, "why": why}, and ends.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from trainer.base.arguments import Parser
from trainer.base.cluster import Cluster, read_cluster
from trainer.base.environment import ray_token_file
from trainer.base.errors import TrainerError, TrainingFailed, UsageError
from trainer.base.extras import needs
from trainer.base.strict_json import Unsound, read_object
from trainer.cluster.actor import MOST_BYTES, NAME, QueueActor
from trainer.cluster.hand_out import SILENT_SECONDS
from trainer.cluster.ray_node import NAMESPACE, RayNode, head_port, start_words

START_SECONDS = 900.0  # a node may boot so much later than another
ANSWER_SECONDS = 20.0
PAUSE_SECONDS = 0.5
Ask = Callable[[dict[str, Any]], dict[str, Any]]


def parser() -> Parser:
    """Return the command's arguments."""
    parse = Parser(prog="python -m trainer.cluster.member", description="Take part in a shared queue.")
    parse.add_argument("--cluster", type=Path, required=True, help="JSON of the nodes, written by the agent")
    parse.add_argument("--folder", type=Path, required=True, help="empty folder with a short path, for Ray")
    parse.add_argument(
        "--silence", type=float, default=SILENT_SECONDS, help="seconds after which a silent node is lost"
    )
    return parse


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = parser().parse_args(arguments)
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    log = os.open(options.folder / "member.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)  # Ray prints the logs of every raylet that ends
    try:
        cluster = read_cluster(options.cluster)
        needs("ray")
        if ray_token_file() is None:
            do = "Write 64 hexadecimal digits to a file of mode 0600, and name it there."
            raise UsageError("RAY_AUTH_TOKEN_PATH names no file", why="nodes need a common token", do=do)
        with_ray(cluster, options, out)
    except TrainerError as error:
        _write(out, {"gone": error.what, "why": error.why})
        return error.exit_code
    except Exception as error:  # a bug, of Ray or ours: the other end of the pipe has to know
        _write(out, {"gone": "the queue's member failed", "why": f"{type(error).__name__}: {error}"[:400]})
        return TrainingFailed.exit_code
    return 0


def with_ray(cluster: Cluster, options: argparse.Namespace, out: BinaryIO) -> None:
    """Start Ray, serve, and end Ray. Raises a TrainerError if the queue can't be reached any more."""
    node = RayNode(start_words(cluster, folder=options.folder), log=options.folder / "ray_start.log")
    try:
        import ray

        deadline = time.monotonic() + START_SECONDS
        actor = _connected(cluster, node, deadline, silent_seconds=options.silence)

        def ask(message: dict[str, Any]) -> dict[str, Any]:
            body = json.dumps({**message, "node": cluster.node}).encode()
            try:
                answer = ray.get(actor.ask.remote(body), timeout=ANSWER_SECONDS)
                return dict(read_object(answer, most_bytes=MOST_BYTES, name="the queue's answer").values)
            except (ray.exceptions.RayError, Unsound) as error:
                what = f"the queue of node 0 ({cluster.head}) is lost"
                why = str(error).strip().split("\n")[0][:300]
                raise TrainingFailed(what, why=why, do="The next attempt goes on.") from error

        serve(ask, out, ping_seconds=options.silence / 6)
    finally:
        node.close()


def _connected(cluster: Cluster, node: RayNode, deadline: float, *, silent_seconds: float) -> Any:
    """Return the queue's actor, which node 0 makes."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    while not node.has_started:
        node.check()
        _pause(deadline, "Ray did not start")
    address = f"{cluster.head}:{head_port(cluster)}"
    ray.init(
        address=address,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address=cluster.address,
    )
    if cluster.is_head:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        made = ray.remote(QueueActor).options(name=NAME, num_cpus=0, scheduling_strategy=here)
        return made.remote(silent_seconds)
    while True:
        with suppress(ValueError):  # it is not there yet
            return ray.get_actor(NAME, namespace=NAMESPACE)
        node.check()
        _pause(deadline, "node 0 did not open the queue")


def _pause(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise TrainingFailed(what, why=f"within {START_SECONDS:.0f} s", do="Read `mayfly logs`.")
    if _has_ended():
        raise TrainingFailed("it was ended before it took part", do="Read `mayfly logs`.")
    time.sleep(PAUSE_SECONDS)


def _has_ended() -> bool:
    """Return whether stdin is closed, without reading from it."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return any(event & select.POLLHUP and not event & select.POLLIN for _, event in poll.poll(0))


def serve(ask: Ask, out: BinaryIO, *, ping_seconds: float, source: int = 0) -> None:
    """Pass messages on until stdin closes; tell the queue now and then that this node is alive. Raises a
    TrainerError once the queue is lost or refuses this node.
    """
    kept = b""
    joined = False
    poll = select.poll()  # `select` refuses descriptors from 1,024 on
    poll.register(source, select.POLLIN)
    while True:
        if not poll.poll(1000 * ping_seconds):
            if joined:
                _checked(ask({"ask": "ping"}))
            continue
        block = os.read(source, 1 << 16)
        if not block:
            with suppress(TrainerError):
                ask({"ask": "leave"})
            return
        *lines, kept = (kept + block).split(b"\n")
        for line in lines:
            message = dict(read_object(line, most_bytes=MOST_BYTES, name="a message").values)
            _write(out, _answered(ask, message))
            joined = True


def _answered(ask: Ask, message: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + START_SECONDS
    while (answer := _checked(ask(message))).get("wait"):
        _pause(deadline, "node 0 did not open the queue")
    return answer


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if why := answer.get("refused"):
        what, do = "this node has no part in the queue", "Read `mayfly logs` of node 0, too."
        raise TrainingFailed(what, why=str(why)[:400], do=do)
    return answer


def _write(out: BinaryIO, value: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):
        out.write(json.dumps(value).encode() + b"\n")


if __name__ == "__main__":
    code = main()
    if os.getpgrp() == os.getpid():  # as `shared_queue` starts it: Ray's agents outlive their raylet
        os.killpg(0, signal.SIGKILL)
    os._exit(code)  # Ray, which has ended here, would be waited for at exit
