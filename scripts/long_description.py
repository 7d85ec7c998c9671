"""The long description of the package: README.md without the links that lead nowhere outside its repository.

The build backend runs it (`[tool.hatch.metadata.hooks.custom]` of pyproject.toml), for sdist and wheel.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"\[([^\[\]]+)\]\((?!https?://)[^()\s]+\)")  # a link to a file or a heading


class LongDescription(MetadataHookInterface):
    """Add the long description to the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": RELATIVE.sub(r"\1", text)}
