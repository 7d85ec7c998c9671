"""`mayfly models list|pull`: the models in the bucket."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trainer.artifacts.metrics import headline
from trainer.cli.connect import connected
from trainer.cli.output import bars_are, table
from trainer.registry.store import Model, find_model, list_models, save_model
from trainer.runs.record import iso
from trainer.runs.store import open_objects
from trainer.stack import read_stack

HEADER = ["model", "stage", "run", "test score", "bars", "created", "version", "sha256"]


def run(arguments: argparse.Namespace) -> int:
    """List every model with its run, version and scores on the test span, or download one with its hash checked."""
    with connected(rehearse=arguments.rehearse, program=False) as access:
        objects = open_objects(access, read_stack(access, stack=arguments.stack).bucket)
        if arguments.action == "pull":
            model = find_model(objects, arguments.model)
            path = save_model(objects, model, Path(arguments.out or "."))
            print(json.dumps({**_as_dict(model), "path": str(path)}, indent=2) if arguments.json else path)
            return 0
        models = list_models(objects)
    if arguments.json:
        print(json.dumps({"models": [_as_dict(model) for model in models]}, indent=2))
    else:
        print("\n".join(table([HEADER, *map(_row, models)])) if models else "no models yet")
    return 0


def _as_dict(model: Model) -> dict[str, object]:
    return {**vars(model), "created_at": iso(model.created_at)}


def _row(model: Model) -> list[str]:
    return [
        model.name,
        model.stage,
        model.run_id or "-",
        headline(model.metrics),
        bars_are(model.synthetic),
        f"{model.created_at:%Y-%m-%d %H:%M}",
        model.version_id[:8],
        model.sha256[:12],
    ]
