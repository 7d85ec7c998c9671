"""Lay out a command's files and folders by its contract (docs/scripts-and-machines.md), and run it to the
end (command_run.py).

A training, a user's script and a refresh go this one way; what each may do is data of the manifest's command.
Below the work folder:

    inputs/     the manifest's inputs, by hash
    command/    files/ (its working folder), data/, given/ (job, machine and documents), out/, checkpoints/,
                own/ (events, home, temporary files), and for several pieces copies/ of files/ and events/
    events/     its events as the agent passes them on

Nothing that a command writes is trusted. With a user of its own it runs apart from the agent (own_user.py).
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import trainer
from trainer.base import environment
from trainer.base.cluster import MOST_NODES
from trainer.base.errors import Stopped, TrainingFailed
from trainer.base.files import whole_file
from trainer.base.instants import utc_now
from trainer.cluster.shared_queue import SharedQueue
from trainer.cluster.waiting import SharedPieces
from trainer.job.pieces.queue import places_on
from trainer.job.script import FOLDER, VISIBLE, replaced, variables_in
from trainer.job.script_values import variables_of
from trainer.node.arriving import ArrivingInputs
from trainer.node.command_run import CommandRun
from trainer.node.command_work import PieceToRun
from trainer.node.device_service import Devices
from trainer.node.firewall import admit_only
from trainer.node.other_nodes import Fetches, OtherNodes
from trainer.node.outputs import Outputs
from trainer.node.own_user import OwnUser, close_to_others, leave_mount, make_own_user
from trainer.node.redaction import Redaction
from trainer.node.script_packages import install, install_optuna, install_ray, make_venv
from trainer.node.script_ray import RAY_TOKEN, ray_of_script, ray_variables, serve, token_for
from trainer.node.script_search import asks_optuna, studies_of
from trainer.node.shared import COMMAND, Node
from trainer.node.snapshots import Snapshots
from trainer.node.stack_secrets import own_secrets, read_secrets
from trainer.node.stage import fetch_inputs
from trainer.node.start import await_own_id, lay_out_checkpoints, read_start_file, write_down_nodes
from trainer.node.work_folder import make_scratch, remove_scratch
from trainer.runs.manifest import (
    ARRIVING_FILE,
    DATA,
    FINISHED_FILE,
    GIVEN,
    JOB_FILE,
    MACHINE_FILE,
    Command,
    Manifest,
)
from trainer.runs.snapshots import MOST_SECONDS, TRAINING_SECONDS
from trainer.runs.start_file import StartFile

log = logging.getLogger("trainer.node")
CARRIED_FILE = "carried.json"  # in GIVEN: what was fetched of other nodes' models


class CommandFolders:
    """The folders of a command on its machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = root / "files"  # its working folder
        self.data = root / DATA
        self.given = root / GIVEN  # what Mayfly's own programs read besides data
        self.out = root / "out"
        self.checkpoints = root / "checkpoints"
        self.own = root / "own"  # its events, its home and, if it has a user of its own, its temporary files
        self.copies = root / "copies"  # a copy of the files for each piece with values that runs
        self.events_of_pieces = root / "events"  # a file for each piece with values
        self.venv = root / "venv"

    def make(self) -> None:
        """Make the folders."""
        made = (self.files, self.data, self.given, self.out, self.checkpoints, self.copies)
        for folder in (*made, self.events_of_pieces, self.own / "home", self.own / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)


def run_command(node: Node, manifest: Manifest) -> None:
    """Run the manifest's command to its end, and send what it leaves. Raises a TrainerError if it can't start
    or fails.
    """
    folders = CommandFolders(node.work / COMMAND)
    folders.make()
    try:
        start = lay_out(node, manifest, folders)
        with _arriving(node, manifest, folders):
            _run(node, manifest, folders, start)
    finally:
        remove_scratch(node.work)
        if not node.place.own_user:  # a desk's disk: its packages may be gigabytes
            shutil.rmtree(folders.venv, ignore_errors=True)


def _arriving(node: Node, manifest: Manifest, folders: CommandFolders) -> AbstractContextManager[object]:
    """Return what fetches the inputs that the command waits for itself, if there are any. Raises
    TrainingFailed.
    """
    if not manifest.arriving:
        return nullcontext()
    document = folders.given / ARRIVING_FILE
    known: Any = {"fetched": node.work / "inputs", "root": folders.root, "document": document}
    return ArrivingInputs(node, manifest.arriving, **known)


