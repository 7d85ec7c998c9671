"""Score models again, on windows that control chose: the command of a score run.

    python -m trainer.train.score --data DIR --out DIR --events DIR --given DIR

Plans the job's bars from its candles, as a training does, and never from a card. All models of a piece are
scored on the same bars of its test span, those at which each of them can forecast, beside the target's
baselines. Writes OUT/scores.json (`store.scores`). Shapes: N bars to score, O outputs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trainer.base.errors import DataError, Stopped, TrainerError, problem_of
from trainer.base.own_file import in_bundle
from trainer.base.signs import tell_signs
from trainer.data.columns import told_of
from trainer.data.read.candles import time_text
from trainer.data.side_names import reads_index, split_sides
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.job.reading import job_from
from trainer.job.start_model import start_model_of
from trainer.store.card import Card, read_card
from trainer.store.scores import (
    ASKED_FILE,
    SCORES_FILE,
    Asked,
    AskedModel,
    AskedPiece,
    asked_from,
    written_scores,
)
from trainer.targets.scoring import Rows
from trainer.targets.target import TargetSettings
from trainer.train.child_processes import in_processes
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.evaluate.evaluation import Cells, Compared, cells_of, compare
from trainer.train.evaluate.scores import joint_cells
from trainer.train.inputs.encoder import pinned, seen_until
from trainer.train.inputs.rows import SymbolData
from trainer.train.inputs.source import JobData, plan_and_open, read_source
from trainer.train.inputs.survey import survey
from trainer.train.observing.events import EventLog, Story
from trainer.train.own.check import checked
from trainer.train.predict.load_model import CheckedModel, check_model
from trainer.train.predict.panels import outputs_of_panel
from trainer.train.predict.predictions import BarOutputs
from trainer.train.predict.symbols import outputs_at

SECOND = 1_000_000_000
JOB_FILE = "job.json"


@dataclass(frozen=True, kw_only=True)
class Windows:
    """The bars of one series that are scored, and the series' data."""

    data: SymbolData
    bars: np.ndarray  # (N,) int64

    @property
    def symbol(self) -> str:
        """Return its symbol."""
        return self.data.symbol

    @property
    def rows(self) -> Rows:
        """Return them for the target's scores."""
        return replace(self.data.scored("test"), scored=self.bars)

    @property
    def times(self) -> np.ndarray:
        """Return the time (N,) of each bar in ns."""
        return np.asarray(self.data.candles.timestamp[self.bars])


@dataclass(frozen=True, kw_only=True)
class Forecasts:
    """Forecasts (N, ...) of several models for the same bars, and what they are scored by."""

    of_models: tuple[np.ndarray, ...]
    target: TargetSettings
    labels: np.ndarray  # (N, K)
    cells: Cells
    baselines: Mapping[str, np.ndarray]

    def compared(self, forecast: np.ndarray) -> Compared:
        """Return the scores and losses of a forecast (N, ...) beside the baselines."""
        return compare(forecast, self.target, self.labels, cells=self.cells, forecasts=self.baselines)


def main(arguments: list[str] | None = None) -> int:
    """Score what is asked; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.train.score")
    for name, what in (
        ("data", "the data set's files"),
        ("out", "folder for scores.json"),
        ("events", "folder for events.jsonl"),
        ("given", "folder of job.json, asked.json and the models"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=what)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _stop)
    log = EventLog(options.events, Story(sys.stderr))
    tell_signs(log.emit)
    try:
        score_run(options.data, options.out, options.given, log.emit)
    except Stopped as stopped:
        return stopped.exit_code
    except (TrainerError, OSError) as raised:
        if (error := problem_of(raised)) is None:
            raise
        log.emit({"event": "error", **error.as_dict(), "code": 100})
        return 100
    finally:
        tell_signs(None)
    return 0


def _stop(number: int, frame: Any) -> None:
    raise Stopped("stopped while it scored models")


def score_run(data: Path, out: Path, given: Path, emit: Callable[[dict[str, Any]], None]) -> None:
    """Score every piece that is asked, and write scores.json whole. Raises a TrainerError for data that can't
    be planned.
    """
    asked = asked_from(json.loads((given / ASKED_FILE).read_bytes()))
    job = _job_in(given)
    use_one_thread()
    keep_freed_memory()
    scratch = out / ".candles"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        read = plan_and_open(job, data, scratch=scratch)
        job = read.plan.decided(job)
        scored, failed = score_pieces(asked, job, read, given, emit)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    new = out / f".{SCORES_FILE}"
    new.write_bytes(written_scores(scored, failed))
    new.rename(out / SCORES_FILE)
    emit({"event": "message", "message": f"scored {len(scored)} of {len(asked.pieces)} pieces"})


def _job_in(given: Path) -> Job:
    """Return the job, with its own files from the bundle, and the model that it starts from in GIVEN."""
    job = job_from(json.loads((given / JOB_FILE).read_bytes()))
    if start := start_model_of(job):
        job = start.put(job, path=str(given / start.path))
    return pinned(checked(job))


def score_pieces(
    asked: Asked, job: Job, data: JobData, given: Path, emit: Callable[[dict[str, Any]], None]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the scores of every piece that can be scored, and the reasons of the others, by title. Several
    pieces are scored in a process a core.
    """
    pieces = {piece.title: piece for piece in survey(job, data.plan).pieces}
    scored: list[dict[str, Any]] = []
    failed: dict[str, str] = {}

    def score(one: AskedPiece) -> dict[str, Any] | str:
        try:
            if one.piece not in pieces:
                raise DataError("the job makes no such piece of these candles", do="Publish the job again.")
            return score_piece(one, pieces[one.piece], job, data, given)
        except TrainerError as error:
            return f"{error.what} ({error.why})" if error.why else error.what

    for one, found in zip(asked.pieces, in_processes(score, asked.pieces), strict=True):
        if isinstance(found, str):
            failed[one.piece] = found
        else:
            scored.append(found)
        emit({"event": "moved", "of": one.piece})
    return scored, failed


