"""Values that a script runs over: combinations, the name of each, the variables that it gets, and the GPUs of
each.

A job has them as lists to combine, as rows, or as a CSV file, which the desk reads into rows (`read_rows`),
so that the control plane and the node see values only. Standard library only.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from trainer.base.errors import UsageError
from trainer.base.files import read_plain
from trainer.base.settings import bad_value, brief
from trainer.base.text import counted

VARIABLE = "MAYFLY_VALUE_"
MOST_COMBINATIONS = 2_000  # of one run: as many pieces as a node's progress names
MOST_COLUMNS = 8
MOST_CSV_BYTES = 1 << 20
MOST_VALUE_BYTES = 200
MOST_NAME_BYTES = 80  # of a combination's name, which is a folder
MOST_GPUS, LEAST_GPUS = 64, 0.05  # of one value
_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._+=-]+")
_FORMS = 'such as over = { seed = [0, 1, 2] }, a list of rows, or a CSV file, over = "values.csv"'

Combination = dict[str, str]  # column -> value


def combinations(over: Any) -> dict[str, Combination]:
    """Return the combinations by name, in the order of the job; {} for `over` left out.

    A name has each column and its value, such as symbol=BTC-USD_seed=0. Names are unique, also if case is
    ignored, at most 80 bytes, and safe as folders: letters, digits and ._+=- of the values. If that does not
    distinguish them, a part of their hash is added. Raises UsageError.
    """
    if over in ("", None):
        return {}
    if isinstance(over, str):
        raise UsageError(
            f"script.over names the file {brief(over)}", why="only a launch and a publish read it", do=_do()
        )
    rows = _product(over) if isinstance(over, Mapping) else _rows(over)
    whole = ["_".join(f"{column}={value}" for column, value in row.items()) for row in rows]
    plain = [_UNSAFE.sub("-", name) for name in whole]
    seen = Counter(name.casefold() for name in plain)
    named: dict[str, Combination] = {}
    for name, written, row in zip(plain, whole, rows, strict=True):
        exact = name == written and len(name) <= MOST_NAME_BYTES and seen[name.casefold()] == 1
        full = name if exact else f"{name[: MOST_NAME_BYTES - 9]}-{_hash(row)}"
        if full in named:
            raise UsageError(f"script.over has {brief(row)} twice", do="Leave one of them out.")
        named[full] = row
    return named


def columns_of(over: Any) -> list[str]:
    """Return the names of the values, in order. Raises UsageError as `combinations` does."""
    return list(next(iter(combinations(over).values()), ()))


def variables_of(row: Combination) -> dict[str, str]:
    """Return the variables that a script gets for one combination."""
    return {f"{VARIABLE}{column.upper()}": value for column, value in row.items()}


def check_gpus(gpus: float) -> None:
    """Raise UsageError for a number of GPUs that no value can have: below one a share, else a whole
    number.
    """
    if gpus and (not LEAST_GPUS <= gpus <= MOST_GPUS or (gpus > 1 and gpus != int(gpus))):
        expected = f"a share from {LEAST_GPUS} on, such as 0.25, or a whole number up to {MOST_GPUS}"
        raise bad_value("script.gpus", gpus, expected)


def read_rows(path: Path) -> list[Combination]:
    """Return the rows of a CSV file whose first line names the columns. Raises UsageError."""
    try:
        content = read_plain(path, most_bytes=MOST_CSV_BYTES)
        reader = csv.reader(io.StringIO(content.decode("utf-8-sig")), strict=True)
        lines = [(reader.line_num, [cell.strip() for cell in line]) for line in reader]
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist", why="script.over names it", do=_do()) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}", why=str(error.strerror), do=_do()) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is not CSV", why=str(error)[:100], do=_do()) from error
    (_, head), *rows = [line for line in lines if any(line[1])] or [(0, list[str]())]
    if not rows:
        do = "Name the columns in its first line, and write a line for each run."
        raise UsageError(f"{path} has no values", do=do)
    for number, row in rows:
        if len(row) != len(head):
            what = f"line {number} of {path} has {counted(len(row), 'cell')}"
            raise UsageError(what, why=f"its first line names {len(head)}", do="Correct that line.")
    if len(set(head)) < len(head):
        raise UsageError(f"{path} names a column twice", why=", ".join(head), do="Rename one.")
    return [dict(zip(head, row, strict=True)) for _, row in rows]


def texts_of(over: Mapping[str, Sequence[Any]], *, key: str = "script.over") -> dict[str, list[str]]:
    """Return the values of each column as variables have them. Raises UsageError for those that none can
    have. `key` of the job has them.
    """
    _check_columns(list(over), key)
    return {column: [_text(column, value, key) for value in values] for column, values in over.items()}


def _product(over: Mapping[str, Any]) -> list[Combination]:
    """Return every combination of lists of values, the last column changing fastest."""
    for column, values in over.items():
        if not isinstance(values, (list, tuple)) or not values:
            why = "it must be a list of values"
            raise UsageError(f"script.over.{column} is {brief(values)}", why=why, do=_do())
    lengths = [len(values) for values in over.values()]
    _refuse_many(math.prod(lengths), " x ".join(map(str, lengths)))
    texts = texts_of(over)
    return [dict(zip(texts, row, strict=True)) for row in product(*texts.values())]


def _rows(over: Any) -> list[Combination]:
    if not isinstance(over, (list, tuple)) or not over or not all(isinstance(row, Mapping) for row in over):
        why = "it must be lists of values or rows"
        raise UsageError(f"job key 'script.over' is {brief(over)}", why=why, do=_do())
    _refuse_many(len(over), "its rows")
    first = list(over[0])
    _check_columns(first, "script.over")
    for number, row in enumerate(over, 1):
        if set(row) != set(first):
            what = f"row {number} of script.over has {', '.join(map(str, row)) or 'nothing'}"
            raise UsageError(what, why=f"the first has {', '.join(first)}", do=_do())
    return [{column: _text(column, row[column]) for column in first} for row in over]


def _refuse_many(count: int, how: str) -> None:
    if count > MOST_COMBINATIONS:
        what, why = f"script.over makes {count:,} combinations", f"{how}; a run takes {MOST_COMBINATIONS:,}"
        raise UsageError(what, why=why, do="Split it into several launches.")


def _check_columns(columns: list[str], key: str) -> None:
    if not columns or len(columns) > MOST_COLUMNS:
        why = f"it takes 1 to {MOST_COLUMNS}"
        raise UsageError(f"{key} has {len(columns)} columns", why=why, do=_do())
    for column in columns:
        if not _COLUMN.fullmatch(column):
            why = "it becomes a variable: a letter first, then letters, digits and _, 32 at most"
            raise UsageError(f"{key} has a column {brief(column)}", why=why, do="Rename it.")
    if len({column.upper() for column in columns}) < len(columns):
        what = f"{key} has columns {', '.join(columns)}"
        raise UsageError(what, why="two make one variable", do="Rename one.")


def _text(column: str, value: Any, key: str = "script.over") -> str:
    """Return a value as its variable has it."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    sound = isinstance(value, (str, int, float)) and text.isprintable() and text == text.strip()
    if not sound or not 1 <= len(text.encode(errors="replace")) <= MOST_VALUE_BYTES:
        what = f"{key}.{column} has {brief(value)}"
        why = f"a value is a number or 1 to {MOST_VALUE_BYTES} bytes of printable text"
        raise UsageError(what, why=why, do="Correct it, or leave it out.")
    return text


def _hash(row: Combination) -> str:
    return hashlib.sha256(json.dumps(sorted(row.items())).encode()).hexdigest()[:8]


def _do() -> str:
    return f"Write lists of values, {_FORMS}."