def _run(node: Node, manifest: Manifest, folders: CommandFolders, start: StartFile) -> None:
    command = manifest.command
    apart = command.user == "own"
    (node.work / "events").mkdir(exist_ok=True)
    if node.place.has_instances:
        secrets = read_secrets(node, command.secrets)
    else:
        secrets = own_secrets(list(command.secrets))
    of_cluster = _cluster_variables(node)
    node.redaction = Redaction({**secrets, **({"RAY_AUTH_TOKEN": node.token} if node.token else {})})
    programs = str(_packages(node, command, folders)) if apart else ""
    pieces = _pieces(manifest, folders, over=start.over)
    found = node.status.devices.found if node.status.devices else 1
    places = places_on(found, command.gpus)
    if not places:
        why, do = f"a value takes {command.gpus:g}", "Lower script.gpus, or name a larger --instance."
        raise TrainingFailed(f"this machine has {found} GPUs", why=why, do=do)
    own_user = (
        _apart(node, command, folders, several=any(piece.copy_of for piece in pieces)) if apart else None
    )
    home = _home(node, folders, own_user, places=len(places)) if apart else {}
    of_agent = {
        "PYTHON": sys.executable,
        "DEVICE": node.status.devices.kind if node.status.devices else "cpu",
        "GIVEN": str(folders.given),
        "EVENTS": str(folders.own),
        **({"CLUSTER": str(node.cluster_file)} if node.cluster else {}),
    }
    allowed = None if node.place.has_instances else environment.visible_gpus()  # by the machine's owner
    gpu_names = [str(gpu) for gpu in range(found)]
    if allowed is not None:
        gpu_names = [name.strip() for name in allowed.split(",")]
    of_ray: dict[str, str] = {}

    def start_of(piece: PieceToRun, gpus: Devices) -> tuple[list[str], dict[str, str]]:
        contract = {
            **command.variables,
            **_contract(folders, piece, gpus),
            "MAYFLY_NOTICE": str(node.notice_file),
            **of_cluster,
            **of_ray,
            **variables_of(dict(piece.values)),
        }
        variables = {**home, **contract, **secrets}
        if command.gpus or allowed is not None:
            variables[VISIBLE] = ",".join(gpu_names[gpu] for gpu in gpus)
        if apart:
            variables = environment.for_script(variables, path=programs)
        else:
            if node.cluster:
                variables[RAY_TOKEN] = str(node.token_file)
            variables = environment.for_program(variables, profiles=folders.given / "gpu_profiles.json")
        return words_of(command, {**of_agent, **contract}), variables

    def tell(event: Mapping[str, Any]) -> None:
        run.tell(event)

    outputs = Outputs(folder=folders.out, node=node, command=command)
    # Others take what this node leaves as soon as it leaves their queue: after its last checkpoints are sent.
    with ExitStack() as of_all_nodes, ExitStack() as open_until_the_end:
        open_until_the_end.enter_context(_snapshots(node, manifest, folders))
        queue, studies, fetches = None, None, None
        if node.cluster is not None and has_ray(node, manifest):
            of_ray |= ray_variables(node, token_for(node, own_user, folders.own))
            known: Any = {"programs": programs, "files": folders.files, "own_user": own_user}
            ray = open_until_the_end.enter_context(ray_of_script(node, {**home, **of_ray}, **known))
            if not node.cluster.is_head:
                node.enter("train")
                serve(node, ray)
                return
        elif node.cluster is not None:
            install_ray(node)
            others = OtherNodes(node, start, folders.checkpoints, leaves=command.leaves, own_user=own_user)
            fetches = Fetches(others, answers=folders.given / CARRIED_FILE)
            open_until_the_end.callback(fetches.close)
            if any(piece.is_one_of_several for piece in manifest.pieces):  # that the agent starts
                of_all = SharedQueue(node.cluster_file, token=node.token_file, is_stopping=node.is_stopping)
                shared = of_all_nodes.enter_context(of_all)
                queue = SharedPieces(shared, tell, fetches, most_carried=len(places))
        if asks_optuna(manifest) and node.place.has_instances:  # the owner of another installs it
            install_optuna(node)
        if node.cluster is None and any(piece.trial for piece in manifest.pieces):
            studies = studies_of(node, manifest, start, tell, machine=machine_document(node, manifest))
        by: Any = {"own_user": own_user, "queue": queue or studies, "fetches": fetches}
        run = CommandRun(node, command, pieces, places, start_of, outputs, **by)
        run.to_the_end()
        if studies and studies.flaw:
            raise TrainingFailed("its search found nothing", why=studies.flaw, do="Read `mayfly logs`.")


