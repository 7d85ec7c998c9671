"""`mayfly data check`: one table of what candles hold, and of everything that is wrong with them.

    mayfly data check PATH                   # what training would do about each defect
    mayfly data check PATH --fix OUT          # and repaired copies, as far as that is safe
    mayfly data check PATH --html FILE        # and a picture of bars, holes and defects over time

It reads as a training of the job would (`--job`, `--set data.calendar=XNYS`), and files that a training
refuses, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.base.arguments import refuse_replacing
from trainer.base.errors import DataError, UsageError
from trainer.base.extras import needs
from trainer.base.text import counted
from trainer.cli.output import say_json, warn
from trainer.cli.terminal import Console, show
from trainer.data.read.paths import check_path
from trainer.data.table import SUFFIXES, DataSettings
from trainer.job.job import refuse_script
from trainer.job.reading import load_job, parse_job

if TYPE_CHECKING:
    from trainer.data.check.findings import SymbolCheck


def run(arguments: argparse.Namespace) -> int:
    """Print the table, or the JSON; return 2 if training would leave a symbol out, else 0."""
    data = _settings(arguments)
    path = Path(arguments.path)
    check_path(arguments.path)
    out = _new_folder(arguments.fix, path)
    if arguments.html:
        _refuse_page(Path(arguments.html), [path, *([Path(arguments.job)] if arguments.job else [])])
    needs("pyarrow")
    # Late: numpy and pyarrow take half a second to load, and a wrong setting should not wait for it.
    from trainer.cli.views.data import checked_table, repaired_lines
    from trainer.data.check.folder import check_folder
    from trainer.data.check.page import Page
    from trainer.data.check.repair import Repair

    console = Console(plain=arguments.json)
    page = Page() if arguments.html else None
    repair = Repair(path=path, out=out, data=data) if out else None

    def each(one: SymbolCheck) -> None:
        console.update(f"{one.symbol} ...")
        for into in (page, repair):
            if into is not None:
                into.add(one)

    try:
        made = check_folder(path, data, each)
        repaired = repair.write(made) if repair else None
    finally:
        console.close()
    if page is not None:
        page.write(Path(arguments.html), made)
    if arguments.json:
        say_json({**made.to_dict(), **({"fix": repaired.to_dict()} if repaired else {})})
    else:
        show(checked_table(made))
        if repaired:
            show(repaired_lines(repaired))
    if page is not None:
        warn(f"{arguments.html}: bars, holes and defects of {counted(len(made.symbols), 'symbol')} over time")
    left = repaired.after if repaired else made
    return DataError.exit_code if left.is_refused else 0


def _settings(arguments: argparse.Namespace) -> DataSettings:
    """Return the data table of the job, as `--job` and `--set` say it."""
    tables = load_job(Path(arguments.job)) if arguments.job else {}
    job = parse_job(tables, {}, arguments.settings)
    refuse_script(job, "data check")
    return job.data


def _refuse_page(page: Path, inputs: Iterable[Path]) -> None:
    """Raise UsageError if the page's file is a folder, or would replace candles or another input."""
    if page.is_dir():
        raise UsageError(f"--html {page} is a folder", do="Name the page's file.")
    candles = [page] if page.name.lower().endswith(SUFFIXES) else []  # whoever reads them
    refuse_replacing("--html", page, [*inputs, *candles])


def _new_folder(out: str | None, path: Path) -> Path | None:
    """Return the folder of --fix. Raises UsageError if it has anything in it, or is inside the source."""
    if out is None:
        return None
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--fix {out} is there already", do="Name a new folder.")
    if path.is_dir() and folder.resolve().is_relative_to(path.resolve()):
        why = "the source would then hold both"
        raise UsageError(f"--fix {out} is inside {path}", why=why, do="Name a folder outside.")
    return folder
