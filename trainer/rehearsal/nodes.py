"""Instances that really run: user data as processes of this machine, watched until they end, and each
instance's metadata.

`world` decides the states; this module starts and ends the processes. One thread calls `step` repeatedly;
other threads end nodes, which takes up to the grace period.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from trainer.base.instants import utc_now
from trainer.rehearsal.account import REGION, EmbeddedAccount, Principal
from trainer.rehearsal.catalogue import gpu_count
from trainer.rehearsal.forks import ForkServerProcess
from trainer.rehearsal.instance import NodeProcess, start_node
from trainer.rehearsal.metadata import MetadataView, RoleCredentials, TokenStore, respond
from trainer.rehearsal.node_network import NodeNetwork
from trainer.rehearsal.wire import Answer, Environ
from trainer.rehearsal.world import TAKEN_BACK, AwsError, Instance

log = logging.getLogger(__name__)
CREDENTIALS_LIFE = timedelta(hours=6)


@dataclass(kw_only=True)
class Nodes:
    """Processes of the instances of every account, by instance id."""

    grace_seconds: float  # between SIGTERM and SIGKILL: a node uploads its finished models
    find_cloud: Callable[[str], EmbeddedAccount | None]  # by instance id, for metadata
    forks: ForkServerProcess | None = None  # fork server of the nodes; without it their processes are new
    # Opens the network of machines that have others beside them; None where there is none to be had.
    open_network: Callable[[], NodeNetwork | None] = lambda: None
    _running: dict[str, NodeProcess] = field(default_factory=dict)
    _ending: dict[str, threading.Thread] = field(default_factory=dict)
    _networks: list[NodeNetwork | None] = field(default_factory=list)  # one at most, opened when it is needed
    _tokens: TokenStore = field(default_factory=TokenStore)
    _tokens_lock: threading.Lock = field(default_factory=threading.Lock)

    def step(self, cloud: EmbeddedAccount) -> None:
        """Start instances that are running now, fire timers, notice power-offs, and end instances that shut
        down.
        """
        with cloud.lock:
            started = cloud.world.due_to_start(cloud.clock.now())
            # cloud-init runs scripts alone
            due = [one for one in started if cloud.run_nodes and one.user_data.startswith(b"#!")]
            for instance in due:
                instance.occupied = True
            mine = [one for one in cloud.world.instances.values() if one.occupied]
        for instance in due:
            self._start(cloud, instance)
        for instance in mine:
            node = self._running.get(instance.id)
            if node is not None and instance.id not in self._ending:
                self._watch(cloud, instance, node)

    def close(self) -> None:
        """End every node at once, and wait until none is left."""
        for thread in list(self._ending.values()):
            thread.join(timeout=self.grace_seconds + 5)
        for node in list(self._running.values()):
            node.terminate(grace_seconds=0)
        self._running.clear()
        for network in filter(None, self._networks):
            network.close()
        if self.forks is not None:
            self.forks.close()

    def metadata(self, environ: Environ, body: bytes) -> Answer:
        """Answer /imds/<instance id>/<its secret>/latest/..., as that instance's metadata service would.

        On AWS only the instance can reach this address; here only the instance knows it.
        """
        cloud, instance, rest = self._asking(environ)
        with cloud.lock:
            view = _view(cloud, instance)
        headers = {
            name.removeprefix("HTTP_").replace("_", "-"): str(value) for name, value in environ.items()
        }
        method, path = environ["REQUEST_METHOD"], f"/{rest}"
        with self._tokens_lock:
            status, kind, text = respond(view, self._tokens, method, path, headers, utc_now())
        return status, [("Content-Type", kind)], text

    def file_system(self, environ: Environ, body: bytes) -> Answer:
        """Answer /efs/<instance id>/<its secret>/<file system>/<access point> with the folder that the
        instance may mount.
        """
        cloud, instance, rest = self._asking(environ)
        lent = role_credentials(cloud, instance)
        principal = Principal(kind="NODE", name=instance.id, role=lent.role if lent else "")
        folder = mount(cloud, instance, principal, *f"{rest}/".split("/")[:2])
        return 200, [("Content-Type", "text/plain")], str(folder).encode()

    def _asking(self, environ: Environ) -> tuple[EmbeddedAccount, Instance, str]:
        """Return the account and the running instance whose secret a request's path contains, and the rest of
        the path. Raises AwsError for none.
        """
        _, _, instance_id, secret, rest = f"{environ['PATH_INFO']}////".split("/", 4)
        cloud = self.find_cloud(instance_id)
        known = cloud.keyring.metadata_secret(instance_id) if cloud else ""
        if cloud is not None and hmac.compare_digest(known.encode(), secret.encode()):
            with cloud.lock:
                instance = cloud.world.instances[instance_id]
                if instance.state(cloud.clock.now()) in ("running", "shutting-down"):
                    return cloud, instance, rest.rstrip("/")
        raise AwsError("NotFound", "no such instance runs", 404)

    def metadata_url(self, cloud: EmbeddedAccount, instance_id: str) -> str:
        """Return the URL of an instance's metadata service, which only its node gets."""
        return f"{cloud.endpoint()}/imds/{instance_id}/{cloud.keyring.metadata_secret(instance_id)}"

    def _start(self, cloud: EmbeddedAccount, instance: Instance) -> None:
        instance_type = instance.pool.instance_type
        environment = {
            "AWS_ENDPOINT_URL": cloud.endpoint(),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata_url(cloud, instance.id),
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "MAYFLY_REHEARSAL_GPUS": str(gpu_count(instance_type)),
            "MAYFLY_DESK_PYTHON": sys.executable,
            "MAYFLY_CLOCK_AHEAD": str(round((cloud.clock.now() - utc_now()).total_seconds())),
        }
        network = self._network() if _has_others(cloud, instance) else None
        environment |= network.variables if network else {}
        try:
            self._running[instance.id] = start_node(
                sandbox=sandbox(cloud, instance.id),
                instance_id=instance.id,
                instance_type=instance_type,
                user_data=instance.user_data,
                environment=environment,
                forks=self.forks,
                namespaces=network.spaces if network else (),
            )
        except (OSError, RuntimeError) as error:
            log.error("instance %s could not start: %s", instance.id, error)
            with cloud.lock:
                cloud.world.lost(instance.id, cloud.clock.now())

    def _network(self) -> NodeNetwork | None:
        if not self._networks:
            self._networks.append(self.open_network())
            if self._networks[0] is None:
                log.warning("no network namespace can be had: runs of several machines share this machine's")
        return self._networks[0]

    def _watch(self, cloud: EmbeddedAccount, instance: Instance, node: NodeProcess) -> None:
        try:
            node.tick(cloud.clock.now())
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            log.error("a timer of %s failed: %s", instance.id, error)  # the other units go on
        with cloud.lock:
            if node.poll() == "poweroff":
                cloud.world.power_off(instance.id, cloud.clock.now())
            ends = instance.shutting_down_at is not None or instance.stopped_at is not None
        if ends:
            thread = threading.Thread(target=self._end, args=(cloud, instance, node), daemon=True)
            self._ending[instance.id] = thread
            thread.start()

    def _end(self, cloud: EmbeddedAccount, instance: Instance, node: NodeProcess) -> None:
        sudden = instance.reason == TAKEN_BACK and instance.noticed_at is None  # as of a host that fails
        node.terminate(grace_seconds=0 if sudden else self.grace_seconds)
        self._running.pop(instance.id, None)
        with cloud.lock:
            if instance.id in cloud.world.instances:
                cloud.world.vacated(instance.id, cloud.clock.now())
        self._ending.pop(instance.id, None)