def score_piece(asked: AskedPiece, piece: Piece, job: Job, data: JobData, given: Path) -> dict[str, Any]:
    """Score the models of one piece on the same bars. Raises a TrainerError for a model that can't be scored,
    and if no bar is left.
    """
    fold = read_source(piece, job, data).folds[piece.fold]
    windows = [Windows(data=one, bars=_since(one, asked.since)) for one in fold.series]
    index = job.data.told.index
    models = (_checked(one, piece, fold.series[0], given, index=index) for one in asked.models)
    outputs = [outputs_on(windows, model) for model in models]
    for one, its in zip(asked.models, outputs, strict=True):
        lacking = sum(len(part.bars) - len(its[part.symbol].bars) for part in windows)
        if one.side == "challenger" and lacking:  # made for these windows: it may not choose among them
            why = f"{lacking:,} of its test span's bars have no forecast"
            raise DataError(f"the challenger {piece.name} is not of this job", why=why, do="Train it again.")
    made = forecasts_on(windows, outputs, title=piece.title, is_panel=fold.panel is not None)
    scored = [
        {**one.identity, "losses": made.compared(forecast).losses}
        for one, forecast in zip(asked.models, made.of_models, strict=True)
    ]
    return {"piece": asked.piece, "models": scored}


def forecasts_on(
    windows: Sequence[Windows], outputs: Sequence[Mapping[str, BarOutputs]], *, title: str, is_panel: bool
) -> Forecasts:
    """Return the forecasts of models for the bars at which each of them has outputs. Raises DataError if
    there are none.
    """
    target = windows[0].data.target
    shared = [_shared(one, outputs) for one in windows]
    kept = [one for one in shared if is_panel or len(one.bars)]
    if not any(len(one.bars) for one in kept):
        why = "no bar of its test span is new enough, has a label, and lets each model forecast"
        raise DataError(f"{title} can't be scored", why=why, do="Give more bars.")
    rows = [one.rows for one in kept]
    labels = np.concatenate([one.labels(one.scored) for one in rows])
    made = target.baselines(*rows) if is_panel else _joined([target.baselines(one) for one in rows])
    cells = cells_of(target, rows[0])
    if len(kept) > 1:
        times = np.concatenate([one.times for one in kept])
        cells = joint_cells([one.data for one in kept], times)
    return Forecasts(
        of_models=tuple(
            np.concatenate([its[one.symbol].at(one.bars, target) for one in kept]) for its in outputs
        ),
        target=target,
        labels=labels,
        cells=cells,
        baselines=made,
    )


def _since(data: SymbolData, since: int) -> np.ndarray:
    """Return the bars (N,) of the test span that begin at `since`, in seconds, or later."""
    bars = data.bars("test")
    return np.asarray(bars[data.candles.timestamp[bars] >= since * SECOND])


def _checked(
    asked: AskedModel, piece: Piece, data: SymbolData, given: Path, *, index: tuple[str, ...]
) -> CheckedModel:
    """Return a model whose file has the asked hash and whose card fits the piece, and the job's `index`.
    Raises DataError.
    """
    path = given / asked.path
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != asked.sha256:
            raise DataError(
                f"the {asked.side} is not the file that was asked for", do="Start the retrain again."
            )
    card = read_card(path)
    files: list[Path] = []
    for own in (card.own_files[table] for table in ("model", "data") if table in card.own_files):
        bundled = in_bundle(own["sha256"])
        if bundled is None:
            why = f"it was made by {own['class']} of {own['file']}, and a card runs no code"
            do = "Promote one made by this file by hand: mayfly models promote."
            raise DataError(f"the {asked.side} was made by another file than the job's", why=why, do=do)
        files.append(bundled)
    model = check_model(path, files, to_score=True)
    why = f"it is {card.model}" if card.model != piece.name else unlike(card, data, index=index)
    if why:
        do = "Promote the other by hand, if it is wanted: mayfly models promote."
        raise DataError(f"the {asked.side} can't be scored beside the other", why=why, do=do)
    return model


