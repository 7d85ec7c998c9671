"""The tables of a job: a model and a target by their homes, keys by their tables, and errors for unknown
ones.

A job as TOML or JSON has it is a dictionary of tables; `trainer.job.reading` builds a `Job` from it. Standard
library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer import models, targets
from trainer.base.errors import UsageError, nearest
from trainer.base.own_file import reference
from trainer.base.settings import bad_value, keys_of
from trainer.data.table import DataSettings
from trainer.job.agent import AgentSettings
from trainer.job.machine import MachineSettings
from trainer.job.script import ScriptSettings
from trainer.job.search import SearchSettings
from trainer.job.train import ExpertSettings, TrainSettings

Tables = dict[str, Any]

TOP: dict[str, Any] = {"name": str, "track": tuple[str, ...]}  # keys in no table, with their types
TABLES = ("data", "model", "target", "agent", "train", "expert", "search", "machine", "script")
NOT_OF_A_SCRIPT = ("model", "target", "agent", "train", "expert")  # tables of a job of our models
DATA_OF_A_SCRIPT = ("folder",)
EXAMPLE = "examples/crypto-lstm.toml shows the tables and their keys."
_PLAIN: dict[str, type[Any]] = {
    "data": DataSettings,
    "agent": AgentSettings,
    "train": TrainSettings,
    "expert": ExpertSettings,
    "search": SearchSettings,
    "machine": MachineSettings,
}
HOMES: dict[str, Mapping[str, type[Any]]] = {"model": models.MODELS, "target": targets.TARGETS}
_OWN: dict[str, type[Any]] = {"model": models.OWN, "target": targets.OWN}  # chosen by a file of the user's
_CHOICES = {"data": "data.path", "model": "model.name", "target": "target.name"}  # meant by a table's name


def with_keys(tables: Tables, keys: Mapping[str, Any]) -> Tables:
    """Return the tables with keys set, which are named with their tables, such as `train.epochs`.

    If another model or target is chosen, keys that only the previous one has are dropped. Raises UsageError
    for a key without a table.
    """
    check_tables(tables, "the job")
    changed = with_environment(
        {name: dict(value) if isinstance(value, dict) else value for name, value in tables.items()}
    )
    given = dict(keys)
    for place in HOMES:  # first, since they decide which keys there are
        if f"{place}.name" in given:
            _choose(changed, place, given.pop(f"{place}.name"))
    for key, value in given.items():
        table, dot, name = key.partition(".")
        if key in TOP:
            changed[key] = value
        elif not dot:
            raise unknown_key(changed, key, "")
        elif table not in TABLES:
            raise UsageError(f"unknown table '{table}' of '{key}'", do=nearest(table, TABLES) or EXAMPLE)
        else:
            changed.setdefault(table, {})[name] = value
    return with_environment(changed)


def with_environment(tables: Tables) -> Tables:
    """Return the tables with the file of `agent.environment` as the target in which the agent acts. Raises
    UsageError for another target beside it.
    """
    agent, home = tables.get("agent", {}), targets.ENVIRONMENT
    if (text := agent.get("environment", "")) == "":
        return tables
    target = tables.get("target", {})
    if target.get("name", home.name) != home.name:
        why, do = "an agent acts in one of them", "Leave out target.name, or agent.environment."
        raise UsageError(f"agent.environment and target.name = {target['name']}", why=why, do=do)
    if not isinstance(text, str) or (named := reference(text)) is None:
        raise bad_value("agent.environment", text, "FILE.py:CLASS")
    left = {key: value for key, value in agent.items() if key != "environment"}
    return {**tables, "agent": left, "target": {**target, "name": home.name, **named}}


def check_tables(tables: Tables, what: str) -> None:
    """Raise UsageError for a key in no table, and for an unknown table."""
    if not isinstance(tables, dict):
        raise UsageError(f"{what} can't be read", why="it is not a table of keys", do=EXAMPLE)
    sound = {key: value for key, value in tables.items() if isinstance(value, dict)}
    for key in tables:
        if key not in sound and key not in TOP:
            raise UsageError(f"{what} has '{key}' in no table", do=_offer(sound, key, "") or EXAMPLE)
        if key in sound and key not in TABLES:
            do = nearest(key, TABLES) or f"The tables are {', '.join(f'[{name}]' for name in TABLES)}."
            raise UsageError(f"{what} has a table [{key}]", do=do)


def check_script(tables: Tables) -> None:
    """Raise UsageError for a script with keys of a model."""
    if "script" not in tables:
        return
    if not tables["script"].get("command"):
        do = 'Set script.command, such as command = "python train.py".'
        raise UsageError("a [script] without a command", why="there is nothing to run", do=do)
    others = [f"[{table}]" for table in NOT_OF_A_SCRIPT if tables.get(table)]
    of_models = keys_of(DataSettings).keys() - set(DATA_OF_A_SCRIPT)
    others += [f"data.{key}" for key in tables.get("data", {}) if key in of_models]
    if "data.refresh" in others:
        why = "it adds candles to the data set of a retrain's models"
        otherwise = (
            "let the script fetch its data itself, or copy new files to the set that its data.folder names"
        )
        do = f"Leave it out: {otherwise}."
        raise UsageError("a script with data.refresh", why=why, do=do)
    if others:
        do = "Leave it out, or leave [script] out. A script's own settings go into its command."
        raise UsageError(f"a script with {others[0]}", why="that is for models of Mayfly's training", do=do)


def plain_tables(tables: Tables) -> dict[str, type[Any]]:
    """Return the classes of the tables, without homes, that this job may have."""
    return {**_PLAIN, "script": ScriptSettings} if "script" in tables else _PLAIN


def home_of(tables: Tables, table: str) -> type[Any]:
    """Return the settings that a [model] or [target] table chooses."""
    values = tables.get(table, {})
    own: type[Any] = _OWN[table]
    if (table, values.get("name")) == ("target", targets.ENVIRONMENT.name):
        return targets.ENVIRONMENT
    if "file" in values or values.get("name") == own.name:
        if values.get("name", own.name) != own.name:
            why, do = f"the file chooses the {table}", f"Leave {table}.name out, or {table}.file."
            raise UsageError(f"{table}.name and {table}.file", why=why, do=do)
        return own
    default = models.DEFAULT if table == "model" else targets.default_of(home_of(tables, "model").name)
    name = values.get("name") or default
    if not isinstance(name, str) or name not in HOMES[table]:
        raise bad_value(f"{table}.name", name, "one of " + ", ".join(HOMES[table]))
    return HOMES[table][name]


def _choose(tables: Tables, table: str, choice: Any) -> None:
    """Choose a home by its name, or by `file.py:Class`; drop the keys that only the previous one has.

    The default target may change with the model.
    """
    before = {place: home_of(tables, place) for place in HOMES}
    old = tables.get(table, {})
    named = (reference(choice) if isinstance(choice, str) else None) or {"name": choice}
    is_same = all(old.get(key) == value for key, value in named.items())
    others = {key: value for key, value in old.items() if key not in ("name", "file", "class")}
    tables[table] = {**others, **named}
    for place in HOMES:
        was, now = before[place], home_of(tables, place)
        if place in tables and (was is not now or (place == table and not is_same)):
            stays = {*keys_of(now), *(named if place == table else ())}
            drops = {key for key in tables[place] if was.takes_any_key or key in keys_of(was)} - stays
            tables[place] = {key: value for key, value in tables[place].items() if key not in drops}


def unknown_key(tables: Tables, key: str, table: str) -> UsageError:
    """Return the error for an unknown key of a table ('': of none), with the tables that have it, or similar
    names.
    """
    what = f"unknown job key '{table}.{key}'" if table else f"unknown job key '{key}'"
    homes = {place: home_of(tables, place) for place in HOMES}
    if key == "class" and table in homes:
        return UsageError(what, do=f"It goes with {table}.file.")
    own = [f"{place}.{key}" for place, home in homes.items() if home.takes_any_key and not table]
    for place, members in () if own else HOMES.items():
        owners = [name for name, home in members.items() if key in keys_of(home)]
        if owners and table in (place, "") and key not in keys_of(homes[place]):
            owned = f"{place}.{key} is a key of the {place} {' and '.join(owners)}"
            why = f"{owned}, and this job's {place} is {homes[place].name}"
            return UsageError(what, why=why, do=f"Leave it out, or set {place}.name = {owners[0]}.")
    do = _offer(tables, key, table)
    if own:
        return UsageError(what, do=f"{do} For a setting of your own class write {' or '.join(own)}.".strip())
    return UsageError(what, do=do or EXAMPLE)


def _offer(tables: Tables, key: str, table: str) -> str:
    """Return 'Did you mean train.epochs?': the tables that have this key, else the nearest keys; '' for none
    near.
    """
    if key in _CHOICES:
        return f"Did you mean {_CHOICES[key]}?"
    homes = {place: home_of(tables, place) for place in HOMES}
    there = {place: keys_of(cls) for place, cls in {**plain_tables(tables), **homes}.items()}
    same = [place for place, keys in {**there, "script": keys_of(ScriptSettings)}.items() if key in keys]
    if same:
        return f"Did you mean {' or '.join(f'{place}.{key}' for place in same)}?"
    here = {name: f"{table}.{name}" for name in there.get(table, ())}
    if not homes["target"].acts and table != "agent":
        del there["agent"]  # which this job has no use for
    anywhere = {name: f"{place}.{name}" for place, keys in reversed(there.items()) for name in keys}
    return nearest(key, here, shown=here) or nearest(key, anywhere, shown=anywhere)
