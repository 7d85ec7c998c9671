"""The one entry point: parse, import the verb's module, run it, print an error in one line, return the exit
code.

Data goes to stdout, messages to stderr; under `--json` an error is data too: {"error": {"code", "what",
"why", "do"}}.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

from trainer.cli.parser import build_parser

TYPE_CHECKING = False  # typing's own constant, without its import
if TYPE_CHECKING:
    from trainer.base.errors import TrainerError


def main(argv: Sequence[str] | None = None, *, prog: str = "mayfly") -> int:
    """Run one command and return its exit code. `argv` starts with the verb."""
    words = list(sys.argv[1:] if argv is None else argv)
    words, command = _before_command(words)
    as_json = "--json" in words
    _replace_closed_streams()
    # A terminal or pipe of another encoding shows an escape, and nothing fails.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run(words, command, prog)
        sys.stdout.flush()  # at exit, a full disk would be a traceback of the interpreter's
        return code
    except KeyboardInterrupt:
        what = "interrupted before anything was launched" if words[:1] == ["launch"] else "interrupted"
        return _report({"code": 130, "what": what, "why": "Ctrl-C", "do": ""}, f"{what}.", as_json)
    except BrokenPipeError:
        # The reader of stdout has ended (`| head`): nothing can be printed any more.
        sys.stdout = None  # or the interpreter flushes into the closed pipe at exit
        return 0
    except Exception as error:  # what a user can meet becomes one line; the rest is our mistake
        problem = _problem(error, words)
        if problem is None:
            raise
        return _report(problem.as_dict(), str(problem), as_json)


def _run(words: list[str], command: list[str], prog: str) -> int:
    """Parse the words and run their verb."""
    try:
        if words[:1] == ["train"]:
            from trainer.cli.views.train_story import TrainStory  # late, like every verb
            from trainer.train.__main__ import main as train

            return train(words[1:], prog="mayfly train", story=TrainStory)
        arguments = build_parser(prog).parse_args(words if prog == "mayfly" else words[1:])
    except SystemExit as printed:  # --help and --version
        return int(printed.code or 0)
    arguments.command = command
    if hasattr(arguments, "rehearse"):
        from trainer.cli.connect import is_rehearsal  # late: --help needs none of it

        arguments.rehearse = is_rehearsal(
            rehearse=arguments.rehearse, local=getattr(arguments, "local", None)
        )
    from trainer.base.environment import defaults_file

    if defaults_file().exists():
        from trainer.cli.defaults import take_flags  # late: it loads the job's tables

        take_flags(arguments, words)
    _escape_logs()
    # Late by design: only the verb that runs pays for its imports.
    return int(import_module(f"trainer.cli.verbs.{arguments.verb}").run(arguments))


def _escape_logs() -> None:
    """Escape the warnings of libraries, which quote nodes: without a handler logging prints them as they
    are.
    """
    import logging  # late: --help needs none of it

    from trainer.cli.output import LogLine

    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LogLine())


def _replace_closed_streams() -> None:
    """Open the null device where the caller closed a stream (`>&-`), which Python shows as None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _before_command(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words of `mayfly attach` at `--`: ours, and the command's. Other verbs keep all."""
    if words[:1] != ["attach"] or "--" not in words:
        return words, []
    end = words.index("--")
    return words[:end], words[end + 1 :]


def _problem(error: Exception, words: list[str]) -> TrainerError | None:
    """Return the TrainerError of an exception, translated from botocore's if needed; None for a bug
    of ours.
    """
    # Late, like everything here: --help needs none of it.
    from trainer.base.errors import UsageError, problem_of

    if (problem := problem_of(error)) is not None:
        return problem
    if isinstance(error, UnicodeEncodeError):
        odd = next((word for word in words if word.encode(errors="replace").decode() != word), None)
        return UsageError(f"'{odd}' is not UTF-8", do="Type it again.") if odd else None
    if isinstance(error, ModuleNotFoundError):
        from trainer.base.extras import missing_library

        return missing_library(error)
    if "botocore.exceptions" not in sys.modules:  # without botocore loaded it is not an error of botocore's
        return None
    from botocore.exceptions import BotoCoreError, ClientError

    if not isinstance(error, (BotoCoreError, ClientError)):
        return None
    from trainer.aws.access import aws_error

    return aws_error(error, f"{getattr(error, 'operation_name', 'an AWS call')} failed")


def _report(error: dict[str, object], line: str, as_json: bool) -> int:
    """Print an error, to stderr or as JSON to stdout, and return its exit code."""
    from trainer.cli.output import say_json, warn

    try:
        if as_json:
            say_json({"error": error})
        else:
            warn(f"error: {line}")
        sys.stdout.flush()
    except OSError:  # the reader has ended, or the disk is full
        sys.stdout = None  # as in `main`
        if as_json:
            warn(f"error: {line}")
    return int(str(error["code"]))


if __name__ == "__main__":
    sys.exit(main())
