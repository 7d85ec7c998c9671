"""The settings that determine a model: what a training that goes on elsewhere must share with its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.job.variables import of_the_model

# Tables that determine the model, and their keys that change only speed or place: a resumed run may change
# these.
_OF_THE_MODEL = ("data", "model", "target", "agent", "train", "expert", "search")
NOT_THE_MODEL = {
    *("data.path", "data.set", "data.symbols", "data.exclude", "data.refresh", "data.secrets", "data.stale"),
    *("train.retries", "train.checkpoint_seconds", "train.distributed"),
    *("expert.strategy", "expert.pack", "expert.micro_batch", "expert.activation_checkpointing"),
    *("search.within", "search.dollars"),
    *("expert.tune", "expert.trace_steps", "expert.compile", "expert.threads"),
}
# Of a user's own file and of an encoder: both are compared by hash.
_PLACES = {f"{table}.{key}" for table in ("model", "target") for key in ("file", "shown", "measured")} | {
    "model.encoder",
    "train.init",
}


def epochs_are_a_limit(tables: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a training of more epochs begins as one of fewer: not if the rate of each step depends
    on their number, nor if a further stage follows.
    """
    train = tables["train"]
    has_stages = train.get("refit", False) or train.get("ensemble", False)
    return train.get("schedule") == "constant" and not has_stages


def model_settings(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of a job, as `Job.to_dict` has them, that determine its models, by `table.key`; not
    the number of epochs, where that is only a limit.
    """
    parts = ((table, tables.get(table, {})) for table in _OF_THE_MODEL)
    keys = {f"{table}.{key}": value for table, part in parts for key, value in part.items()}
    if variables := of_the_model(tables.get("machine", {}).get("env", ())):
        keys["machine.env"] = variables
    left_out = NOT_THE_MODEL | _PLACES | ({"train.epochs"} if epochs_are_a_limit(tables) else set())
    return {key: value for key, value in keys.items() if key not in left_out}
