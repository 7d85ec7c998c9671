"""Check of the folder that models are written to."""

from __future__ import annotations

from pathlib import Path

from trainer.errors import UsageError


def check_folder(out: Path) -> None:
    """Raise UsageError if the folder can't be created because it, or a parent, is a file."""
    for place in (out, *out.parents):
        if place.exists():
            if not place.is_dir():
                raise UsageError(f"--out {out} is no folder", why=f"{place} is a file", do="Name a folder, or one to be made.")
            return
