"""The extras of the package, and the extra that installs a missing library. Standard library only."""

from __future__ import annotations

import importlib.util

from trainer.base.errors import ConfigError

EXTRAS = {
    "train": (
        *("torch", "numpy", "pandas", "pyarrow", "safetensors"),
        *("pynvml", "sklearn", "exchange_calendars", "threadpoolctl"),
    ),
    "attach": ("paramiko", "cryptography"),
    "rehearsal": ("moto", "werkzeug"),
    "scripts": ("uv",),
    "fetch": ("ccxt", "yfinance"),
    "cluster": ("ray",),
    "completion": ("shtab",),
    "track": ("mlflow", "wandb"),
    "search": ("optuna",),
    "infra": ("pulumi", "pulumi_aws", "tzdata"),
}


def missing_library(error: BaseException) -> ConfigError | None:
    """Return the error for a missing library of an extra; None for any other exception."""
    name = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    extra = next((extra for extra, names in EXTRAS.items() if name in names), "")
    if not extra:
        return None
    return ConfigError(f"this needs {name}, which is not installed", do=f"pip install 'mayfly[{extra}]'")


def needs(name: str) -> None:
    """Raise ConfigError if a library is not installed, without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:  # a folder of this name, such as ./wandb, is no library
        error = missing_library(ModuleNotFoundError(name=name))
        assert error is not None, f"{name} is in no extra"
        raise error
