"""The agent of a node: checks the machine, moves bytes, starts the training process, and reports to S3.

In a prepare run it refreshes and checks a data set instead (refresh.py).

bootstrap.sh starts it as `python -m trainer.node.agent` with the variables of `environment.AgentEnvironment`;
on the caller's own machine `mayfly agent` starts it. Exits with the code in result.json. Never imports torch.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Any

from trainer.aws.access import Access, aws_error
from trainer.base import environment
from trainer.base.errors import Stopped, TrainerError, TrainingFailed
from trainer.node import report
from trainer.node.cache import CacheUnusable, open_cache
from trainer.node.devices import find_devices, own_devices, smoke_test
from trainer.node.heartbeat import HeartbeatThread
from trainer.node.identity import own_identity, read_identity
from trainer.node.model_uploads import ModelUploads
from trainer.node.packages import check_torch
from trainer.node.progress import advance
from trainer.node.refresh import prepare_data
from trainer.node.sampling import Sampling
from trainer.node.script import run_script
from trainer.node.shared import Node
from trainer.node.ssh import open_ssh
from trainer.node.stage import Origins, fetch_inputs, read_patiently
from trainer.node.trainer_process import TrainerFiles, TrainerProcess
from trainer.node.uplink import AWS_ERRORS, Uplink
from trainer.runs import store
from trainer.runs.record import utc_now

log = logging.getLogger("trainer.node")
POLL_SECONDS = 0.2
DEADLINE_SECONDS = 10.0  # between two looks at the clock: a laptop may sleep, and timers sleep with it
OWN_SMOKE_SECONDS = 300.0  # for all devices of the caller's own machine, whose disk may be slow


def main() -> int:
    """Do the node's work and return its exit code."""
    settings = environment.agent_environment()
    log_file = settings.work / "node.log"
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(message)s",
        handlers=[logging.StreamHandler(), logging.FileHandler(log_file)],
    )
    logging.getLogger("botocore.credentials").setLevel(logging.WARNING)
    status = report.Status(
        identity=own_identity(settings.here) if settings.here else read_identity(settings.metadata_endpoint)
    )
    status.enter("boot", settings.booted_at)
    status.boot = report.boot(settings.booted_at, settings.boot_stages, utc_now(), baked=settings.baked)
    access = Access(region=settings.region, endpoint_url=settings.endpoint_url, folder=settings.folder)
    node = Node(
        work=settings.work,
        rehearsal=settings.rehearsal,
        here=settings.here is not None,
        uplink=Uplink(access, settings.bucket),
        status=status,
        origins=Origins(kept=True) if settings.here else open_origins(settings.cache, settings.cache_failed),
    )

    def on_signal(number: int, frame: FrameType | None) -> None:
        node.stop(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    if node.here:
        threading.Thread(target=end_at_deadline, args=(node,), name="deadline", daemon=True).start()
    with Sampling(node), HeartbeatThread(node, log_file):
        return run(node)


def end_at_deadline(
    node: Node, *, now: Callable[[], datetime] = utc_now, pause: Callable[[float], None] = time.sleep
) -> None:
    """Wait for the deadline and stop the work, on a machine that, unlike an EC2 instance, does not
    end then.
    """
    while (left := (node.status.identity.deadline - now()).total_seconds()) > 0:
        pause(min(left, DEADLINE_SECONDS))
    node.stop("deadline")


def open_origins(mount: Path | None, failed: str) -> Origins:
    """Return the sources of inputs: the cache, if bootstrap.sh mounted one, and S3."""
    if failed:
        log.warning("inputs come only from S3: %s", failed)
    if mount is None:
        return Origins(cache_failed=failed)
    try:
        return Origins(cache=open_cache(mount))
    except CacheUnusable as error:
        log.warning("inputs come only from S3: the cache is unusable: %s", error)
        return Origins(cache_failed=str(error))


def run(node: Node) -> int:
    """Carry out the manifest, always write result.json, and return its exit code."""
    error: TrainerError | None = None
    trainer_exit: int | None = None
    try:
        manifest = read_manifest(node)
        if manifest.get("work") == "prepare":
            trainer_exit = prepare_data(node, manifest)
        elif manifest.get("work") == "script":
            check_machine(node, manifest)
            trainer_exit = run_script(node, manifest)
        else:
            prepare(node, manifest)
            trainer_exit = train(node, manifest)
    except TrainerError as raised:
        error = raised
        log.error("%s", raised)
    except BaseException as raised:  # a bug of ours: report it before the machine ends
        error = TrainingFailed(
            "the node's agent failed", why=f"{type(raised).__name__}: {raised}", do="Read `mayfly logs`."
        )
        log.exception("the agent failed")
        raise
    finally:
        exit_code = finish(node, error, trainer_exit)
    return exit_code


def read_manifest(node: Node) -> dict[str, Any]:
    """Return the manifest of the node's run. Raises a TrainerError if S3 does not return it."""
    key = store.manifest_key(node.status.identity.run_id)
    try:
        return read_patiently(lambda: node.uplink.read_json(key), key, stopped=node.is_stopping)
    except AWS_ERRORS as raised:
        raise aws_error(raised, "the manifest can't be read") from raised


def check_machine(node: Node, manifest: dict[str, Any]) -> None:
    """Check the machine and enter the staging phase. Nothing is downloaded to a machine that can't train."""
    if node.here:
        check_own_machine(node, manifest)
        return
    open_ssh(node, manifest)
    identity, torch = node.status.identity, check_torch()
    machine = manifest["instance_types"][identity.instance_type]
    node.status.devices = devices = find_devices(expected=machine["gpu_count"], rehearsal=node.rehearsal)
    log.info("torch %s, %d devices: %s", torch, devices.found, devices.note)
    node.status.message = "smoke test"
    imported = smoke_test(devices, folder=node.work, seconds=machine["smoke_seconds"])
    node.status.boot = {**node.status.boot, "import": imported}

    node.enter("stage")
    node.status.message = f"{len(manifest['inputs'])} inputs"


def check_own_machine(node: Node, manifest: dict[str, Any]) -> None:
    """Find the devices of the caller's own machine.

    Training also checks torch and tests each device; a script needs neither.
    """
    node.status.devices = devices = own_devices()
    log.info("%d devices: %s", devices.found, devices.note)
    if manifest.get("work") != "script":
        check_torch(here=True)
        node.status.message = "smoke test"
        smoke_test(devices, folder=node.work, seconds=OWN_SMOKE_SECONDS)
    node.enter("stage")
    node.status.message = f"{len(manifest['inputs'])} inputs"


def prepare(node: Node, manifest: dict[str, Any]) -> None:
    """Check the machine, then fetch the inputs."""
    check_machine(node, manifest)
    plan = [manifest["plan"]] if manifest.get("plan") else []
    encoder = [manifest["encoder"]] if manifest.get("encoder") else []
    for inputs, folder, origins in (
        (plan, node.work / "plan", Origins(kept=node.here)),
        (encoder, node.work / "encoder", Origins(kept=node.here)),
        (manifest["inputs"], node.work / "data", node.origins),
    ):
        fetch_inputs(
            node.uplink.s3,
            bucket=node.uplink.bucket,
            inputs=inputs,
            folder=folder,
            stopped=node.is_stopping,
            origins=origins,
        )
    node.status.inputs = node.origins.to_dict()
    log.info("inputs: %s", node.origins.summary)
    if node.is_stopping():
        raise Stopped("stopped before training")


def train(node: Node, manifest: dict[str, Any]) -> int:
    """Run the trainer to its end, uploading each model as soon as it is done; return the trainer's
    exit code.
    """
    assert node.status.devices is not None
    job_file = node.work / "job.json"
    job_file.write_text(json.dumps(with_encoder(node, manifest)))
    profiles = lay_out_profiles(node.work / "profiles", manifest)
    node.enter("train")
    node.status.message = ""
    models = ModelUploads(node)
    devices = node.status.devices
    machine = lay_out_machine(node.work / "machine.json", node, manifest)
    files = TrainerFiles(job=job_file, plan=planned_file(node, manifest), machine=machine, profiles=profiles)
    program = manifest["program"]
    with TrainerProcess(
        program, work=node.work, files=files, workers=devices.found, device=devices.kind
    ) as trainer:
        while trainer.poll() is None:
            if node.is_stopping():
                trainer.stop()
            follow(node, trainer, models)
            time.sleep(POLL_SECONDS)
        exit_code = trainer.wait()
    follow(node, trainer, models)
    log.info("the trainer ended with exit code %d", exit_code)
    node.enter("upload")
    models.finish()
    send_traces(node)
    send_beside_the_models(node, "training_results.json")
    if files.plan is None:
        send_beside_the_models(node, "plan.json")
    return exit_code


def with_encoder(node: Node, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the job with the path of its encoder's file on this node."""
    job = dict(manifest["job"])
    if manifest.get("encoder"):
        place = node.work / "encoder" / PurePosixPath(manifest["encoder"]["key"]).name
        job["model"] = {**job["model"], "encoder": str(place)}
    return job


def planned_file(node: Node, manifest: dict[str, Any]) -> Path | None:
    """Return the path of the launch's data plan; None if the launch has none, so that the trainer
    makes it.
    """
    return node.work / "plan" / PurePosixPath(manifest["plan"]["key"]).name if manifest.get("plan") else None


def send_beside_the_models(node: Node, name: str) -> None:
    """Upload a file from the models' folder, such as results or plan; do nothing if it is missing."""
    path = node.work / "models" / name
    if path.exists():
        node.uplink.try_send(f"{node.status.identity.keys.folder}{name}", path.read_bytes())


def lay_out_machine(path: Path, node: Node, manifest: dict[str, Any]) -> Path:
    """Write the machine's expected hardware and billed time for `trainer.train --machine`; return the file.

    The caller's own machine has no expected hardware and no price.
    """
    identity = node.status.identity
    machine = {} if node.here else manifest["instance_types"][identity.instance_type]
    expected = {key: machine.get(key) for key in ("gpu_count", "gpu_model", "link", "bus_gb_per_s")}
    price = machine.get("spot_usd_per_hour", {}).get(identity.spot_zone, machine.get("usd_per_hour"))
    paid_seconds = (utc_now() - node.status.phases["boot"]).total_seconds()
    known = {key: value for key, value in {**expected, "usd_per_hour": price}.items() if value is not None}
    path.write_text(
        json.dumps({"instance_type": identity.instance_type, **known, "paid_seconds": max(0.0, paid_seconds)})
    )
    return path


def lay_out_profiles(folder: Path, manifest: dict[str, Any]) -> Path:
    """Write the manifest's GPU profiles and measurements as files, as on a desk; return the path of the
    profiles.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "measurements.json").write_text(json.dumps(manifest.get("tuned") or {}))
    profiles = folder / "gpu_profiles.json"
    profiles.write_text(json.dumps(manifest.get("gpu_profiles") or {}))
    return profiles


def send_traces(node: Node) -> None:
    """Send the traces of the job's `trace_steps`, after the models, without retries."""
    prefix = node.status.identity.keys.folder
    for path in sorted((node.work / "models" / "trace").glob("worker-*.json.gz")):
        node.uplink.try_send(f"{prefix}trace/{path.name}", path.read_bytes())


def follow(node: Node, trainer: TrainerProcess, models: ModelUploads) -> None:
    """Process the trainer's new events, and send finished models."""
    for event in trainer.new_events():
        node.status.progress = advance(node.status.progress, event)
        if event["event"] == "model_done":
            models.add(event)
    models.send()


def finish(node: Node, error: TrainerError | None, trainer_exit: int | None) -> int:
    """Write result.json and return its exit code."""
    node.enter("end")
    status = node.status
    ended = report.ending(
        status=status, stop_reason=node.stop_reason, error=error, trainer_exit=trainer_exit, now=utc_now()
    )
    unfinished = "stopped before it was done" if node.stop_reason else "the run ended before it was done"
    value = report.result(
        status,
        ended=ended,
        unfinished=unfinished,
        python_packages="the desk's .venv" if node.rehearsal or node.here else "node lock",
    )
    node.uplink.send_json(status.identity.keys.result, value, patience_seconds=node.patience_seconds)
    log.info("ended %s, exit code %d", value["state"], value["exit_code"])
    return int(value["exit_code"])


if __name__ == "__main__":
    sys.exit(main())
