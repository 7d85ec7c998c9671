"""`mayfly models show MODEL`: what a model was made of, in one look."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import trainer
from trainer.aws.objects import open_objects
from trainer.aws.stack import read_stack
from trainer.cli.connect import connected, same_place
from trainer.cli.output import say_json
from trainer.cli.terminal import show
from trainer.cli.views.lineage import lineage_view
from trainer.store.lineage import LOCK, card_of_model, lineage_of, past_run


def run(arguments: argparse.Namespace) -> int:
    """Show the model's run, code, lock, job, data versions, seed, image, machine and steps."""
    with connected(rehearse=arguments.rehearse, program=False, local=arguments.local) as access:
        objects = open_objects(access, read_stack(access, stack=arguments.stack).bucket)
        past = past_run(objects, arguments.name, one=True)
        (model,) = past.models
        lineage = lineage_of(past, model, card_of_model(objects, model), lock_here=_lock_here)
    if arguments.json:
        say_json(lineage)
    else:
        show(lineage_view(lineage, where=same_place(arguments)))
    return 0


def _lock_here() -> str:
    """Return the hash of this checkout's lock."""
    file = Path(trainer.__file__).parents[1] / LOCK
    return hashlib.sha256(file.read_bytes()).hexdigest()
