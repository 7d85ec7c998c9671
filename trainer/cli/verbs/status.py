"""`mayfly status [RUN]`: the state of runs, and the use of a running machine's GPUs. A run that no command
drives is settled before it is shown.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from rich.console import RenderableType

from trainer.attach.keys import forget_ended
from trainer.aws.stack import read_stack
from trainer.base.errors import TrainerError, UsageError
from trainer.base.instants import from_iso, iso
from trainer.cli.connect import connected, look_again, named_run
from trainer.cli.output import duration, lacks, money, piece_noun, pieces_counted, say, say_json
from trainer.cli.terminal import Console, show
from trainer.cli.views.progress import durable_of
from trainer.cli.views.receipt import receipt_view, set_by
from trainer.cli.views.table import BAD, Blocks, Cell, FittedTable, Inline, lines, styled
from trainer.cli.views.watch import Watch
from trainer.control.cloud import AwsCloud, Cloud
from trainer.control.observe import reports
from trainer.control.progress import RunProgress, progress_of
from trainer.control.settle import Settled, settle_all, settle_run
from trainer.runs.index import note_shown
from trainer.runs.node_ends import NodeEnd
from trainer.runs.reports import share_done
from trainer.runs.samples import NodeSample
from trainer.runs.store import read_record
from trainer.runs.stored_receipt import read_receipt
from trainer.runs.timeline import as_rows, timeline

UNREADABLE = "unreadable"  # state of a run whose record or receipt is damaged, or of another version
MACHINE = ("instance_id", "instance_type", "market", "availability_zone", "state")
NOTHING: dict[str, Any] = {  # what is not known of a run
    "run_id": "",
    "work": "",
    "parent": "",
    "state": "",
    "instances": [],
    "phase": "",
    "attempt": 1,
    "lost": [],
    "nodes": [],
    "models_done": 0,
    "models_total": 0,
    "pieces": {},
    "durable": None,
    "elapsed_seconds": 0.0,
    "spent_usd": 0.0,
    "deadline": None,
    "deadline_cause": "unknown",
    "deadline_in_seconds": None,
    "sample": None,
    "message": "",
    "waiting": None,
    "warning": "",
    "receipt": None,
}
SHOWN_ENDED = 5  # how many runs that had ended are shown beside the open ones


def run(arguments: argparse.Namespace) -> int:
    """Show one run, or every open run and the last ended ones; newest last. With --follow, show one run
    until it has ended.
    """
    if arguments.follow and (arguments.json or not arguments.run):
        do = "Leave --json out." if arguments.json else "Name a run."
        raise UsageError("--follow shows one run until it ends", do=do)
    if arguments.events and (arguments.follow or not arguments.run):
        do = "Leave --follow out." if arguments.follow else "Name a run."
        raise UsageError("--events shows the timeline of one run", do=do)
    with connected(rehearse=arguments.rehearse, program=False, local=arguments.local) as access:
        outputs = read_stack(access, stack=arguments.stack)
        cloud = AwsCloud(access, outputs)
        kept = {"days": outputs.experiment_days, "checkpoint_days": outputs.checkpoint_days}
        problems: dict[str, TrainerError] = {}
        if arguments.run:
            arguments.run = named_run(cloud.objects, arguments.run)
        if arguments.events:
            return _events(cloud, arguments.run, as_json=arguments.json)
        if arguments.follow:
            shown = [_followed(cloud, arguments.run, seconds=access.place.poll_seconds)]
        elif arguments.run:
            shown = [_shown(settle_run(cloud, arguments.run), cloud.now())]
        else:
            shown, problems = runs_shown(cloud)
        forget_ended(cloud.objects)
        if arguments.follow:
            show(_detail(shown[0], **kept))
            note_shown(cloud.objects, shown[0]["receipt"])
            return 0
    if arguments.json:
        say_json({"runs": shown})
    elif arguments.run:
        show(_detail(shown[0], **kept))
    else:
        show(runs_table(shown)) if shown else say("no runs yet")
    return lacks(problems, as_json=arguments.json)


def _events(cloud: Cloud, run_id: str, *, as_json: bool) -> int:
    """Print the timeline of a run, of all attempts, after the steps that are due."""
    record = settle_run(cloud, run_id).look.record
    record, _ = read_record(cloud.objects, record.run_id, seen=True)  # as the last step left it
    events = timeline(record, reports(cloud, record))
    if as_json:
        say_json({"run_id": run_id, "events": [event.to_dict() for event in events]})
    else:
        show(
            FittedTable(as_rows(events), right=("attempt",), leaving=("attempt",), wraps=("event", "reason"))
        )
    return 0


def _followed(cloud: Cloud, run_id: str, *, seconds: float) -> dict[str, Any]:
    """Show a run's progress until it has ended, as its launch does, with the use of its hardware: below the
    picture on a terminal, elsewhere with each new sample. Return it as it ended. After the first look, errors
    of the network are printed, and it goes on.
    """
    console, last = Console(), None
    wait = partial(time.sleep, seconds)
    watch = Watch(console, None, below=lambda progress: _use(progress, cloud.now()))
    try:
        settled = settle_run(cloud, run_id)
        while settled.receipt is None:
            progress = progress_of(settled.look, cloud.now(), settled.look.error)
            watch.on_event(progress)
            if not console.live and progress.sample != last:
                last = progress.sample
                for part in _use(progress, cloud.now()):
                    console.show(part)
            wait()
            settled = look_again(partial(settle_run, cloud, run_id), wait)
    finally:
        console.close()
    return _of_receipt(settled.receipt)


def _use(progress: RunProgress, now: datetime) -> list[RenderableType]:
    sample = _sample(progress.sample, now)
    return [Blocks([("use", _sample_view(sample))])] if sample else []


def runs_shown(cloud: Cloud) -> tuple[list[dict[str, Any]], dict[str, TrainerError]]:
    """Settle open runs; return them and the last ended ones, oldest first, and the errors of those that can't
    be read.
    """
    settling = settle_all(cloud)
    shown = [_shown(settled, cloud.now()) for settled in settling.settled]
    problems = dict(settling.problems)
    for run_id in settling.ended[-SHOWN_ENDED:]:
        try:
            receipt = read_receipt(cloud.objects, run_id)
            shown += [_of_receipt(receipt)] if receipt is not None else []
        except TrainerError as error:
            problems[run_id] = error
    shown += [
        {**NOTHING, "run_id": run_id, "state": UNREADABLE, "message": str(error)}
        for run_id, error in problems.items()
    ]
    return sorted(shown, key=lambda item: str(item["run_id"])), problems


def _shown(settled: Settled, now: datetime) -> dict[str, Any]:
    if settled.receipt is not None:
        return _of_receipt(settled.receipt)
    return _of_progress(progress_of(settled.look, now, settled.look.error), now)


def _of_receipt(receipt: dict[str, Any]) -> dict[str, Any]:
    same = ("run_id", "work", "parent", "state", "instances", "deadline", "deadline_cause")
    done = len(receipt["models"]) + sum(script["done"] for script in receipt["scripts"])
    return {
        **NOTHING,
        **{name: receipt[name] for name in same},
        "nodes": receipt["nodes"],
        "models_done": done,
        "models_total": done + len(receipt["failed"]),
        "elapsed_seconds": receipt["seconds"]["total"],
        "spent_usd": receipt["dollars"]["spent_high"],
        "receipt": receipt,
    }


def _of_progress(progress: RunProgress, now: datetime) -> dict[str, Any]:
    same = (
        "run_id",
        "work",
        "parent",
        "state",
        "phase",
        "attempt",
        "models_done",
        "models_total",
        "waiting",
        "warning",
    )
    return {
        **NOTHING,
        **{name: getattr(progress, name) for name in same},
        "instances": [{name: getattr(seen, name) for name in MACHINE} for seen in progress.instances],
        "lost": list(progress.lost),
        "nodes": [node.to_dict() for node in progress.nodes],
        "pieces": _ordered(progress),
        "elapsed_seconds": round(progress.elapsed_seconds, 3),
        "spent_usd": round(progress.spent_usd, 6),
        "deadline": iso(progress.deadline.at),
        "deadline_cause": progress.deadline.cause,
        "deadline_in_seconds": round((progress.deadline.at - now).total_seconds()),
        "durable": {**progress.durable, "at": iso(progress.durable["at"])} if progress.durable else None,
        "sample": _sample(progress.sample, now),
        "message": progress.last_error or progress.message,
    }


def _sample(sample: NodeSample | None, now: datetime) -> dict[str, Any] | None:
    if sample is None:
        return None
    return {**sample.to_dict(), "age_seconds": round((now - sample.at).total_seconds(), 3)}


def runs_table(shown: Iterable[dict[str, Any]]) -> FittedTable:
    """Return the table of the runs."""
    return FittedTable(
        map(_row, shown),
        right=("done", "spent", "ends within"),
        leaving=("zone", "market", "instance", "type", "ends within", "spent", "phase", "done"),
    )


def _row(item: dict[str, Any]) -> dict[str, str]:
    instance = item["instances"][-1] if item["instances"] else {}
    left = item["deadline_in_seconds"]
    return {
        "run": item["run_id"],
        "state": item["state"],
        "phase": item["phase"] or ("-" if item["state"] == UNREADABLE else "ended"),
        "done": _done(item),
        "spent": money(item["spent_usd"]),
        "ends within": "-" if left is None else duration(left) if left > 0 else "past",
        "instance": str(instance.get("instance_id", "-")),
        "type": str(instance.get("instance_type", "-")),
        "zone": str(instance.get("availability_zone", "-")),
        "market": str(instance.get("market", "-")).replace("_", "-"),
    }


def _done(item: dict[str, Any]) -> str:
    """Return the overall progress: the share of all steps while models train, else the number of
    models done.
    """
    pieces = [values for values in item["pieces"].values() if values.get("steps") and values.get("epochs")]
    if not pieces:
        total = item["models_total"]
        return f"{item['models_done']}/{pieces_counted(total, item['work'])}" if total else "-"
    return f"{share_done(item['pieces'].values(), item['models_total']):.0%}"


def _detail(item: dict[str, Any], days: int = 0, checkpoint_days: int = 0) -> RenderableType:
    """Return one run in detail: its receipt if it has ended, else its current state. The days are those of
    `receipt_view`.
    """
    if item["receipt"] is not None:
        return receipt_view(item["receipt"], days, checkpoint_days=checkpoint_days)
    instance = item["instances"][-1] if item["instances"] else None
    entries: list[tuple[str, RenderableType]] = [
        ("run", item["run_id"]),
        ("state", Inline([item["state"], item["phase"], _done(item), duration(item["elapsed_seconds"])])),
        ("dollars", f"{money(item['spent_usd'])} so far"),
        ("ends by", f"{from_iso(item['deadline']):%Y-%m-%d %H:%M:%S} UTC, {set_by(item)}"),
    ]
    if item["parent"]:
        entries.append(("continues", item["parent"]))
    for line in item["lost"]:
        entries.append((f"attempt {item['attempt']}" if line is item["lost"][0] else "", f"since {line}"))
    if instance:
        entries.append(("machine", Inline(str(instance[name]).replace("_", "-") for name in MACHINE)))
    if item["nodes"]:
        entries += _nodes_view(item["nodes"])
    if item["durable"]:
        entries.append(("in S3", durable_of(item["durable"])))
    if item["sample"]:
        entries.append(("use", _sample_view(item["sample"])))
    if item["pieces"]:
        noun = piece_noun(max(item["models_total"], len(item["pieces"])), item["work"])
        noun = "trial" if any("score" in values for values in item["pieces"].values()) else noun
        rows = [{noun: name, **shown} for name, shown in _pieces(item["pieces"])]
        table = FittedTable(rows, right=("epoch", "step", "loss", "validation", "score"), leaving=("step",))
        title = f"{noun}s" if noun in ("model", "value", "trial") else noun
        entries += [("", ""), (title, table)]
    notes = [styled(item[key], style) for key, style in (("message", ""), ("warning", BAD)) if item[key]]
    return Blocks([*entries, *(("note", note) for note in notes)])


def _nodes_view(nodes: list[dict[str, Any]]) -> list[tuple[str, RenderableType]]:
    """Return the number of nodes at work, and a line for each that is lost."""
    ends = [NodeEnd(**{**node, "last_report": None}) for node in nodes]
    states = Counter(end.state or "at work" for end in ends)
    counts = ", ".join(f"{number} {state}" for state, number in states.items())
    return [("nodes", counts), *(("", styled(end.line, BAD)) for end in ends if end.line)]


def _ordered(progress: RunProgress) -> dict[str, dict[str, Any]]:
    """Return the pieces of a run, the trials of a script with the best scores first."""
    sign = -1 if progress.better == "max" else 1

    def rank(name: str) -> tuple[float, int, str]:
        score = progress.pieces[name].get("score")
        return math.inf if score is None else sign * score, len(name), name

    has_scores = any("score" in values for values in progress.pieces.values())
    names = sorted(progress.pieces, key=rank) if has_scores else progress.pieces
    return {name: dict(progress.pieces[name]) for name in names}


def _pieces(pieces: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Return the pieces by name; each model's trials after it, the least validation loss first. Those of a
    script's search stay in their order.
    """
    if any("score" in values for values in pieces.values()):
        scores = {name: values.get("score") for name, values in pieces.items()}
        shown = {name: "-" if score is None else f"{score:.6g}" for name, score in scores.items()}
        return [(name, {**_piece(pieces[name]), "score": shown[name]}) for name in pieces]
    model_of = {name: name.rpartition(" t")[0] for name in pieces if name.rpartition(" t")[2].isdecimal()}
    trials = {name: model for name, model in model_of.items() if model in pieces}

    def place(name: str) -> tuple[str, bool, float, str]:
        loss = pieces[name].get("validation_loss")
        return trials.get(name, name), name in trials, math.inf if loss is None else loss, name

    def validation(name: str) -> dict[str, str]:
        loss = pieces[name].get("validation_loss")
        return {"validation": "-" if loss is None else f"{loss:.5f}"} if trials else {}

    return [(name, {**_piece(pieces[name]), **validation(name)}) for name in sorted(pieces, key=place)]