def unlike(card: Card, data: SymbolData, *, index: tuple[str, ...]) -> str:
    """Return why a model can't be scored on a series of a job, which reads this index; '' if it can."""
    theirs = told_of(card.told_columns)[0].index
    wrong = {
        f"its index is of {', '.join(theirs)[:200]}, the job's of {', '.join(index)[:200]}": (
            reads_index(split_sides(card.columns)[1]) and theirs != index
        ),
        "it forecasts something else, or with other settings of the target": (
            (card.target, card.target_settings) != (data.target.name, data.target.card_keys())
        ),
        f"it reads bars of {card.timeframe}": card.timeframe != data.candles.timeframe,
        "it reads columns that the job's candles lack": not set(card.columns) <= data.candles.columns.keys(),
    }
    return next((what for what, is_so in wrong.items() if is_so), "")


def outputs_on(windows: Sequence[Windows], model: CheckedModel) -> dict[str, BarOutputs]:
    """Return a model's outputs at the bars of each series, as far as it can forecast there. Raises DataError
    if it has seen any of them.
    """
    _refuse_seen(windows, model)
    series = {one.symbol: (one.data.candles, one.bars) for one in windows}
    if model.card.panel is not None:
        return outputs_of_panel(model, series)
    return {symbol: outputs_at(model, candles, bars) for symbol, (candles, bars) in series.items()}


def _refuse_seen(windows: Sequence[Windows], model: CheckedModel) -> None:
    """Raise DataError for a label that begins before the end of what the model was trained on and chosen by,
    plus the embargo.
    """
    for one in windows:
        if seen := int((~unseen(windows, one, model)).sum()):
            until = time_text(seen_until(model.card, one.symbol, model.path))
            why = f"{seen:,} labels of {one.symbol} begin before {until} and the embargo"
            do = "Score it on later bars."
            raise DataError(f"{model.name} was trained on bars that it would be scored on", why=why, do=do)


def unseen(windows: Sequence[Windows], one: Windows, model: CheckedModel) -> np.ndarray:
    """Return which bars (N,) of one series of `windows` begin after those that trained and selected a model,
    plus its embargo: in bars of the series, or in dates of a panel. A model of k folds, which was trained on
    both sides of its test span, has not seen that either.
    """
    card, times = model.card, one.data.candles.timestamp
    if card.panel:
        times = np.unique(np.concatenate([each.data.candles.timestamp for each in windows]))
    first = int(np.searchsorted(times, seen_until(card, one.symbol, model.path))) + _embargo(card)
    late = one.times >= times[first] if first < len(times) else np.zeros(len(one.bars), bool)
    return np.asarray(late | _in_own_test(card, one) if card.knows_later_bars else late)


def _in_own_test(card: Card, windows: Windows) -> np.ndarray:
    """Return which bars (N,) are in a model's own test span: a card's splits are free in form."""
    inside = np.zeros(len(windows.bars), bool)
    for test in (one.splits.get("test") or {} for one in card.series if one.symbol == windows.symbol):
        with suppress(KeyError, TypeError, ValueError, OverflowError):
            first, last = (np.datetime64(str(test[end]).removesuffix("Z"), "ns") for end in ("first", "last"))
            bars = windows.times.astype("datetime64[ns]")
            inside |= (first <= bars) & (bars <= last)  # of '', as of any NaT, none
    return inside


def _embargo(card: Card) -> int:
    """Return the bars between a model's spans: a card's splits are free in form."""
    known = [one.splits.get("embargo") for one in card.series]
    return max(one if type(one) is int and one > 0 else 0 for one in known)


def _shared(windows: Windows, outputs: Sequence[Mapping[str, BarOutputs]]) -> Windows:
    """Return the windows at which all models forecast."""
    bars = windows.bars
    for its in outputs:
        bars = np.intersect1d(bars, its[windows.symbol].bars, assume_unique=True)
    return replace(windows, bars=bars)


def _joined(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the baselines that all series have, end to end."""
    names = [name for name in parts[0] if all(name in one for one in parts)]
    return {name: np.concatenate([one[name] for one in parts]) for name in names}


if __name__ == "__main__":
    sys.exit(main())
