"""The table of models, one home per model. To add one, see docs/models.md.

A home's `__init__.py` holds its settings (standard library only), its `network.py` the torch module.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from trainer.base.settings import CHUNKS, ModelSettings
from trainer.models import lstm, mlp, own, tcn, transformer

MODELS: dict[str, type[ModelSettings]] = {
    home.name: home
    for home in (lstm.LstmSettings, tcn.TcnSettings, transformer.TransformerSettings, mlp.MlpSettings)
}
DEFAULT = "lstm"
OWN = own.OwnModel  # chosen by a file instead of a name


def chunk_models() -> list[str]:
    """Return the names of the models that read chunks."""
    return [name for name, home in MODELS.items() if home.reads == CHUNKS]


def network_of(name: str) -> Any:
    """Return the `network` module of a model's home: `build`, and `stacked` if it has a stacked form. Loads
    torch.
    """
    return import_module(f"{home_of(name).__module__}.network")


def home_of(name: str) -> type[ModelSettings]:
    """Return the settings class of a model whose name `is_known`."""
    return OWN if name == OWN.name else MODELS[name]


def is_known(name: str) -> bool:
    """Return whether there is a model of this name."""
    return name in MODELS or name == OWN.name


def reads_of(name: str, architecture: Mapping[str, Any]) -> str:
    """Return what the model of a card reads: `windows` or `chunks`."""
    return str(architecture.get("reads") or MODELS[name].reads)
