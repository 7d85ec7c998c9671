"""A model from outside the package: a GRU with two settings."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.base.settings import ModelSettings, setting


@dataclass(frozen=True, kw_only=True)
class GruSettings(ModelSettings):
    """Its settings: a key that another model has, too, and one of its own."""

    name = "gru"
    lookback: int = setting(20, "Bars of a window.", least=1)
    cells: int = setting(6, "Cells.", least=1)

    shape = ("lookback",)

    @property
    def bars_seen(self) -> int:
        return self.lookback

    def architecture(self, *, features: int, outputs: int) -> dict[str, int]:
        return {"features": features, "outputs": outputs, "cells": self.cells}
