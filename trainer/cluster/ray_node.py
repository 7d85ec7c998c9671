"""Ray's processes of one node: how they are started, and their environment. Nothing here imports Ray.

`ray start --block` stays the parent of gcs_server and raylet, which the kernel ends with it (Ray 2.60).
No dashboard, no client server, no log monitor; every connection needs the token of RAY_AUTH_TOKEN_PATH.
"""

from __future__ import annotations

import ipaddress
import subprocess
import sys
import zlib
from pathlib import Path

from trainer.base.cluster import Cluster
from trainer.base.errors import TrainingFailed
from trainer.base.files import read_plain
from trainer.base.process_state import die_with_the_parent

PORT = 6380  # of node 0's gcs_server
# The other ports of a node, on which Ray's nodes of one attempt reach each other.
PORTS = {
    "--object-manager-port": 6381,
    "--node-manager-port": 6382,
    "--runtime-env-agent-port": 6383,
    "--dashboard-agent-grpc-port": 6384,
    "--dashboard-agent-listen-port": 6385,
    "--metrics-export-port": 6386,
    "--min-worker-port": 10_002,
    "--max-worker-port": 10_999,
}
LOOPBACK_PORTS = range(20_000, 32_000)  # below those that Linux gives to clients
STORE_BYTES = 80_000_000  # Ray's least is 78,643,200; names and numbers need none of it
NAMESPACE = "mayfly"
# Ray sees a lost node, or a lost head, in half a minute: three checks of 5 s that fail, 5 s apart.
HEALTH = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "5000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "25",
}
QUIET = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_enable_metrics_collection": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
MOST_LOG_BYTES = 1 << 20


def head_port(cluster: Cluster) -> int:
    """Return the port of the head's gcs_server. On loopback, where others may run a cluster, it follows from
    the head's address.
    """
    if not ipaddress.IPv4Address(cluster.head).is_loopback:
        return PORT
    return LOOPBACK_PORTS[zlib.crc32(cluster.head.encode()) % len(LOOPBACK_PORTS)]


def start_words(
    cluster: Cluster, *, folder: Path, cpus: int = 0, gpus: int = 0, python: str = sys.executable
) -> list[str]:
    """Return the words that start Ray on this node, in a folder with a short path: Unix sockets lie below it.

    The queue needs no processors. On loopback all ports but the head's are free ones.
    """
    loopback = ipaddress.IPv4Address(cluster.head).is_loopback
    words = [python, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    words += ["--node-ip-address", cluster.address, "--temp-dir", str(folder), "--log-style", "record"]
    words += ["--include-log-monitor=false", "--object-store-memory", str(STORE_BYTES)]
    words += ["--num-cpus", str(cpus), "--num-gpus", str(gpus)]
    for flag, port in PORTS.items():
        words += [flag, str(0 if loopback else port)]
    if cluster.is_head:
        return [*words, "--head", "--include-dashboard=false", "--port", str(head_port(cluster))]
    return [*words, "--address", f"{cluster.head}:{head_port(cluster)}"]


class RayNode:
    """Ray's processes on this node."""

    def __init__(self, words: list[str], *, log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=die_with_the_parent
            )

    def check(self) -> None:
        """Raise TrainingFailed if Ray has ended here."""
        if (code := self._process.poll()) is not None:
            lines = read_plain(self._log, most_bytes=MOST_LOG_BYTES).decode(errors="replace").split("\n")
            said = [line.strip() for line in lines if line.strip()] or ["it said nothing"]
            what = f"Ray ended on this node with exit code {code}"
            raise TrainingFailed(what, why=said[-1][:400], do="Read `mayfly logs`.")

    @property
    def has_started(self) -> bool:
        """Return whether Ray says that it runs here."""
        return b"Ray runtime started" in read_plain(self._log, most_bytes=MOST_LOG_BYTES)

    def close(self) -> None:
        """End Ray's processes here: the kernel ends gcs_server and raylet with their parent; workers follow
        their raylet.
        """
        self._process.kill()
        self._process.wait()
