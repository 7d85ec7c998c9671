"""Reading a job from TOML, JSON and `--set`. `tables.py` places keys and explains unknown ones.

Standard library only: the launcher, the Lambdas, the node and the trainer all read jobs through this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.base.errors import UsageError
from trainer.base.files import read_plain
from trainer.base.settings import MOST_TOML_BYTES, brief, keys_of, read_keys, read_toml, typed
from trainer.base.strict_json import MOST_NUMBER, Unsound, check_values
from trainer.data.own_features import OwnFeatures, own_item
from trainer.data.table import FETCH
from trainer.job.job import Job
from trainer.job.script_search import check_script_search
from trainer.job.script_values import read_rows
from trainer.job.search import check_search
from trainer.job.tables import (
    HOMES,
    TOP,
    Tables,
    check_script,
    check_tables,
    home_of,
    plain_tables,
    unknown_key,
    with_environment,
    with_keys,
)
from trainer.job.train import AUTO

MOST_JOB_BYTES = 16 << 20  # of a job as JSON, with the values of a script
_SEE = "See examples/crypto-lstm.toml for one."


def load_job(path: Path) -> Tables:
    """Read a job file into tables. Raises UsageError when it is missing, is not TOML, or has keys in no
    table.
    """
    try:
        tables = read_toml(read_plain(path, most_bytes=MOST_TOML_BYTES).decode("utf-8-sig"))
    except FileNotFoundError as error:
        raise UsageError(f"job file {path} does not exist", do=_SEE) from error
    except IsADirectoryError as error:
        do = "Name the TOML file in it, or candles with --data."
        raise UsageError(f"job file {path} is a folder", do=do) from error
    except OSError as error:
        do = "Check the path and its permissions."
        raise UsageError(f"cannot read job file {path}", why=str(error.strerror), do=do) from error
    except ValueError as error:
        raise UsageError(f"job file {path} is not TOML", why=str(error), do=_SEE) from error
    check_tables(tables, f"job file {path}")
    tables = with_environment(tables)
    homes = ((home, "file") for home in HOMES)
    beside = (
        *homes,
        ("model", "encoder"),
        ("train", "init"),
        ("data", "refresh"),
        ("data", "folder"),
        ("script", "over"),
    )
    for table, key in beside:
        file = tables.get(table, {}).get(key)
        if (table, key, file) == ("data", "refresh", FETCH):
            continue
        if isinstance(file, str) and file and "://" not in file:  # named from the job's folder
            tables[table][key] = str(path.parent / file)
    if isinstance(chosen := tables.get("data", {}).get("features"), (str, list)):
        items = chosen.split(",") if isinstance(chosen, str) else chosen
        tables["data"]["features"] = [_beside(path, item) for item in items]
    if "script" in tables:
        tables["script"]["root"] = str(path.parent / str(tables["script"].get("root", "")))
    return tables


def _beside(job_file: Path, item: Any) -> Any:
    """Return a value of data.features, a file of features named from the job's folder."""
    own = own_item(item.strip()) if isinstance(item, str) else None
    return f"{job_file.parent / own[0]}:{own[1]}" if own else item


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Read `--set key=value` arguments into keys for `with_keys`; values are TOML, and a bare word is
    text.
    """
    keys: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            do = "Write --set key=value, such as --set train.epochs=3."
            raise UsageError(f"--set '{assignment}' has no value", do=do)
        keys[key.strip()] = _toml_value(text.strip())
    return keys


def parse_job(
    tables: Tables, flags: Mapping[str, Any], assignments: Iterable[str] = (), *, script_duration: str = ""
) -> Job:
    """Build a job from what its user wrote, the later winning: a file's tables, flags, `--set` arguments.

    Reads the CSV file, if any, that `script.over` names. `script_duration`: longest duration of a script that
    names none. Raises UsageError as `job_from` does.
    """
    tables = with_keys(tables, {**flags, **parse_assignments(assignments)})
    if isinstance(over := tables.get("script", {}).get("over"), str) and over:
        tables["script"]["over"] = read_rows(Path(over))
    if script_duration and "script" in tables and not tables.get("machine", {}).get("max_duration"):
        job = job_from(with_keys(tables, {"machine.max_duration": script_duration}))
        return replace(job, given=job.given - {"machine.max_duration"})
    return job_from(tables)


def job_from(tables: Tables) -> Job:
    """Build a job from its tables. Raises UsageError for an unknown key, and for a value that makes
    no sense.
    """
    check_tables(tables, "the job")
    tables = with_environment(tables)
    homes = {table: home_of(tables, table) for table in HOMES}
    made: dict[str, Any] = {}
    check_script(tables)
    for table, cls in {**plain_tables(tables), **homes}.items():
        values = dict(tables.get(table, {}))
        if table in homes:
            values.pop("name", None)
        own = values.pop("own", None) if table == "data" else None
        for key in values:
            if key not in keys_of(cls) and not (table in homes and cls.takes_any_key):
                raise unknown_key(tables, key, table)
        if table == "train" and values.get("batch") == AUTO:
            values["batch"] = 0
        more = {"own": OwnFeatures.from_keys(own)} if isinstance(own, dict) else {}
        made[table] = (
            cls.from_keys(values) if table in homes else cls(**read_keys(table, cls, values), **more)
        )
    made |= {key: typed(key, tables[key], hint) for key, hint in TOP.items() if key in tables}
    given = {f"{table}.{key}" for table, values in tables.items() if table not in TOP for key in values}
    job = Job(**made, given=frozenset(given | tables.keys() & TOP.keys()))
    _check_readable(job)
    check_search(job)
    check_script_search(job)
    return job


def job_from_json(text: str) -> Job:
    """Read a job as `json.dumps(job.to_dict())` wrote it."""
    return job_from(json.loads(text))


def _check_readable(job: Job) -> None:
    """Raise UsageError for a value with which the record of a run could not be read again."""
    for table, keys in job.to_dict().items():
        for key, value in keys.items() if isinstance(keys, dict) else ():
            try:
                check_values([[[value]]], "it")  # as deep as in a record
            except Unsound as error:
                what = f"job key '{table}.{key}' is {brief(value)}"
                do = f"Set {table}.{key} to Unicode text, or to numbers of at most {MOST_NUMBER:g}."
                raise UsageError(what, why=str(error), do=do) from error


def _toml_value(text: str) -> Any:
    try:
        return read_toml(f"value = {text}")["value"]
    except ValueError:  # a number of 5,000 digits is a ValueError of another kind
        return text
