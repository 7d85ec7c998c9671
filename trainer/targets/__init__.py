"""The table of targets, one file per target. To add one, see docs/models.md."""

from __future__ import annotations

from trainer.targets import barrier, direction, environment, own, position, quantiles, return_, volatility
from trainer.targets.target import TargetSettings

TARGETS: dict[str, type[TargetSettings]] = {
    home.name: home
    for home in (
        direction.Direction,
        volatility.Volatility,
        return_.Return,
        quantiles.Quantiles,
        barrier.Barrier,
        position.Position,
    )
}
DEFAULT = "direction"
OWN = own.OwnTarget  # chosen by a file instead of a name
ENVIRONMENT = environment.EnvironmentTarget  # chosen by agent.environment
DEFAULT_OF = {"tcn": "volatility"}  # by model, if not DEFAULT


def default_of(model: str) -> str:
    """Return the name of a model's default target."""
    return DEFAULT_OF.get(model, DEFAULT)
