from __future__ import annotations

from datetime import datetime, timezone

from tests.jobs import job_of
from trainer.launch.bundle import Bundle
from trainer.launch.manifest import PROGRAM, build_manifest
from trainer.machines.instances import instance_type


def test_the_manifest_pins_code_inputs_image_and_devices_and_no_path_of_the_desk():
    job = job_of(data="/home/ada/candles", symbols=("BTC-USD",), timeframe="1m", seed=7)
    manifest = build_manifest(
        run_id="run-1",
        created_at=datetime(2026, 11, 20, tzinfo=timezone.utc),
        place="rehearsal",
        job=job,
        bundle=Bundle(content=b"", sha256="abc", lock_sha256="def"),
        image_line="line",
        image_id="ami-1",
        inputs=[
            {"key": "raw/b", "version_id": "v2", "sha256": "2", "bytes": 2, "more": 1},
            {"key": "raw/a", "version_id": "v1", "sha256": "1", "bytes": 1},
        ],
        plan={"key": "runs/run-1/plan.json", "sha256": "p", "bytes": 3},
        encoder={"key": "raw/.files/e", "version_id": "v3", "sha256": "e", "bytes": 4},
        machines=[instance_type("p3.8xlarge")],
        ladder=[],
        tuned={"cpu": {"a shape": {"pack": 1}}},
        gpu_profiles={"mine": {"memory_gib": 20}},
        ssh_key="",
    )
    assert manifest == {
        "format": 4,
        "run_id": "run-1",
        "created_at": "2026-11-20T00:00:00Z",
        "place": "rehearsal",
        "job": {**job.to_dict(), "data": {**job.to_dict()["data"], "path": ""}},
        "code": {"key": "code/abc.whl", "sha256": "abc"},
        "lock_sha256": "def",
        "own_files": {},
        "image": {"line": "line", "id": "ami-1"},
        "seeds": [7],
        "inputs": [
            {"key": "raw/a", "version_id": "v1", "sha256": "1", "bytes": 1},
            {"key": "raw/b", "version_id": "v2", "sha256": "2", "bytes": 2},
        ],
        "plan": {"key": "runs/run-1/plan.json", "sha256": "p", "bytes": 3},
        "encoder": {"key": "raw/.files/e", "version_id": "v3", "sha256": "e", "bytes": 4},
        "instance_types": {
            "p3.8xlarge": {
                "gpu_count": 4,
                "gpu_model": "NVIDIA V100 16GB",
                "gpu_memory_gib": 16.0,
                "link": "NVLink",
                "bus_gb_per_s": 115.0,
                "usd_per_hour": 12.24,
                "spot_usd_per_hour": {},
                "smoke_seconds": 240,
            }
        },
        "program": [*PROGRAM, "--plan", "$PLAN"],
        "tuned": {"cpu": {"a shape": {"pack": 1}}},
        "gpu_profiles": {"mine": {"memory_gib": 20}},
        "ssh_key": "",
    }
