"""The nodes of one attempt, if it has several: who they are for each other, and their reports as one. Pure.

Node 0 is the head: a run's phase and times are the head's. Each node makes the same plan of the same pieces
and reports on all of them, but works on some: of a piece that node's word counts that came furthest with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from trainer.base.errors import TrainingFailed
from trainer.base.text import some_of
from trainer.job.model_names import MODEL_SUFFIX
from trainer.runs.actions import DeleteTokens
from trainer.runs.attempts import Launch
from trainer.runs.keys import NodeKeys
from trainer.runs.observation import NodeSeen, Observation
from trainer.runs.record import RunRecord
from trainer.runs.reports import (
    CHECKPOINT_COUNTS,
    INPUT_COUNTS,
    MOST_NAMED,
    UNFINISHED,
    Heartbeat,
    NodeResult,
)

PROGRESS = ("waiting", "training", "scoring", "failed", "done")  # states of a piece, the furthest last
LONG_AGO = datetime.fromtimestamp(0, timezone.utc)


def addresses_of(launch: Launch, observed: Observation) -> tuple[str, ...] | None:
    """Return the private addresses of a launch's instances in their order, () for one; None until AWS shows
    all of them.
    """
    if len(launch.instance_ids) < 2:
        return ()
    known = {instance.instance_id: instance.private_address for instance in observed.alive}
    addresses = tuple(known.get(instance_id, "") for instance_id in launch.instance_ids)
    return addresses if all(addresses) else None


def tokens_of(nodes: Sequence[NodeKeys]) -> tuple[DeleteTokens, ...]:
    """Return the deletion of the tokens of an attempt's nodes, or of several attempts'; none for one node."""
    attempts = [node.attempt for node in nodes]
    several = tuple(node for node in nodes if attempts.count(node.attempt) > 1)
    return (DeleteTokens(nodes=several),) if several else ()


def joined_heartbeat(nodes: Sequence[NodeSeen]) -> Heartbeat | None:
    """Return the last reports of several nodes as one: the head's, or the first that there is, with the
    progress of all. While others work, one that has ended still counts as uploading.
    """
    beats = [(node, node.heartbeat) for node in nodes if node.heartbeat is not None]
    if not beats:
        return None
    said = [beat for _, beat in beats]
    progress: dict[str, tuple[tuple[int, datetime], Mapping[str, Any]]] = {}
    for node, beat in beats:
        for piece, told in beat.progress.items():
            rank = (PROGRESS.index(told["state"]), node.heard_at or LONG_AGO)
            if piece not in progress or rank > progress[piece][0]:
                progress[piece] = (rank, told)
    works = any(node.result is None and beat.phase not in ("upload", "end") for node, beat in beats[1:])
    total = max(beat.models_total for beat in said)
    done = sum(told["state"] == "done" for _, told in progress.values())
    told_done = min(sum(beat.models_done for beat in said), total)
    whole = replace(
        said[0],
        progress={piece: told for piece, (_, told) in progress.items()},
        models_total=total,
        models_done=done if len(progress) >= total else told_done,
        retries=sum(beat.retries for beat in said),
        rate=sum(rates) if (rates := [beat.rate for beat in said if beat.rate is not None]) else None,
        durable=_joined_durable([beat.durable for beat in said if beat.durable]),
    )
    if not works or whole.phase != "end":
        return whole
    phases = {name: at for name, at in whole.phases.items() if name != "end"}
    return replace(whole, phase="upload", phases=phases)


def joined_result(
    record: RunRecord, nodes: Sequence[NodeSeen], finished: Collection[str]
) -> NodeResult | None:
    """Return the results of several nodes as one, None until the head has one: its state, with the pieces of
    all. A piece that any of them made has not failed.

    Done is a run whose head is, and every piece of which is made, or is `finished` by an earlier attempt: a
    node may have been lost with one that it had just reported to the others.
    """
    head = nodes[0].result if nodes else None
    if head is None:
        return None
    results = [node.result for node in nodes if node.result is not None]
    models = _first(_file_of, (model for result in results for model in result.models))
    scripts = _first(
        _piece_of,
        sorted((one for result in results for one in result.scripts), key=lambda one: not one["done"]),
    )
    made = {_piece_of(one) for one in (*models, *(one for one in scripts if one["done"]))}
    made |= {piece for node in nodes for piece in node.left}
    made |= record.trials_over({*made, *finished})
    told = [one for result in results for one in result.failed if _piece_of(one) not in made]
    told.sort(key=lambda one: one["reason"] in UNFINISHED)
    unknown = ({**piece.identity, "reason": UNFINISHED[1]} for piece in record.pieces)
    missing = (one for one in unknown if _piece_of(one) not in {*made, *finished})
    failed = _first(_piece_of, (*told, *missing))
    joined = replace(
        head,
        models=tuple(models),
        scripts=tuple(scripts),
        failed=tuple(failed),
        retries=sum(result.retries for result in results),
        phases=_joined_phases(results),
        inputs=_joined_inputs(results),
        devices=_joined_devices(nodes),
        checkpoints=_summed([_sent(node) for node in nodes], CHECKPOINT_COUNTS),
    )
    if head.state != "done" or not failed:
        return joined
    errors = (result.error for result in results if result.state == "failed" and result.error)
    names = some_of(sorted(map(_piece_of, failed)), MOST_NAMED)
    own = TrainingFailed(f"training failed for {names}", do=f"mayfly logs {record.run_id} shows why.")
    error = next(errors, own.as_dict())
    return replace(joined, state="failed", error=error)


def is_unfinished(result: NodeResult) -> bool:
    """Return whether a joined result lacks a piece that no node says to have failed: it went with a node."""
    return any(one["reason"] in UNFINISHED for one in result.failed)


def owner_of(nodes: Sequence[NodeSeen], piece: str) -> int:
    """Return the number of the node that worked on a piece last, by their reports; the head without any."""

    def rank(number: int) -> tuple[int, datetime]:
        node = nodes[number]
        told = node.heartbeat.progress.get(piece, {}) if node.heartbeat else {}
        return PROGRESS.index(told.get("state", "waiting")), node.heard_at or LONG_AGO

    best = max(range(len(nodes)), key=rank, default=0)
    return best if nodes and rank(best)[0] else 0


def _first(key: Callable[[Any], str], entries: Iterable[Any]) -> list[Any]:
    """Return the first entry of each key."""
    found: dict[str, Any] = {}
    for entry in entries:
        found.setdefault(key(entry), entry)
    return list(found.values())


def _piece_of(entry: Mapping[str, Any]) -> str:
    return str(entry["piece"])


def _file_of(entry: Mapping[str, Any]) -> str:
    return str(entry["key"]).rpartition("/")[2].removesuffix(MODEL_SUFFIX)


def _joined_phases(results: Sequence[NodeResult]) -> dict[str, datetime]:
    """Return the head's phases; the last one begins when it does on the last node."""
    phases, ends = dict(results[0].phases), [one.phases["end"] for one in results if "end" in one.phases]
    return phases | {"end": max(ends)} if "end" in phases else phases