def _piece(values: dict[str, Any]) -> dict[str, str]:
    loss, epochs = values.get("loss"), values.get("epochs")
    return {
        "state": values.get("state", ""),
        "epoch": f"{values.get('epoch', 0)}/{epochs}" if epochs else "-",
        "step": f"{values.get('step', 0):,}/{values['steps']:,}" if values.get("steps") else "-",
        "loss": f"{loss:.4f}" if isinstance(loss, (int, float)) else "-",
    }


def _sample_view(sample: Mapping[str, Any]) -> RenderableType:
    """Return a sample of `mayfly status --json` with its age, which shows whether the node still reports."""
    cpu = sample["cpu"]
    rows = [_hardware(str(gpu["gpu"]), gpu["name"], gpu) for gpu in sample["gpus"]]
    rows += [_hardware("cpu", f"{cpu['cores']} cores", cpu)] if cpu else []
    table = FittedTable(
        rows, right=("use", "memory", "power", "temperature"), leaving=("name", "temperature")
    )
    note = [styled(sample["note"], "")] if sample["note"] else []
    return lines(f"{duration(sample['age_seconds'])} ago", table, *note)


def _hardware(number: str, name: str, figures: Mapping[str, float | None]) -> dict[str, Cell]:
    use, watts, celsius = (figures.get(key) for key in ("use_percent", "power_watts", "temperature_celsius"))
    return {
        "gpu": number,
        "name": name,
        "use": "-" if use is None else f"{use:.0f}%",
        "memory": _memory(figures["memory_used_mib"], figures["memory_mib"]),
        "power": "-" if watts is None else f"{watts:.0f} W",
        "temperature": "-" if celsius is None else f"{celsius:.0f} °C",
    }


def _memory(used: float | None, total: float | None) -> str:
    parts = ["-" if value is None else f"{value / 1024:.1f}" for value in (used, total)]
    return "-" if parts == ["-", "-"] else f"{parts[0]}/{parts[1]} GiB"
