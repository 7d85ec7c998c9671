"""Progress of a training, folded from its events. Pure: state and event in, the next state out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainer.job.model_names import TRIAL

MOST_DEVICES, MOST_LINE = 64, 400  # that a result names, and the characters of each line
COUNTS = ("epoch", "epochs", "step", "steps")
OVER = ("script_done", "trial_done", "retry", "model_failed", "model_stopped")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of the models, from the trainer's events."""

    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # model -> its piece, as planned
    # piece -> epoch, step, loss, state, and `began`: its steps of a training when this machine began with it
    pieces: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    done: tuple[Mapping[str, Any], ...] = ()  # model_done events
    failed: tuple[Mapping[str, Any], ...] = ()
    rates: Mapping[int, float] = field(default_factory=dict)  # worker -> `unit` a second, of those at work
    unit: str = "windows"  # or chunks, or steps of a script
    retries: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)
    trials: tuple[Mapping[str, Any], ...] = ()  # how those of a search ended, as results have them
    error: Mapping[str, Any] | None = None
    tuning: bool = False  # comparing strategies before the training
    message: str = ""  # its own
    elsewhere: frozenset[str] = frozenset()  # pieces that are other nodes' matter, at the end
    out_of_service: tuple[str, ...] = ()  # devices that a training set aside, each with the reason

    @property
    def pieces_done(self) -> tuple[str, ...]:
        """Return the pieces that ended well without a model from here: those that the agent started, and
        those that an earlier attempt made.
        """
        here = {event["piece"] for event in self.done}
        states = {piece: entry.get("state") for piece, entry in self.pieces.items() if piece not in here}
        return tuple(piece for piece, state in states.items() if state == "done")

    def trials_of(self, event: Mapping[str, Any]) -> dict[str, str]:
        """Return the trials of the study whose model an event is of: their names, by piece."""
        study = {**self.models[event["model"]], "kind": TRIAL}
        return {
            str(one["piece"]): name
            for name, one in self.models.items()
            if {**one, "piece": study["piece"]} == study
        }

    @property
    def rate(self) -> float | None:
        """Return the rate of all workers together, or None before the first."""
        return round(sum(self.rates.values()), 1) if self.rates else None


def advance(progress: Progress, event: Mapping[str, Any]) -> Progress:
    """Return the state after one event; an unknown event changes nothing."""
    kind = event.get("event")
    if kind == "started":
        models = {item["model"]: identity_of(item) for item in event["models"]}
        done = event.get("finished", ())  # by an earlier attempt
        began = {piece: entry["began"] for piece, entry in progress.pieces.items() if "began" in entry}
        waiting: dict[str, dict[str, Any]] = {
            entry["piece"]: {"state": "done" if entry["piece"] in done else "waiting"}
            for entry in models.values()
        }
        for piece in began.keys() & waiting.keys():
            waiting[piece]["began"] = began[piece]
        empty = Progress(retries=progress.retries, trials=progress.trials)  # it may have been restarted
        return replace(empty, models=models, pieces=waiting, data=dict(event.get("data", {})))
    if kind in ("tuning", "tuned"):
        return replace(progress, tuning=kind == "tuning")
    if kind == "device_set_aside":
        line = f"{event['device']}: {event['reason']}"[:MOST_LINE]
        known = (*progress.out_of_service, line)[-MOST_DEVICES:]
        return replace(progress, out_of_service=known, message=f"set aside {line}")
    if kind == "node_lost":
        return replace(progress, message=f"node {event['node']} is lost")
    if kind == "straggler":
        return replace(progress, message=f"node {event['node']} is not done with {event['piece']}")
    if kind == "message":
        return replace(progress, message=str(event["message"]))
    if kind == "error":
        return replace(progress, error={key: event.get(key) for key in ("code", "what", "why", "do")})
    if kind == "ended":
        return _without(replace(progress, rates={}), event.get("elsewhere", ()))
    return _of_model(progress, event) if event.get("model", "") in progress.models else progress


