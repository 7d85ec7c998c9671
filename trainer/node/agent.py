"""The agent of a node: checks the machine, runs the manifest's command, and reports to S3.

Every command goes one way: inputs, command, events, outputs (command.py), report. bootstrap.sh starts the
agent as `python -m trainer.node.agent` with the variables of `environment.AgentEnvironment`; on the caller's
own machine `mayfly agent` starts it. Exits with the code in result.json. Never imports torch.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType

from trainer.aws.access import Access, aws_error
from trainer.aws.place import ACCOUNT, HERE, REHEARSAL
from trainer.base import environment
from trainer.base.errors import FULL, ConnectionFailed, TrainerError, TrainingFailed
from trainer.base.instants import utc_now
from trainer.base.silence import FIRST_SECONDS
from trainer.base.strict_json import Unsound
from trainer.base.text import counted
from trainer.job.machine import MachineSettings
from trainer.node import report
from trainer.node.cache import CacheUnusable, open_cache
from trainer.node.command import run_command
from trainer.node.devices import check_torch, find_devices, import_torch, own_devices, smoke_test
from trainer.node.heartbeat import HeartbeatThread
from trainer.node.identity import own_identity, read_identity
from trainer.node.node_log import NodeLog
from trainer.node.origins import Origins
from trainer.node.sampling import Sampling
from trainer.node.shared import Node
from trainer.node.spot_notice import spot_notices
from trainer.node.ssh import open_ssh
from trainer.node.stage import read_patiently
from trainer.node.uplink import AWS_ERRORS, Uplink
from trainer.runs import store
from trainer.runs.manifest import Manifest, read_manifest
from trainer.runs.reports import UNFINISHED

log = logging.getLogger("trainer.node")
OWN_SMOKE_SECONDS = 300.0  # of import and of smoke test on the caller's own machine, whose disk may be slow


def main() -> int:
    """Do the node's work and return its exit code."""
    settings = environment.agent_environment()
    node_log = NodeLog(settings.work / "node.log")
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(message)s",
        handlers=[logging.StreamHandler(), node_log],
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
        place=HERE if settings.here else REHEARSAL if settings.rehearsal else ACCOUNT,
        uplink=Uplink(access, settings.bucket),
        status=status,
        origins=Origins(kept=True) if settings.here else open_origins(settings.cache, settings.cache_failed),
    )

    status.progress_bound = float(status.identity.boot_seconds or FIRST_SECONDS)
    node.uplink.moved = node.moved
    if cache := node.origins.cache:
        node.origins.cache = replace(cache, moved=node.moved)
    node.moved()

    def on_signal(number: int, frame: FrameType | None) -> None:
        node.stop(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    notices = spot_notices(node, settings.metadata_endpoint)
    with Sampling(node), HeartbeatThread(node, node_log.read), notices or nullcontext():
        return run(node)


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
    try:
        manifest = fetch_manifest(node)
        node.idle_seconds = idle_seconds_of(manifest)
        check_machine(node, manifest)
        run_command(node, manifest)
    except TrainerError as raised:
        error = raised
        log.error("%s", raised)
    except OSError as raised:
        if raised.errno not in FULL:
            error = _bug(raised)
            raise
        error = TrainingFailed("the disk is full", why=str(raised), do=node.place.more_disk)
        log.error("%s", error)
    except BaseException as raised:  # a bug of ours: report it before the machine ends
        error = _bug(raised)
        raise
    finally:
        exit_code = finish(node, error)
    return exit_code


def _bug(raised: BaseException) -> TrainingFailed:
    log.exception("the agent failed")
    why = f"{type(raised).__name__}: {raised}"
    return TrainingFailed("the node's agent failed", why=why, do="Read `mayfly logs`.")


def fetch_manifest(node: Node) -> Manifest:
    """Return the manifest of the node's run. Raises a TrainerError if S3 does not return it or it is
    malformed.
    """
    key = store.manifest_key(node.status.identity.run_id)
    try:
        body = read_patiently(lambda: node.uplink.read(key), key, stopped=node.is_stopping)
        return read_manifest(body)
    except AWS_ERRORS as raised:
        raise aws_error(raised, "the manifest can't be read") from raised
    except Unsound as raised:
        do = "Launch again, with one version of Mayfly."
        raise TrainingFailed("the manifest can't be read", why=str(raised), do=do) from raised


def idle_seconds_of(manifest: Manifest) -> float:
    """Return how long the job lets its GPUs stand idle, 0 for ever. Raises UsageError for another value."""
    text = str(manifest.job.get("machine", {}).get("idle_stop") or "")
    return MachineSettings(idle_stop=text).idle_seconds


def check_machine(node: Node, manifest: Manifest) -> None:
    """Check the devices that the command needs, and enter the staging phase. Nothing is downloaded to a
    machine that can't run it.
    """
    open_ssh(node, manifest.ssh_key)
    if manifest.command.devices != "none":
        check_devices(node, manifest)
    node.enter("stage")
    node.status.message = f"{len(manifest.inputs)} inputs"


def check_devices(node: Node, manifest: Manifest) -> None:
    """Find the devices and, if the command needs tested ones, run a few training steps on each."""
    tested = manifest.command.devices == "tested"
    torch = check_torch(here=not node.place.has_instances) if tested else "not asked for"
    if node.place.has_instances:
        machine = manifest.machines[node.status.identity.instance_type]
        cores = machine.cores if tested else 1  # a script divides them itself
        devices = find_devices(expected=machine.gpu_count, place=node.place, cores=cores)
        seconds, boot_ends = machine.smoke_seconds, node.status.identity.boot_ends(node.status.phases["boot"])
        import_seconds = (boot_ends - utc_now()).total_seconds()
    else:
        devices, seconds, import_seconds = own_devices(), OWN_SMOKE_SECONDS, OWN_SMOKE_SECONDS
    node.status.devices = devices
    log.info("torch %s, %s: %s", torch, counted(devices.found, "device"), devices.note)
    if tested:
        node.status.message = "first import of torch"
        steps = {"import": import_torch(folder=node.work, seconds=import_seconds)}
        node.status.message = "smoke test"
        steps["smoke"] = smoke_test(devices, folder=node.work, seconds=seconds)
        if boot := node.status.boot:  # of an instance
            node.status.boot = {**boot, **steps}


def finish(node: Node, error: TrainerError | None) -> int:
    """Write result.json and return its exit code; that of the error if S3 never takes it."""
    node.enter("end")
    status = node.status
    reason = node.end_reason
    if error and node.failure:
        error, reason = node.failure, ""
    ended = report.ending(status=status, stop_reason=reason, error=error, now=utc_now())
    unfinished = UNFINISHED[0 if node.end_reason else 1]
    value = report.result(status, ended=ended, unfinished=unfinished, python_packages=node.place.packages)
    try:
        body = json.dumps(value).encode()
        node.uplink.send(status.identity.keys.result, body, patience_seconds=node.patience_seconds)
    except ConnectionFailed as unsent:
        log.error("%s", unsent)
        return unsent.exit_code
    log.info("ended %s, exit code %d", value["state"], value["exit_code"])
    return int(value["exit_code"])


if __name__ == "__main__":
    sys.exit(main())
