"""`mayfly predict`: print the forecasts of models for the bars of a file or folder as one CSV. In Python:
`trainer.predict`.

    mayfly predict MODEL ... --data PATH    # .safetensors files, folders of them, names or keys in the bucket
    mayfly predict --run RUN --data PATH     # every model of a run
    mayfly predict AGENT --data PATH --held 0     # what to hold next, by an agent that holds nothing

The columns are model, symbol, bar, available_at and those of the target, such as `probability`
(docs/models.md lists them); the card has the horizon. Over a model's test bars, its card's scores
were computed from the same numbers. A model of your own needs its Python file: a card runs no code.
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.base.errors import UsageError, renaming
from trainer.base.files import HeldFolder
from trainer.base.symbols import tidy
from trainer.base.text import printable
from trainer.cli.output import say_json, warn
from trainer.cli.terminal import is_terminal, show
from trainer.data.read.paths import check_path
from trainer.job.model_names import MODEL_SUFFIX

if TYPE_CHECKING:
    import pandas
    from rich.console import RenderableType

    from trainer.train.predict.symbols import NotPredicted, Predictions

KEY_PREFIXES = ("models/experiments/", "models/production/")  # of models in the bucket
GIVEN = ("models", "data", "run", "model_file", "held", "rehearse", "stack", "local")  # flags of a request
FIRST_COLUMNS = ("model", "symbol", "bar", "available_at")
MOST_LAST = 1_000_000_000  # bars, as data.bars has it
MOST_DRAWN = 200  # rows of a table at a terminal
MOST_NOTES = 20  # lines about symbols without predictions


@dataclass(frozen=True, kw_only=True)
class PredictionRequest:
    """Models, candles and options of one call, as `trainer.predict` describes them."""

    models: Sequence[str]
    data: str
    run: str
    symbols: Sequence[str]
    last: int | None  # bars of each symbol; None: every bar, or the last one for what is held
    model_file: Sequence[str | Path]
    rehearse: bool
    stack: str
    held: float | None = None  # a share of the money, of agents
    local: str | None = None  # a folder instead of the bucket, '' for the user's default


def run(arguments: argparse.Namespace) -> int:
    """Print a row for each model and bar: by symbol, then model, oldest bar first. Returns 0, or the first
    error's exit code.

    Symbols that the data does not hold are named on stderr and are no error, unless nothing was predicted.
    """
    symbols = [symbol.strip() for symbol in (arguments.symbols or "").split(",") if symbol.strip()]
    if arguments.symbols is not None and not symbols:
        do = "Name at least one, or leave it out for all."
        raise UsageError(f"--symbols '{arguments.symbols}' names no symbol", do=do)
    given = {name: getattr(arguments, name) for name in GIVEN}
    request = PredictionRequest(**given, symbols=symbols, last=arguments.last)
    notes: list[str] = []
    with _predicted(request, notes) as (predictions, missing):
        if arguments.json:
            rows = [row for item in predictions for row in _rows(item)]
            problems = [
                {"model": item.model, "symbol": item.symbol, **item.error.as_dict()} for item in missing
            ]
            say_json({"predictions": rows, "problems": problems, "notes": notes})
        else:
            _write(predictions)
    for line in notes:
        warn(f"note: {line}")
    for item in missing[:MOST_NOTES]:
        warn(f"{'left out' if item.absent else 'error'}: {item.model}: {item.error}")
    if len(missing) > MOST_NOTES:
        warn(f"and {len(missing) - MOST_NOTES} more without predictions; --json has them all")
    return next((item.error.exit_code for item in missing if not item.absent), 0)


def frame(request: PredictionRequest) -> pandas.DataFrame:
    """Return the table that `mayfly predict` prints; see `trainer.predict`."""
    import pandas  # late: the verb does without

    notes: list[str] = []
    with _predicted(request, notes) as (predictions, missing):
        tables = [
            pandas.DataFrame(
                {
                    "model": item.model,
                    "symbol": item.symbol,
                    "bar": pandas.to_datetime(item.bar, utc=True),
                    "available_at": pandas.to_datetime(item.available_at, utc=True),
                    **item.columns,
                }
            )
            for item in predictions
        ]
    for line in [*notes, *(f"{item.model}: {item.error}" for item in missing)]:
        warnings.warn(line, stacklevel=3)
    return pandas.concat(tables, ignore_index=True)


@contextmanager
def _predicted(
    request: PredictionRequest, notes: list[str]
) -> Iterator[tuple[Iterator[Predictions], list[NotPredicted]]]:
    """Yield an iterator of predictions, and a list of failures that is complete once the iterator is
    exhausted.

    `notes` receives lines about how files were read. The iterator raises the first error if nothing could be
    predicted.
    """
    if request.last is not None and not 1 <= request.last <= MOST_LAST:
        do = f"Give 1 to {MOST_LAST:,}; without it every window is predicted."
        raise UsageError(f"--last is {request.last}", do=do)
    check_path(request.data)
    with model_files(request) as (paths, names):
        # Late: torch takes a second to load, and a wrong name should not wait for it.
        from trainer.train.predict.symbols import predict_models

        own = [Path(file) for file in request.model_file]
        missing: list[NotPredicted] = []
        symbols = [tidy(symbol) for symbol in request.symbols]  # as they train
        made = predict_models(
            paths,
            Path(request.data),
            symbols=symbols,
            last=1 if request.last is None and request.held is not None else request.last,
            own_files=own,
            held=request.held,
            note=notes.append,
        )
        yield _sorted_out(made, missing, names), missing


def _sorted_out(
    made: Iterable[Predictions | NotPredicted], missing: list[NotPredicted], names: Mapping[str, str]
) -> Iterator[Predictions]:
    """Yield the predictions and add failures, with a user's `names`, to `missing`. Raises the first error if
    nothing was predicted.
    """
    from trainer.train.predict.symbols import NotPredicted

    some = False
    for item in made:
        if isinstance(item, NotPredicted):
            item.error.rename(names)
            missing.append(item)
        else:
            if item.synthetic and not some:
                warn(f"{item.model} was trained on SYNTHETIC bars: it knows nothing of any market")
            some = True
            yield item
    if not some and missing:
        raise next((item.error for item in missing if not item.absent), missing[0].error)


def _write(predictions: Iterator[Predictions]) -> None:
    """Print CSV; on a terminal, a rounded table if there are few rows."""
    few: list[Predictions] = []
    if is_terminal(sys.stdout):
        while sum(len(item.bar) for item in few) <= MOST_DRAWN:
            if (item := next(predictions, None)) is None:
                show(_table(few))
                return
            few.append(item)
    _write_csv(chain(few, predictions))


def _table(predictions: Sequence[Predictions]) -> RenderableType:
    from trainer.cli.views.table import FittedTable

    rows = [row for item in predictions for row in _rows(item)]
    return FittedTable(
        [{title: _cell(value) for title, value in row.items()} for row in rows],
        right=list(rows[0])[len(FIRST_COLUMNS) :],
        leaving=("model", "bar"),  # available_at is when it could be known
    )


def _cell(value: object) -> str:
    return f"{value:.5f}" if isinstance(value, float) else str(value)


def _write_csv(predictions: Iterable[Predictions]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    header: list[str] = []
    for item in predictions:
        if not header:
            header = [*FIRST_COLUMNS, *map(printable, item.columns)]
            writer.writerow(header)
        # Every digit of a float is written: metrics computed from this file are the card's own.
        writer.writerows(row.values() for row in _rows(item))


def _rows(item: Predictions) -> Iterator[dict[str, Any]]:
    from trainer.data.read.candles import time_text

    values = zip(*(column.tolist() for column in item.columns.values()), strict=True)
    for bar, available_at, row in zip(item.bar, item.available_at, values, strict=True):
        times = {"bar": time_text(bar), "available_at": time_text(available_at)}
        yield {
            "model": printable(item.model),
            "symbol": item.symbol,
            **times,
            **dict(zip(item.columns, row, strict=True)),
        }


@contextmanager
def model_files(request: PredictionRequest) -> Iterator[tuple[list[Path], dict[str, str]]]:
    """Yield models as local files; those in a bucket are downloaded into temporary folders, whose names and
    the names to print instead come second.
    """
    run = request.run
    if bool(request.models) == bool(run):
        why = "both were given" if run else "neither was given"
        do = "--run RUN predicts with all models of a run."
        raise UsageError("predict takes MODEL or --run RUN", why=why, do=do)
    local = {name: _local_files(name) for name in request.models}
    if all(local.values()) and not run:
        yield _distinct([path for paths in local.values() for path in paths]), {}
        return
    # Late: only a model in a bucket needs AWS.
    from trainer.aws.objects import open_objects
    from trainer.aws.stack import read_stack
    from trainer.cli.connect import connected, is_rehearsal, named_run
    from trainer.runs.store import read_record
    from trainer.store.listing import fetch_models, find_model, models_of_run

    with HeldFolder("predict") as folder:
        rehearse = is_rehearsal(rehearse=request.rehearse, local=request.local)
        with connected(rehearse=rehearse, program=False, local=request.local) as access:
            outputs = read_stack(access, stack=request.stack)
            objects = open_objects(access, outputs.bucket)
            if run:
                run = named_run(objects, run)
                chosen = list(models_of_run(objects, run))
                if not chosen:
                    read_record(objects, run)  # which can list the runs
                    do = "mayfly status shows runs, mayfly models list their models."
                    raise UsageError(f"run {run} has no models", do=do)
            else:
                chosen = [find_model(objects, name) for name, paths in local.items() if not paths]
            for model in chosen[: 1 if run else None]:
                warn(_origin(model, outputs.experiment_days, run=run))
            fetched = fetch_models(objects, chosen, Path(folder))
        names = {f"{path.parent}/": "" for path in fetched}
        with renaming(names):
            yield _distinct([path for paths in local.values() for path in paths] + fetched), names


def _origin(model: Any, experiment_days: int, *, run: str) -> str:
    """Return the model that a name refers to, and when it expires."""
    until, of = model.expires(experiment_days), f"production, group {model.group}"
    if model.run_id:
        of = f"run {model.run_id} ({model.state}, {model.created_at:%Y-%m-%d %H:%M} UTC)"
    kept = f"; experiments expire, this one after {until}" if until else ""
    return f"models of {of}{kept}" if run else f"model {model.name} of {of}{kept}"


def _local_files(name: str) -> list[Path]:
    """Return the model files of a local path, empty for a name in a bucket. Raises UsageError for a path
    without models.
    """
    path = Path(name)
    if path.is_file():
        if path.suffix != MODEL_SUFFIX:
            why, do = f"a model's file ends in {MODEL_SUFFIX}", "Give one, or a folder of them."
            raise UsageError(f"{path} is not a model", why=why, do=do)
        return [path]
    if path.is_dir():
        found = (
            item for item in path.glob(f"*{MODEL_SUFFIX}") if item.name[0] != "."
        )  # such as a Mac's ._NAME
        files = sorted(item for item in found if item.is_file())
        if not files:
            why, do = f"no file ends in {MODEL_SUFFIX}", "Give a folder that does."
            raise UsageError(f"folder {path} holds no models", why=why, do=do)
        return files
    is_path = path.suffix == MODEL_SUFFIX or name[:1] in "./~" or name.endswith("/")
    if is_path and not name.startswith(KEY_PREFIXES):
        do = "Check the path, or give a name that `mayfly models list` shows."
        what = "is not a plain file" if path.exists() else "does not exist"
        raise UsageError(f"model {path} {what}", do=do)
    return []


def _distinct(paths: list[Path]) -> list[Path]:
    """Return the paths by name. Raises UsageError for two models of one name, whose rows could not be
    distinguished.
    """
    seen: dict[str, Path] = {}
    for path in paths:
        if path.stem in seen:
            why = f"{seen[path.stem]} and {path}"
            do = "Predict with one of them at a time."
            raise UsageError(f"two models are called {path.stem}", why=why, do=do)
        seen[path.stem] = path
    return [path for _, path in sorted(seen.items())]
