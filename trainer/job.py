"""The job: every setting of a run, in tables by owner: `name`, then [data], [model], [target], [train] and [machine].

The keys of a table, with types, defaults and units, stand beside what owns them. This module joins the tables, reads them
from TOML, JSON and `--set`, and explains unknown keys.

Standard library only: the launcher, the Lambdas, the node and the trainer all read jobs through this module.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer import models, targets
from trainer.data.settings import DataSettings
from trainer.errors import UsageError, nearest
from trainer.machine import MachineSettings
from trainer.own_file import OwnFile, reference
from trainer.script import ScriptSettings
from trainer.settings import CHUNKS, HomeSettings, ModelSettings, TargetSettings, bad_value, keys_of, read_keys, setting, typed
from trainer.train.settings import AUTO, BATCH_OF_THE_MODEL, TrainSettings

MOST_MODELS = 20_000  # of one run: what a result and a receipt may list (runs.reports)
MAX_JOB_NAME = 24  # a schedule's name ends at 64 characters: <project>-<run id>-<purpose>
TABLES = ("data", "model", "target", "train", "machine", "script")
NOT_OF_A_SCRIPT = ("model", "target", "train")  # tables of a job that trains models of ours
DATA_OF_A_SCRIPT = ("folder",)
EXAMPLE = "examples/crypto-lstm.toml shows the tables and their keys."
_PLAIN: dict[str, type[Any]] = {"data": DataSettings, "train": TrainSettings, "machine": MachineSettings}
_HOMES: dict[str, Mapping[str, type[Any]]] = {"model": models.MODELS, "target": targets.TARGETS}
_OWN: dict[str, type[Any]] = {"model": models.OWN, "target": targets.OWN}  # chosen by a file of the user's
_SHORT = {"data": "data.path", "model": "model.name", "target": "target.name"}  # --set model=... chooses the model
_RENAMED = {**_SHORT, "batch_chunks": "train.batch"}  # keys of the flat job files of before
_NAME_HELP = "Name of the job, in run ids: lower case letters, digits and dashes, 24 at most."

Tables = dict[str, Any]  # a job as TOML or JSON has it: a table is a dictionary


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job: its name and its five tables (data, model, target, train, machine)."""

    name: str = setting("mayfly", _NAME_HELP)
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=lambda: models.MODELS[models.DEFAULT]())
    target: TargetSettings = field(default_factory=lambda: targets.TARGETS[targets.DEFAULT]())
    train: TrainSettings = field(default_factory=TrainSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)
    script: ScriptSettings = field(default_factory=ScriptSettings)

    def __post_init__(self) -> None:
        if self.is_script and not self.machine.max_duration:
            why = "how long it takes is not known, and the machine has to end"
            raise UsageError("a script needs machine.max_duration", why=why, do="Set it, such as --max-duration 2h.")
        if self.data.folder and not self.is_script:
            do = "Name candles with data.path, or a script with script.command."
            raise UsageError("data.folder without a script", why="it is the data of a script", do=do)
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", self.name) or len(self.name) > MAX_JOB_NAME:
            raise bad_value("name", self.name, f"at most {MAX_JOB_NAME} lower case letters, digits and dashes")
        if (count := max(1, len(self.data.symbols)) * self.data.folds * self.train.seeds) > MOST_MODELS:
            made = (
                f"this job's models name {count:,} series"
                if self.data.pooled or self.data.panel
                else f"this job makes {count:,} models"
            )
            why = f"{max(1, len(self.data.symbols)):,} symbols x {self.data.folds:,} folds x {self.train.seeds:,} seeds"
            do = f"Train at most {MOST_MODELS:,} in one run: fewer data.symbols, data.folds or train.seeds."
            raise UsageError(made, why=why, do=do)
        if self.train.batch == BATCH_OF_THE_MODEL:
            object.__setattr__(self, "train", replace(self.train, batch=self.model.default_batch))
        if self.train.batch == 0 and self.model.reads == CHUNKS:
            why, do = f"{self.model.name} reads chunks", "Set train.batch to 1 or more, or leave it out."
            raise UsageError("batch = auto is for models that read windows", why=why, do=do)
        if self.train.activation_checkpointing and not self.model.can_recompute:
            do = "Leave train.activation_checkpointing out."
            raise UsageError(f"{self.model.title} can't compute its activations again", why="it is your own module", do=do)
        if 0 < self.train.micro_batch < self.train.batch and self.model.is_measured and not self.model.may_slice:
            why = "slices of a batch would give it another gradient, as batch norm does"
            raise UsageError(f"{self.model.title} can't train in slices", why=why, do="Leave train.micro_batch out.")

    @property
    def is_script(self) -> bool:
        """Return whether it runs a user's script instead of training models."""
        return bool(self.script.command)

    @property
    def own_files(self) -> dict[str, OwnFile]:
        """Return the user's model and target files, by table."""
        return {table: home for table in _HOMES if isinstance(home := getattr(self, table), OwnFile)}

    def with_own_files(self, homes: Mapping[str, OwnFile]) -> Job:
        """Return the job with these in place of its own files."""
        changed: dict[str, Any] = dict(homes)
        return replace(self, **changed)

    def to_dict(self) -> Tables:
        """Return the job as JSON values by table; `name` comes first in the tables of homes.

        Unused tables are left out: those of a model for a script, and the script's for a model.
        """
        left_out = NOT_OF_A_SCRIPT if self.is_script else ("script",)
        parts = {table: getattr(self, table) for table in TABLES if table not in left_out}
        tables = {table: part.to_keys() if isinstance(part, HomeSettings) else asdict(part) for table, part in parts.items()}
        lists = {
            table: {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
            for table, values in tables.items()
        }
        kept = DATA_OF_A_SCRIPT if self.is_script else [key for key in lists["data"] if key not in DATA_OF_A_SCRIPT]
        return {"name": self.name, **lists, "data": {key: lists["data"][key] for key in kept}}


def refuse_script(job: Job, verb: str) -> None:
    """Raise UsageError if a verb for models is given a script."""
    if job.is_script:
        do = "Run it with mayfly launch, or at this desk as it is."
        raise UsageError(f"{verb} takes no script", why="it is for models of Mayfly's training", do=do)


def job_of(**keys: Any) -> Job:
    """Build a job from keys named as in `--set`; the others have their defaults."""
    return job_from(with_keys({}, keys))


def with_settings(job: Job, **keys: Any) -> Job:
    """Return the job with some keys changed, named as in `--set`, and checked again."""
    return job_from(with_keys(job.to_dict(), keys))


def load_job(path: Path) -> Tables:
    """Read a job file into tables. Raises UsageError when it is missing, is not TOML, or is flat as job files were."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"job file {path} does not exist", do="See examples/crypto-lstm.toml for one.") from error
    except IsADirectoryError as error:
        raise UsageError(f"job file {path} is a folder", do="Name the TOML file in it, or candles with --data.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"job file {path} is not TOML", why=str(error), do="See examples/crypto-lstm.toml for one.") from error
    _check_tables(tables, f"job file {path}")
    homes = ((home, "file") for home in _HOMES)
    beside = (*homes, ("model", "encoder"), ("data", "refresh"), ("data", "folder"), ("script", "over"))
    for table, key in beside:
        file = tables.get(table, {}).get(key)
        if isinstance(file, str) and file and "://" not in file:  # named from the job's folder
            tables[table][key] = str(path.parent / file)
    if "script" in tables:
        tables["script"]["root"] = str(path.parent / str(tables["script"].get("root", "")))
    return tables


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Read `--set key=value` arguments into keys for `with_keys`; values are TOML, and a bare word is text."""
    keys: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set '{assignment}' has no value", do="Write --set key=value, such as --set train.epochs=3.")
        keys[key.strip()] = _toml_value(text.strip())
    return keys


def with_keys(tables: Tables, keys: Mapping[str, Any]) -> Tables:
    """Return the tables with keys set. A key is `train.epochs`, or `epochs` where one table of this job has it.

    If another model or target is chosen, keys that only the previous one has are dropped. Raises UsageError for a key that no
    table has, or several have.
    """
    _check_tables(tables, "the job")
    changed = {name: dict(value) if isinstance(value, dict) else value for name, value in tables.items()}
    given = {_SHORT.get(key, key): value for key, value in keys.items()}
    for place in _HOMES:  # first, since they decide which keys there are
        if f"{place}.name" in given:
            _choose(changed, place, given.pop(f"{place}.name"))
    for key, value in given.items():
        table, _, rest = _placed(changed, key).rpartition(".")
        if table:
            changed.setdefault(table, {})[rest] = value
        else:
            changed[rest] = value
    return changed


def job_from(tables: Tables) -> Job:
    """Build a job from its tables. Raises UsageError for an unknown key, and for a value that makes no sense."""
    _check_tables(tables, "the job")
    homes = {table: _home(tables, table) for table in _HOMES}
    made: dict[str, Any] = {}
    _check_script(tables)
    for table, cls in {**_plain(tables), **homes}.items():
        values = {key: value for key, value in tables.get(table, {}).items() if not (table in homes and key == "name")}
        for key in values:
            if key not in keys_of(cls) and not (table in homes and cls.takes_any_key):
                raise _unknown(tables, key, table)
        if table == "train" and values.get("batch") == AUTO:
            values["batch"] = 0
        made[table] = cls.from_keys(values) if table in homes else cls(**read_keys(table, cls, values))
    if "name" in tables:
        made["name"] = typed("name", tables["name"], str)
    return Job(**made)


def job_from_json(text: str) -> Job:
    """Read a job as `json.dumps(job.to_dict())` wrote it."""
    return job_from(json.loads(text))


def _check_tables(tables: Tables, what: str) -> None:
    """Raise UsageError for an old flat job, and for an unknown table."""
    if not isinstance(tables, dict):
        raise UsageError(f"{what} is no job", do=EXAMPLE)
    flat = [key for key, value in tables.items() if not isinstance(value, dict) and key != "name"]
    if flat:
        known = {name: places[0] for name, places in _everywhere().items()}
        for key in flat:
            if key not in known and key not in _RENAMED:
                raise UsageError(f"unknown job key '{key}'", do=_with_tables(nearest(key, known), known) or EXAMPLE)
        moves = ", ".join(f"{key} = ... into {_bracketed(key)}" for key in flat[:3])
        more = f", and the other {len(flat) - 3} into theirs" if len(flat) > 3 else ""
        why = f"{', '.join(flat[:3])}{' ...' if len(flat) > 3 else ''} in no table"
        raise UsageError(f"{what} is flat", why=why, do=f"Put {moves}{more}. {EXAMPLE}")
    for key, value in tables.items():
        if isinstance(value, dict) and key not in TABLES:
            tables_there = ", ".join(f"[{name}]" for name in TABLES)
            raise UsageError(f"{what} has a table [{key}]", do=nearest(key, TABLES) or f"The tables are {tables_there}.")


def _check_script(tables: Tables) -> None:
    """Raise UsageError for a script with keys of a model."""
    if "script" not in tables:
        return
    if not tables["script"].get("command"):
        do = 'Set script.command, such as command = "python train.py".'
        raise UsageError("a [script] without a command", why="there is nothing to run", do=do)
    others = [f"[{table}]" for table in NOT_OF_A_SCRIPT if tables.get(table)]
    others += [f"data.{key}" for key in tables.get("data", {}) if key in keys_of(DataSettings) and key not in DATA_OF_A_SCRIPT]
    if "data.refresh" in others:
        why = "it adds candles to the data set of a retrain's models"
        do = "Leave it out: let the script fetch its data itself, or copy new files to the set that its data.folder names."
        raise UsageError("a script with data.refresh", why=why, do=do)
    if others:
        do = "Leave it out, or leave [script] out. A script's own settings go into its command."
        raise UsageError(f"a script with {others[0]}", why="that is for models of Mayfly's training", do=do)


def _plain(tables: Tables) -> dict[str, type[Any]]:
    """Return the classes of the tables, without homes, that this job may have."""
    return {**_PLAIN, "script": ScriptSettings} if "script" in tables else _PLAIN


def _bracketed(key: str) -> str:
    """Return the new place of a flat job's key: `[train]`, or `[model] as name = ...` if it was renamed."""
    if key in _RENAMED:
        table, _, name = _RENAMED[key].partition(".")
        return f"[{table}] as {name} = ..."
    return f"[{_everywhere()[key][0].partition('.')[0]}]"


def _home(tables: Tables, table: str) -> type[Any]:
    """Return the settings that a [model] or [target] table chooses."""
    values = tables.get(table, {})
    own: type[Any] = _OWN[table]
    if "file" in values or values.get("name") == own.name:
        if values.get("name", own.name) != own.name:
            why = f"the file chooses the {table}"
            raise UsageError(f"{table}.name and {table}.file", why=why, do=f"Leave {table}.name out, or {table}.file.")
        return own
    default = models.DEFAULT if table == "model" else targets.default_of(_home(tables, "model").name)
    name = values.get("name") or default
    if not isinstance(name, str) or name not in _HOMES[table]:
        raise bad_value(f"{table}.name", name, "one of " + ", ".join(_HOMES[table]))
    return _HOMES[table][name]


def _choose(tables: Tables, table: str, choice: Any) -> None:
    """Choose a home by its name, or by `file.py:Class`; drop the keys that only the previous one has.

    The default target may change with the model.
    """
    before = {place: _home(tables, place) for place in _HOMES}
    old = tables.get(table, {})
    named = (reference(choice) if isinstance(choice, str) else None) or {"name": choice}
    is_same = all(old.get(key) == value for key, value in named.items())
    tables[table] = {**{key: value for key, value in old.items() if key not in ("name", "file", "class")}, **named}
    for place in _HOMES:
        was, now = before[place], _home(tables, place)
        if place in tables and (was is not now or (place == table and not is_same)):
            stays = {*keys_of(now), *(named if place == table else ())}
            values = tables[place].items()
            tables[place] = {
                key: value for key, value in values if key in stays or not (was.takes_any_key or key in keys_of(was))
            }


def _placed(tables: Tables, key: str) -> str:
    """Return a key with its table, for this job's model and target."""
    table, dot, rest = key.partition(".")
    if dot and table not in TABLES:
        raise UsageError(f"unknown table '{table}' of '{key}'", do=nearest(table, TABLES) or EXAMPLE)
    if dot or key == "name":
        return key
    homes = {place: _home(tables, place) for place in _HOMES}
    places = [name for name, cls in {**_plain(tables), **homes}.items() if key in keys_of(cls)]
    if not places:
        raise _unknown(tables, key, "")
    if len(places) > 1:
        tables_there = " and ".join(f"[{place}]" for place in places)
        do = f"Write {' or '.join(f'{place}.{key}' for place in places)}."
        raise UsageError(f"'{key}' is a key of {tables_there}", do=do)
    return f"{places[0]}.{key}"


def _unknown(tables: Tables, key: str, table: str) -> UsageError:
    """Return the error for an unknown key of a table ('': of any), with the tables that have it, or similar names."""
    what = f"unknown job key '{table}.{key}'" if table else f"unknown job key '{key}'"
    homes = {place: _home(tables, place) for place in _HOMES}
    if key == "class" and table in homes:
        return UsageError(what, do=f"It goes with {table}.file.")
    own = [f"{place}.{key}" for place, home in homes.items() if home.takes_any_key and not table]
    for place, members in () if own else _HOMES.items():
        owners = [name for name, home in members.items() if key in keys_of(home)]
        if owners and table in (place, "") and key not in keys_of(homes[place]):
            why = f"{key} is a key of the {place} {' and '.join(owners)}, and this job's {place} is {homes[place].name}"
            return UsageError(what, why=why, do=f"Leave {key} out, or set {place}.name = {owners[0]}.")
    if key in _RENAMED:
        return UsageError(what, do=f"It is {_RENAMED[key]} now.")
    here = {place: keys_of(cls) for place, cls in {**_plain(tables), **homes}.items()}
    elsewhere = [f"{place}.{key}" for place, keys in here.items() if key in keys]
    if elsewhere:
        return UsageError(what, do=f"Did you mean {' or '.join(elsewhere)}?")
    close = nearest(key, here[table]) if table else ""
    known = {name: f"{place}.{name}" for place, keys in here.items() for name in keys}
    do = _with_tables(close or nearest(key, known), known)
    if own:
        return UsageError(what, do=f"{do} For a setting of your own class write {' or '.join(own)}.".strip())
    return UsageError(what, do=do or EXAMPLE)


def _with_tables(sentence: str, known: Mapping[str, str]) -> str:
    """Return 'Did you mean a, b?' with the table before each key."""
    start = "Did you mean "
    names = sentence.removeprefix(start).removesuffix("?").split(", ") if sentence else []
    return f"{start}{', '.join(known[name] for name in names)}?" if names else ""


def _everywhere() -> dict[str, list[str]]:
    """Return each key of any table or home, with its tables."""
    tables: dict[str, list[str]] = {}
    for place, cls in [*_PLAIN.items(), *((place, home) for place, homes in _HOMES.items() for home in homes.values())]:
        for key in keys_of(cls):
            tables.setdefault(key, []).append(f"{place}.{key}")
    return tables


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # a number of 5,000 digits is a ValueError of another kind
        return text
