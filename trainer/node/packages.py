"""Check of the image's torch against the version that this code was tested with. Reads package metadata, imports no torch."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from trainer.errors import ConfigError

# The desk's torch (pyproject.toml, extra `train`; a test holds them together), up to its minor: a model trained by another
# minor may differ in the last digits, and an older one may lack what the trainer calls.
TORCH = "2.13"


def check_torch(installed: str | None = None) -> str:
    """Return the version of torch beside this code. Raises ConfigError when there is none or its minor is another."""
    try:
        there = installed or version("torch")
    except PackageNotFoundError as error:
        raise ConfigError("the image has no torch", do="Set image_line to a PyTorch line, and `pulumi up`.") from error
    if there.split("+")[0].split(".")[:2] != TORCH.split("."):
        raise ConfigError(
            f"the image has torch {there}",
            why=f"this code needs {TORCH}",
            do="Set image_line to such an image, and `pulumi up`.",
        )
    return there
