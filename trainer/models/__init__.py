"""The table of models: one home each. To add one, see docs/models-and-targets.md.

A home's `__init__.py` holds its settings (standard library only), its `network.py` the torch module.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from trainer.models import lstm, tcn
from trainer.settings import CHUNKS, ModelSettings

MODELS: dict[str, type[ModelSettings]] = {home.name: home for home in (lstm.LstmSettings, tcn.TcnSettings)}
DEFAULT = "lstm"


def chunk_models() -> list[str]:
    """Return the models that read chunks."""
    return [name for name, home in MODELS.items() if home.reads == CHUNKS]


def network_of(name: str) -> Any:
    """Return the `network` module of a model's home: `build`, and `stacked` where the model has a stacked form. Loads torch."""
    return import_module(f"{MODELS[name].__module__}.network")