def has_ray(node: Node, manifest: Manifest) -> bool:
    """Return whether the command is a script that Ray serves on all nodes."""
    table = manifest.job.get("script")
    return node.cluster is not None and isinstance(table, Mapping) and table.get("ray") is True


def _cluster_variables(node: Node) -> dict[str, str]:
    """Return the variables by which a command knows the attempt's nodes; {} for one node."""
    if node.cluster is None:
        return {}
    return {
        "MAYFLY_NODE": str(node.cluster.node),
        "MAYFLY_NODES": str(len(node.cluster.addresses)),
        "MAYFLY_ADDRESSES": ",".join(node.cluster.addresses),
    }


def _snapshots(node: Node, manifest: Manifest, folders: CommandFolders) -> AbstractContextManager[object]:
    """Return what sends CHECKPOINTS to S3; on a machine that no other takes over from they stay on its
    disk.
    """
    if not node.place.has_instances:
        return nullcontext()
    machine = machine_document(node, manifest)

    def tell(seconds: int) -> None:
        with whole_file(folders.given / MACHINE_FILE) as new:
            new.write_text(json.dumps({**machine, "checkpoint_seconds": seconds}))

    return Snapshots(
        node,
        folders.checkpoints,
        whole_with="manifest.json" if manifest.command.leaves == "models" else "",
        folders=[piece.piece for piece in manifest.pieces if piece.is_one_of_several],
        usd_per_hour=machine.get("usd_per_hour"),
        tell=tell,
    )


def _home(node: Node, folders: CommandFolders, own_user: OwnUser | None, *, places: int) -> dict[str, str]:
    """Return the variables of a command with a user of its own: its home, its temporary files, its share of
    processors.
    """
    scratch = folders.own / "tmp" if own_user else make_scratch(node.work)
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // places))} if places > 1 else {}
    return {"HOME": str(folders.own / "home"), "TMPDIR": str(scratch), **threads}


def words_of(command: Command, variables: Mapping[str, str]) -> list[str]:
    """Return the words of a command, its variables replaced. Raises TrainingFailed for an unknown one."""
    unknown = sorted({name for word in command.words for name in variables_in(word)} - variables.keys())
    if unknown:
        do = "Launch again, with one version of Mayfly."
        raise TrainingFailed("the manifest's command can't be run", why=f"there is no ${unknown[0]}", do=do)
    return [replaced(word, variables) for word in command.words]


def _packages(node: Node, command: Command, folders: CommandFolders) -> Path:
    """Make the environment of a command with a user of its own: the image's packages and its own; return the
    folder of programs.
    """
    python = environment.image_python()
    bare = environment.for_script({}, path=os.defpath)
    image = node.place.image or python
    node.status.python_packages = f"{image}, {command.requirements}" if command.requirements else image
    programs = make_venv(node, python=python, folder=folders.venv, environment=bare)
    if command.requirements:
        listed = folders.files / command.requirements
        install(node, python, venv=folders.venv, requirements=listed, wheels=folders.files, environment=bare)
    return programs


def _apart(node: Node, command: Command, folders: CommandFolders, *, several: bool) -> OwnUser | None:
    """Return the command's own user, which owns its folders and can't read the agent's; None on a desk's
    machine.
    """
    metadata = command.network == "internet and metadata"
    own_user = make_own_user(metadata=metadata) if node.place.own_user else None
    if own_user is not None:
        own_user.give(folders.out, folders.checkpoints, folders.events_of_pieces, folders.own)
        if not several:
            own_user.give(folders.files)
        close_to_others(folders.given, *(path for path in node.work.iterdir() if path != folders.root))
        close_to_others(*(_code().parent / name for name in ("bundle.zip", "code", "environments")))
        leave_mount(_code().parent / "cache")  # the input cache: its files are read by other runs
    return own_user


def _pieces(manifest: Manifest, folders: CommandFolders, *, over: Collection[str] = ()) -> list[PieceToRun]:
    """Return what to start, and make its folders, before the command runs: it could put links there."""
    made = []
    for piece in manifest.pieces or (None,):
        if piece and piece.piece in over:  # by an earlier attempt
            continue
        name = piece.piece if piece and piece.is_one_of_several else ""
        if piece and piece.trial and not piece.values:  # whose values are proposed anew
            shutil.rmtree(folders.checkpoints / name, ignore_errors=True)
        for folder in (folders.out / name, folders.checkpoints / name):
            folder.mkdir(exist_ok=True)
        if name:
            events = folders.events_of_pieces / f"{name}.jsonl"
            copy, prefix = folders.copies / name, f"{name}/"
            known: Any = {"goes_on": any((folders.checkpoints / name).iterdir()), "prefix": prefix}
            made.append(PieceToRun(piece=piece, events=events, folder=copy, copy_of=folders.files, **known))
        else:
            made.append(PieceToRun(piece=piece, events=folders.own / "events.jsonl", folder=folders.files))
    return made


