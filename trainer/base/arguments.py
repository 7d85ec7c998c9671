"""The parser of every command: a mistake is one UsageError that names the nearest word and the command's own
help; files and folders to write.

argparse and nothing else: `--help` must answer at once.
"""

from __future__ import annotations

import argparse

TYPE_CHECKING = False  # typing's own constant, without its import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError instead of printing, so that `--json` errors are JSON too."""

    def __init__(self, *, flags: Callable[[Parser], None] | None = None, **settings: Any) -> None:
        """Take whole flags only: `main` looks for `--json` before it parses.

        `flags` adds a verb's own when it is parsed: the list of verbs needs none.
        """
        super().__init__(**settings, allow_abbrev=False)
        self._flags = flags

    def filled(self) -> Parser:
        """Return this parser with its flags."""
        flags, self._flags = self._flags, None
        if flags:
            flags(self)
        return self

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as argparse does, but refuse unknown words here: the verb's parser knows its own flags and
        help.

        argparse takes an argument of many words from one place; here they may stand on both sides of a flag.
        """
        self.filled()
        parsed, unknown = super().parse_known_args(args, namespace)
        several = next((action for action in self._get_positional_actions() if action.nargs == "*"), None)
        if several and not any(word.startswith("-") for word in unknown):
            setattr(parsed, several.dest, [*getattr(parsed, several.dest), *unknown])
            return parsed, []
        if unknown:
            what, word = f"unrecognized arguments: {' '.join(unknown)}", unknown[0].split("=")[0]
            self._refuse(what, word, self._option_string_actions)
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        self._refuse(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            kind = str(action.metavar or "word").lower()
            self._refuse(f"unknown {kind} '{value}'", value, list(action.choices))
        super()._check_value(action, value)

    def _refuse(self, what: str, word: str = "", known: Sequence[str] | dict[str, Any] = ()) -> NoReturn:
        from trainer.base.errors import UsageError, nearest  # late: `--help` needs neither

        closeness = 0.5 if word.isalpha() else 0.7  # flags share their dashes
        hint = nearest(word, known, count=1, closeness=closeness) if word else ""
        raise UsageError(what, do=f"{hint} See {self.prog} --help.".strip())


def check_folder(out: Path) -> None:
    """Raise UsageError if the folder of --out can't be created because it, or a parent, is a file."""
    from trainer.base.errors import UsageError  # late, as above

    for place in (out, *out.parents):
        if place.exists():
            if not place.is_dir():
                why, do = f"{place} is a file", "Name a folder, or one to be made."
                raise UsageError(f"--out {out} is not a folder", why=why, do=do)
            return


def refuse_replacing(flag: str, out: Path, inputs: Iterable[Path]) -> None:
    """Raise UsageError if the file that a flag names is one of those that the command reads."""
    from trainer.base.errors import UsageError  # late, as above

    for read in inputs:
        if out.exists() and read.exists() and out.samefile(read):
            do = "Name another file."
            raise UsageError(f"{flag} {out} would replace {read}", why="the command reads it", do=do)
