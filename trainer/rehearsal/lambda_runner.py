"""One invocation of a Lambda function: import its handler from the unpacked zip, call it, write its answer.

Run by `lambdas` as text, `python -I -S -c TEXT FOLDER MODULE.FUNCTION CONTEXT`, with the event on stdin and
the answer on stdout; what the function prints goes to stderr. Isolated (-I) and without site-packages (-S),
it imports the standard library and the zip, as on AWS. In tests a fork runs it, with the lock's boto3 loaded
already. Standard library only, nothing of ours.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
import pkgutil
import sys
import time
import traceback
import types
from typing import Any


class Context:
    """Lambda's context object: data about the invocation."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._ends_at = time.monotonic() + fields.pop("timeout_seconds")
        self.__dict__.update(fields)

    def get_remaining_time_in_millis(self) -> int:
        """Return the remaining time of the function, in milliseconds."""
        return max(int((self._ends_at - time.monotonic()) * 1000), 0)


def set_clock(ahead_seconds: float) -> None:
    """Make `datetime.now` return the account's time for modules imported from now on, if its clock was moved.

    boto3 keeps signing with the real time, against which signatures are checked.
    """
    real = datetime.datetime

    class AccountsDatetime(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> AccountsDatetime:
            return super().now(tz) + datetime.timedelta(seconds=ahead_seconds)

    datetime.datetime = AccountsDatetime  # type: ignore[misc]

    with contextlib.suppress(ImportError):  # a function without boto3 in its zip makes no calls
        compat = importlib.import_module("botocore.compat")
        compat.datetime = types.SimpleNamespace(**{**vars(datetime), "datetime": real})  # type: ignore[attr-defined]


def forget_others(folder: str) -> list[Any]:
    """Forget loaded modules that a function may not import: a fork has more than Python's and the zip's.

    Returns them, to be held until the process ends: clearing modules takes longer than the function.
    """
    packed = {module.name for module in pkgutil.iter_modules([folder])}
    kept = {
        "__main__",
        *(sys.stdlib_module_names ^ packed),
    }  # a module of the zip shadows Python's own of that name
    return [sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] not in kept]


def main(folder: str, handler: str, context: str) -> dict[str, Any]:
    """Run the handler once. Returns {"result": ...} or {"error": ...}."""
    forgotten = forget_others(folder)  # noqa: F841  held until the end
    sys.path.insert(0, folder)
    fields = json.loads(context)
    if abs(ahead_seconds := fields.pop("clock_ahead_seconds")) > 1:
        set_clock(ahead_seconds)
    event = json.load(sys.stdin)
    module, _, function = handler.rpartition(".")
    try:
        result = getattr(importlib.import_module(module), function)(event, Context(fields))
        return {"result": json.loads(json.dumps(result))}
    except BaseException as error:  # as on AWS, any exception of a handler is an answer, even SystemExit
        answer = {
            "errorType": type(error).__name__,
            "errorMessage": str(error),
            "stackTrace": traceback.format_exc().splitlines(),
        }
        return {"error": answer}


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    json.dump(main(*sys.argv[1:4]), answers)
    answers.close()
