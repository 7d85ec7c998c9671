"""`mayfly models list|pull`: the models in the bucket."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainer.artifacts.folder import check_folder
from trainer.artifacts.metrics import headline
from trainer.cli.connect import connected
from trainer.cli.output import bars_are, say, say_json, warn
from trainer.cli.table import FittedTable, TableColumn
from trainer.cli.terminal import show
from trainer.registry.store import Model, find_model, list_models, save_model
from trainer.runs.record import iso
from trainer.runs.store import open_objects
from trainer.stack import read_stack

COLUMNS = (
    TableColumn(title="model"),
    TableColumn(title="stage", leaves=5),
    TableColumn(title="run", leaves=1),
    TableColumn(title="test score"),
    TableColumn(title="bars", leaves=2),
    TableColumn(title="created (UTC)", leaves=3),
    TableColumn(title="expires", leaves=4),
    TableColumn(title="version", leaves=6),
    TableColumn(title="sha256", leaves=7),
)


def run(arguments: argparse.Namespace) -> int:
    """List every model with its run, version and scores on the test span, or download one with its hash checked."""
    if arguments.action == "pull":
        check_folder(Path(arguments.out or "."))
    with connected(rehearse=arguments.rehearse, program=False) as access:
        outputs = read_stack(access, stack=arguments.stack)
        objects, days = open_objects(access, outputs.bucket), outputs.experiment_days
        if arguments.action == "pull":
            model = find_model(objects, arguments.model)
            path = save_model(objects, model, Path(arguments.out or "."))
            say_json({**_as_dict(model, days), "path": str(path)}) if arguments.json else say(str(path))
            return 0
        listing = list_models(objects)
        models, problems = listing.models, listing.problems
    if arguments.json:
        unread = {run_id: error.as_dict() for run_id, error in problems.items()}
        say_json({"models": [_as_dict(model, days) for model in models], "problems": unread})
    else:
        for problem in problems.values():
            warn(f"warning: {problem}")
        show(FittedTable(COLUMNS, [_row(model, days) for model in models])) if models else say("no models yet")
    return 0


def _as_dict(model: Model, days: int) -> dict[str, object]:
    fields = {name: value for name, value in vars(model).items() if name != "stored_after"}
    return {**fields, "created_at": iso(model.created_at), "expires": str(model.expires(days) or "") or None}


def _row(model: Model, days: int) -> list[str]:
    return [
        model.name,
        model.stage,
        model.run_id or "-",
        headline(model.metrics),
        bars_are(model.synthetic),
        f"{model.created_at:%Y-%m-%d %H:%M}",
        str(model.expires(days) or "-"),
        model.version_id[:8],
        model.sha256[:12],
    ]
