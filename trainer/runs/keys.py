"""Keys of the objects that one node writes. Each begins with the node's own id, right after a fixed prefix.

The id is `<role id>:<instance id>`, as `${aws:userid}` yields it for an instance profile: the role's policy
allows a node these keys and no other, and readers ask for the ids that the run's record names. On a machine
that is not EC2's it is the caller's own `aws:userid` (`own_keys`). Standard library only: the sweeper's zip
carries it.
"""

from __future__ import annotations

from dataclasses import dataclass

LEASES, ATTEMPTS, EXPERIMENTS = "live/", "attempts/", "models/experiments/"
CHECKPOINTS = "checkpoints/"
TOKENS = "tokens/"  # of attempts of several nodes: callers write them, and each node reads its own alone
RESUMED = "resumed/"  # copies of checkpoints for a later attempt, which callers make and nodes only read
LOCAL_USER = "LOCALUSER"  # instead of an `aws:userid`, where a folder is all there is
OWN_PREFIXES = (LEASES, ATTEMPTS, EXPERIMENTS, CHECKPOINTS)


@dataclass(frozen=True, kw_only=True)
class NodeKeys:
    """The keys of one node of one attempt."""

    role_id: str  # unique id of the instance role; without an instance the caller's whole `aws:userid`
    instance_id: str  # empty: no instance
    run_id: str
    attempt: int
    node: int = 0

    @property
    def lease(self) -> str:
        """Return the key of its lease; without an instance it lies outside live/, which the sweeper reads."""
        return f"{LEASES}{self._own}{self.node}.json" if self.instance_id else f"{self.folder}lease.json"

    @property
    def folder(self) -> str:
        """Return the prefix of its log, metrics, trace, host keys, progress and result."""
        return f"{ATTEMPTS}{self._own}{self.node}/"

    @property
    def progress(self) -> str:
        return f"{self.folder}progress.json"

    @property
    def result(self) -> str:
        return f"{self.folder}result.json"

    @property
    def log(self) -> str:
        """Return the prefix of its log's parts."""
        return f"{self.folder}log/"

    @property
    def metrics(self) -> str:
        """Return the prefix of its training's events, in parts."""
        return f"{self.folder}metrics/"

    @property
    def bootstrap_log(self) -> str:
        return f"{self.folder}bootstrap.log"

    @property
    def host_keys(self) -> str:
        """Return the key of its SSH host keys, with attach = ssh."""
        return f"{self.folder}host_keys"

    @property
    def files(self) -> str:
        """Return the prefix of the candle files that a prepare run adds to its data set."""
        return f"{self.folder}files/"

    @property
    def index(self) -> str:
        """Return the prefix of the index entries that a prepare run made, each named by its file's sha256."""
        return f"{self.folder}index/"

    @property
    def outputs(self) -> str:
        """Return the prefix of the states of a script's output files, each named by its sha256."""
        return f"{self.models}out/"

    @property
    def output_index(self) -> str:
        """Return the key of the list of a script's output files."""
        return f"{self.folder}outputs.json"

    @property
    def models(self) -> str:
        """Return the prefix of its models."""
        return f"{EXPERIMENTS}{self._own}"

    @property
    def checkpoints(self) -> str:
        """Return the prefix of the snapshots of its command's CHECKPOINTS."""
        return f"{CHECKPOINTS}{self._own}{self.node}/"

    def snapshot(self, number: int) -> str:
        """Return the key of a snapshot's manifest."""
        return f"{self.checkpoints}{number:06d}.json"

    def snapshot_data(self, slot: int) -> str:
        """Return the key of a slot, whose versions are objects of snapshots."""
        return f"{self.checkpoints}data/{slot:06d}"

    @property
    def token(self) -> str:
        """Return the key of the token that its attempt's nodes share; each has a copy, which no other node
        can read.
        """
        return f"{TOKENS}{self._own}".rstrip("/")

    @property
    def _own(self) -> str:
        own_id = f"{self.role_id}:{self.instance_id}" if self.instance_id else self.role_id
        return f"{own_id}/{self.run_id}/{self.attempt}/"


def own_keys(user_id: str, run_id: str) -> NodeKeys:
    """Return the keys of a run on a machine that is not EC2's, written by a caller with this `aws:userid`."""
    return NodeKeys(role_id=user_id, instance_id="", run_id=run_id, attempt=1)


def of_experiment(key: str) -> tuple[str, int, str] | None:
    """Return the run, the attempt and the rest of the key of what a node keeps for good: a model or a file
    that a command left. None for any other key.
    """
    own, run_id, attempt, rest = (*key.removeprefix(EXPERIMENTS).split("/", 3), "", "", "", "")[:4]
    if not (key.startswith(EXPERIMENTS) and own and run_id and attempt.isdecimal() and rest):
        return None
    return run_id, int(attempt), rest
