"""`python -m trainer.cli.tracking.child mlflow`: write the run on stdin to a tracker.

Started by `track` alone. Prints {"where", "was_there"}, or {"error", "do"}; all else goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any

from trainer.base.errors import TrainerError
from trainer.cli.tracking.reading import TrackedRun

WRITERS = {"mlflow": "to_mlflow", "wandb": "to_wandb"}


def main() -> None:
    """Write one run to one tracker."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # whatever a library prints is no answer
        json.dump(_written(sys.argv[1]), answers)


def _written(tracker: str) -> dict[str, Any]:
    values = json.load(sys.stdin)
    sys.stdin.close()
    try:
        writer = import_module(f"trainer.cli.tracking.{WRITERS[tracker]}")
        where, was_there = writer.write(TrackedRun(**values))
        return {"where": where, "was_there": was_there}
    except TrainerError as error:
        return {"error": f"{error.what} ({error.why})" if error.why else error.what, "do": error.do}
    except Exception as error:  # of a library: whatever it is, it becomes the line that the user gets
        said = (str(error).strip().splitlines() or [""])[0]
        return {"error": f"{type(error).__name__}: {said}", "do": ""}


if __name__ == "__main__":
    main()
