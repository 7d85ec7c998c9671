"""Names of models: `<family>-<target>_<symbol>_<timeframe>`, followed by `_f<fold>_s<seed>` if a symbol has
several.

The same name is used for the file, as the last part of the key, and in events. Standard library only: the
control plane reads names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from trainer.base.symbols import MOST_NAME_BYTES

_NAME = re.compile(
    r"(?P<family>[^_-]+)(?:-(?P<target>[^_]+))?_(?P<symbol>.+?)(?:_(?P<timeframe>[^_]+?))?"
    r"(?:_f(?P<fold>\d+)_s(?P<seed>\d+))?"
)
MODEL_SUFFIX = ".safetensors"
TRIAL = "trial"  # the kind of pieces that end with a score, and leave no model
ENDS = ("done", "pruned", "failed", "left_out")  # of trials; the last did not begin


def is_model_file(name: str) -> bool:
    """Return whether a text is a plain model file name: one part of a path, not hidden, not like an
    option.
    """
    is_one_part = name.isprintable() and not set(name) & set("/\\") and name[:1] not in (".", "-", "~")
    return (
        is_one_part and name.endswith(MODEL_SUFFIX) and len(name.encode(errors="replace")) <= MOST_NAME_BYTES
    )


@dataclass(frozen=True, kw_only=True)
class ModelName:
    """The parts of a name; those that a foreign name lacks are empty. `fold` counts from 1, oldest first;
    `fold` and `seed` are None for one model per symbol.
    """

    family: str
    symbol: str
    timeframe: str
    target: str = ""
    fold: int | None = None
    seed: int | None = None

    @property
    def draws(self) -> str:
        """Return the part of the name that, with the seed, seeds random numbers: without target, fold and
        seed.
        """
        return f"{self.family}_{self.symbol}_{self.timeframe}"

    def __str__(self) -> str:
        kind = f"{self.family}-{self.target}" if self.target else self.family
        numbers = "" if self.fold is None else f"_f{self.fold}_s{self.seed}"
        return f"{kind}_{self.symbol}_{self.timeframe}{numbers}"


def read_name(text: str) -> ModelName:
    """Return the parts of a name. Missing ones are empty, so that foreign keys can be listed, too."""
    match = _NAME.fullmatch(text)
    if match is None:
        return ModelName(family="", symbol=text, timeframe="")
    words: dict[str, Any] = {key: match[key] or "" for key in ("family", "target", "symbol", "timeframe")}
    words |= {key: int(match[key]) for key in ("fold", "seed") if match[key]}
    return ModelName(**words)


def label(symbol: str, *, fold: int, seed: int, models_per_symbol: int) -> str:
    """Return a model's label: its symbol, with fold and seed if there are several."""
    return symbol if models_per_symbol == 1 else f"{symbol} f{fold} s{seed}"
