"""manifest.json: all that a run depends on, by version and hash, and the command that its node runs.

`launch` builds it from these classes and the node reads it into them; nothing else looks into it. Two runs of
one manifest are comparable.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from trainer.base.strict_json import Unsound
from trainer.base.symbols import path_flaw
from trainer.runs.record import WORK, Leaves, RunPiece
from trainer.runs.record_json import read_value

FORMAT = 6
# What a command writes to EVENTS: the events of Mayfly's own programs, or the contract's numbers
# (docs/scripts-and-machines.md) of one piece, which the agent starts.
Better = Literal["min", "max"]  # end of a metric
Tells = Literal["events", "numbers"]
MOST_MANIFEST_BYTES = 64 * 2**20  # 20,000 inputs take 8 MB
# folders of inputs: the command's DATA, and what Mayfly's own programs are given
DATA, GIVEN = ("data", "given")
# That the agent writes to GIVEN, besides the documents; the last has the pieces of earlier attempts.
JOB_FILE, MACHINE_FILE, FINISHED_FILE = "job.json", "machine.json", "finished.json"
ARRIVING_FILE = "arriving.json"  # likewise, for a command that names it: what is not there yet of DATA
_WRITTEN = (JOB_FILE, MACHINE_FILE, FINISHED_FILE, ARRIVING_FILE)
# Objects of a node that only its agent writes: no file of a command is sent in their place.
OF_THE_AGENT = {
    *("log", "metrics", "lease.json", "progress.json", "result.json", "outputs.json"),
    *("bootstrap.log", "host_keys"),
}


@dataclass(frozen=True, kw_only=True)
class Command:
    """A program that a node runs, and all that it may do. Nothing has a default: a new command states each.

    What its machine may read and write is decided by the role in the run's record, and by no manifest.
    """

    name: str  # of this kind of work, in record and receipt
    title: str  # in messages, such as "the script"
    # $NAME is a variable of the contract (docs/scripts-and-machines.md), or the agent's PYTHON, DEVICE,
    # GIVEN, EVENTS and, for several nodes, CLUSTER.
    words: tuple[str, ...]
    user: Literal["agent", "own"]  # own: a user of its own, and none of the agent's packages and variables
    network: Literal["internet", "internet and metadata"]  # metadata: the credentials of its machine's role
    variables: dict[str, str]  # of its environment; everyone who reads the bucket can read them
    secrets: dict[str, str]  # variable -> the SecureString with its value
    files: dict[str, str]  # of the bundle, copied to its working folder: path -> sha256
    requirements: str  # one of these files, whose packages are installed; empty: none
    devices: Literal["none", "found", "tested"]  # that it needs: none, those there are, or tested ones
    gpus: float  # of each piece: a number, or a share such as 0.25; 0: all
    seconds: float  # after which it is stopped; 0: the run's deadline
    restarts: int  # of a piece, after a signal killed it
    metrics: dict[str, Better]  # of numbers that it tells: the first that it has is its score; the better end
    tells: Tells
    # Models or candle files that its events announce by hash, or any files of OUT, which are kept by theirs.
    leaves: Leaves
    out_bytes: int  # of such files
    beside: tuple[str, ...]  # names of files in OUT, such as trace/*.gz, that are sent beside the result
    sha256: str  # of all that its duration depends on; empty: it is estimated otherwise

    def __post_init__(self) -> None:
        beside = {name.partition("/")[0] for name in self.beside}
        wrong = {
            "no name": not re.fullmatch(WORK, self.name),
            "no words": not self.words or not self.words[0],
            "the agent's user and no metadata": self.user == "agent" and self.network == "internet",
            "requirements that are none of its files": self.requirements not in ("", *self.files),
            "packages over the agent's own": bool(self.requirements) and self.user == "agent",
            "files to announce, and no events": self.leaves != "files" and self.tells == "numbers",
            "bytes of files that it may not leave": self.leaves != "files" and self.out_bytes > 0,
            "an object of the agent's beside the result": any(
                name in OF_THE_AGENT or path_flaw(name) or "*" in name for name in beside
            ),
        }
        for path in self.files:
            wrong[f"the file {path[:80]!r}"] = bool(path_flaw(path))
        for what, is_so in wrong.items():
            if is_so:
                raise Unsound(f"the command {self.name[:80]!r} has {what}")


@dataclass(frozen=True, kw_only=True)
class ManifestInput:
    """An object that the node fetches, by version and hash, and its place below the command's folder."""

    path: str  # data/... or given/...
    key: str
    version_id: str  # empty: it has one version
    sha256: str  # empty: a file of a data set that nobody has hashed yet
    bytes: int

    def __post_init__(self) -> None:
        folder, _, rest = self.path.partition("/")
        if folder not in (DATA, GIVEN) or not rest or path_flaw(rest):
            raise Unsound(f"the manifest has the file {self.path[:80]!r}")
        if not re.fullmatch("[0-9a-f]{64}|", self.sha256):
            raise Unsound(f"the manifest has the hash {self.sha256[:80]!r}")

    @property
    def stored_as(self) -> str:
        """Return the name of its file among a node's fetched inputs."""
        return self.sha256 or hashlib.sha256(self.key.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ManifestPiece(RunPiece):
    """A piece that the agent starts as a process of its own."""

    trial: int  # its number in a search, from 1 on; 0: it is none
    values: dict[str, str]  # of what its command runs over, by column; {}: it runs once, or they come later
    estimate: float  # of its duration, in any unit: the longest begins first

    def __post_init__(self) -> None:
        if self.is_one_of_several and ("/" in self.piece or path_flaw(self.piece)):  # it names folders
            raise Unsound(f"the manifest has the piece {self.piece[:80]!r}")

    @property
    def is_one_of_several(self) -> bool:
        """Return whether its command runs over values, so that it has folders of its own."""
        return bool(self.values or self.trial)


@dataclass(frozen=True, kw_only=True)
class ExpectedMachine:
    """An instance type as planned: its devices, and its dollars an hour."""

    gpu_count: int
    cores: int  # that train, on a type without GPUs; 0 with them
    gpu_model: str
    link: str
    bus_gb_per_s: float
    usd_per_hour: float | None  # on demand, in the stack's region; None: not known
    spot_usd_per_hour: dict[str, float]  # by zone
    lost_seconds: dict[str, float]  # of work, at most, with a lost machine, by market
    smoke_seconds: float


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that a run depends on."""

    format: int = FORMAT
    run_id: str
    created_at: datetime
    place: str  # by name: `aws.place.PLACES`
    job: dict[str, Any]
    code: dict[str, str]  # key, sha256
    lock_sha256: str
    own_files: dict[str, Any]
    image: dict[str, str]  # line, id
    seeds: tuple[int, ...]
    command: Command
    inputs: tuple[ManifestInput, ...]
    documents: dict[str, Any]  # JSON files of GIVEN, by name; they change the speed and no model
    # that the agent starts; (): its command is one process, which tells its own
    pieces: tuple[ManifestPiece, ...]
    machines: dict[str, ExpectedMachine]  # by instance type; {} on the caller's own machine
    ssh_key: str  # the run's public key, which may sign in; empty: none

    @property
    def arriving(self) -> tuple[ManifestInput, ...]:
        """Return the inputs that its command waits for itself, in the order in which it needs them."""
        if f"$GIVEN/{ARRIVING_FILE}" not in self.command.words:
            return ()
        return tuple(item for item in self.inputs if item.path.startswith(f"{DATA}/"))

    def __post_init__(self) -> None:
        if (self.command.tells == "numbers") != bool(self.pieces):
            raise Unsound("the manifest has pieces that its command does not run")
        if len({piece.piece for piece in self.pieces}) < len(self.pieces):
            raise Unsound("the manifest has two pieces of one name")
        places = [item.path for item in self.inputs]
        if len(set(places)) < len(places):
            raise Unsound("the manifest has two inputs of one place")
        for name in self.documents:
            if path_flaw(name) or "/" in name or name in _WRITTEN:
                raise Unsound(f"the manifest has the document {name[:80]!r}")


def read_manifest(body: bytes) -> Manifest:
    """Read a manifest. Raises Unsound."""
    return read_value(body, Manifest, name="the manifest", most_bytes=MOST_MANIFEST_BYTES)
