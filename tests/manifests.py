"""A small manifest and its command, for tests that change what they are about."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from trainer.job.script import METRICS
from trainer.runs.manifest import Command, ExpectedMachine, Manifest, ManifestPiece

SCRIPT: dict[str, Any] = {
    "name": "script",
    "title": "the script",
    "words": ("sh", "run.sh"),
    "user": "own",
    "network": "internet",
    "variables": {},
    "secrets": {},
    "files": {"run.sh": ""},
    "requirements": "",
    "devices": "tested",
    "gpus": 0.0,
    "seconds": 0.0,
    "restarts": 1,
    "metrics": dict(METRICS),
    "tells": "numbers",
    "leaves": "files",
    "out_bytes": 20 * 2**30,
    "beside": (),
    "sha256": "",
}
MACHINE = ExpectedMachine(
    gpu_count=1,
    cores=0,
    gpu_model="NVIDIA L4",
    link="none",
    bus_gb_per_s=0,
    usd_per_hour=None,
    lost_seconds={"on_demand": 120.0, "spot": 120.0},
    spot_usd_per_hour={"us-east-1a": 0.3},
    smoke_seconds=180,
)
PIECE = ManifestPiece(model="script_s", piece="s", kind="script", series=(), values={}, trial=0, estimate=1.0)


def command(**changed: Any) -> Command:
    """Return a script's command."""
    return Command(**{**SCRIPT, **changed})


def manifest(**changed: Any) -> Manifest:
    """Return the manifest of a script's run."""
    made: dict[str, Any] = {
        "run_id": "r1",
        "created_at": datetime(2026, 11, 20, tzinfo=timezone.utc),
        "place": "rehearsal",
        "job": {"name": "s"},
        "code": {"key": "code/x.whl", "sha256": "x"},
        "lock_sha256": "y",
        "own_files": {},
        "image": {"line": "", "id": ""},
        "seeds": (),
        "command": command(),
        "inputs": (),
        "documents": {},
        "pieces": (PIECE,),
        "machines": {},
        "ssh_key": "",
    }
    return Manifest(**{**made, **changed})
