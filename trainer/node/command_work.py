"""A piece of a command before it runs, and what all of its pieces share: node, outputs, file of events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.job.search import Values, text_of
from trainer.node.events import MOST_BYTES, EventFile
from trainer.node.other_nodes import Fetches
from trainer.node.outputs import Outputs
from trainer.node.own_user import OwnUser
from trainer.node.progress import advance
from trainer.node.shared import Node
from trainer.runs.manifest import Command, ManifestPiece


@dataclass(frozen=True, kw_only=True)
class PieceToRun:
    """A process to start: its piece, if the agent tells it, and its folders and file."""

    piece: ManifestPiece | None
    folder: Path  # to run in
    copy_of: Path | None = None  # copied to `folder` when it begins; None if `folder` exists already
    prefix: str = ""  # of its files in OUT: its name and a slash, or nothing
    events: Path
    goes_on: bool = False  # from checkpoints of an earlier attempt

    @property
    def title(self) -> str:
        """Return its display name, '' without a piece."""
        return self.piece.piece if self.piece else ""

    @property
    def values(self) -> Mapping[str, str]:
        """Return the values that it runs over."""
        return self.piece.values if self.piece else {}

    def with_values(self, values: Values) -> PieceToRun:
        """Return it with values that were not known before."""
        if self.piece is None or not values:
            return self
        return replace(self, piece=replace(self.piece, values={key: text_of(value) for key, value in values}))

    @property
    def identity(self) -> dict[str, Any]:
        """Return its piece in events."""
        return {"model": self.piece.model, **self.piece.identity} if self.piece else {}


class CommandWork:
    """The parts that all pieces of a command share; `several` is whether there is more than one."""

    def __init__(
        self,
        node: Node,
        command: Command,
        outputs: Outputs,
        own_user: OwnUser | None,
        *,
        pieces: int,
        fetches: Fetches | None = None,
        hear: Callable[[Mapping[str, Any]], None] = lambda event: None,
    ) -> None:
        """`hear` gets every event, too."""
        self.fetches, self._hear = fetches, hear
        self.node, self.command, self.outputs, self.own_user = node, command, outputs, own_user
        self.several, self.log_share = pieces > 1, 1 / pieces
        self._told = EventFile(node.work / "events" / "events.jsonl", most_bytes=MOST_BYTES[command.tells])

    def tell(self, event: Mapping[str, Any]) -> None:
        """Add an event to the progress and to the file that the agent uploads."""
        self.node.status.progress = advance(self.node.status.progress, event)
        self._told.write(event)
        self._hear(event)

    def trial_of(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return how the trial of an event ended."""
        trials = reversed(self.node.status.progress.trials)
        return dict(next(one for one in trials if one["piece"] == event["piece"]))

    def note_devices(self) -> None:
        """Name in the result the devices that the command itself set aside."""
        status = self.node.status
        if (known := status.devices) and (lines := status.progress.out_of_service):
            status.devices = replace(known, out_of_service=lines)
