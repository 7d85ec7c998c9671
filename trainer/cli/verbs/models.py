"""`mayfly models list|pull|production|rollback`: the models in the bucket."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from trainer.aws.stack import read_stack
from trainer.base.arguments import check_folder
from trainer.cli.connect import connected
from trainer.cli.output import bars_are, say, say_json, warn
from trainer.cli.terminal import show
from trainer.cli.views.table import FittedTable
from trainer.runs.record import iso
from trainer.runs.store import Objects, Stored, open_objects
from trainer.store.listing import Model, find_model, list_models, save_model
from trainer.store.production import (
    production_name,
    production_names,
    production_versions,
    roll_back,
    versions_of,
)
from trainer.targets.described import headline


def run(arguments: argparse.Namespace) -> int:
    """List models with run, version and test scores; download one; show production models and roll
    one back.
    """
    if arguments.action == "pull":
        check_folder(Path(arguments.out or "."))
    with connected(rehearse=arguments.rehearse, program=False, local=arguments.local) as access:
        outputs = read_stack(access, stack=arguments.stack)
        objects, days = open_objects(access, outputs.bucket), outputs.experiment_days
        if arguments.action == "pull":
            model = find_model(objects, arguments.model)
            path = save_model(objects, model, Path(arguments.out or "."))
            say_json({**_as_dict(model, days), "path": str(path)}) if arguments.json else say(str(path))
            return 0
        if arguments.action == "rollback":
            return _roll_back(arguments, objects)
        if arguments.action == "production":
            return _production(arguments, objects)
        listing = list_models(objects)
        models, problems = listing.models, listing.problems
    if arguments.json:
        unread = {run_id: error.as_dict() for run_id, error in problems.items()}
        say_json({"models": [_as_dict(model, days) for model in models], "problems": unread})
    else:
        for problem in problems.values():
            warn(f"warning: {problem}")
        show(models_table(models, days)) if models else say("no models yet")
    return 0


def _production(arguments: argparse.Namespace, objects: Objects) -> int:
    """List the production models, or the versions of one, newest first."""
    if arguments.model:
        versions = list(production_versions(objects, arguments.model))
    else:
        versions = [one for name in production_names(objects) for one in versions_of(objects, name)]
    if arguments.json:
        say_json({"production": [_version(one) for one in versions]})
    elif versions:
        rows = [
            {
                "model": production_name(one.key),
                "version": one.version_id,
                "put (UTC)": f"{one.modified_at:%Y-%m-%d %H:%M}",
                "bytes": f"{one.size:,}",
            }
            for one in versions
        ]
        show(FittedTable(rows, right=("bytes",)))
    else:
        say("no production models yet")
    return 0


def _roll_back(arguments: argparse.Namespace, objects: Objects) -> int:
    replaced, put = roll_back(objects, arguments.model, version_id=arguments.version)
    if arguments.json:
        say_json({"replaced": _version(replaced), "put": _version(put)})
    else:
        version = f"version {put.version_id} of {put.modified_at:%Y-%m-%d %H:%M} UTC"
        say(f"{production_name(put.key)}: {version} is in production again")
        warn(f"what it replaced stays as version {replaced.version_id}")
    return 0


def _version(stored: Stored) -> dict[str, object]:
    found = {"name": production_name(stored.key), "key": stored.key, "version_id": stored.version_id}
    return {**found, "bytes": stored.size, "modified_at": iso(stored.modified_at)}


def _as_dict(model: Model, days: int) -> dict[str, object]:
    fields = {name: value for name, value in vars(model).items() if name != "stored_after"}
    return {**fields, "created_at": iso(model.created_at), "expires": str(model.expires(days) or "") or None}


def models_table(models: Iterable[Model], days: int) -> FittedTable:
    """Return the table of the models. `days`: of an experiment's life."""
    leaving = ("sha256", "version", "stage", "expires", "created (UTC)", "bars", "run")
    return FittedTable([_row(model, days) for model in models], leaving=leaving)


def _row(model: Model, days: int) -> dict[str, str]:
    return {
        "model": model.full_name if model.stage == "production" else model.name,
        "stage": model.stage,
        "run": model.run_id or "-",
        "test score": headline(model.metrics),
        "bars": bars_are(model.synthetic),
        "created (UTC)": f"{model.created_at:%Y-%m-%d %H:%M}",
        "expires": str(model.expires(days) or "-"),
        "version": model.version_id[:8],
        "sha256": model.sha256[:12],
    }