def mount(
    cloud: EmbeddedAccount, instance: Instance, principal: Principal, file_system: str, access_point: str
) -> Path:
    """Return the folder that stands in for an access point of EFS, made if need be. Raises AwsError where AWS
    would not let the instance mount it.
    """
    points = cloud.moto("efs", "DescribeAccessPoints", {"AccessPointId": access_point})["AccessPoints"]
    if not any(point["FileSystemId"] == file_system for point in points):
        raise AwsError("AccessPointNotFound", f"{file_system} has no access point {access_point}.", 404)
    cloud.check_mount(instance, principal, file_system, access_point)
    (described,) = cloud.moto("efs", "DescribeFileSystems", {"FileSystemId": file_system})["FileSystems"]
    # By its name, which the file system of the next session shares: as on AWS, it outlives the command.
    name = next(tag["Value"] for tag in described["Tags"] if tag["Key"] == "Name")
    folder = cloud.root / "efs" / cloud.account / hashlib.sha256(name.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def sandbox(cloud: EmbeddedAccount, instance_id: str) -> Path:
    """Return an instance's folder."""
    return cloud.root / "sandbox" / instance_id


def remove_sandbox(cloud: EmbeddedAccount, instance_id: str) -> None:
    """Remove an instance's folder; call it once AWS would no longer show the instance."""
    shutil.rmtree(sandbox(cloud, instance_id), ignore_errors=True)


def _has_others(cloud: EmbeddedAccount, instance: Instance) -> bool:
    """Return whether one call made several instances, this one among them."""
    with cloud.lock:
        made = [
            one for one in cloud.world.instances.values() if one.reservation_id == instance.reservation_id
        ]
    return len(made) > 1


def _view(cloud: EmbeddedAccount, instance: Instance) -> MetadataView:
    description, now = instance.description, cloud.clock.now()
    return MetadataView(
        instance_id=instance.id,
        instance_type=description["InstanceType"],
        availability_zone=description["Placement"]["AvailabilityZone"],
        region=REGION,
        life_cycle=description.get("InstanceLifecycle", "on-demand"),
        tags=instance.tags,
        tags_enabled=description.get("MetadataOptions", {}).get("InstanceMetadataTags") == "enabled",
        credentials=role_credentials(cloud, instance),
        recommended_at=instance.recommended_at if instance.is_recommended(now) else None,
        taken_at=instance.taken_at if instance.is_noticed(now) else None,
    )


def role_credentials(cloud: EmbeddedAccount, instance: Instance) -> RoleCredentials | None:
    """Return credentials of the role in the instance's profile, or None without a profile or a role that
    trusts EC2.
    """
    profile = instance.description.get("IamInstanceProfile", {}).get("Arn", "").rpartition("/")[2]
    if not profile:
        return None
    try:
        asked = {"InstanceProfileName": profile}
        roles = cloud.moto("iam", "GetInstanceProfile", asked)["InstanceProfile"]["Roles"]
    except AwsError:  # the profile was deleted: AWS stops issuing credentials, too
        return None
    arn = f"arn:aws:ec2:{REGION}:{cloud.account}:instance/{instance.id}"
    role = roles[0]["RoleName"] if roles else ""
    if not roles or not cloud.trusts(role, "ec2.amazonaws.com", arn):
        return None
    own = cloud.credentials("NODE", instance.id, role=role)
    return RoleCredentials(
        role=role,
        access_key=own.access_key,
        secret_key=own.secret_key,
        session_token="rehearsal",
        expires_at=utc_now() + CREDENTIALS_LIFE,
    )