def _without(progress: Progress, pieces: Collection[str]) -> Progress:
    """Return the state without pieces that other nodes of the attempt have or had in hand."""
    left = {piece: entry for piece, entry in progress.pieces.items() if piece not in pieces}
    return replace(progress, pieces=left, elsewhere=frozenset(pieces))


def _of_model(progress: Progress, event: Mapping[str, Any]) -> Progress:
    """Return the state after an event of a planned model."""
    kind, model = event["event"], progress.models[event["model"]]
    piece = str(model["piece"])
    if kind in OVER:  # nothing of it is at work any more
        others = {place: rate for place, rate in progress.rates.items() if place != event.get("worker")}
        progress = replace(progress, rates=others)
    if kind == "model_started":
        began = progress.pieces.get(piece, {}).get("began", 0)
        return _with_piece(progress, piece, state="training", began=began)
    if kind == "resumed" and event.get("lost_steps") is None:  # those before were taken on another machine
        return _with_piece(progress, piece, began=event["step"])
    if kind in ("progress", "script"):  # of a training, of a script's numbers
        shown = {key: event[key] for key in (*COUNTS, "loss", "score") if event.get(key) is not None}
        if "steps" in shown or "epochs" in shown:  # a bar needs both: of a script one may be missing
            shown = {"step": 0, "steps": 1, "epoch": 1, "epochs": 1, **shown}
        rates = {**progress.rates, event["worker"]: float(event.get("rate") or 0.0)}
        progress = replace(progress, rates=rates, unit=event.get("unit", progress.unit))
        return _with_piece(progress, piece, state="training", **shown)
    if kind == "epoch":
        losses = {key: event.get(key) for key in ("epoch", "train_loss", "validation_loss")}
        return _with_piece(progress, piece, **losses)
    if kind == "scoring":
        return _with_piece(progress, piece, state="scoring")
    if kind == "model_done":
        return _with_piece(replace(progress, done=(*progress.done, event)), piece, state="done")
    if kind == "script_done":
        return _with_piece(progress, piece, state="done")
    if kind == "trial_done":
        trials = (*progress.trials, _trial(model, event))
        return _with_piece(replace(progress, trials=trials), piece, state="done")
    if kind == "retry":
        kept = tuple(
            entry for entry in progress.failed if entry["piece"] != piece
        )  # a value, tried elsewhere
        charged = int(event.get("charged", True))  # not for a broken device, or memory
        ended = tuple(one for one in progress.trials if one["piece"] != piece)
        progress = replace(progress, failed=kept, trials=ended, retries=progress.retries + charged)
        return _with_piece(progress, piece, state="waiting")
    if kind == "model_stopped":
        return _with_piece(progress, piece, state="waiting")
    if kind == "model_failed":
        entry = {**model, "reason": str(event.get("reason", ""))}
        return _with_piece(replace(progress, failed=(*progress.failed, entry)), piece, state="failed")
    return progress


def _trial(model: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a trial ended, in the form of a piece that the agent started."""
    score, known = event["score"], {key: event[key] for key in ("trial", "values", "end", "epochs")}
    if (best := event.get("best")) is None:  # of a model
        best = {} if score is None else {"metric": "validation_loss", "value": score, "better": "min"}
    return {
        **model,
        **known,
        "done": True,
        "exit_code": 0,
        "starts": 1,
        "best": best,
        "seconds": 0.0,
        "notes": [str(event["reason"])[:MOST_LINE]] if event.get("reason") else [],
    }


def identity_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of an event's piece: display name, kind, series, fold and seed."""
    return {key: item[key] for key in ("piece", "kind", "series", "fold", "seed")}


def _with_piece(progress: Progress, piece: str, **fields: Any) -> Progress:
    return replace(progress, pieces={**progress.pieces, piece: {**progress.pieces.get(piece, {}), **fields}})
