"""Compare the image's torch with the version that this code was tested with. Reads package metadata, imports
no torch.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from trainer.base.errors import ConfigError

# Minor version of the desk's torch (pyproject.toml, extra `train`; a test compares them): a model trained by
# another minor may differ in the last digits, and an older one may lack what the trainer calls.
TORCH = "2.13"
OWN_TORCH = "Install Mayfly with its extra `train` in an environment of its own: docs/other-machines.md."


def check_torch(installed: str | None = None, *, here: bool = False) -> str:
    """Return the version of the installed torch. Raises ConfigError if there is none or its minor version
    differs.

    `here`: on the caller's own machine, which has no image.
    """
    place = "this Python" if here else "the image"
    try:
        there = installed or version("torch")
    except PackageNotFoundError as error:
        do = "Set image_line to a PyTorch line, and `pulumi up`."
        raise ConfigError(f"{place} has no torch", do=OWN_TORCH if here else do) from error
    if there.split("+")[0].split(".")[:2] != TORCH.split("."):
        raise ConfigError(
            f"{place} has torch {there}",
            why=f"this code needs {TORCH}",
            do=OWN_TORCH if here else "Set image_line to such an image, and `pulumi up`.",
        )
    return there
