"""Events of a training: JSON lines for programs, dense lines for people (`trainer.cli` draws them for `mayfly
train`).

The node agent reads `events.jsonl` while it grows, so each event is a single write of a whole line;
a disk that is full ends no training.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from trainer.base.files import LineFile
from trainer.base.text import printable, some_of
from trainer.targets.described import refit_until, shown

MOST_NAMED = 6  # pieces, in a line
LINE_SECONDS = 10.0  # between progress lines of one model without a terminal


class EventLog:
    """Append events to `events.jsonl`, each with its time, and show them to people."""

    def __init__(self, folder: Path | None, show: Callable[[dict[str, Any]], None]) -> None:
        self._show = show
        self._file = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = LineFile(folder / "events.jsonl")

    def emit(self, event: dict[str, Any]) -> None:
        """Write one event, at once or when a full disk has room again. NaN and infinity, which JSON lacks,
        become null. What can't be shown is left out: a terminal or its reader may be gone.
        """
        if self._file is not None:
            stamped = {"time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"), **event}
            self._file.append((json.dumps(finite(stamped), allow_nan=False) + "\n").encode())
        with suppress(OSError):
            self._show(event)


def finite(value: Any) -> Any:
    """Return a JSON value with NaN and infinity replaced by None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Story:
    """Print the training: a line per event, and for each model's progress a line every LINE_SECONDS."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._printed_at: dict[str, float] = {}  # each model's last line of progress

    def __call__(self, event: dict[str, Any]) -> None:
        """Show one event."""
        if event["event"] == "progress":
            if self._clock() - self._printed_at.get(event["model"], -math.inf) < LINE_SECONDS:
                return
            self._printed_at[event["model"]] = self._clock()
        if line := line_of(event):
            print(printable(line), file=self._stream, flush=True)

    def finish(self) -> None:
        """Do nothing: printed lines stay."""

    def print_models(self, models: Sequence[Mapping[str, str]]) -> None:
        """Print piece, file and sha256 of each model to stdout, one JSON document per line."""
        for model in models:
            print(json.dumps(model))


def line_of(event: dict[str, Any]) -> str:
    """Return an event as text for people; '' for one that is not shown."""
    name = event["event"]
    if name in _TEMPLATES:
        return _TEMPLATES[name].format(**event)
    return _LINES[name](event) if name in _LINES else ""


def rate_text(rate: float, unit: str) -> str:
    """Return a rate as text, with a decimal below 10 per second."""
    return f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.1f} {unit}/s"


def _progress_line(event: dict[str, Any]) -> str:
    loss = "-" if event["loss"] is None else f"{event['loss']:.4f}"
    place = f"epoch {event['epoch']}/{event['epochs']}  step {event['step']}/{event['steps']}"
    words = [event["piece"], place, f"loss {loss}", rate_text(event["rate"], event["unit"])]
    return "  ".join([*words, *_meter_words(event)])


def _started_line(event: dict[str, Any]) -> str:
    data = event["data"]
    label = "  SYNTHETIC" if data["synthetic"] else ""
    workers = _counted(event["workers"], f"{event['device']} worker")
    models = f"{_counted(len(event['models']), 'model')} on {workers}"
    profile = f" (profile {event['gpu_profile']['name']})" if "gpu_profile" in event else ""
    notes = "".join(f"\nnote: {line}" for line in data.get("notes", ()))
    warmup = f", warm-up {_counted(data['warmup'], 'bar')}" if data.get("warmup") else ""
    bars = f"{data['bars']:,} bars of {data['timeframe']}, {_counted(data['holes'], 'hole')}"
    return f"{models}{profile}  {bars}{warmup}{label}{notes}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _tuned_line(event: dict[str, Any]) -> str:
    entry = event["entry"]
    if entry is None:
        return f"nothing found in {event['seconds']:.0f} s ({event['failure']}): using defaults"
    best, *_ = timings = event["timings"]
    out = [f"; {one['strategy']} is out: {one['excluded']}" for one in timings if one["excluded"]]
    pack = f"{entry['pack']} models at a time, slices of {entry['micro_batch']:,}"
    rate = rate_text(best["windows_per_second"], event["unit"])
    chosen = f"batch {entry['batch']:,}, {entry['strategy']}, {pack}, {rate}"
    return f"found in {event['seconds']:.0f} s: {chosen}{''.join(out)}"


def _worker_started_line(event: dict[str, Any]) -> str:
    formats = {"cores": "cores {}", "memory_fraction": "{:.0%} of the GPU's memory"}
    share = [text.format(event[key]) for key, text in formats.items() if key in event]
    return f"worker {event['worker']}  has {', '.join(share)}"


def _epoch_line(event: dict[str, Any]) -> str:
    losses = f"train {event['train_loss']:.4f}"
    if "validation_loss" in event:
        losses += f"  validation {event['validation_loss']:.4f}"
    line = f"{event['piece']}  epoch {event['epoch']}  {losses}"
    if not event.get("score"):
        return line
    return f"{line}  {event['score']} {event['train_score']:.3f}, {event['validation_score']:.3f}"


def _done_line(event: dict[str, Any]) -> str:
    line = f"{event['piece']}  done  test: {'  '.join(shown(event['metrics']))}"
    until = refit_until(event["metrics"])
    return f"{line}  (of its held-out twin; trained again until {until})" if until else line


def _trial_line(event: dict[str, Any]) -> str:
    values, end = _values(event), event["end"].replace("_", " ")
    loss = f", validation {event['score']:.4f}" if event["score"] is not None else ""
    reason = f": {event['reason']}" if "reason" in event else ""
    return f"{event['piece']}  {end}{reason}  epochs {event['epochs']}{loss}  {values}"


def _searched_line(event: dict[str, Any]) -> str:
    loss = f"validation {event['score']:.4f}"
    return f"{event['piece']}  trains with the best of {event['tried']} trials  {loss}  {_values(event)}"


def _values(event: dict[str, Any]) -> str:
    return "  ".join(f"{key.rpartition('.')[2]}={value}" for key, value in event["values"].items())


def _ended_line(event: dict[str, Any]) -> str:
    kept, replaced, out = event.get("kept"), event.get("replaced"), event.get("out", "")
    lines = []
    if kept:
        names = some_of(kept, MOST_NAMED)
        lines.append(f"kept from an earlier run in {out} with the same bars, settings and code: {names}")
    if replaced:
        names = some_of(replaced, MOST_NAMED)
        lines.append(f"replaced in {out}, since the earlier run had other bars, settings or code: {names}")
    return "\n".join(lines)


def _checkpoint_line(event: dict[str, Any]) -> str:
    paused = event["snapshot_seconds"] + event["waited_seconds"]
    background = f"written in the background in {event['write_seconds']:.3f} s"
    return f"{event['piece']}  checkpoint: training paused {paused:.4f} s, {background}"


def _links_line(event: dict[str, Any]) -> str:
    """Return devices and bandwidth, such as `2 x cpu  all-reduce 1 GB/s`; of GPUs also their memory and the
    expected bandwidth.
    """
    sizes = {
        one["name"]: f" ({one['memory_gib']:g} GiB)" if one["memory_gib"] else "" for one in event["devices"]
    }
    devices = ", ".join(f"{name}{size}" for name, size in sorted(sizes.items()))
    expected = f" (about {event['expected_gb_per_s']:g} expected)" if event["expected_gb_per_s"] else ""
    rate = f"all-reduce {event['bus_gb_per_s']:.3g} GB/s{expected}"
    return f"{event['piece']}  {len(event['devices'])} x {devices}  {rate}"


_TEMPLATES = {
    "tuning": "looking for the fastest settings on {profile} for {seconds:.0f} s",
    "scoring": "{piece}  trained; scoring now",
    "retry": "{piece}  retried: {reason}",
    "resumed": "{piece}  resumed in epoch {epoch} after {visited:,} {unit}",
    "model_stopped": "{piece}  stopped: this machine is taken away",
    "begun_anew": "{piece}  begins anew, though it has a checkpoint: {reason}",
    "checkpoint_failed": "{piece}  has no checkpoint: {reason}",
    "model_failed": "{piece}  failed: {reason}",
    "worker_silent": "worker {worker}  made no progress for {seconds:.0f} s: {process}  {device}",
    "device_set_aside": "{device}  is set aside: {reason}",
    "out_of_memory": (
        "worker {worker}  ran out of memory: now {pack} at a time, slices of {micro_batch}; {reason}"
    ),
    "node_lost": "node {node}  is lost: its models go to the others",
    "straggler": "{piece}  has been on node {node} for {seconds:.0f} s; the others are done",
    "taken_over": "{piece}  was on node {node}",
    "trace": "worker {worker}  {steps} steps recorded in {file}",
}
_LINES: dict[str, Callable[[dict[str, Any]], str]] = {
    "progress": _progress_line,
    "epoch": _epoch_line,
    "started": _started_line,
    "worker_started": _worker_started_line,
    "tuned": _tuned_line,
    "model_done": _done_line,
    "trial_done": _trial_line,
    "searched": _searched_line,
    "ended": _ended_line,
    "checkpoint": _checkpoint_line,
    "links": _links_line,
}


def _meter_words(event: Mapping[str, Any]) -> list[str]:
    """Return the meter's fields of a progress event as texts."""
    formats = {
        "learning_rate": "rate {:.2e}",
        "mfu": "MFU {:.1%}",
        "memory_gib": "{:.1f} GiB",
        "usd": "${:.2f}",
    }
    words = [text.format(event[key]) for key, text in formats.items() if event.get(key) is not None]
    if event.get("eta_seconds") is not None:
        words.append(f"at most {duration(event['eta_seconds'])} left")
    return words


def duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as `3 h 12 min`, `4 min 10 s` or `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
