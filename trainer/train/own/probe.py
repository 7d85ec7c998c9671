"""Try and measure a user's own files in a separate process; report a failure as one line.

    python -m trainer.train.own.probe  # started by `train/own/check.py`, which writes the job to its stdin

Writes a JSON document per line to stdout: {"stage"} for each stage, then {"job"} with the measurements, or
{"error"}. Ends when stdin closes. A user's file may import only modules that a node has.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.base.code_files import NODE, code_files, home_modules
from trainer.base.errors import TrainerError, UsageError
from trainer.base.own_file import restrict_imports
from trainer.job.reading import job_from_json
from trainer.train.child_processes import end_with_stdin

# The modules of node/requirements.lock, and the image's torch; a test holds it to the lock.
ON_A_NODE = (
    *("awscrt", "boto3", "botocore", "cloudpickle", "dateutil", "exchange_calendars"),
    *("farama_notifications", "gymnasium", "jmespath", "joblib", "korean_lunar_calendar", "narwhals"),
    *("numpy", "pandas", "pyarrow", "pyluach", "pynvml"),
    *("s3transfer", "safetensors", "scipy", "six", "sklearn", "threadpoolctl", "tlz", "toolz"),
    *("torch", "typing_extensions", "tzdata", "urllib3"),
)

Say = Callable[[dict[str, Any]], None]


class NotOnANode(UsageError, ImportError):
    """A user's file imports a module that a node lacks. The file's own `except ImportError` catches
    it, too.
    """


def main() -> int:
    """Read the job, try its files, answer; return the exit code."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the user's prints must not mix with the answers
    job = job_from_json(sys.stdin.readline())
    threading.Thread(target=end_with_stdin, daemon=True).start()

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    from trainer.train.own.probe_environment import measure_environment
    from trainer.train.own.probe_features import measure_features
    from trainer.train.own.probe_model import measure_model  # torch
    from trainer.train.own.probe_target import measure_target

    restrict_imports(_import)
    try:
        own = job.own_files
        if "data" in own:
            job = job.with_own_files({"data": measure_features(job, lambda stage: say({"stage": stage}))})
        if "target" in own:  # first: it determines the model's number of outputs
            measure = measure_environment if job.target.has_environment else measure_target
            job = job.with_own_files({"target": measure(job, lambda stage: say({"stage": stage}))})
        if "model" in own:
            job = job.with_own_files({"model": measure_model(job, lambda stage: say({"stage": stage}))})
    except TrainerError as error:
        say({"error": error.as_dict()})
        return 2
    say({"job": job.to_dict()})
    return 0


def _import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    """Import a module for a user's file. Raises NotOnANode."""
    root = name.partition(".")[0]
    if not level and root not in sys.stdlib_module_names and root not in ON_A_NODE and not _is_ours(name):
        file = Path(str((globals or {}).get("__file__", "the file"))).name
        has = "torch, numpy and the packages of node/requirements.lock"
        what = f"{file} imports {name}, which a node does not have"
        why = f"only this one file is sent, and a node has {has}"
        raise NotOnANode(what, why=why, do="Remove the import.")
    return __import__(name, globals, locals, fromlist, level)


def _is_ours(name: str) -> bool:
    """Return whether a module is one of ours that a node gets."""
    if name.partition(".")[0] != "trainer":
        return False
    place = name.replace(".", "/")
    files = code_files((*NODE, *home_modules()))
    return f"{place}.py" in files or f"{place}/__init__.py" in files


if __name__ == "__main__":
    # A thread of the user's, or a library's, must not hold the process.
    code = main()
    sys.stdout.flush()
    os._exit(code)
