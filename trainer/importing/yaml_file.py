"""Read an untrusted YAML file: by PyYAML's safe loader, bounded, without aliases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.base.errors import UsageError
from trainer.base.extras import needs

MOST_BYTES = 256 * 1024
MOST_NODES, MOST_DEPTH = 20_000, 20


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds. Raises UsageError for a file that is none, is too large, or
    uses aliases.

    An alias stands for as much as it likes, so a file of a few lines could fill the memory: it has to be
    written out.
    """
    needs("yaml")
    import yaml  # late: of an extra

    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist", do="Name a SkyPilot or dstack task file.") from error
    except OSError as error:
        raise UsageError(
            f"cannot read {path}", why=str(error.strerror), do="Name a SkyPilot or dstack task file."
        ) from error
    if len(content) > MOST_BYTES:
        raise UsageError(f"{path} has more than {MOST_BYTES >> 10} KiB", do="Name a task file.")
    try:
        depth = 0
        for number, event in enumerate(yaml.parse(content.decode("utf-8-sig"), Loader=yaml.SafeLoader), 1):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if number > MOST_NODES or depth > MOST_DEPTH:
                why = f"it has more than {MOST_NODES:,} entries, or {MOST_DEPTH} levels"
                raise UsageError(f"{path} is too large", why=why, do="Name a task file.")
            if isinstance(event, yaml.ScalarEvent):
                event.value.encode()  # an escaped half of a character could not be written
            if isinstance(event, yaml.AliasEvent):
                line = event.start_mark.line + 1
                raise UsageError(
                    f"line {line} of {path} is an alias",
                    why="it is not followed",
                    do="Write out what it means.",
                )
        documents = list(yaml.safe_load_all(content.decode("utf-8-sig")))
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: not UTF-8, a date or a number that is none
        why = " ".join(str(error).split())[:200]
        raise UsageError(f"{path} is not YAML", why=why, do="Name a SkyPilot or dstack task file.") from error
    tasks = [document for document in documents if document is not None]
    if len(tasks) != 1:
        why = "it holds several documents, such as a pipeline" if tasks else "it is empty"
        raise UsageError(f"{path} is not a task", why=why, do="Give each task a file of its own.")
    if not isinstance(tasks[0], Mapping) or not all(isinstance(key, str) for key in tasks[0]):
        raise UsageError(
            f"{path} is not a task",
            why="it is not a mapping of keys",
            do="Name a SkyPilot or dstack task file.",
        )
    return dict(tasks[0])