def _joined_durable(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the newest checkpoints in S3 of the node that is furthest behind, and what all have sent."""
    if not told:
        return {}
    last = min(told, key=lambda one: one["at"])
    lag = max(one["lag_seconds"] for one in told)
    return {**last, "lag_seconds": lag, **_summed(told, CHECKPOINT_COUNTS)}


def _sent(node: NodeSeen) -> Mapping[str, Any]:
    """Return how much a node sent of its CHECKPOINTS, by its result or its last report."""
    if node.result is not None and node.result.checkpoints:
        return node.result.checkpoints
    return node.heartbeat.durable if node.heartbeat else {}


def _joined_inputs(results: Sequence[NodeResult]) -> dict[str, Any]:
    told = [result.inputs for result in results if result.inputs]
    failed = next((one["cache_failed"] for one in told if one.get("cache_failed")), "")
    return {**_summed(told, INPUT_COUNTS), "cache_failed": failed} if told else {}


def _joined_devices(nodes: Sequence[NodeSeen]) -> dict[str, Any]:
    told = {
        number: node.result.devices
        for number, node in enumerate(nodes)
        if node.result is not None and node.result.devices
    }
    if not told:
        return {}
    out = [f"node {number}: {line}" for number, one in told.items() for line in one.get("out_of_service", ())]
    first = {name: value for name, value in next(iter(told.values())).items() if name != "out_of_service"}
    counts = _summed(list(told.values()), ("expected", "found"))
    return {**first, **counts, **({"out_of_service": out} if out else {})}


def _summed(told: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    """Return the sums of counts, {} if nobody told any."""
    return {name: sum(one.get(name, 0) for one in told) for name in names} if any(told) else {}