def _contract(folders: CommandFolders, piece: PieceToRun, gpus: Sequence[int]) -> dict[str, str]:
    return {
        "MAYFLY_DATA": str(folders.data),
        "MAYFLY_OUT": str(folders.out / piece.prefix),
        "MAYFLY_CHECKPOINTS": str(folders.checkpoints / piece.prefix),
        "MAYFLY_EVENTS": str(piece.events),
        "MAYFLY_DEVICES": str(len(gpus)),
    }


def lay_out(node: Node, manifest: Manifest, folders: CommandFolders) -> StartFile:
    """Copy the command's files from the bundle, fetch its inputs and earlier checkpoints, and write what it
    is given. Return the attempt's start file, once it names this machine. Raises a TrainerError.
    """
    start, nodes = read_start_file(node), nodes_of(manifest)
    if nodes > 1:  # nothing is staged before it is known who the others are
        start = await_own_id(node, start, nodes=nodes)
        write_down_nodes(node, start)
        if node.cluster and node.place.own_user and os.geteuid() == 0:
            admit_only(node.cluster.addresses)
    packed = Path(trainer.__file__).parent / FOLDER
    for path in manifest.command.files:
        target = folders.files / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(packed / path, target)
    fetched, later = node.work / "inputs", manifest.arriving
    first = [item for item in manifest.inputs if item not in later]
    fetch_inputs(node, first, fetched)
    node.status.inputs = node.origins.to_dict()
    log.info("inputs: %s%s", node.origins.summary, f", {len(later)} to come" if later else "")
    for item in first:  # one object may lie under several names
        target = folders.root / item.path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(fetched / item.stored_as, target)
    lay_out_checkpoints(node, start, folders.checkpoints)
    if nodes == 1:
        start = await_own_id(node, start)
    given = {**manifest.documents, JOB_FILE: manifest.job, MACHINE_FILE: machine_document(node, manifest)}
    tried = {entry["piece"] for entry in start.trials}
    given[FINISHED_FILE] = [*(one for one in start.over if one not in tried), *start.trials]
    node.status.failed_before = [dict(entry) for entry in start.failed]
    for name, document in given.items():
        (folders.given / name).write_text(json.dumps(document))
    if node.is_stopping():
        raise Stopped(f"stopped before {manifest.command.title} began")
    return start


def nodes_of(manifest: Manifest) -> int:
    """Return the number of nodes that the run has. Raises TrainingFailed for another than there may be."""
    table = manifest.job.get("machine")
    nodes = table.get("nodes", 1) if isinstance(table, Mapping) else 1
    if not isinstance(nodes, int) or not 1 <= nodes <= MOST_NODES:
        do = "Launch again, with one version of Mayfly."
        raise TrainingFailed(f"a run can't have {str(nodes)[:40]} nodes", do=do)
    return nodes


def machine_document(node: Node, manifest: Manifest) -> dict[str, Any]:
    """Return the machine's expected hardware, its price and the time it has cost so far.

    The caller's own machine has no expected hardware and no price.
    """
    identity = node.status.identity
    expected = manifest.machines.get(identity.instance_type)
    known: dict[str, Any] = {}
    if expected:
        known = {key: asdict(expected)[key] for key in ("gpu_count", "link", "bus_gb_per_s")}
        dollars = expected.spot_usd_per_hour.get(identity.spot_zone, expected.usd_per_hour)
        known |= {"usd_per_hour": dollars} if dollars is not None else {}
        lost_seconds = expected.lost_seconds.get("spot" if identity.spot_zone else "on_demand", 0.0)
        known |= {"checkpoint_seconds": int(lost_seconds * TRAINING_SECONDS / MOST_SECONDS)}
    paid_seconds = (utc_now() - node.status.phases["boot"]).total_seconds()
    return {"instance_type": identity.instance_type, **known, "paid_seconds": max(0.0, paid_seconds)}


def _code() -> Path:
    """Return the folder of the agent's own code."""
    return Path(trainer.__file__).parents[1]
