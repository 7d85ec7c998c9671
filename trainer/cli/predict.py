"""`mayfly predict MODEL --data FILE`: what a model says about the bars of a file, as CSV on stdout.

MODEL is a local .safetensors file, else the name or key of a model in that AWS's bucket. The columns are bar, available_at and
those of the model's target, such as `probability` (docs/models-and-targets.md lists them); the card has the horizon. Over the
bars that the model was tested on, the numbers are those its card was scored from. A model of your own needs its Python file: a
card runs no code.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.artifacts.card import read_card
from trainer.cli.output import say_json, warn
from trainer.errors import UsageError


def run(arguments: argparse.Namespace) -> int:
    """Print a row for each bar, oldest first: its start, its end (when this was knowable), and what the model says of it."""
    if arguments.last < 0:
        raise UsageError(f"--last {arguments.last}", do="Give 1 or more; without it every window is predicted.")
    with _model_file(arguments) as path:
        # Late: torch takes a second to load, and a wrong name should not wait for it.
        from trainer.train.predict import predict_file

        own = Path(arguments.model_file) if arguments.model_file else None
        predictions = predict_file(
            path, Path(arguments.data), last=arguments.last or None, model_file=own, symbol=arguments.symbol or ""
        )
        rows = [{"bar": item.bar, "available_at": item.available_at, **item.values} for item in predictions]
        if read_card(path).data.get("synthetic"):
            warn(f"{path.stem} was trained on SYNTHETIC bars: it knows nothing of any market")
    if arguments.json:
        say_json({"predictions": rows})
        return 0
    writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")  # never empty: no bar is an error
    writer.writeheader()
    # Every digit of a float is written: metrics computed from this file are the card's own.
    writer.writerows(rows)
    return 0


@contextmanager
def _model_file(arguments: argparse.Namespace) -> Iterator[Path]:
    """Give the model as a local file; one from a bucket is fetched into a folder that lasts as long as it is needed."""
    local = Path(arguments.model)
    if local.is_file() and local.suffix == ".safetensors":
        yield local
        return
    if (
        local.suffix == ".safetensors"
        and local.parent.is_dir()
        and local.parent != Path()
        and not arguments.model.startswith("models/")
    ):
        raise UsageError(f"model {local} does not exist", do="Check the path, or give a name that `mayfly models list` shows.")
    # Late: only a model in a bucket needs AWS.
    from trainer.cli.connect import connected
    from trainer.registry.store import fetch_model
    from trainer.stack import read_stack

    with tempfile.TemporaryDirectory(prefix="mayfly-") as folder:
        with connected(rehearse=arguments.rehearse, program=False) as access:
            outputs = read_stack(access, stack=arguments.stack)
            path = fetch_model(access, outputs, arguments.model, into=Path(folder))
        yield path
